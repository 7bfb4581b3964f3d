"""The page of one run."""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engineer.space import Configuration
from experiments.report import answers, measures, published_fractions
from experiments.report.charts import Gallery, Lines, Series, running_mean
from experiments.report.page import (
    DASH,
    NOTHING,
    Content,
    Heat,
    Html,
    Section,
    bullets,
    charts,
    document,
    duration,
    element,
    files_section,
    fold,
    heading,
    join,
    number,
    paragraph,
    percent,
    table,
    text_block,
    tiles,
)
from experiments.report.reading import Design, Round, Run, Validation, failure
from experiments.settings import Settings
from experiments.statistics import wilson

_SHOWN = 6
"""Failures drawn, and as many successes."""
_PARTS = ("sample", "score", "update")
_COST = (
    "instances",
    "steps",
    "updates",
    "answers sampled",
    "tokens sampled",
    "validation answers",
    "design answers",
    "sampling, s",
    "scoring, s",
    "updating, s",
)
_NAMES = {"data_ratio": "share of the set", "hole_ratio": "holes", "wait_ratio": "waits"}


def page(run: Run, gallery: Gallery) -> Html:
    """The page; its charts go to the gallery.

    Raises:
      ValueError: a file of the run is damaged.
    """
    sections = [
        Section("set-up", "What was run", _set_up(run)),
        Section("validation", "Validation", _validation(run, gallery)),
        Section("training", "Training", _training(run, gallery)),
        Section("configurations", "Configurations", _configurations(run, gallery)),
        Section("designs", "Designs", _designs(run, gallery)),
        Section("failures", "What fails", _failures(run, gallery)),
        Section("answers", "Answers, drawn", _answers(run)),
        Section("limits", "What the numbers do not show", _limits(run)),
    ]
    if gallery.names:
        sections.append(Section("files", "Files", files_section(gallery.names)))
    return document(f"Run {run.root.resolve().name}", _introduction(run), sections)


def option(settings: Mapping[str, Any], path: str) -> Any:
    """One option by its path, such as "engineer.designer"; None in runs that do not know it."""
    found: Any = settings
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


# The top of the page


def _introduction(run: Run) -> Html:
    validations = run.validations
    text = paragraph(
        "A language model plans collision-free paths for several agents on frozen lakes, is "
        "trained on that by reinforcement learning, and after every round a designer writes the "
        "configuration of the next training environment."
    )
    finished = sum(each.validation is not None for each in run.rounds)
    rounds = option(run.settings, "loop.rounds")
    facts: list[tuple[Content, Content, Content]] = []
    if validations:
        first, last = validations[0][1], validations[-1][1]
        for name in ("valid", "optimal"):
            before, after = (_rate(each, name) for each in (first, last))
            if len(validations) == 1:
                figure = percent(after)
                remark = "before training" if validations[0][0] == "start" else ""
            else:
                figure = f"{percent(before)} → {percent(after)}"
                change = 100 * (after - before)
                remark = f"{change:+.1f} points since {_when(validations[0][0])}"
            facts.append((f"{name} answers in validation", figure, remark))
    facts.append(("rounds finished", f"{finished} of {rounds}", f"{len(run.steps)} training steps"))
    facts.append(
        (
            "designer",
            str(option(run.settings, "engineer.designer")),
            f"context {option(run.settings, 'engineer.context')}"
            if _reads_context(run)
            else "reads no context",
        )
    )
    parts = [_seconds(run.steps, part) for part in _PARTS]
    seconds = sum(part for part in parts if part is not None)
    if run.seconds is not None and run.seconds > seconds:
        facts.append(("wall time", duration(run.seconds), "of all processes that worked on it"))
    elif seconds:
        facts.append(("time in training steps", duration(seconds), "not the whole run, see below"))
    state = NOTHING
    if not validations:
        state = paragraph(element("b", "No validation of this run has finished yet."))
    elif finished < (rounds or 0):
        state = paragraph(element("b", f"This run is not complete: {finished} of {rounds} rounds."))
    return join([text, tiles(facts), state])


def _reads_context(run: Run) -> bool:
    return option(run.settings, "engineer.designer") in ("current", "base", "endpoint")


