"""Reads the files of a run, finished or not, for reports and studies."""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engineer.evidence import FailureBreakdown
from engineer.reading import Reading
from engineer.space import Configuration
from experiments.families import Family
from experiments.run import store as files
from experiments.settings import family_of
from experiments.statistics import Interval, wilson
from experiments.text.errors import UserError


@dataclasses.dataclass(frozen=True)
class Validation:
    """One validation.

    Attributes:
      breakdown: the outcomes by row.
      greedy: the outcomes of greedy answers by row.
      effective: {"valid" or "optimal": so many independent answers would have the standard error of
        these, of which several are to one problem}; empty if unknown.
      tokens: mean length of the answers, if known.
      truncated: fraction of the answers that ran out of budget, if known.
      answers: the file with all answers.
    """

    breakdown: FailureBreakdown
    greedy: FailureBreakdown
    effective: Mapping[str, float]
    tokens: float | None
    truncated: float | None
    answers: Path

    def rate(self, kind: str) -> float:
        """The fraction of all answers that are "valid" or "optimal"."""
        return getattr(self.breakdown, f"{kind}_rate")

    def interval(self, kind: str) -> Interval:
        """The 95 % score interval of `rate`."""
        count = self.effective.get(kind, self.breakdown.answers)
        return wilson(min(self.rate(kind) * count, count), count)


@dataclasses.dataclass(frozen=True)
class Round:
    """One round, as far as it has come, or what was before the first one.

    Attributes:
      index: name of its folder, from 0; -1 before the first one.
      config: the configuration of its training set, once that is made.
      generated: the report of `generated.json`: a `note`, such as why another configuration was
        used, and by row the fields of `GeneratedRow`.
      steps: the metrics of every training step so far.
      validation: of the weights after the round.
      test: the same on the test set, after the last round of a run that has one.
      design: the design of the next round: the fields of `design.json`, with `config` parsed, and
        `measures`, `context` and `answers`, each empty or None if unknown.
      engineer_steps: steps of training as engineer, if any.
      reading: by rule, whether its checkpoint, which designs the next round, reads its evidence, if
        that was measured.
    """

    index: int
    config: Configuration | None
    generated: Mapping[str, Any] | None
    steps: tuple[Mapping[str, float], ...]
    validation: Validation | None
    test: Validation | None
    design: Mapping[str, Any] | None
    engineer_steps: tuple[Mapping[str, Any], ...]
    reading: Mapping[str, Reading] | None

    @property
    def number(self) -> int:
        """Its number for people, from 1."""
        return self.index + 1


@dataclasses.dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
      root: its folder.
      settings: all options, nested.
      versions: of packages, and the machine.
      seconds: wall time of its processes, if recorded; without a beginning shared in a study.
      branch: its source run and round, if it is a branch.
      before: what was found of the model before training.
      rounds: those that have begun.
    """

    root: Path
    settings: Mapping[str, Any]
    versions: Mapping[str, Any]
    seconds: float | None
    branch: Mapping[str, Any] | None
    before: Round
    rounds: tuple[Round, ...]

    @property
    def validations(self) -> list[tuple[int, Validation]]:
        """(number of the round before, validation) of all finished ones; 0 is before training."""
        return self._known("validation")

    @property
    def tests(self) -> list[tuple[int, Validation]]:
        """The same on the test set: before training and after the last round, if there is one."""
        return self._known("test")

    @property
    def readings(self) -> list[tuple[int, Mapping[str, Reading]]]:
        """(number of the round before, readings by rule) of all measured; 0 is before training."""
        return self._known("reading")

    def _known(self, name: str) -> list[tuple[int, Any]]:
        stages = (self.before, *self.rounds)
        found = ((each.number, getattr(each, name)) for each in stages)
        return [(number, one) for number, one in found if one is not None]

    @property
    def steps(self) -> list[Mapping[str, float]]:
        """The metrics of all training steps in order."""
        return [step for each in self.rounds for step in each.steps]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The rates worth showing: "valid"; and "optimal", unless it equals "valid" throughout."""
        found = [each for _, of in self.validations for each in (of.breakdown, of.greedy)]
        rates = [(each.valid_rate, each.optimal_rate) for each in found]
        for step in self.steps:
            rates.append((step["task/valid"], step.get("task/optimal", step["task/valid"])))
        return ("valid", "optimal") if any(a != b for a, b in rates) else ("valid",)

    def option(self, path: str) -> Any:
        """One option by its path, such as "engineer.designer"."""
        return functools.reduce(operator.getitem, path.split("."), self.settings)

    @property
    def finished(self) -> int:
        """Number of finished rounds."""
        return sum(each.validation is not None for each in self.rounds)

    @functools.cached_property
    def family(self) -> Family:
        """The family of the problems; raises like `family_of`."""
        return family_of(self.settings)

    @property
    def label(self) -> str:
        """What a row of a configuration is called."""
        return self.family.texts.label


