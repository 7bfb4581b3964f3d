"""Reproduces the publication's tables (arXiv 2606.17682) from a study and its benchmark."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engineer.analysis import MEASURES, QUESTIONS, YES, agreement, judge_design, rules
from engineer.proposal import render_config
from experiments.benchmark.questions import BenchmarkQuestions
from experiments.benchmark.solvers import Solver
from experiments.benchmark.study import MeasuredStudy, compared
from experiments.benchmark.table import METRICS, PUBLISHED, Outcomes, Results
from experiments.families.lakes import published
from experiments.families.lakes.published import Group
from experiments.measurements import Table
from experiments.run import store as files
from experiments.run.reading import read_run
from experiments.statistics import student
from experiments.text.templates import estimate, number
from mapf_jax import benchmark

AGREEMENT = "Agreement of rules and judge"
BY = "by-"
"""Prefix of the names of variants that a server's model designs."""
Judged = Mapping[tuple[str, int], Mapping[str, Any]]
"""Judgements by folder and round of their design."""
_OURS = "Qwen3-4B + GRPO, configuration redesigned by the current checkpoint"
_BY_BASE = "Qwen3-4B + GRPO, redesigned by the untrained base model"
_FULL = "Qwen3-4B + GRPO, redesigned by the current checkpoint from full training details"


@dataclasses.dataclass(frozen=True)
class Shape:
    """One published table.

    Attributes:
      title: for the page.
      variants: the study's variants that it shows, a line each.
      reference: the variant that the others are compared with.
      beside: its published lines; all if empty.
      subsets: its columns are the wait-ratio subsets, with valid answers only, instead of the
        numbers of agents.
      whole: it also has tables by lake size, and the weights before training and models outside
        the study.
      servers: it also has the variants that servers' models design.
    """

    title: str
    variants: tuple[str, ...]
    reference: str
    beside: tuple[str, ...] = ()
    subsets: bool = False
    whole: bool = False
    servers: bool = False


SHAPES = (
    Shape("Main results", ("fixed_random", "v6"), "fixed_random", whole=True),
    Shape("Who designs", ("base", "v6"), "base", (_BY_BASE, _OURS), servers=True),
    Shape("Training details", ("full", "v4", "v6"), "v6", (_FULL, _OURS)),
    Shape("Contexts", ("v1", "v2", "v3", "v4", "v5", "v6"), "v6", subsets=True),
)


def tables(
    study: MeasuredStudy,
    questions: BenchmarkQuestions,
    outcomes: Mapping[str, Outcomes],
    judged: Judged,
) -> list[Table]:
    """All tables: those of `SHAPES`, the data ratios of the published figure, and behaviours."""
    made: list[Table] = []
    for shape in SHAPES:
        names = [name for name in shape.variants if name in study.labels]
        names += [name for name in study.labels if shape.servers and name.startswith(BY)]
        variants = study.variants(outcomes, names)
        shown = [*(study.others(outcomes) if shape.whole else []), *variants]
        results = Results(questions, shown, beside=True)
        rates = published.contexts() if shape.subsets else published.models()
        rates = {name: rates[name] for name in shape.beside or rates}
        columns = results.by_wait(METRICS[0]) if shape.subsets else results.by_agents()
        made.append(results.table(shape.title, columns, rates))
        made += results.by_size() if shape.whole else []
        if shape.reference in names:
            reference = study.labels[shape.reference]
            for metric in METRICS[:1] if shape.subsets else METRICS:
                what = f"answers, {shape.title.lower()}"
                made.append(compared(metric, what, results, variants, reference, Group()))
    return [*results.marked(made), _data_ratios(study), *behaviours(study, judged)]


def _data_ratios(study: MeasuredStudy) -> Table:
    """The data ratios that V6 designs, means over seeds, as in the publication's figure."""
    printed = published.tables()["data_ratio_chosen"]
    chosen: dict[int, list[Mapping[str, Any]]] = {}
    for run in study.found["runs"]:
        for point in run["points"][2:] if run["variant"] == "v6" else ():
            chosen.setdefault(point["round"], []).append(point["config"])
    sizes = list(dict.fromkeys([*map(str, printed["sizes"]), *study.found["rows"]]))
    lines: list[dict[str, Any]] = []
    for index, configs in sorted(chosen.items()):
        of_size = {}
        for size in study.found["rows"]:
            values = dict(enumerate(config[size]["data_ratio"] for config in configs))
            of_size[size] = estimate(student(values), scale=1)
        lines.append({"source": "measured", "round": index, **of_size})
    for index in (1, 2):
        ratios = zip(map(str, printed["sizes"]), printed[f"for_round_{index}"], strict=True)
        lines.append({"source": PUBLISHED, "round": index, **dict(ratios)})
    ordered = [{name: line.get(name) for name in ("source", "round", *sizes)} for line in lines]
    return Table.of("Data ratio by lake size that V6 designs, mean over seeds", ordered)


