"""From verdicts to tables: shares with intervals by agents, size and subset, beside published ones.

All shares are in percent. The share of several cells is the mean of the cells' shares, as in the
publication; where cells are equally full that is the share of all their answers.
"""

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import mapf_jax
from experiments import published
from experiments.benchmark.questions import BenchmarkQuestions
from experiments.speed.records import Table
from experiments.statistics import wilson
from mapf_jax import benchmark

METRICS = ("valid", "optimal")
HERE, PUBLISHED = "measured", f"published ({published.SOURCE})"
_DASH = "-"


@dataclasses.dataclass(frozen=True)
class Share:
    """A share in percent with its 95 % Wilson interval.

    Attributes:
      percent: mean of the shares of the cells.
      low, high: the interval. Of several cells it is that of as many trials as give the mean its
        variance if every cell had the same share; where cells are equally full these are all.
      successes, trials: over all cells.
    """

    percent: float
    low: float
    high: float
    successes: int
    trials: int

    def __str__(self) -> str:
        return f"{self.percent:.1f} ({self.low:.1f} to {self.high:.1f})"


def mean_share(cells: Sequence[np.ndarray]) -> Share | None:
    """The share of bool[n] arrays, each a cell; empty ones are left out, None if all are."""
    counts = [(int(cell.sum()), len(cell)) for cell in cells if len(cell)]
    if not counts:
        return None
    mean = sum(good / trials for good, trials in counts) / len(counts)
    effective = len(counts) ** 2 / sum(1 / trials for _, trials in counts)
    low, high = wilson(min(mean * effective, effective), effective)
    return Share(
        percent=100 * mean,
        low=100 * low,
        high=100 * high,
        successes=sum(good for good, _ in counts),
        trials=sum(trials for _, trials in counts),
    )


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """What one model made of N questions.

    Attributes:
      name: for the tables.
      options: what its answers depend on.
      versions: of what computed them.
      records: its answers, with their verdicts.
      answered: bool[N], there is an answer.
      success: bool[N] by metric; False where there is no answer.
      judged: bool[N] by metric: answered, and for "optimal" the optimum is known.
    """

    name: str
    options: Mapping[str, Any]
    versions: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    answered: np.ndarray
    success: Mapping[str, np.ndarray]
    judged: Mapping[str, np.ndarray]

    @classmethod
    def create(
        cls,
        name: str,
        options: Mapping[str, Any],
        versions: Mapping[str, Any],
        records: Sequence[Mapping[str, Any]],
        questions: BenchmarkQuestions,
    ) -> "Outcomes":
        """From the records of an answer log."""
        row_of = {name: row for row, name in enumerate(questions.names)}
        rows = np.array([row_of[record["id"]] for record in records], int)
        answered = np.zeros(len(questions), bool)
        answered[rows] = True
        success = {metric: np.zeros(len(questions), bool) for metric in METRICS}
        for metric, flags in success.items():
            flags[rows] = [record[metric] for record in records]
        judged = {"valid": answered, "optimal": answered & questions.solved}
        return cls(name, options, versions, records, answered, success, judged)

    @property
    def label(self) -> str:
        """The name, and how far the model has come if it has not answered everything."""
        if self.answered.all():
            return self.name
        return f"{self.name} ({int(self.answered.sum()):,} of {len(self.answered):,} answers)"

    def share(self, metric: str, cells: Sequence[np.ndarray]) -> Share | None:
        """The share over cells, each a bool[N] of its questions.

        None where a cell has no answer yet: questions are not asked in a random order, so the
        mean over the other cells would be that of easier or of harder ones.
        """
        if not all((cell & self.answered).any() for cell in cells):
            return None
        judged = self.judged[metric]
        return mean_share([self.success[metric][cell & judged] for cell in cells])


@dataclasses.dataclass(frozen=True)
class Group:
    """Some questions.

    Attributes:
      key: what they have in common: num_agents, size, wait_ratio, hole_ratio.
      cells: bool[N] each; the share of the group is the mean of theirs.
    """

    key: Mapping[str, float]
    cells: Sequence[np.ndarray]


