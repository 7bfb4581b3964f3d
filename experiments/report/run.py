"""The page of one run: renders `experiments/templates/run.html` from the files of the run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from experiments.report import answers, story, style
from experiments.report.charts import Gallery, Lines, Series, running_mean
from experiments.ring import reading
from experiments.run import store as files
from experiments.run.reading import Run
from experiments.settings import Settings
from experiments.text.templates import render

_SHOWN = 6
"""Number of failures drawn, and of successes."""
_AT_THE_TOP = 3
"""Number of failures drawn on the first screen."""
_PARTS = ("sample", "score", "update")


def page(run: Run, gallery: Gallery) -> str:
    """The page; its charts go to the gallery.

    Raises:
      ValueError: a file of the run is damaged.
    """
    failure = run.family.failure
    charts = {
        "validation": _validation,
        "training": _training,
        "configurations": _configurations,
        "engineer": _engineer,
        "failures": _failures,
    }
    return render(
        "run.html",
        style=style,
        title=f"Run {run.root.resolve().name}",
        run=run,
        learned=_learned(run),
        complete=run.finished >= run.option("loop.rounds"),
        step_seconds=sum(_seconds(run.steps, part) for part in _PARTS),
        changes=list(story.changes(run)),
        warnings={
            "Too few distinct problems": list(story.shortfalls(run)),
            "Little to learn from": list(story.faint_rounds(run)),
        },
        changed=list(files.differences(Settings().to_dict(), run.settings)),
        cost=_cost(run),
        learning=gallery.add(story.learning_curve(run, _window(run))) if run.validations else None,
        drawn={name: list(map(gallery.add, of(run))) for name, of in charts.items()},
        window=_window(run),
        labelled=lambda names: [f"{run.label} {name}" for name in names],
        readings=[(number, reading.summary(found)) for number, found in run.readings],
        advice=reading.advice(run.readings[-1][1]) if run.readings else [],
        measured={
            f"for round {each.number + 1}": each.design["measures"]
            for each in run.rounds
            if each.design and each.design["measures"] is not None
        },
        failures=[failure(c) for _, each in run.validations[:1] for c in each.breakdown.checks],
        answers=answers.of_run(run, _SHOWN),
        at_the_top=_AT_THE_TOP,
        files=gallery.names,
    )


def _learned(run: Run) -> str:
    """What the model learns; for a family from a file in words, with the file's name."""
    name, task = run.option("family"), run.family.texts.task
    return f"{task} ({Path(name).name})" if ".py:" in name and task else name


# Setup


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _seconds(steps: Sequence[Mapping[str, float]], part: str) -> float:
    """The total seconds of one part of the training steps."""
    return sum(step[f"machine/{part}_seconds"] for step in steps)


def _cost(run: Run) -> list[tuple[str, list[float | None]]]:
    """The lines of the table of costs: before training, each round, and the total."""
    per_draw = run.option("training.group_size") * run.option("training.prompts_per_step")
    before = run.before.validation
    initial = None if before is None else before.breakdown.answers
    lines: list[tuple[str, list[float | None]]] = [
        ("before training", [*[None] * 5, initial, *[None] * 4])
    ]
    for each in run.rounds:
        numbers: list[float | None] = [
            each.generated["made"] if each.generated else None,
            len(each.steps),
            sum(step["updates"] for step in each.steps),
            per_draw * sum(step["draws"] for step in each.steps),
            per_draw * sum(step["draws"] * step["completion_tokens_mean"] for step in each.steps),
            each.validation.breakdown.answers if each.validation else None,
            len(each.design["raw_texts"]) if each.design else None,
            *(_seconds(each.steps, part) for part in _PARTS),
        ]
        lines.append((f"round {each.number}", numbers))
    columns = zip(*(numbers for _, numbers in lines), strict=True)
    return [*lines, ("all", list(map(_sum, columns)))]


# Validation


def _names(run: Run) -> list[str]:
    """The names of the validations."""
    return [str(number or "start") for number, _ in run.validations]