def _rate(validation: Validation, name: str) -> float:
    breakdown = validation.breakdown
    return breakdown.valid_rate if name == "valid" else breakdown.optimal_rate


def _when(name: str) -> str:
    return "the start" if name == "start" else f"round {name}"


# What was run


def _set_up(run: Run) -> Html:
    def of(path: str) -> str:
        found = option(run.settings, path)
        return "(not recorded)" if found is None else str(found)

    validations = run.validations
    count = validations[-1][1].breakdown.answers if validations else of("validation.num_instances")
    sizes = option(run.settings, "environment.sizes") or ()
    mesh = option(run.settings, "mesh") or {}
    facts = [
        ("model", f"{of('model.path')}, computed in {of('model.dtype')}"),
        ("seed", of("seed")),
        ("lakes", f"{', '.join(f'{s}x{s}' for s in sizes)}; {of('environment.num_agents')} agents"),
        (
            "training",
            f"{of('loop.rounds')} rounds of {of('environment.num_instances')} instances, "
            f"{of('training.epochs')} epochs each; a step takes {of('training.prompts_per_step')} "
            f"instances with {of('training.group_size')} answers to each",
        ),
        (
            "validation",
            f"{count} fixed instances, one answer each, sampled at temperature "
            f"{of('validation.temperature')} with up to {of('validation.max_new_tokens')} tokens",
        ),
        (
            "designer",
            f"{of('engineer.designer')}, first configuration {of('engineer.start')}"
            + (
                f", context {of('engineer.context')}, decoding {of('engineer.decoding')}"
                if _reads_context(run)
                else ""
            ),
        ),
        ("devices", str(run.versions.get("devices", "not recorded"))),
        ("mesh", ", ".join(f"{name} {size}" for name, size in mesh.items())),
    ]
    versions = [(name, str(value)) for name, value in run.versions.items() if name != "devices"]
    plain = dict(_flat(Settings().to_dict()))
    changed = [
        (path, json.dumps(value), json.dumps(plain[path]) if path in plain else DASH)
        for path, value in _flat(run.settings)
        if path not in plain or json.loads(json.dumps(plain[path])) != value
    ]
    return join(
        [
            table("What was run", ("what", "value"), facts, text=True),
            heading("What it cost"),
            _cost(run),
            fold(
                f"Options that differ from the defaults ({len(changed)})",
                table("Changed options", ("option", "value", "default"), changed, text=True),
            ),
            fold("All options", text_block(json.dumps(run.settings, indent=1))),
            fold(
                "Versions and machine", table("Versions", ("what", "version"), versions, text=True)
            ),
        ]
    )