def groups(questions: BenchmarkQuestions) -> Iterator[Group]:
    """Every group that has a figure, whether in the page or in the CSV file alone."""
    agents, sizes = questions.num_agents, questions.size
    waits, holes = _values(questions.wait_ratio), _values(questions.hole_ratio)

    def cells(mask: np.ndarray) -> list[np.ndarray]:
        pairs = sorted(set(zip(agents[mask].tolist(), sizes[mask].tolist(), strict=True)))
        return [mask & (agents == count) & (sizes == size) for count, size in pairs]

    everything = np.ones(len(questions), bool)
    yield Group({}, cells(everything))
    for wait in waits:
        yield Group({"wait_ratio": wait}, cells(np.isclose(questions.wait_ratio, wait)))
    for count in np.unique(agents).tolist():
        of_count = agents == count
        yield Group({"num_agents": count}, cells(of_count))
        for size in np.unique(sizes[of_count]).tolist():
            yield Group({"num_agents": count, "size": size}, [of_count & (sizes == size)])
        for name, values in (("wait_ratio", waits), ("hole_ratio", holes)):
            column = getattr(questions, name)
            for value in values:
                here = of_count & np.isclose(column, value)
                if here.any():
                    yield Group({"num_agents": count, name: value}, cells(here))


def comparable(questions: BenchmarkQuestions) -> dict[str, str]:
    """Whether published figures may stand beside measured ones.

    Returns:
      For the tables "by size" (and by number of agents) and "by wait subset" the reason why not,
      empty where they may.
    """
    wanted = {
        (agents, size, wait): len(benchmark.HOLE_RATIOS) * benchmark.PER_HOLE_RATIO
        for agents, smallest in benchmark.SMALLEST_SIZE.items()
        for size in range(smallest, benchmark.LARGEST_SIZE + 1)
        for wait in benchmark.WAIT_RATIOS
    }
    found = questions.cells()
    reason = (
        f"the {len(questions):,} instances are not made up as the {sum(wanted.values()):,} "
        "of the published benchmark"
    )
    by_wait = "" if found == wanted else reason
    if questions.partial:
        by_wait = f"only {len(questions):,} of {questions.about['of']:,} instances were asked"
        return {"by size": by_wait, "by wait subset": by_wait}
    pooled: dict[tuple[int, int], list[int]] = {}
    for counts in (found, wanted):
        total: dict[tuple[int, int], int] = {}
        for (agents, size, _), count in counts.items():
            total[agents, size] = total.get((agents, size), 0) + count
        for cell, count in total.items():
            pooled.setdefault(cell, []).append(count)
    same = all(len(pair) == 2 and pair[0] == pair[1] for pair in pooled.values())
    return {"by size": "" if same else reason, "by wait subset": by_wait}


def tables(questions: BenchmarkQuestions, outcomes: Sequence[Outcomes]) -> list[Table]:
    """The tables of the page."""
    found = {_frozen(group.key): group for group in groups(questions)}
    refused = comparable(questions)
    counts = np.unique(questions.num_agents).tolist()
    made = [_summary(questions, outcomes, found[()]), _by_agents(outcomes, found, counts, refused)]
    for count in counts:
        sizes = np.unique(questions.size[questions.num_agents == count]).tolist()
        for metric in METRICS:
            made.append(_by_size(outcomes, found, count, sizes, metric, refused))
    waits = _values(questions.wait_ratio)
    if waits:
        made += [_by_wait(outcomes, found, counts, waits, metric, refused) for metric in METRICS]
    made.append(_checks(outcomes))
    if questions.partial:
        mark = f" (PARTIAL: {len(questions):,} of {questions.about['of']:,} instances)"
        made = [dataclasses.replace(table, title=table.title + mark) for table in made]
    return made


def notes(questions: BenchmarkQuestions, outcomes: Sequence[Outcomes]) -> list[str]:
    """Paragraphs on what the tables show and what they do not."""
    made = []
    if questions.partial:
        made.append(
            f"**Partial: {len(questions):,} of {questions.about['of']:,} instances.** A quick "
            "look, not the benchmark; no published row is beside it."
        )
    source = questions.about["options"]["set"]
    if isinstance(source, list):
        source = ", ".join(name.split()[0] for name in source)
    made.append(
        f"Instances: {source}, {len(questions):,}. All shares are in percent; a share over several "
        "lake sizes is the mean over the sizes. Brackets are 95 % Wilson intervals: they tell what "
        "another draw of as many instances could change, and nothing of another training run."
    )
    unsolved = int((~questions.solved).sum())
    if unsolved:
        made.append(
            f"The optimum of {unsolved:,} instances is not known; they do not count in the optimal "
            "shares."
        )
    missing = [(one.name, int((~one.answered).sum())) for one in outcomes]
    told = ", ".join(f"{name} {count:,}" for name, count in missing if count)
    if told:
        made.append(
            f"**Answers are missing: {told}.** They count neither as right nor as wrong, and what "
            "spans a lake size without any answer is left out; the next start asks for them again."
        )
    refused = comparable(questions)
    if not refused["by size"]:
        made.append(
            f"Rows marked as published are copied from {published.SOURCE} as printed: single runs, "
            "150 instances a cell, no intervals. Their instances have the same make-up as these "
            "but, unless these are the published ones, are another draw; the wording of the prompt "
            "and the budget of answers are theirs. Differences within the intervals say nothing. "
            "Oracles are planners that know the instances, and are to be compared with no model."
        )
    for what in ("by size", "by wait subset"):
        if refused[what] and not questions.partial:
            made.append(f"No published rows {what}: {refused[what]}.")
    return made