def _validation(run: Run) -> Iterator[Lines]:
    validations, names = run.validations, _names(run)
    for kind in run.kinds if validations else ():
        lines = []
        for i, group in enumerate(validations[0][1].breakdown.names):
            seen = [each.breakdown.outcome(group) for _, each in validations]
            by_group = [None if one is None else 100 * getattr(one, f"{kind}_rate") for one in seen]
            lines.append(Series(f"{run.label} {group}", names, by_group, look=i))
        rates = [100 * each.rate(kind) for _, each in validations]
        lines.append(Series("all", names, rates, look=None))
        title = f"{kind} answers by {run.label}"
        yield Lines(f"validation_{kind}", title, "after round", "percent", lines, (0, 100))


# Training


_PANELS = yaml.safe_load(Path(__file__).with_name("panels.yaml").read_text(encoding="utf-8"))
"""The charts of training; the file documents its keys."""


def _window(run: Run) -> int:
    """Steps in the running mean of a training metric."""
    return max(1, round(len(run.steps) / 30))


def _training(run: Run) -> Iterator[Lines]:
    steps, window = run.steps, _window(run)
    for panel in _PANELS:
        names = dict(panel.get("lines", {}))
        if prefix := panel.get("lines_by_group"):
            keys = (key for step in steps for key in step if key.startswith(prefix))
            names = {key: f"{run.label} {key.removeprefix(prefix)}" for key in keys}
        lines: list[Series] = []
        if "optimal" not in run.kinds:
            names.pop("task/optimal", None)
        for i, (key, name) in enumerate(names.items()):
            known = [(n, step[key]) for n, step in enumerate(steps, 1) if step.get(key) is not None]
            if not known or (panel.get("often_zero") and not any(value for _, value in known)):
                continue
            places = [float(n) for n, _ in known]
            values = [panel.get("scale", 1) * value for _, value in known]
            if window > 1 and len(names) == 1:
                lines.append(Series(f"{name}, every step", places, values, look=i, faint="-"))
            lines.append(Series(name, places, running_mean(values, window), look=i))
        if lines:
            yield Lines(
                panel["name"].format(run.label),
                panel["title"].format(run.label),
                "training step",
                panel["unit"],
                lines,
                y_range=panel.get("y_range"),
                begins=[step + 0.5 for step in story.ends(run)[:-1]],
                markers=False,
            )


# Configurations


def _configurations(run: Run) -> Iterator[Lines]:
    begun = [(each, each.config) for each in run.rounds if each.config is not None]
    rounds = [str(each.number) for each, _ in begun]
    made = [each.generated["rows"] if each.generated else {} for each, _ in begun]
    for name in begun[0][1].parameters if begun else ():
        lines = []
        for i, row in enumerate(begun[0][1].rows):
            asked = [config[row, name] for _, config in begun]
            reached = [rows[row]["achieved"].get(name) if row in rows else None for rows in made]
            lines.append(Series(f"{run.label} {row}", rounds, asked, look=i))
            lines.append(Series(f"{run.label} {row}, made", rounds, reached, look=i, faint="o"))
        highest = max(value for line in lines for value in line.y if value is not None)
        title = f"{name.replace('_', ' ')}, asked and made"
        yield Lines(f"configuration_{name}", title, "round", name, lines, (0, max(1, highest)))


# Designs


def _engineer(run: Run) -> Iterator[Lines]:
    lines: list[Series] = []
    for each in run.rounds:
        if each.engineer_steps:
            numbers = [float(step["step"]) for step in each.engineer_steps]
            values = [step["metrics"]["loss"] for step in each.engineer_steps]
            before = f"before round {each.number + 1}"
            lines.append(Series(before, numbers, values, look=len(lines)))
    if lines:
        title = "loss of lessons from hindsight"
        yield Lines("engineer_loss", title, "step", "nats a token", lines)


# Failures


def _failures(run: Run) -> Iterator[Lines]:
    found = [each.breakdown for _, each in run.validations]
    lines = [
        Series(
            run.family.failure(check),
            _names(run),
            [100 * each.failures(check) / each.answers for each in found],
            look=i,
        )
        for i, check in enumerate(found[0].checks if found else ())
    ]
    if lines:
        yield Lines("failures", "failed checks", "after round", "percent", lines)
