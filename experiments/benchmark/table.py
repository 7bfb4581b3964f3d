"""Tables of verdicts: fractions with intervals by agents, size and subset.

The fraction over several cells is the mean of the cells' fractions, as in the publication; for
cells of equal size it is the fraction of all their answers. Published numbers are shown too if the
instances are composed in the same way. A contender is one model, with Wilson intervals over its
answers, or a variant over several seeds, with Student's interval of their mean.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import mapf_jax
from experiments.benchmark.questions import BenchmarkQuestions
from experiments.families.lakes import published
from experiments.families.lakes.published import Group
from experiments.measurements import Table
from experiments.statistics import student, wilson
from experiments.text.templates import DASH, estimate, paragraphs
from mapf_jax import benchmark

METRICS = ("valid", "optimal")
HERE, PUBLISHED = "measured", f"published ({published.SOURCE})"
# The kinds of groups, each by the fields of `Group` that it sets.
_KINDS = (
    (),
    ("wait_ratio",),
    ("num_agents",),
    ("num_agents", "size"),
    ("num_agents", "wait_ratio"),
    ("num_agents", "hole_ratio"),
)

_SUBSETS = (
    "What the published means are over is not said; those of V6 average to the mean of the cells "
    "of agents and lake size, which is what measured ones are."
)
Columns = Mapping[str, tuple[Group, str]]
"""The group and the metric of each column of a table by heading."""
Estimate = Mapping[str, Any]
"""A mean of fractions in [0, 1] and its interval: `mean`, `low`, `high`, and further fields."""


def mean_fraction(cells: Sequence[np.ndarray]) -> Estimate | None:
    """The mean of the fractions of cells, each bool[n]; skips empty cells, None if all are empty.

    Returns:
      `mean`; `low` and `high` of its 95 % Wilson interval; `successes` and `trials` over all cells.
      The interval uses the effective number of trials, at which one fraction has the variance of
      the mean if all cells have the same fraction; for cells of equal size it is all trials.
    """
    counts = [(int(cell.sum()), len(cell)) for cell in cells if len(cell)]
    if not counts:
        return None
    mean = sum(good / trials for good, trials in counts) / len(counts)
    effective = len(counts) ** 2 / sum(1 / trials for _, trials in counts)
    between = wilson(min(mean * effective, effective), effective)
    successes, trials = (sum(numbers) for numbers in zip(*counts, strict=True))
    return {"mean": mean, **between._asdict(), "successes": successes, "trials": trials}


class Outcomes:
    """The verdicts of one model on N questions.

    Args:
      noted: its name, options and versions.
      records: its answers, with their verdicts.

    Attributes:
      noted: as given.
      records: as given.
      answered: bool[N], there is an answer.
      success: bool[N] by metric; False where there is no answer.
      counted: bool[N] by metric: there is an answer and, for "optimal", a known optimum.
    """

    def __init__(
        self,
        noted: Mapping[str, Any],
        records: Sequence[Mapping[str, Any]],
        questions: BenchmarkQuestions,
    ) -> None:
        self.noted, self.records = noted, records
        of_name = {record["id"]: record for record in records}
        found = [of_name.get(name) for name in questions.names]
        self.answered = np.array([record is not None for record in found])
        self.success = {
            metric: np.array([bool(record and record[metric]) for record in found])
            for metric in METRICS
        }
        self.counted = {"valid": self.answered, "optimal": self.answered & questions.solved}

    def fraction(self, metric: str, cells: Sequence[np.ndarray]) -> Estimate | None:
        """The fraction over cells; each cell is a bool[N] mask of its questions.

        None if any cell has no answer yet: questions are not asked in random order, so the mean
        over the other cells would be biased towards easier or harder ones.
        """
        if not all((cell & self.answered).any() for cell in cells):
            return None
        counted = self.counted[metric]
        return mean_fraction([self.success[metric][cell & counted] for cell in cells])


@dataclasses.dataclass(frozen=True)
class Contender:
    """A line of the tables: one model, or one variant over seeds.

    Attributes:
      name: for people.
      outcomes: of one model, under any key, or of a variant by seed.
    """

    name: str
    outcomes: Mapping[Any, Outcomes]

    @property
    def label(self) -> str:
        """The name with the number of seeds and, if answers are missing, the progress."""
        seeds = f", {len(self.outcomes)} seeds" if len(self.outcomes) > 1 else ""
        asked, count = self._asked, self.counts["answered"]
        return self.name + seeds + (f" ({count:,} of {asked:,} answers)" if count < asked else "")

    def values(self, metric: str, cells: Sequence[np.ndarray]) -> dict[Any, float]:
        """The fraction of each seed that has one; cells as in `Outcomes.fraction`."""
        found = {seed: one.fraction(metric, cells) for seed, one in self.outcomes.items()}
        return {seed: one["mean"] for seed, one in found.items() if one}

    def estimate(self, metric: str, cells: Sequence[np.ndarray]) -> Estimate | None:
        """The fraction of one model, or the mean over seeds; None if there is none."""
        if len(self.outcomes) == 1:
            (only,) = self.outcomes.values()
            return only.fraction(metric, cells)
        values = self.values(metric, cells)
        return student(values) if values else None

    @property
    def _asked(self) -> int:
        return sum(len(one.answered) for one in self.outcomes.values())

    @functools.cached_property
    def counts(self) -> dict[str, Any]:
        """Numbers of answers: answered, missing, truncated by the budget, and failing each check.

        `tokens` covers the answers of known length and is None if there are none; its `prompts` is
        the sum of the prompt tokens that servers report.
        """
        records = [record for one in self.outcomes.values() for record in one.records]
        answered = sum(int(one.answered.sum()) for one in self.outcomes.values())
        lengths = [record["tokens"] for record in records if record["tokens"] is not None]
        tokens = {
            "mean": float(np.mean(lengths)) if lengths else None,
            "total": sum(lengths),
            "answers": len(lengths),
            "prompts": sum(record["prompt_tokens"] or 0 for record in records),
        }
        return {
            "answered": answered,
            "missing": self._asked - answered,
            "truncated": sum(bool(record["truncated"]) for record in records),
            "tokens": tokens if lengths else None,
            "failed_checks": {
                name: sum(not record["checks"][name] for record in records)
                for name in mapf_jax.CHECKS
            },
        }


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of a benchmark, as tables, notes and JSON.

    Attributes:
      questions: the questions.
      contenders: in the order of the tables.
      beside: show all published numbers, whatever the questions; otherwise only comparable ones.
    """

    questions: BenchmarkQuestions
    contenders: Sequence[Contender]
    beside: bool = False

    @functools.cached_property
    def groups(self) -> dict[Group, list[np.ndarray]]:
        """The cells, bool[N] each, of every group with questions, by kind and then ascending."""
        groups = self.questions.groups
        found: dict[Group, list[np.ndarray]] = {}
        for kind in _KINDS:
            cells: dict[Any, np.ndarray] = collections.defaultdict(
                lambda: np.zeros(len(groups), bool)
            )
            for i, whole in enumerate(groups):
                group = Group(**{name: getattr(whole, name) for name in kind})
                if sum(value is not None for value in group) == len(kind):  # All are set.
                    cells[group, whole[:2]][i] = True
            for group, cell in sorted(cells):
                found.setdefault(group, []).append(cells[group, cell])
        return found

    def kind(self, *names: str) -> list[Group]:
        """The groups that set exactly these fields of `Group`, ascending."""
        tables = (published.models(), published.contexts()) if self.beside else ()
        printed = {g for rates in tables for of_model in rates.values() for g in of_model}
        found = [g for g in printed.union(self.groups) if _fields(g).keys() == set(names)]
        return sorted(found, key=lambda group: [value or 0 for value in group])

    @functools.cached_property
    def refused(self) -> str:
        """Why published numbers are not comparable with measured ones; empty if they are."""
        questions = self.questions
        if questions.partial:
            return f"only {len(questions):,} of {questions.about['of']:,} instances were asked"
        wanted = {
            (agents, size, wait): len(benchmark.HOLE_RATIOS) * benchmark.PER_HOLE_RATIO
            for agents, smallest in benchmark.SMALLEST_SIZE.items()
            for size in range(smallest, benchmark.LARGEST_SIZE + 1)
            for wait in benchmark.WAIT_RATIOS
        }
        if collections.Counter(group[:3] for group in questions.groups) == wanted:
            return ""
        return (
            f"the {len(questions):,} instances are not made up as the {sum(wanted.values()):,} "
            "of the published benchmark"
        )

    def table(
        self,
        title: str,
        columns: Columns,
        beside: Mapping[str, published.Rates] | None = None,
        note: str = "",
    ) -> Table:
        """Measured lines, then published ones if they are comparable.

        Args:
          beside: the published lines by name, `published.models()` by default. With
            `Results.beside` a line needs one number, otherwise a number in every column.
        """
        lines: list[tuple[Any, ...]] = [
            (HERE, one.label, *(self._cell(one, *column) for column in columns.values()))
            for one in self.contenders
        ]
        for name, rates in (published.models() if beside is None else beside).items():
            numbers = [rates.get(group, {}).get(metric) for group, metric in columns.values()]
            if any(numbers) if self.beside else not self.refused and None not in numbers:
                shown = (DASH if number is None else f"{number:.2f}" for number in numbers)
                lines.append((PUBLISHED, name, *shown))
        return Table(title, ("source", "model", *columns), lines, note)

    def by_agents(self) -> Columns:
        """Columns of both metrics for each number of agents, means over lake sizes."""
        return {
            f"{group.num_agents} agents, {metric}": (group, metric)
            for group in self.kind("num_agents")
            for metric in METRICS
        }

    def by_wait(self, metric: str, agents: int | None = None) -> Columns:
        """Columns of one metric for each wait-ratio subset, of one number of agents or of all."""
        return {
            f"{group.wait_ratio:.0%} need a wait": (group._replace(num_agents=agents), metric)
            for group in self.kind("wait_ratio")
        }

    def by_size(self) -> list[Table]:
        """A table by lake size for each number of agents and each metric."""
        made = []
        for mean in self.kind("num_agents"):
            sizes = [g for g in self.kind("num_agents", "size") if g.num_agents == mean.num_agents]
            for metric in METRICS:
                columns = {f"{one.size}x{one.size}": (one, metric) for one in sizes}
                title = f"{mean.num_agents} agents, {metric} by lake size"
                made.append(self.table(title, {**columns, "mean": (mean, metric)}))
        return made

    def tables(self) -> list[Table]:
        """The tables of the page, about all contenders."""
        made = [
            self._summary(),
            self.table("By number of agents, mean over lake sizes", self.by_agents()),
            *self.by_size(),
        ]
        for metric in METRICS if self.kind("wait_ratio") else ():
            title = f"{metric.capitalize()} by wait-ratio subset"
            made.append(self.table(title, self.by_wait(metric), published.contexts(), _SUBSETS))
            for group in self.kind("num_agents"):
                columns = self.by_wait(metric, group.num_agents)
                made.append(self.table(f"{title}, {group.num_agents} agents", columns, {}))
        made.append(self._checks())
        return self.marked(made)

    def marked(self, tables: Iterable[Table]) -> list[Table]:
        """The tables, with titles marked as partial if the questions are."""
        if not self.questions.partial:
            return list(tables)
        mark = f" (PARTIAL: {len(self.questions):,} of {self.questions.about['of']:,} instances)"
        return [dataclasses.replace(table, title=table.title + mark) for table in tables]

    def _cell(self, contender: Contender, group: Group, metric: str) -> str:
        found = contender.estimate(metric, self.groups[group]) if group in self.groups else None
        return estimate(found) if found else DASH

    def _summary(self) -> Table:
        lines = []
        for one in self.contenders:
            tokens, asked = one.counts["tokens"], one.counts["answered"] + one.counts["missing"]
            lines.append(
                {
                    "model": one.name,
                    "answers": f"{one.counts['answered']:,} of {asked:,}",
                    **{metric: self._cell(one, Group(), metric) for metric in METRICS},
                    "cut off": one.counts["truncated"],
                    "tokens an answer": tokens and round(tokens["mean"]),
                    "tokens": tokens and tokens["total"],
                }
            )
        return Table.of("All answers", lines, "Fractions are means over agents and lake sizes.")

    def _checks(self) -> Table:
        lines = []
        for one in self.contenders:
            failed = {
                name.replace("_", " "): f"{100 * count / max(one.counts['answered'], 1):.1f}"
                for name, count in one.counts["failed_checks"].items()
            }
            lines.append({"model": one.label, **failed})
        return Table.of(
            "Checks failed, percent of the answers",
            lines,
            "An answer that cannot be read fails them all, one about another number of agents all "
            "but the first.",
        )

    def notes(self) -> list[str]:
        """Paragraphs that explain the tables and their limits."""
        source = self.questions.about["options"]["set"]
        if isinstance(source, list):
            source = ", ".join(name.split()[0] for name in source)
        missing = {one.name: one.counts["missing"] for one in self.contenders}
        return paragraphs(
            "benchmark_notes.md",
            questions=self.questions,
            source=source,
            unsolved=int((~self.questions.solved).sum()),
            missing={name: count for name, count in missing.items() if count},
            refused=self.refused,
            beside=self.beside,
            published=published.SOURCE,
        )

    def to_json(self) -> dict[str, Any]:
        """All numbers as JSON, measured and published ones separately."""
        questions = self.questions
        return {
            "set": dict(questions.about),
            "partial": questions.partial,
            "instances": len(questions),
            "optimum_unknown": int((~questions.solved).sum()),
            "measured": [
                {
                    "model": one.name,
                    "asked": {str(seed): dict(of.noted) for seed, of in one.outcomes.items()},
                    **one.counts,
                    "figures": [
                        _fields(group) | {metric: one.estimate(metric, cells) for metric in METRICS}
                        for group, cells in self.groups.items()
                    ],
                }
                for one in self.contenders
            ],
            "published": {"not_comparable_because": self.refused, **published.tables()},
        }


def _fields(group: Group) -> dict[str, Any]:
    """The fields that a group sets, by name."""
    return {name: value for name, value in group._asdict().items() if value is not None}