def to_json(questions: BenchmarkQuestions, outcomes: Sequence[Outcomes]) -> dict[str, Any]:
    """All figures, measured ones and published ones apart."""
    found = list(groups(questions))
    refused = comparable(questions)
    return {
        "set": dict(questions.about),
        "partial": questions.partial,
        "instances": len(questions),
        "optimum_unknown": int((~questions.solved).sum()),
        "measured": [
            {
                "model": one.name,
                "options": dict(one.options),
                "versions": dict(one.versions),
                "answered": int(one.answered.sum()),
                "missing": int((~one.answered).sum()),
                "truncated": sum(bool(record["truncated"]) for record in one.records),
                "tokens": _tokens(one),
                "failed_checks": _failed(one),
                "figures": [
                    {
                        **group.key,
                        **{
                            metric: None if share is None else dataclasses.asdict(share)
                            for metric in METRICS
                            for share in [one.share(metric, group.cells)]
                        },
                    }
                    for group in found
                ],
            }
            for one in outcomes
        ],
        "published": {
            "not_comparable_because": refused,
            **published.tables(),
        },
    }


def to_csv(questions: BenchmarkQuestions, outcomes: Sequence[Outcomes]) -> str:
    """One line for each figure; empty fields stand for all values, or for what is not known."""
    text = io.StringIO()
    keys = ("num_agents", "size", "wait_ratio", "hole_ratio")
    columns = ("source", "model", *keys, "metric")
    figures = ("percent", "low", "high", "successes", "trials", "partial")
    writer = csv.DictWriter(text, [*columns, *figures], lineterminator="\n")
    writer.writeheader()
    for one in outcomes:
        for group in groups(questions):
            for metric in METRICS:
                share = one.share(metric, group.cells)
                if share is not None:
                    writer.writerow(
                        {"source": HERE, "model": one.name, "metric": metric, **group.key}
                        | {name: _plain(value) for name, value in dataclasses.asdict(share).items()}
                        | {"partial": int(questions.partial)}
                    )
    refused = comparable(questions)
    if not refused["by size"]:
        for model in published.models():
            cells: list[tuple[dict[str, int], published.Rates]] = [
                ({"num_agents": count}, rates) for count, rates in model.means.items()
            ]
            cells += [
                ({"num_agents": count, "size": size}, rates)
                for (count, size), rates in model.by_size.items()
            ]
            for key, rates in cells:
                for metric in METRICS:
                    writer.writerow(
                        {"source": PUBLISHED, "model": model.name, "metric": metric, **key}
                        | {"percent": getattr(rates, metric)}
                    )
    if not refused["by wait subset"]:
        for context, by_wait in published.valid_by_wait_subset().items():
            for wait, percent in by_wait.items():
                writer.writerow(
                    {"source": PUBLISHED, "model": f"context {context}", "metric": "valid"}
                    | {"wait_ratio": wait, "percent": percent}
                )
    return text.getvalue()


def _summary(questions: BenchmarkQuestions, outcomes: Sequence[Outcomes], whole: Group) -> Table:
    rows = []
    for one in outcomes:
        tokens = _tokens(one)
        rows.append(
            (
                one.name,
                f"{int(one.answered.sum()):,} of {len(questions):,}",
                *(_cell(one.share(metric, whole.cells)) for metric in METRICS),
                sum(bool(record["truncated"]) for record in one.records),
                None if tokens is None else round(tokens["mean"]),
                None if tokens is None else tokens["total"],
            )
        )
    columns = ("model", "answers", "valid", "optimal", "cut off", "tokens an answer", "tokens")
    return Table("All answers", columns, rows, "Shares are means over agents and lake sizes.")


