"""The benchmark of a study: its checkpoints are the models, its variants the contenders.

A benchmark without a study is treated as a study without runs: every model is a contender.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from experiments.benchmark.questions import BenchmarkQuestions
from experiments.benchmark.solvers import START
from experiments.benchmark.table import METRICS, Contender, Outcomes, Results
from experiments.families.lakes.published import Group
from experiments.measurements import Table
from experiments.statistics import compare
from experiments.study.results import FILE, read
from experiments.text.errors import UserError

BEFORE = "before training"


@dataclasses.dataclass(frozen=True)
class MeasuredStudy:
    """A study whose finished runs answer the benchmark, before training and after each round.

    Attributes:
      root: its folder.
      found: the content of its `study.json`.
    """

    root: Path
    found: Mapping[str, Any]

    @classmethod
    def read(cls, folder: str | None) -> Self:
        """The study in a folder; one without runs if none is given.

        Raises:
          UserError: there is none, or as `read` of `experiments.study.results`.
        """
        if folder is None:
            return cls(Path(), {"variants": [], "runs": [], "reference": None})
        root = Path(folder)
        if not (root / FILE).is_file():
            raise UserError(f"study={folder}: no study is there")
        return cls(root, read(root))

    @functools.cached_property
    def labels(self) -> dict[str, str]:
        """The label of each variant by name."""
        return {variant["name"]: variant["label"] for variant in self.found["variants"]}

    @functools.cached_property
    def checkpoints(self) -> dict[tuple[str, int, int], tuple[str, str]]:
        """Name and `--model` of each checkpoint by variant, seed and number of finished rounds.

        Runs share checkpoints: all runs that of the weights before training, and runs with a shared
        beginning that after round 0.
        """
        made = {}
        for run in self.found["runs"]:
            for done in range(len(run["points"]) if run["status"] == "finished" else 0):
                folder, name, at = run["folder"], f"{run['variant']}.seed-{run['seed']}", done - 1
                if done <= 1 and run["shared"]:
                    folder = run["shared"]["folder"]
                    name = Path(folder).name
                name = f"{name}.round-{at}" if done else BEFORE
                spec = f"{self.root / folder}@{at if done else START}"
                made[run["variant"], run["seed"], done] = name, spec
        return made

    @property
    def models(self) -> dict[str, str]:
        """The `--model` of each checkpoint by name."""
        return dict(self.checkpoints.values())

    def variants(
        self,
        outcomes: Mapping[str, Outcomes],
        names: Iterable[str] | None = None,
        done: int | None = None,
    ) -> list[Contender]:
        """Its variants, each over the seeds that have answers.

        Args:
          outcomes: by the names of checkpoints.
          names: of variants; all if not given.
          done: rounds finished; all if not given.
        """
        made = []
        for variant in self.labels if names is None else names:
            last = max((r for v, _, r in self.checkpoints if v == variant), default=0)
            of_seed = {
                seed: outcomes[name]
                for (v, seed, r), (name, _) in self.checkpoints.items()
                if v == variant and r == (last if done is None else done) and name in outcomes
            }
            if of_seed:
                made.append(Contender(self.labels[variant], of_seed))
        return made

    def others(self, outcomes: Mapping[str, Outcomes]) -> list[Contender]:
        """The weights before training and all models outside the study."""
        own = self.models.keys() - {BEFORE}
        return [Contender(name, {None: one}) for name, one in outcomes.items() if name not in own]

    def results(self, questions: BenchmarkQuestions, outcomes: Mapping[str, Outcomes]) -> Results:
        """The results of the last checkpoints of all variants, over seeds, and of `others`."""
        return Results(questions, [*self.variants(outcomes), *self.others(outcomes)])

    def tables(self, results: Results, outcomes: Mapping[str, Outcomes]) -> list[Table]:
        """The tables of all contenders, then the variants compared by agents, waits and rounds."""
        last, groups = self.variants(outcomes), {"": Group()}
        groups |= {f", {g.num_agents} agents": g for g in results.kind("num_agents")}
        groups |= {f", {g.wait_ratio:.0%} need a wait": g for g in results.kind("wait_ratio")}
        shown = [(last, title, group) for title, group in groups.items()]
        rounds = max((done for _, _, done in self.checkpoints), default=0)
        for done in range(1, rounds):
            variants = self.variants(outcomes, done=done)
            shown.append((variants, f", after round {done - 1}", Group()))
        made = results.tables()
        if reference := self.labels.get(self.found["reference"]):
            made += results.marked(
                compared(metric, f"by variant{title}", results, variants, reference, group)
                for metric in METRICS
                for variants, title, group in shown
            )
        return made


def compared(
    metric: str,
    title: str,
    results: Results,
    variants: Iterable[Contender],
    reference: str,
    group: Group,
) -> Table:
    """One metric of a group for variants over seeds, with differences from `reference`."""
    values = {one.name: one.values(metric, results.groups[group]) for one in variants}
    title = f"{metric.capitalize()} {title}"
    return Table.compared(title, compare(values, reference), reference)
