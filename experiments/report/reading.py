"""The files of a run as a report needs them, however far the run has come."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from engineer.evidence import FailureBreakdown
from engineer.space import Configuration
from experiments import store as files

_FAILURES = {
    "parsable": "not readable",
    "legal_moves": "illegal move",
    "conflict_free": "conflict",
    "goals_reached": "goal missed",
    "starts_correct": "wrong start",
    "agent_count": "wrong number of agents",
    "no_holes": "hole entered",
    "in_bounds": "out of bounds",
}


def failure(check: str) -> str:
    """What to call failing a check: a share of failures under the check's own name misleads."""
    return _FAILURES.get(check, f"fails {check.replace('_', ' ')}")


@dataclasses.dataclass(frozen=True)
class Validation:
    """One validation.

    Attributes:
      breakdown: the outcomes by lake size.
      tokens: mean length of the answers, if it is known.
      truncated: share of the answers that ran out of budget, if it is known.
      answers: the file with all answers.
    """

    breakdown: FailureBreakdown
    tokens: float | None
    truncated: float | None
    answers: Path


@dataclasses.dataclass(frozen=True)
class Design:
    """How the configuration of the next round came about; what is not known is empty or None."""

    design: Mapping[str, Any]
    measures: Mapping[str, Any] | None
    reading: Mapping[str, Any] | None
    context: str
    answers: str

    @property
    def config(self) -> Configuration:
        """The configuration that was designed."""
        return Configuration.from_dict(self.design["config"])


@dataclasses.dataclass(frozen=True)
class Round:
    """One round, as far as it has come.

    Attributes:
      index: its number.
      config: what its training set was made from, once that is made.
      generated: what the generator made of it.
      steps: the figures of every training step so far.
      validation: of the weights after the round.
      design: of the next round's configuration.
      engineer_steps: the training of the engineer itself, where that was asked for.
    """

    index: int
    config: Configuration | None
    generated: Mapping[str, Any] | None
    steps: tuple[Mapping[str, float], ...]
    validation: Validation | None
    design: Design | None
    engineer_steps: tuple[Mapping[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
      root: its folder.
      settings: all options, nested.
      versions: what it was made with.
      seconds: wall time of the processes that worked on it, where it was noted. A study computes
        the common beginning of its runs elsewhere.
      initial: the validation before training.
      rounds: those that have begun.
    """

    root: Path
    settings: Mapping[str, Any]
    versions: Mapping[str, Any]
    seconds: float | None
    initial: Validation | None
    rounds: tuple[Round, ...]

    @property
    def validations(self) -> list[tuple[str, Validation]]:
        """(name, validation) of all that are finished, in order; the first is called "start"."""
        named = [("start", self.initial)]
        named += [(str(each.index), each.validation) for each in self.rounds]
        return [(name, found) for name, found in named if found is not None]

    @property
    def steps(self) -> list[Mapping[str, float]]:
        """The figures of all training steps in order."""
        return [step for each in self.rounds for step in each.steps]

    @property
    def validation_set(self) -> Path:
        """The file with the instances of every validation."""
        return self.root / "validation" / "instances.jsonl"


def is_run(root: Path) -> bool:
    """Whether a folder is that of a run."""
    return (root / "config.json").is_file()


def read_run(root: Path) -> Run:
    """Reads the folder of a run; what is not there yet is left out.

    Raises:
      ValueError: it is no folder of a run, or a file of it is damaged; the message names it.
    """
    if not is_run(root):
        raise ValueError(f"{root}: no run is there (a run has a config.json)")
    folders = [path for path in (root / "rounds").glob("*") if path.name.isdecimal()]
    rounds = [_round(path) for path in sorted(folders, key=lambda path: int(path.name))]
    times = json_lines(root / files.TIMES)
    return Run(
        root=root,
        settings=_json(root / "config.json"),
        versions=_json(root / "versions.json") or {},
        seconds=sum(line["seconds"] for line in times) if times else None,
        initial=_validation(root / "initial"),
        rounds=tuple(rounds),
    )


def json_lines(path: Path) -> list[Any]:
    """The records of a file that grows line by line; a last line that is not whole is no record.

    Raises:
      ValueError: another line is damaged.
    """
    if not path.is_file():
        return []
    *lines, rest = path.read_text(errors="replace").split("\n")
    records = []
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number > len(lines):  # Killed in the midst of it.
                break
            raise ValueError(f"{path}: line {number} is damaged: {error}") from error
    return records


def _round(folder: Path) -> Round:
    config = folder / "environment.yaml"
    return Round(
        index=int(folder.name),
        config=_configuration(config) if config.is_file() else None,
        generated=_json(folder / "generated.json"),
        steps=tuple(json_lines(folder / "train.jsonl")),
        validation=_validation(folder),
        design=_design(folder / "design"),
        engineer_steps=tuple(json_lines(folder / "engineer_training.jsonl")),
    )


def _configuration(path: Path) -> Configuration:
    try:
        return Configuration.from_dict(yaml.safe_load(path.read_text()))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path}: damaged: {error}") from error


def _validation(folder: Path) -> Validation | None:
    path = folder / "validation.json"
    found = _json(path)
    if found is None:
        return None
    try:
        breakdown = FailureBreakdown.from_dict(found)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Validation(
        breakdown,
        found.get("completion_tokens_mean"),
        found.get("truncated_fraction"),
        folder / "answers.jsonl",
    )


def _design(folder: Path) -> Design | None:
    design = _json(folder / "design.json")
    if design is None:
        return None
    return Design(
        design,
        _json(folder / "analysis.json"),
        _json(folder / "reading.json"),
        _text(folder / "context.md"),
        _text(folder / "answers.md"),
    )


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


def _json(path: Path) -> Any:
    """What a file holds; None if it is not there."""
    if not path.is_file():
        return None
    try:
        return files.read_json(path)
    except ValueError as error:
        raise ValueError(f"{path}: damaged: {error}") from error