def _by_agents(
    outcomes: Sequence[Outcomes],
    found: Mapping[Any, Group],
    counts: Sequence[int],
    refused: Mapping[str, str],
) -> Table:
    columns = [f"{count} agents, {metric}" for count in counts for metric in METRICS]
    rows: list[tuple[Any, ...]] = [
        (
            HERE,
            one.label,
            *(
                _cell(one.share(metric, found[("num_agents", count),].cells))
                for count in counts
                for metric in METRICS
            ),
        )
        for one in outcomes
    ]
    if not refused["by size"]:
        rows += [
            (
                PUBLISHED,
                model.name,
                *(f"{getattr(model.means[c], metric):.2f}" for c in counts for metric in METRICS),
            )
            for model in published.models()
        ]
    return Table("By number of agents, mean over lake sizes", ("source", "model", *columns), rows)


def _by_size(
    outcomes: Sequence[Outcomes],
    found: Mapping[Any, Group],
    count: int,
    sizes: Sequence[int],
    metric: str,
    refused: Mapping[str, str],
) -> Table:
    keys = [(("num_agents", count), ("size", size)) for size in sizes]
    rows: list[tuple[Any, ...]] = [
        (
            HERE,
            one.label,
            *(_cell(one.share(metric, found[key].cells)) for key in keys),
            _cell(one.share(metric, found[("num_agents", count),].cells)),
        )
        for one in outcomes
    ]
    if not refused["by size"]:
        for model in published.models():
            if model.by_size:
                cells = [getattr(model.by_size[count, size], metric) for size in sizes]
                cells.append(getattr(model.means[count], metric))
                rows.append((PUBLISHED, model.name, *(f"{cell:.2f}" for cell in cells)))
    columns = ("source", "model", *(f"{size}x{size}" for size in sizes), "mean")
    return Table(f"{count} agents, {metric} by lake size", columns, rows)


def _by_wait(
    outcomes: Sequence[Outcomes],
    found: Mapping[Any, Group],
    counts: Sequence[int],
    waits: Sequence[float],
    metric: str,
    refused: Mapping[str, str],
) -> Table:
    rows: list[tuple[Any, ...]] = []
    for one in outcomes:
        for count in (*counts, None):
            key = () if count is None else (("num_agents", count),)
            cells = [found.get((*key, ("wait_ratio", wait))) for wait in waits]
            shares = [None if cell is None else one.share(metric, cell.cells) for cell in cells]
            rows.append((HERE, one.label, "all" if count is None else count, *map(_cell, shares)))
    if metric == "valid" and not refused["by wait subset"]:
        for context, by_wait in published.valid_by_wait_subset().items():
            name = f"Qwen3-4B + GRPO, redesigned by the current checkpoint from context {context}"
            rows.append((PUBLISHED, name, "all", *(f"{by_wait[wait]:.1f}" for wait in waits)))
    columns = ("source", "model", "agents", *(f"{wait:.0%} need a wait" for wait in waits))
    note = (
        "*All* is the mean over the cells of agents and lake size. What the published means are "
        "over is not said; those of V6 average to the mean of these cells."
        if metric == "valid" and not refused["by wait subset"]
        else ""
    )
    return Table(f"{metric.capitalize()} by wait-ratio subset", columns, rows, note)


def _checks(outcomes: Sequence[Outcomes]) -> Table:
    rows = []
    for one in outcomes:
        total, failed = max(len(one.records), 1), _failed(one)
        rows.append((one.label, *(f"{100 * failed[name] / total:.1f}" for name in failed)))
    columns = ("model", *(name.replace("_", " ") for name in mapf_jax.CHECKS))
    note = (
        "An answer that cannot be read fails them all, one about another number of agents all but "
        "the first."
    )
    return Table("Checks failed, percent of the answers", columns, rows, note)


def _failed(one: Outcomes) -> dict[str, int]:
    return {
        name: sum(not record["checks"][name] for record in one.records) for name in mapf_jax.CHECKS
    }


def _tokens(one: Outcomes) -> dict[str, Any] | None:
    """Of the answers whose length is known; None if that is none.

    `prompts` is the sum over the prompts, where a server counts them.
    """
    lengths = [record["tokens"] for record in one.records if record["tokens"] is not None]
    if not lengths:
        return None
    return {
        "mean": float(np.mean(lengths)),
        "total": sum(lengths),
        "answers": len(lengths),
        "prompts": sum(record["prompt_tokens"] or 0 for record in one.records),
    }


def _values(column: np.ndarray) -> list[float]:
    """The distinct numbers of a column without NaN, ascending."""
    return sorted({round(float(value), 4) for value in column if not np.isnan(value)})


def _frozen(key: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(key.items())


def _cell(share: Share | None) -> str:
    return _DASH if share is None else str(share)


def _plain(value: float | int) -> float | int:
    return round(value, 4) if isinstance(value, float) else value
