"""Results of a validation and of a round of training, for any environment family, as JSON."""

import dataclasses
import types
import typing
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from engineer.space import ordered_rows

MANY_TRUNCATED = 0.2
"""A row with a larger fraction of truncated answers says more about the budget than the model."""


class JsonValue:
    """Base of dataclasses with `to_dict` and `from_dict`, which may be nested."""

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON; `from_dict` is its inverse."""
        return {name: _written(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Reads what `to_dict` writes.

        Raises:
          ValueError: a field is missing or not allowed.
        """
        hints = typing.get_type_hints(cls)
        try:
            return cls(**{name: _read(hints[name], value) for name, value in mapping.items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{cls.__name__}: missing or malformed field {error}") from error


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


def _read(kind: Any, value: Any) -> Any:
    """A value of an annotated type from its JSON form."""
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return None if value is None else _read(arguments[0], value)
    if typing.get_origin(kind) is tuple:
        return tuple(_read(arguments[0], item) for item in value)
    return kind.from_dict(value) if hasattr(kind, "from_dict") else value


@dataclasses.dataclass(frozen=True)
class Statistics(JsonValue):
    """Count, mean, minimum, median and maximum of some numbers."""

    count: int
    mean: float
    least: float
    median: float
    largest: float

    @classmethod
    def of(cls, values: npt.ArrayLike) -> "Statistics | None":
        """Statistics of finite numbers [n]; None if there are none."""
        array = np.asarray(values, np.float64)
        if array.size == 0:
            return None
        numbers = array.mean(), array.min(), np.median(array), array.max()
        return cls(int(array.size), *(round(float(number), 4) for number in numbers))


@dataclasses.dataclass(frozen=True)
class GroupOutcome(JsonValue):
    """The outcomes of all validation answers of one row of the space (one lake size, one topic).

    Attributes:
      name: of the row.
      answers: number of answers, at least 1.
      valid: answers that pass every check.
      optimal: valid answers that are also optimal.
      failed: answers that fail each check; one that fails several counts under each.
      violation_time: time step at which answers first break a rule.
      gap: cost of valid answers above the optimum.
      length: tokens of all answers.
      truncated: answers, valid or not, that the token budget ended; None if unknown.
      features: {feature: {"answers", "valid"}} of the answers to problems with a feature that a
        configuration can ask for, such as the need of a wait; None if there are none.

    Raises:
      ValueError: the counts are negative or inconsistent.
    """

    name: str
    answers: int
    valid: int
    optimal: int
    failed: Mapping[str, int]
    violation_time: Statistics | None = None
    gap: Statistics | None = None
    length: Statistics | None = None
    truncated: int | None = None
    features: Mapping[str, Mapping[str, int]] | None = None

    def __post_init__(self) -> None:
        invalid, failed = self.answers - self.valid, self.failed.values()
        if not (self.answers > 0 and 0 <= self.optimal <= self.valid <= self.answers):
            raise ValueError(
                f"outcomes of {self.name}: optimal={self.optimal}, valid={self.valid}, "
                f"answers={self.answers}: none may be larger than the next"
            )
        if not all(0 <= count <= invalid for count in failed) or sum(failed) < invalid:
            raise ValueError(
                f"outcomes of {self.name}: failed={self.failed}: allowed are counts up to the "
                f"{invalid} answers that are not valid, each of which fails a check"
            )
        if not 0 <= (self.truncated or 0) <= self.answers:
            raise ValueError(
                f"outcomes of {self.name}: truncated={self.truncated}: allowed are counts up to "
                f"the {self.answers} answers"
            )

    @property
    def valid_rate(self) -> float:
        """Fraction of the answers that are valid, in [0, 1]."""
        return self.valid / self.answers

    @property
    def optimal_rate(self) -> float:
        """Fraction of the answers that are optimal, in [0, 1]."""
        return self.optimal / self.answers

    @property
    def truncated_rate(self) -> float:
        """Fraction of the answers that the token budget ended, in [0, 1]; 0 if unknown."""
        return (self.truncated or 0) / self.answers


@dataclasses.dataclass(frozen=True)
class FailureBreakdown:
    """One validation, row by row.

    Attributes:
      by_group: the rows; ascending if their names are whole numbers. Not empty.
      label: what a row is called.
    """

    by_group: tuple[GroupOutcome, ...]
    label: str

    def __post_init__(self) -> None:
        names = self.names
        if not names:
            raise ValueError(f"by_{self.label}=(): at least one row is needed")
        if names != ordered_rows(names):
            raise ValueError(f"by_{self.label}: {names} must be ascending and distinct")
        if len({tuple(row.failed) for row in self.by_group}) != 1:
            raise ValueError(f"by_{self.label}: the rows have different checks")

    @classmethod
    def from_records(
        cls,
        records: Sequence[Mapping[str, Any]],
        *,
        checks: Sequence[str],
        label: str,
        alone: Sequence[str] = (),
    ) -> "FailureBreakdown":
        """Counts the outcomes of verified completions.

        Args:
          records: for each completion `group` (the name of its row), `valid` and `failed` (the
            names of the checks it fails). Optional are `optimal` (`valid` by default) and the
            integers `violation_time`, `gap` (counted for valid completions) and `tokens`, None if
            unknown; the bool `truncated`; and `features`, names of what its problem has.
          checks: names of the checks, in the order of reports.
          label: what a row is called.
          alone: checks whose failure makes all others meaningless. A completion that fails one of
            them counts under that check alone, the first if it fails several.

        Raises:
          ValueError: there is no record, a check is unknown, or a record contradicts itself (valid
            with a failed check, not valid without one, optimal but not valid).
        """
        if not records:
            raise ValueError("records=[]: at least one is needed")
        by_group: dict[str, list[Mapping[str, Any]]] = {}
        for i, record in enumerate(records):
            valid, failed = record["valid"], record["failed"]
            if unknown := set(failed) - set(checks):
                raise ValueError(f"failed[{i}]={sorted(unknown)}: allowed are {tuple(checks)}")
            if valid == bool(failed):
                raise ValueError(f"valid[{i}]={valid} contradicts the failed checks {list(failed)}")
            if record.get("optimal", valid) and not valid:
                raise ValueError(f"optimal[{i}]=True, but valid[{i}]=False")
            by_group.setdefault(str(record["group"]), []).append(record)

        def counted(record: Mapping[str, Any]) -> Set[str]:
            only = [check for check in alone if check in record["failed"]]
            return set(only[:1] or record["failed"])

        def known(rows: Sequence[Mapping[str, Any]], name: str) -> Statistics | None:
            return Statistics.of([row[name] for row in rows if row.get(name) is not None])

        def featured(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]] | None:
            having: dict[str, list[bool]] = {}
            for row in rows:
                for feature in set(row.get("features") or ()):
                    having.setdefault(feature, []).append(row["valid"])
            counts = ((name, having[name]) for name in sorted(having))
            return {name: {"answers": len(v), "valid": sum(v)} for name, v in counts} or None

        outcomes = []
        for name in ordered_rows(by_group):
            rows = by_group[name]
            ended = [row["truncated"] for row in rows if row.get("truncated") is not None]
            valid_rows = [row for row in rows if row["valid"]]
            failures = Counter(check for row in rows for check in counted(row))
            outcomes.append(
                GroupOutcome(
                    name=name,
                    answers=len(rows),
                    valid=len(valid_rows),
                    optimal=sum(bool(row.get("optimal", True)) for row in valid_rows),
                    failed={check: failures[check] for check in checks},
                    violation_time=known(rows, "violation_time"),
                    gap=known(valid_rows, "gap"),
                    length=known(rows, "tokens"),
                    truncated=sum(ended) if ended else None,
                    features=featured(rows),
                )
            )
        return cls(tuple(outcomes), label)

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the checks."""
        return tuple(self.by_group[0].failed)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows."""
        return tuple(outcome.name for outcome in self.by_group)

    @property
    def answers(self) -> int:
        """Number of answers over all rows."""
        return sum(outcome.answers for outcome in self.by_group)

    @property
    def valid_rate(self) -> float:
        """Fraction of all answers that are valid, in [0, 1]."""
        return sum(outcome.valid for outcome in self.by_group) / self.answers

    @property
    def optimal_rate(self) -> float:
        """Fraction of all answers that are optimal, in [0, 1]."""
        return sum(outcome.optimal for outcome in self.by_group) / self.answers

    def failures(self, check: str) -> int:
        """Number of answers over all rows that fail `check`."""
        return sum(outcome.failed[check] for outcome in self.by_group)

    @property
    def truncated_rows(self) -> tuple[GroupOutcome, ...]:
        """The rows of which more than `MANY_TRUNCATED` of the answers are truncated."""
        return tuple(row for row in self.by_group if row.truncated_rate > MANY_TRUNCATED)

    def outcome(self, name: str) -> GroupOutcome | None:
        """The outcomes of one row; None if the validation has no such row."""
        return next((row for row in self.by_group if row.name == name), None)

    def valid_rates(self, rows: Iterable[str]) -> dict[str, float]:
        """The valid rate of each row, 0.5 where it was not validated."""
        outcomes = {row: self.outcome(row) for row in rows}
        return {row: 0.5 if one is None else one.valid_rate for row, one in outcomes.items()}

    def to_dict(self) -> dict[str, Any]:
        """Counts, rates and statistics, ready for JSON; `from_dict` reads it back."""
        rows = {
            row.name: {
                "valid_rate": row.valid_rate,
                "optimal_rate": row.optimal_rate,
                **{k: v for k, v in row.to_dict().items() if v is not None},
            }
            for row in self.by_group
        }
        return {
            "answers": self.answers,
            "valid_rate": self.valid_rate,
            "optimal_rate": self.optimal_rate,
            "failed": {check: self.failures(check) for check in self.checks},
            f"by_{self.label}": rows,
        }

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "FailureBreakdown":
        """Reads what `to_dict` writes.

        Raises:
          ValueError: a field is missing or a count is not possible.
        """
        tables = [name for name in mapping if name.startswith("by_")]
        if len(tables) != 1:
            raise ValueError(f"breakdown: fields {list(mapping)}, one by_... is needed")
        known = GroupOutcome.__dataclass_fields__
        try:
            rows = {
                name: GroupOutcome.from_dict(
                    {"name": name, **{k: v for k, v in row.items() if k in known}}
                )
                for name, row in mapping[tables[0]].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"breakdown: missing or malformed field {error}") from error
        return cls(tuple(rows[name] for name in ordered_rows(rows)), tables[0].removeprefix("by_"))


@dataclasses.dataclass(frozen=True)
class Shortfall(JsonValue):
    """A configuration that gave too few distinct problems.

    Attributes:
      asked: distinct problems requested for the training set.
      made: distinct problems made, fewer than asked.
      needed: with fewer the configuration is refused.
      refused: it was a design, and the previous configuration was kept in its place; otherwise the
        problems of the training set repeat.
      rows: {row: [made, asked]} of the rows that fell short, as far as they are known.
    """

    asked: int
    made: int
    needed: int
    refused: bool
    rows: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def text(self, label: str) -> str:
        """One line for people and models; `label` is what a row is called."""
        outcome = "previous configuration kept" if self.refused else "problems repeat"
        return f"{outcome}: {self.counts(label)}"

    def counts(self, label: str) -> str:
        """The numbers in words, without what follows from them."""
        rows = ", ".join(f"{label} {row} {made} of {of}" for row, (made, of) in self.rows.items())
        found = f"{self.made} of {self.asked} distinct problems" + (f" ({rows})" if rows else "")
        return found if self.made >= self.needed else f"{found}, at least {self.needed} are needed"


@dataclasses.dataclass(frozen=True)
class TrainingEvidence(JsonValue):
    """Results of a round of training.

    Attributes:
      steps: number of training steps, at least 1.
      reward: mean reward over all steps.
      reward_last: mean reward over the last quarter of the steps, at least one.
      nondegenerate_fraction: fraction of the groups whose rewards are not all equal, over all
        steps.
      valid_rate: fraction of valid training completions by row, where any were drawn.
      asked: the numbers of the configuration, by row and parameter.
      achieved: the numbers of the generated set, likewise.
      shortfalls: of the refused design, if any, and of the set that was trained on, if it repeats.
    """

    steps: int
    reward: float
    reward_last: float
    nondegenerate_fraction: float
    valid_rate: Mapping[str, float] = dataclasses.field(default_factory=dict)
    asked: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    achieved: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    shortfalls: tuple[Shortfall, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps={self.steps}: must be at least 1")
        if not 0 <= self.nondegenerate_fraction <= 1:
            raise ValueError(
                f"nondegenerate_fraction={self.nondegenerate_fraction}: must be in [0, 1]"
            )


@dataclasses.dataclass(frozen=True)
class DrawnFailure(JsonValue):
    """One failed answer, as a text for a person or a model.

    Attributes:
      name: of its row.
      failed: the checks it failed, and "truncated" if the token budget ended it.
      text: a drawing of the instance and of what went wrong.
      held_out: the instance is of the validation set; no context shows it.
    """

    name: str
    failed: tuple[str, ...]
    text: str
    held_out: bool


@dataclasses.dataclass(frozen=True)
class Evidence(JsonValue):
    """The evidence of one round: its validation, its training, and drawn failures."""

    validation: FailureBreakdown
    training: TrainingEvidence | None = None
    failures: tuple[DrawnFailure, ...] = ()