def _flat(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _seconds(steps: Sequence[Mapping[str, float]], part: str) -> float | None:
    """What a part of the training steps took; None if no step says."""
    name = f"machine/{part}_seconds"
    known = [step[name] for step in steps if name in step]
    return sum(known) if known else None


def _cost(run: Run) -> Html:
    group = option(run.settings, "training.group_size") or 0
    prompts = option(run.settings, "training.prompts_per_step") or 0
    initial = None if run.initial is None else run.initial.breakdown.answers
    rows: list[tuple[str, list[float | None]]] = [
        ("before training", [*[None] * 5, initial, *[None] * (len(_COST) - 6)])
    ]
    for each in run.rounds:
        sampled = [step.get("draws", 1.0) * prompts * group for step in each.steps]
        lengths = [step.get("completion_tokens_mean", 0.0) for step in each.steps]
        rows.append(
            (
                f"round {each.index}",
                [
                    None if each.generated is None else each.generated["made"],
                    len(each.steps),
                    sum(step.get("updates", 0.0) for step in each.steps),
                    sum(sampled),
                    sum(a * b for a, b in zip(sampled, lengths, strict=True)),
                    None if each.validation is None else each.validation.breakdown.answers,
                    None if each.design is None else len(each.design.design["raw_texts"]),
                    *(_seconds(each.steps, part) for part in _PARTS),
                ],
            )
        )
    totals: list[float | None] = []
    for column in zip(*(figures for _, figures in rows), strict=True):
        known = [value for value in column if value is not None]
        totals.append(sum(known) if known else None)
    rows.append(("all", totals))
    return join(
        [
            table(
                "Cost by round",
                ("", *_COST),
                [(name, *(number(value, 0) for value in figures)) for name, figures in rows],
            ),
            paragraph(
                "Seconds by part are wall time of the training steps on the machine above, with "
                "what was compiled within them. Making the instances, validating, designing and "
                "saving are not in them, and a step that was done again after an interruption "
                "counts once.",
                class_="note",
            ),
        ]
    )


# Validation


def _validation(run: Run, gallery: Gallery) -> Html:
    validations = run.validations
    if not validations:
        return paragraph("No validation has finished yet.")
    sizes = validations[0][1].breakdown.names
    names = {float(i): name for i, (name, _) in enumerate(validations)}
    figures = []
    for kind in ("valid", "optimal"):
        overall = []
        for _, each in validations:
            rate, count = _rate(each, kind), each.breakdown.answers
            overall.append((rate, *wilson(round(rate * count), count)))
        mean, low, high = (
            [100 * value for value in column] for column in zip(*overall, strict=True)
        )
        lines = [Series("all sizes", tuple(names), mean, low, high, look=None)]
        for i, size in enumerate(sizes):
            rates = []
            for _, each in validations:
                row = each.breakdown.outcome(size)
                rates.append(None if row is None else 100 * getattr(row, f"{kind}_rate"))
            lines.append(Series(f"{size}x{size}", tuple(names), rates, look=i))
        figures.append(
            gallery.add(
                Lines(
                    f"validation_{kind}",
                    f"{kind} answers in validation",
                    f"Share of {kind} answers by round, for all lakes and for each size.",
                    "after round",
                    "percent",
                    tuple(lines),
                    names,
                    (0, 100),
                )
            )
        )
    rows = []
    for name, each in validations:
        count = each.breakdown.answers
        cells: list[Content] = [name]
        for kind in ("valid", "optimal"):
            share = _rate(each, kind)
            interval = wilson(round(share * count), count)
            cells += [percent(share), f"{percent(interval.low)} to {percent(interval.high)}"]
        rows.append([*cells, number(each.tokens, 1), percent(each.truncated)])
    header = (
        "after round",
        "valid",
        "95 % interval",
        "optimal",
        "95 % interval",
        "tokens an answer",
        "cut off",
    )
    by_size = []
    for name, each in validations:
        cells = [name]
        for size in sizes:
            row = each.breakdown.outcome(size)
            cells.append(
                DASH if row is None else f"{percent(row.valid_rate)} / {percent(row.optimal_rate)}"
            )
        by_size.append(cells)
    return join(
        [
            charts(*figures),
            table("Validation by round", header, rows),
            heading("Valid / optimal by lake size"),
            table(
                "Validation by round and size",
                ("after round", *(f"{size}x{size}" for size in sizes)),
                by_size,
            ),
            paragraph(
                "Every checkpoint answers the same instances once. Bars and intervals are score "
                "intervals of one share at 95 %: they tell how sure the share is for more lakes "
                "like these, not how another seed of training would have come out.",
                class_="note",
            ),
        ]
    )


# Training


@dataclasses.dataclass(frozen=True)
class _Panel:
    """One chart of training: its file, title, unit, and (key, name) of its lines."""

    name: str
    title: str
    unit: str
    keys: tuple[tuple[str, str], ...]
    scale: float = 1.0
    y_range: tuple[float, float] | None = None


_PANELS = (
    _Panel("training_reward", "reward", "mean reward", (("reward", "reward"),)),
    _Panel(
        "training_share",
        "shares of the training batches",
        "percent",
        (
            ("task/valid", "valid answers"),
            ("task/optimal", "optimal answers"),
            ("nondegenerate_fraction", "groups with signal"),
        ),
        100,
        (0, 100),
    ),
    _Panel(
        "training_length",
        "length of answers",
        "tokens",
        (("completion_tokens_mean", "mean"), ("completion_tokens_p90", "90th percentile")),
    ),
    _Panel("training_entropy", "entropy of the policy", "nats a token", (("entropy", "entropy"),)),
    _Panel(
        "training_clip",
        "clipped ratios",
        "percent of tokens",
        (("clip_low", "below"), ("clip_high", "above")),
        100,
    ),
    _Panel("training_gradient", "norm of the gradient", "norm", (("grad_norm", "norm"),)),
)


_OFTEN_ZERO = ("clip_low", "clip_high")
"""With one update a step nothing is ever clipped; such lines are left out."""


def _training(run: Run, gallery: Gallery) -> Html:
    steps = run.steps
    if not steps:
        return paragraph("No training step has finished yet.")
    begins = [0, *itertools.accumulate(len(each.steps) for each in run.rounds)][: len(run.rounds)]
    window = max(1, round(len(steps) / 30))
    sizes = option(run.settings, "environment.sizes") or ()
    by_size = _Panel(
        "training_valid_by_size",
        "valid training answers by size",
        "percent",
        tuple((f"task/valid_{size}", f"{size}x{size}") for size in sizes),
        100,
        (0, 100),
    )
    figures = []
    for panel in (*_PANELS[:2], by_size, *_PANELS[2:]):
        lines: list[Series] = []
        for i, (key, name) in enumerate(panel.keys):
            known = [(n, step[key]) for n, step in enumerate(steps, 1) if step.get(key) is not None]
            if not known or (key in _OFTEN_ZERO and not any(value for _, value in known)):
                continue
            places = [float(n) for n, _ in known]
            values = [panel.scale * value for _, value in known]
            if window > 1 and len(panel.keys) == 1:
                lines.append(Series(f"{name}, every step", places, values, look=i, faint=True))
            lines.append(Series(name, places, running_mean(values, window), look=i))
        if lines:
            figures.append(
                gallery.add(
                    Lines(
                        panel.name,
                        panel.title,
                        f"By training step: {', '.join(line.name for line in lines)}.",
                        "training step",
                        panel.unit,
                        tuple(lines),
                        y_range=panel.y_range,
                        begins=[begin + 0.5 for begin in begins],
                        markers=False,
                    )
                )
            )
    smooth = f"Lines are means over {window} steps. " if window > 1 else ""
    return join(
        [
            charts(*figures),
            paragraph(
                f"{smooth}A dotted line is where a round begins, with a training set of its own: "
                "what changes there may come from easier or harder lakes as well as from a better "
                "model. A group has signal if its rewards are not all equal.",
                class_="note",
            ),
        ]
    )


# Configurations


def _configurations(run: Run, gallery: Gallery) -> Html:
    made = [(each, each.config) for each in run.rounds if each.config is not None]
    if not made:
        return paragraph("No training set has been made yet.")
    rounds = {float(each.index): str(each.index) for each, _ in made}
    sizes = made[0][1].rows
    parameters = made[0][1].parameters
    figures = []
    for name in parameters:
        lines = tuple(
            Series(
                f"{size}x{size}", tuple(rounds), [config[size, name] for _, config in made], look=i
            )
            for i, size in enumerate(sizes)
        )
        title = _NAMES.get(name, name)
        figures.append(
            gallery.add(
                Lines(
                    f"configuration_{name}",
                    title if name == "data_ratio" else f"ratio of {title}",
                    f"The asked {name} of every lake size by round.",
                    "round",
                    name,
                    lines,
                    rounds,
                    (0, 1),
                )
            )
        )
    return join(
        [
            charts(*figures),
            *published_fractions.beside(
                [(f"round {each.index}", config) for each, config in made], gallery
            ),
            heading("Asked and made"),
            _made(run),
            bullets(_notes(run)),
        ]
    )


def _made(run: Run) -> Html:
    rows = []
    for each in run.rounds:
        if each.config is None or each.generated is None:
            continue
        for row in each.generated["sizes"]:
            size = str(row["size"])
            asked = dict(
                zip(
                    each.config.parameters,
                    each.config.values[each.config.rows.index(size)],
                    strict=True,
                )
            )
            rows.append(
                (
                    f"{each.index}: {size}x{size}",
                    f"{asked['data_ratio']:.2f} / {row['achieved_data_ratio']:.2f}",
                    f"{asked['hole_ratio']:.2f} / {row['holes'] / int(size) ** 2:.2f}",
                    f"{asked['wait_ratio']:.2f} / {row['achieved_wait_ratio']:.2f}",
                    f"{row['made']} of {row['asked']}",
                    f"{row['made_wait']} of {row['asked_wait']}",
                    f"{row['candidates']:,}",
                )
            )
    header = (
        "round: lake",
        "share, asked / made",
        "holes, asked / made",
        "waits, asked / made",
        "instances made",
        "with a wait",
        "lakes drawn",
    )
    return table("Asked and achieved ratios of every round", header, rows)


def _notes(run: Run) -> Iterator[str]:
    for each in run.rounds:
        if each.generated is None:
            continue
        if each.generated.get("note"):
            yield f"Round {each.index}: {each.generated['note']}."
        short = [
            f"{row['size']}x{row['size']}"
            for row in each.generated["sizes"]
            if row["made_wait"] < row["asked_wait"] or row["made"] < row["asked"]
        ]
        if short:
            yield (
                f"Round {each.index}: of {', '.join(short)} the generator found fewer instances, "
                "or fewer that need a wait, than were asked for."
            )


# Designs


def _designs(run: Run, gallery: Gallery) -> Html:
    designed = [(each, each.design) for each in run.rounds if each.design is not None]
    if not designed:
        return paragraph("Nothing has been designed yet.")
    cards = [_design(run, each, design) for each, design in designed]
    found = {
        f"for round {each.index + 1}": design.measures
        for each, design in designed
        if design.measures is not None
    }
    trained = [each for each in run.rounds if each.engineer_steps]
    return join(
        [
            element("div", *cards, class_="designs"),
            *(
                [heading("What the designs did with their evidence"), measures.of_designs(found)]
                if found
                else []
            ),
            *(
                [heading("Training of the engineer"), _engineer(trained, gallery)]
                if trained
                else []
            ),
        ]
    )


def _design(run: Run, each: Round, design: Design) -> Html:
    facts = design.design
    told: list[Content] = []
    if facts["kept_previous"]:
        told.append(paragraph(element("b", "An earlier configuration was kept: "), facts["reason"]))
    if facts["repairs"]:
        told += [
            paragraph("Repairs on the way from the answer to the configuration:"),
            bullets(facts["repairs"]),
        ]
    elif facts["raw_texts"]:
        told.append(paragraph("Nothing had to be repaired.", class_="note"))
    if facts.get("summary"):
        told.append(paragraph("Its own explanation: ", element("q", facts["summary"])))
    if each.config == design.config:
        told.append(paragraph("All numbers stay as they were.", class_="note"))
    elif each.config is not None:
        told.append(_changes(each.config, design.config))
    if design.reading is not None:
        scores = design.reading["scores"]
        told.append(paragraph("A reader's judgement, from 1 to 5:"))
        told.append(
            table(
                "A reader's judgement",
                ("question", "score"),
                [
                    (question.replace("_", " "), "no occasion" if score is None else score)
                    for question, score in scores.items()
                ],
            )
        )
    if design.answers.strip():
        told.append(
            fold(f"What it answered ({len(facts['raw_texts'])})", text_block(design.answers))
        )
    if design.context.strip():
        told.append(fold("What it was shown", text_block(design.context)))
    title = f"For round {each.index + 1}, by {facts['source']}"
    return element("div", heading(title), *told, class_="design")


def _changes(before: Configuration, after: Configuration) -> Html:
    rows = []
    for row in after.rows:
        cells: list[Content] = [f"{row}x{row}"]
        for name in after.parameters:
            new = after[row, name]
            if row in before.rows and name in before.parameters:
                old = before[row, name]
                same = f"{old:.2f}" == f"{new:.2f}"
                cells.append(f"{new:.2f}" if same else f"{old:.2f} → {new:.2f}")
            else:
                cells.append(f"{new:.2f}")
        rows.append(cells)
    header = ("lake", *(_NAMES.get(name, name) for name in after.parameters))
    return table("What the design changed", header, rows)


def _engineer(trained: Sequence[Round], gallery: Gallery) -> Html:
    lines = tuple(
        Series(
            f"before round {each.index + 1}",
            [float(step["step"]) for step in each.engineer_steps],
            [step["metrics"]["reward"] for step in each.engineer_steps],
            look=i,
        )
        for i, each in enumerate(trained)
    )
    chart = Lines(
        "engineer_reward",
        "reward of tried designs",
        "Mean reward of the tried designs by step of training as engineer.",
        "step",
        "mean reward",
        lines,
    )
    return charts(gallery.add(chart))


# Failures


def _failures(run: Run, gallery: Gallery) -> Html:
    validations = run.validations
    if not validations:
        return paragraph("No validation has finished yet.")
    names = {float(i): name for i, (name, _) in enumerate(validations)}
    checks = validations[0][1].breakdown.checks
    lines = tuple(
        Series(
            failure(check),
            tuple(names),
            [
                100 * each.breakdown.failures(check) / each.breakdown.answers
                for _, each in validations
            ],
            look=i,
        )
        for i, check in enumerate(checks)
    )
    chart = Lines(
        "failures",
        "what goes wrong in answers",
        "Share of the validation answers that fail in each of the eight ways, by round.",
        "after round",
        "percent",
        lines,
        names,
    )
    tables = [
        fold(
            "Before training" if name == "start" else f"After round {name}",
            _failure_table(each, checks),
        )
        for name, each in validations[:-1]
    ]
    last = validations[-1][0]
    return join(
        [
            charts(gallery.add(chart)),
            paragraph(
                "An answer may fail in several ways and then counts for each; one that cannot be "
                "read, or speaks of another number of agents, counts there alone."
            ),
            heading(
                f"By lake size, {'before training' if last == 'start' else f'after round {last}'}"
            ),
            _failure_table(validations[-1][1], checks),
            *tables,
        ]
    )


def _failure_table(validation: Validation, checks: Sequence[str]) -> Html:
    rows = []
    for row in validation.breakdown.by_group:
        cells: list[Content] = [f"{row.name}x{row.name}", row.answers]
        rows.append([*cells, *(Heat(row.failures(check) / row.answers) for check in checks)])
    header = ("lake", "answers", *(failure(check) for check in checks))
    return table("Share of answers that fail in each way, by lake size", header, rows)


# Answers


def _answers(run: Run) -> Html:
    drawn = answers.of_run(run, _SHOWN, "")
    if drawn is None:
        return paragraph("No validation has finished yet.")
    return join([paragraph(answers.LEGEND), answers.PAUSE, drawn])


# The end of the page


def _limits(run: Run) -> Html:
    rounds = option(run.settings, "loop.rounds") or 0
    items: list[Content] = [
        "This is one run with one seed. How another seed would have come out is not known from it; "
        "differences of a few points between runs are to be expected.",
        "Nothing here says that the designs helped. That takes runs whose configuration stays "
        "fixed or is drawn at random, with equal budgets and several seeds: a study.",
        "The designer sees the results on the validation set after every round, and people choose "
        "options by it. It is no untouched test set; the benchmark is.",
        f"Validation has lakes of the trained sizes with "
        f"{option(run.settings, 'environment.num_agents')} agents. It does not show what the model "
        "does with more agents, other sizes or other tasks.",
    ]
    temperature = option(run.settings, "validation.temperature")
    if temperature:
        items.append(
            f"Answers were sampled at temperature {temperature}, one for each instance. Greedy "
            "answers, or the best of several, give other shares."
        )
    if option(run.settings, "model.path") == "tiny":
        items.append(
            "The model has about a million parameters and was prepared on the solver's plans. It "
            "exercises the method; what it shows need not hold for a large language model."
        )
    if any(_notes(run)):
        items.append(
            "The generator could not make everything that was asked for (see Configurations), so "
            "some rounds were trained on something else than their configuration says."
        )
    if sum(each.validation is not None for each in run.rounds) < rounds:
        items.append("The run is not complete; what is shown may change as it goes on.")
    items.append(
        "The measures of the designs say what was changed, not why. A design may follow the "
        "evidence by chance, or for reasons of the grammar or of its training."
    )
    items.append(
        "Figures of the publication come from single runs of Qwen3-4B on lakes of 3x3 to 10x10 "
        "and stand here for their shape alone."
    )
    return bullets(items)
