"""From verdicts to tables: fractions with intervals by agents, size and subset.

All fractions are in percent. That of several cells is the mean of the cells' fractions, as in the
publication, whose numbers stand beside them where the instances have the same make-up; where cells
are equally full it is the fraction of all their answers.
"""

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import mapf_jax
from experiments.benchmark.questions import BenchmarkQuestions
from experiments.families.lakes import published
from experiments.families.lakes.published import Group
from experiments.pages import paragraphs
from experiments.records import Table
from experiments.statistics import wilson
from mapf_jax import benchmark

METRICS = ("valid", "optimal")
HERE, PUBLISHED = "measured", f"published ({published.SOURCE})"
# What groups have in common, by the fields of `Group`.
_KINDS = (
    (),
    ("wait_ratio",),
    ("num_agents",),
    ("num_agents", "size"),
    ("num_agents", "wait_ratio"),
    ("num_agents", "hole_ratio"),
)


@dataclasses.dataclass(frozen=True)
class Fraction:
    """A fraction in percent with its 95 % Wilson interval.

    Attributes:
      percent: mean of the fractions of the cells.
      low, high: the interval. Of several cells it is that of as many trials as give the mean its
        variance if every cell had the same fraction; where cells are equally full these are all.
      successes, trials: over all cells.
    """

    percent: float
    low: float
    high: float
    successes: int
    trials: int

    def __str__(self) -> str:
        return f"{self.percent:.1f} ({self.low:.1f} to {self.high:.1f})"


def mean_fraction(cells: Sequence[np.ndarray]) -> Fraction | None:
    """The fraction of bool[n] arrays, each a cell; empty ones are left out, None if all are."""
    counts = [(int(cell.sum()), len(cell)) for cell in cells if len(cell)]
    if not counts:
        return None
    mean = sum(good / trials for good, trials in counts) / len(counts)
    effective = len(counts) ** 2 / sum(1 / trials for _, trials in counts)
    low, high = wilson(min(mean * effective, effective), effective)
    successes, trials = (sum(numbers) for numbers in zip(*counts, strict=True))
    return Fraction(100 * mean, 100 * low, 100 * high, successes, trials)


class Outcomes:
    """What one model made of N questions.

    Args:
      noted: its name, options and versions.
      records: its answers, with their verdicts.

    Attributes:
      name: for the tables.
      options: what its answers depend on.
      versions: of what computed them.
      answered: bool[N], there is an answer.
      success: bool[N] by metric; False where there is no answer.
      counted: bool[N] by metric: answered, and for "optimal" the optimum is known.
    """

    def __init__(
        self,
        noted: Mapping[str, Any],
        records: Sequence[Mapping[str, Any]],
        questions: BenchmarkQuestions,
    ) -> None:
        self.name: str = noted["name"]
        self.options: Mapping[str, Any] = noted["options"]
        self.versions: Mapping[str, Any] = noted["versions"]
        self.records = records
        of_name = {record["id"]: record for record in records}
        found = [of_name.get(name) for name in questions.names]
        self.answered = np.array([record is not None for record in found])
        self.success = {
            metric: np.array([bool(record and record[metric]) for record in found])
            for metric in METRICS
        }
        self.counted = {"valid": self.answered, "optimal": self.answered & questions.solved}

    @property
    def label(self) -> str:
        """The name, and how far the model has come if it has not answered everything."""
        if self.answered.all():
            return self.name
        return f"{self.name} ({self.counts['answered']:,} of {len(self.answered):,} answers)"

    def fraction(self, metric: str, cells: Sequence[np.ndarray]) -> Fraction | None:
        """The fraction over cells, each a bool[N] of its questions.

        None where a cell has no answer yet: questions are not asked in a random order, so the
        mean over the other cells would be that of easier or of harder ones.
        """
        if not all((cell & self.answered).any() for cell in cells):
            return None
        counted = self.counted[metric]
        return mean_fraction([self.success[metric][cell & counted] for cell in cells])

    @functools.cached_property
    def counts(self) -> dict[str, Any]:
        """Numbers of answers: given, missing, cut off by their budget, and failing each check.

        `tokens` is about those whose length is known, None if that is none; its `prompts` is the
        sum over the prompts, where a server counts them.
        """
        lengths = [record["tokens"] for record in self.records if record["tokens"] is not None]
        tokens = {
            "mean": float(np.mean(lengths)) if lengths else None,
            "total": sum(lengths),
            "answers": len(lengths),
            "prompts": sum(record["prompt_tokens"] or 0 for record in self.records),
        }
        return {
            "answered": int(self.answered.sum()),
            "missing": int((~self.answered).sum()),
            "truncated": sum(bool(record["truncated"]) for record in self.records),
            "tokens": tokens if lengths else None,
            "failed_checks": {
                name: sum(not record["checks"][name] for record in self.records)
                for name in mapf_jax.CHECKS
            },
        }