def judge(study: MeasuredStudy, solver: Solver, path: Path) -> None:
    """Asks an LLM judge about every design of a model that it has not judged yet.

    Args:
      solver: the judge.
      path: JSON lines file that judgements are appended to, with `scores` None where no reply can
        be read.
    """
    files.open_log(path)
    known = judgements(path, solver.options)
    for run in study.found["runs"]:
        found = read_run(study.root / run["folder"])
        for each in found.rounds:
            design, at = each.design, (run["folder"], each.index)
            if not design or not design["answers"].strip() or known.get(at, {}).get("scores"):
                continue
            used = render_config(design["config"], found.family.space)
            made = f"{design['answers']}\n\nUsed next:\n{used}"
            said = judge_design(solver.generate, design["context"], made, run["seed"])
            record = {"folder": at[0], "round": at[1], "judge": solver.options}
            files.append_log(path, [{**record, **(said or {"scores": None})}])


def judgements(path: Path, judge: Mapping[str, Any] | None = None) -> Judged:
    """What one judge said last about each design.

    Args:
      path: the file that `judge` writes.
      judge: options of the judge; those of the last record by default.
    """
    found = files.read_log(path)
    if judge is None and found:
        judge = found[-1].get("judge")
    return {(one["folder"], one["round"]): one for one in found if one.get("judge") == judge}


def behaviours(study: MeasuredStudy, judged: Judged) -> list[Table]:
    """How designs use their evidence, by rules and by a judge, and how well these agree."""
    measures: dict[str, list[Mapping[str, Any]]] = {}
    scores: dict[str, list[Mapping[str, Any]]] = {}
    ruled = []
    for run in study.found["runs"]:
        label = study.labels[run["variant"]]
        for each in read_run(study.root / run["folder"]).rounds:
            if not each.design or not each.design["answers"].strip():
                continue  # No design, or one by a rule.
            measures.setdefault(label, []).append(each.design["measures"])
            said = judged.get((run["folder"], each.index))
            if said and said["scores"]:
                scores.setdefault(label, []).append(said["scores"])
                ruled.append((rules(each.design["measures"]), said["scores"]))
    measured = {n: about["name"] for n, about in MEASURES.items() if not about.get("single")}
    made = [_means("Behaviour of designs, by rules", measured, measures)]
    if scores:
        names = {name: name.replace("_", " ") for name in QUESTIONS}
        made.append(_means("Behaviour of designs, by a judge, from 1 to 5", names, scores))
        lines = [
            {
                "question": names[question],
                **agreement([r[question] for r, _ in ruled], [s[question] for _, s in ruled]),
            }
            for question in QUESTIONS
        ]
        note = f"The judge says yes from {YES} up. Where no rule can tell there are no designs."
        made.append(Table.of(AGREEMENT, lines, note))
    return made


def _means(
    title: str, names: Mapping[str, str], found: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Table:
    """The mean of each number by variant, over the designs that have it."""
    lines = []
    for name, text in names.items():
        cells: dict[str, Any] = {"": text}
        for label, designs in found.items():
            numbers = [one[name] for one in designs if one.get(name) is not None]
            cells[label] = number(statistics.fmean(numbers) if numbers else None)
        lines.append(cells)
    return Table.of(title, lines)


def missing(
    study: MeasuredStudy,
    questions: BenchmarkQuestions,
    outcomes: Mapping[str, Outcomes],
    judged: Judged,
    made: Sequence[Table],
) -> list[str]:
    """A sentence for each result of the publication that the tables lack so far."""
    sentences = []
    for shape in SHAPES:
        if absent := [name for name in shape.variants if name not in study.labels]:
            sentences.append(f"{shape.title}: {', '.join(absent)} are not among the variants.")
    for run in study.found["runs"]:
        if run["status"] != "finished":
            why = f" ({run['error']})" if run["error"] else ""
            label = study.labels[run["variant"]]
            sentences.append(f"{label}, seed {run['seed']}: {run['status']}{why}.")
    names = dict.fromkeys(name for name, _ in study.checkpoints.values())
    whole = {name for name, one in outcomes.items() if one.answered.all()}
    if unasked := [name for name in names if name not in whole]:
        sentences.append(f"Not asked everything: {', '.join(unasked)}.")
    if not any(one.noted["options"]["kind"] == "endpoint" for one in outcomes.values()):
        sentences.append("Proprietary models, asked zero-shot: no --endpoint.")
    if failed := sum(not one["scores"] for one in judged.values()):
        sentences.append(f"No readable judgement: {failed} of {len(judged)} designs.")
    elif AGREEMENT not in [table.title for table in made]:
        sentences.append("Behaviours that no rule can tell: no --judge.")
    if refused := Results(questions, []).refused:
        sentences.append(f"No published figure is comparable: {refused}.")
    return sentences


def count(name: str, per_cell: int | None) -> int:
    """The number of instances of a built-in set."""
    makes = {"small": 2 * 3, "builtin": sum(11 - s for s in benchmark.SMALLEST_SIZE.values())}
    each = len(benchmark.HOLE_RATIOS) * (per_cell or benchmark.PER_HOLE_RATIO)
    return makes[name] * len(benchmark.WAIT_RATIOS) * each