def is_run(root: Path) -> bool:
    """Whether a folder is a run's."""
    return (root / "config.json").is_file()


def read_run(root: Path) -> Run:
    """Reads the folder of a run; missing files are left out.

    Raises:
      ValueError: a file of it is damaged; the message names it.
    """
    folders = [path for path in (root / "rounds").glob("*") if path.name.isdecimal()]
    rounds = [_round(path, int(path.name)) for path in folders]
    seconds = None  # Damaged times must not prevent a report.
    with contextlib.suppress(UserError):
        times = files.read_log(root / files.TIMES)
        with files.damage_named(root / files.TIMES):
            seconds = sum(line["seconds"] for line in times) if times else None
    return Run(
        root=root,
        settings=read_json(root / "config.json"),
        versions=read_json(root / "versions.json") or {},
        seconds=seconds,
        branch=read_json(root / files.BRANCH),
        before=_round(root / "initial", -1),
        rounds=tuple(sorted(rounds, key=lambda each: each.index)),
    )


def _round(folder: Path, index: int) -> Round:
    return Round(
        index=index,
        config=read_json(folder / "environment.yaml", Configuration.from_dict),
        generated=read_json(folder / "generated.json", lambda of: {**of, "rows": of["rows"]}),
        steps=tuple(files.read_log(folder / "train.jsonl")),
        validation=_validation(folder),
        test=_validation(folder / files.TEST),
        design=_design(folder / "design"),
        engineer_steps=tuple(files.read_log(folder / "engineer_training.jsonl")),
        reading=read_json(folder / files.READING, readings),
    )


def _validation(folder: Path) -> Validation | None:
    def parse(found: Mapping[str, Any]) -> Validation:
        return Validation(
            FailureBreakdown.from_dict(found),
            FailureBreakdown.from_dict(found["greedy"]),
            found.get("effective_answers", {}),
            found.get("completion_tokens_mean"),
            found.get("truncated_fraction"),
            folder / "answers.jsonl",
        )

    return read_json(folder / "validation.json", parse)


def _design(folder: Path) -> Mapping[str, Any] | None:
    def parse(found: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            **found,
            "config": Configuration.from_dict(found["config"]),
            "measures": read_json(folder / "analysis.json"),
            "context": _text(folder / "context.md"),
            "answers": _text(folder / "answers.md"),
        }

    return read_json(folder / "design.json", parse)


def readings(found: Mapping[str, Any]) -> dict[str, Reading]:
    """The content of a `reading.json`: readings by the rule that makes their designs."""
    return {rule: Reading(**one) for rule, one in found.items()}


def _text(path: Path) -> str:
    return path.read_text(errors="replace", encoding="utf-8") if path.is_file() else ""


def read_json(path: Path, parse: Callable[[Any], Any] = lambda value: value) -> Any:
    """`store.read_file`, or None if there is no file."""
    return files.read_file(path, parse) if path.is_file() else None