@dataclasses.dataclass(frozen=True)
class Results:
    """What models made of the questions, in every form that is written."""

    questions: BenchmarkQuestions
    outcomes: Sequence[Outcomes]

    @functools.cached_property
    def groups(self) -> dict[Group, list[np.ndarray]]:
        """The cells, bool[N] each, of every group that has a number; those of a kind ascending."""
        rows = self.questions.groups
        found: dict[Group, list[np.ndarray]] = {}
        for kind in _KINDS:
            cells: dict[Any, np.ndarray] = collections.defaultdict(
                lambda: np.zeros(len(rows), bool)
            )
            for i, row in enumerate(rows):
                group = Group(**{name: getattr(row, name) for name in kind})
                if sum(value is not None for value in group) == len(kind):  # All are known.
                    cells[group, row[:2]][i] = True
            for group, cell in sorted(cells):
                found.setdefault(group, []).append(cells[group, cell])
        return found

    @functools.cached_property
    def refused(self) -> dict[str, str]:
        """Why published numbers may not stand beside measured ones; empty where they may.

        For the tables "by size" (and by number of agents) and "by wait subset".
        """
        questions = self.questions
        wanted = collections.Counter(
            {
                (agents, size, wait): len(benchmark.HOLE_RATIOS) * benchmark.PER_HOLE_RATIO
                for agents, smallest in benchmark.SMALLEST_SIZE.items()
                for size in range(smallest, benchmark.LARGEST_SIZE + 1)
                for wait in benchmark.WAIT_RATIOS
            }
        )
        found = collections.Counter(group[:3] for group in questions.groups)
        if questions.partial:
            reason = f"only {len(questions):,} of {questions.about['of']:,} instances were asked"
            return dict.fromkeys(("by size", "by wait subset"), reason)
        reason = (
            f"the {len(questions):,} instances are not made up as the {wanted.total():,} "
            "of the published benchmark"
        )
        sizes = [collections.Counter(cell[:2] for cell in c.elements()) for c in (found, wanted)]
        return {
            "by size": "" if sizes[0] == sizes[1] else reason,
            "by wait subset": "" if found == wanted else reason,
        }

    def tables(self) -> list[Table]:
        """The tables of the page."""
        groups = self.groups
        by_agents = [one for one in groups if one.num_agents and one == Group(one.num_agents)]
        made = [
            self._summary(),
            self._table(
                "By number of agents, mean over lake sizes",
                {
                    f"{group.num_agents} agents, {metric}": (group, metric)
                    for group in by_agents
                    for metric in METRICS
                },
            ),
        ]
        for mean in by_agents:
            sizes = [one for one in groups if one.size and one.num_agents == mean.num_agents]
            for metric in METRICS:
                columns = {f"{one.size}x{one.size}": (one, metric) for one in sizes}
                title = f"{mean.num_agents} agents, {metric} by lake size"
                made.append(self._table(title, {**columns, "mean": (mean, metric)}))
        if any(group.wait_ratio is not None for group in groups):
            made += [self._by_wait(metric) for metric in METRICS]
        made.append(self._checks())
        if self.questions.partial:
            mark = (
                f" (PARTIAL: {len(self.questions):,} of {self.questions.about['of']:,} instances)"
            )
            made = [dataclasses.replace(table, title=table.title + mark) for table in made]
        return made

    def _cell(self, one: Outcomes, group: Group, metric: str) -> str:
        fraction = one.fraction(metric, self.groups.get(group, []))
        return "-" if fraction is None else str(fraction)

    def _table(self, title: str, columns: Mapping[str, tuple[Group, str]]) -> Table:
        """Measured rows, then the published ones that have a number in every column."""
        rows = [
            (HERE, one.label, *(self._cell(one, *column) for column in columns.values()))
            for one in self.outcomes
        ]
        if not self.refused["by size"]:
            rows += [
                (PUBLISHED, name, *(f"{rates[g][metric]:.2f}" for g, metric in columns.values()))
                for name, rates in published.models().items()
                if all(group in rates for group, _ in columns.values())
            ]
        return Table(title, ("source", "model", *columns), rows)

    def _summary(self) -> Table:
        rows = []
        for one in self.outcomes:
            tokens = one.counts["tokens"]
            rows.append(
                {
                    "model": one.name,
                    "answers": f"{one.counts['answered']:,} of {len(self.questions):,}",
                    **{metric: self._cell(one, Group(), metric) for metric in METRICS},
                    "cut off": one.counts["truncated"],
                    "tokens an answer": tokens and round(tokens["mean"]),
                    "tokens": tokens and tokens["total"],
                }
            )
        return Table.of("All answers", rows, "Fractions are means over agents and lake sizes.")

    def _by_wait(self, metric: str) -> Table:
        counts = [*sorted({group.num_agents for group in self.groups if group.num_agents}), None]
        waits = sorted({g.wait_ratio for g in self.groups if g.wait_ratio is not None})
        rows: list[tuple[Any, ...]] = [
            (
                *(HERE, one.label, count or "all"),
                *(self._cell(one, Group(count, wait_ratio=wait), metric) for wait in waits),
            )
            for one in self.outcomes
            for count in counts
        ]
        note = ""
        if metric == "valid" and not self.refused["by wait subset"]:
            rows += [
                (PUBLISHED, name, "all", *(f"{rate['valid']:.1f}" for rate in rates.values()))
                for name, rates in published.contexts().items()
            ]
            note = (
                "*All* is the mean over the cells of agents and lake size. What the published "
                "means are over is not said; those of V6 average to the mean of these cells."
            )
        columns = ("source", "model", "agents", *(f"{wait:.0%} need a wait" for wait in waits))
        return Table(f"{metric.capitalize()} by wait-ratio subset", columns, rows, note)

    def _checks(self) -> Table:
        rows = []
        for one in self.outcomes:
            failed = {
                name.replace("_", " "): f"{100 * count / max(len(one.records), 1):.1f}"
                for name, count in one.counts["failed_checks"].items()
            }
            rows.append({"model": one.label, **failed})
        return Table.of(
            "Checks failed, percent of the answers",
            rows,
            "An answer that cannot be read fails them all, one about another number of agents all "
            "but the first.",
        )

    def notes(self) -> list[str]:
        """Paragraphs on what the tables show and what they do not."""
        source = self.questions.about["options"]["set"]
        if isinstance(source, list):
            source = ", ".join(name.split()[0] for name in source)
        missing = {one.name: one.counts["missing"] for one in self.outcomes}
        return paragraphs(
            "benchmark_notes.md",
            questions=self.questions,
            source=source,
            unsolved=int((~self.questions.solved).sum()),
            missing={name: count for name, count in missing.items() if count},
            refused=self.refused,
            published=published.SOURCE,
        )

    def to_json(self) -> dict[str, Any]:
        """All numbers, measured ones and published ones apart."""
        questions = self.questions
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
                    **one.counts,
                    "figures": [
                        {
                            name: value
                            for name, value in group._asdict().items()
                            if value is not None
                        }
                        | {
                            metric: fraction and dataclasses.asdict(fraction)
                            for metric in METRICS
                            for fraction in [one.fraction(metric, cells)]
                        }
                        for group, cells in self.groups.items()
                    ],
                }
                for one in self.outcomes
            ],
            "published": {"not_comparable_because": self.refused, **published.tables()},
        }
