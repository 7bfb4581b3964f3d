"""What a validation shows: which checks the answers failed, for each lake size."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mapf_jax.environment_config import EnvironmentConfig

PARSABLE = "parsable"
AGENT_COUNT = "agent_count"
CHECKS = (
    PARSABLE,
    "legal_moves",
    "conflict_free",
    "goals_reached",
    "starts_correct",
    AGENT_COUNT,
    "no_holes",
    "in_bounds",
)
"""Names of the eight checks; an answer is valid if it passes all of them."""


@dataclasses.dataclass(frozen=True)
class SizeOutcome:
    """The outcomes of all validation answers on lakes of one size.

    Attributes:
      size: lake size N.
      answers: number of answers, at least 1.
      valid: how many of them pass every check.
      optimal: how many of the valid ones also have the least possible cost.
      failed: how many answers fail each check, in the order of `CHECKS`. An answer may fail
        several checks and is then counted under each.

    Raises:
      ValueError: a count is negative, or valid, optimal or a failure count is larger than the
        number of answers that it can be about.
    """

    size: int
    answers: int
    valid: int
    optimal: int
    failed: tuple[int, ...]

    def __post_init__(self) -> None:
        where = f"size {self.size}"
        if self.size < 1:
            raise ValueError(f"size={self.size}: must be at least 1")
        if self.answers < 1:
            raise ValueError(f"{where}: answers={self.answers}, must be at least 1")
        if not 0 <= self.valid <= self.answers:
            raise ValueError(f"{where}: valid={self.valid} is outside 0..{self.answers}")
        if not 0 <= self.optimal <= self.valid:
            raise ValueError(f"{where}: optimal={self.optimal} is outside 0..{self.valid}")
        if len(self.failed) != len(CHECKS):
            raise ValueError(f"{where}: failed={self.failed}, one count for each of {CHECKS}")
        invalid = self.answers - self.valid
        for check, count in zip(CHECKS, self.failed, strict=True):
            if not 0 <= count <= invalid:
                raise ValueError(f"{where}: failed[{check}]={count} is outside 0..{invalid}")
        if sum(self.failed) < invalid:
            raise ValueError(
                f"{where}: {invalid} answers are not valid, but only {sum(self.failed)} "
                "failed checks are counted"
            )

    @property
    def valid_rate(self) -> float:
        """Share of the answers that are valid, in [0, 1]."""
        return self.valid / self.answers

    @property
    def optimal_rate(self) -> float:
        """Share of the answers that are optimal, in [0, 1]."""
        return self.optimal / self.answers

    def failures(self, check: str) -> int:
        """Number of answers that fail `check`, one of `CHECKS`."""
        if check not in CHECKS:
            raise ValueError(f"check={check!r} is unknown, allowed: {CHECKS}")
        return self.failed[CHECKS.index(check)]


@dataclasses.dataclass(frozen=True)
class FailureBreakdown:
    """One validation, size by size; `by_size` is ascending in size and not empty."""

    by_size: tuple[SizeOutcome, ...]

    def __post_init__(self) -> None:
        sizes = self.sizes
        if not sizes:
            raise ValueError("by_size=(): at least one size is needed")
        if list(sizes) != sorted(set(sizes)):
            raise ValueError(f"by_size: sizes {sizes} must be ascending and distinct")

    @classmethod
    def from_outcomes(
        cls,
        sizes: npt.ArrayLike,
        valid: npt.ArrayLike,
        optimal: npt.ArrayLike,
        failed: Mapping[str, npt.ArrayLike],
    ) -> "FailureBreakdown":
        """Counts the outcomes of N answers.

        Nothing but its form can be judged of an answer that cannot be parsed, and nothing but
        that of one about another number of agents: such an answer counts under that check alone,
        whatever `failed` says of its others.

        Args:
          sizes: i[N], lake size of the instance that answer n is about.
          valid: bool[N], answer n passes every check.
          optimal: bool[N], and has the least possible cost.
          failed: for each name of `CHECKS` bool[N], answer n fails that check.

        Raises:
          ValueError: a check is missing or unknown, the arrays differ in length, or an answer
            contradicts itself (valid with a failed check, not valid without one, optimal but
            not valid).
        """
        size_of = np.asarray(sizes)
        if size_of.ndim != 1 or size_of.size == 0 or not np.issubdtype(size_of.dtype, np.integer):
            raise ValueError(
                f"sizes: an integer array [N] with N > 0 is needed, "
                f"got {size_of.dtype}{list(size_of.shape)}"
            )
        if set(failed) != set(CHECKS):
            raise ValueError(f"failed: checks {sorted(failed)} given, needed: {CHECKS}")

        def flags(name: str, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
            array = np.asarray(values)
            if array.shape != size_of.shape or array.dtype != np.bool_:
                raise ValueError(
                    f"{name}: bool[{size_of.size}] is needed, got {array.dtype}{list(array.shape)}"
                )
            return array

        is_valid = flags("valid", valid)
        is_optimal = flags("optimal", optimal)
        fails = np.stack([flags(f"failed[{check}]", failed[check]) for check in CHECKS])
        for check in (PARSABLE, AGENT_COUNT):
            alone = fails[CHECKS.index(check)].copy()
            fails &= ~alone
            fails[CHECKS.index(check)] = alone
        contradictory = is_valid == fails.any(axis=0)
        if contradictory.any():
            first = int(contradictory.argmax())
            raise ValueError(
                f"valid[{first}]={bool(is_valid[first])} contradicts the failed checks "
                f"{[c for c, f in zip(CHECKS, fails[:, first], strict=True) if f]}"
            )
        if (is_optimal & ~is_valid).any():
            first = int((is_optimal & ~is_valid).argmax())
            raise ValueError(f"optimal[{first}]=True, but valid[{first}]=False")

        rows = []
        for size in np.unique(size_of):
            here = size_of == size
            rows.append(
                SizeOutcome(
                    size=int(size),
                    answers=int(here.sum()),
                    valid=int(is_valid[here].sum()),
                    optimal=int(is_optimal[here].sum()),
                    failed=tuple(int(count) for count in fails[:, here].sum(axis=1)),
                )
            )
        return cls(tuple(rows))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lake sizes of the validation, ascending."""
        return tuple(outcome.size for outcome in self.by_size)

    @property
    def answers(self) -> int:
        """Number of answers over all sizes."""
        return sum(outcome.answers for outcome in self.by_size)

    @property
    def valid_rate(self) -> float:
        """Share of all answers that are valid, in [0, 1]."""
        return sum(outcome.valid for outcome in self.by_size) / self.answers

    @property
    def optimal_rate(self) -> float:
        """Share of all answers that are optimal, in [0, 1]."""
        return sum(outcome.optimal for outcome in self.by_size) / self.answers

    def failures(self, check: str) -> int:
        """Number of answers of any size that fail `check`, one of `CHECKS`."""
        return sum(outcome.failures(check) for outcome in self.by_size)

    def outcome(self, size: int) -> SizeOutcome | None:
        """The outcomes of one size, None if the validation has no lake of that size."""
        return next((row for row in self.by_size if row.size == size), None)

    def to_dict(self) -> dict[str, Any]:
        """Counts and rates, ready for JSON; `from_dict` reads the counts back."""
        return {
            "answers": self.answers,
            "valid_rate": self.valid_rate,
            "optimal_rate": self.optimal_rate,
            "failed": {check: self.failures(check) for check in CHECKS},
            "by_size": {
                str(row.size): {
                    "answers": row.answers,
                    "valid": row.valid,
                    "optimal": row.optimal,
                    "valid_rate": row.valid_rate,
                    "optimal_rate": row.optimal_rate,
                    "failed": dict(zip(CHECKS, row.failed, strict=True)),
                }
                for row in self.by_size
            },
        }

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "FailureBreakdown":
        """Reads what `to_dict` writes.

        Raises:
          ValueError: a field is missing or a count is not possible.
        """
        try:
            rows = [
                SizeOutcome(
                    size=int(size),
                    answers=int(row["answers"]),
                    valid=int(row["valid"]),
                    optimal=int(row["optimal"]),
                    failed=tuple(int(row["failed"][check]) for check in CHECKS),
                )
                for size, row in mapping["by_size"].items()
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"breakdown: missing or malformed field {error}") from error
        return cls(tuple(sorted(rows, key=lambda row: row.size)))


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """One finished round: what was trained on and how the validation went afterwards.

    Attributes:
      round: index of the round, from 0.
      config: the configuration of its training set.
      breakdown: the validation after its training.
      cold_start: True if nobody designed the configuration (the random start of a run).
    """

    round: int
    config: EnvironmentConfig
    breakdown: FailureBreakdown
    cold_start: bool

    def __post_init__(self) -> None:
        if self.round < 0:
            raise ValueError(f"round={self.round}: must be at least 0")

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON; `from_dict` is its inverse."""
        return {
            "round": self.round,
            "config": self.config.to_dict(),
            "breakdown": self.breakdown.to_dict(),
            "cold_start": self.cold_start,
        }

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "RoundRecord":
        """Reads what `to_dict` writes.

        Raises:
          ValueError: a field is missing or not allowed.
        """
        for name in ("round", "config", "breakdown", "cold_start"):
            if name not in mapping:
                raise ValueError(f"round record: {name} is missing")
        return cls(
            round=int(mapping["round"]),
            config=EnvironmentConfig.from_dict(mapping["config"]),
            breakdown=FailureBreakdown.from_dict(mapping["breakdown"]),
            cold_start=bool(mapping["cold_start"]),
        )


History = tuple[RoundRecord, ...]
"""The finished rounds of a run, oldest first."""


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """Everything an engineer may be told when it designs a round.

    Attributes:
      history: the finished rounds, oldest first, at least one.
      round: index of the round to be designed; later than every round of `history`.
      total_rounds: number of rounds of the whole run, round 0 included.
      epochs_per_round: passes over the training set in each round; may be a fraction.
      summary: the engineer's own explanation of the current configuration (module S), if any.
      training: full training details (full module T) as texts by name, if any.

    Raises:
      ValueError: a field is out of its range; the message names field, value and range.
    """

    history: History
    round: int
    total_rounds: int
    epochs_per_round: float
    summary: str | None = None
    training: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.history:
            raise ValueError("history=(): at least one finished round is needed")
        rounds = [record.round for record in self.history]
        if rounds != sorted(set(rounds)):
            raise ValueError(f"history: rounds {rounds} must be ascending and distinct")
        if not rounds[-1] < self.round < self.total_rounds:
            raise ValueError(
                f"round={self.round}: must be after round {rounds[-1]} and below "
                f"total_rounds={self.total_rounds}"
            )
        if self.epochs_per_round <= 0:
            raise ValueError(f"epochs_per_round={self.epochs_per_round}: must be above 0")

    @property
    def breakdown(self) -> FailureBreakdown:
        """The latest validation."""
        return self.history[-1].breakdown

    @property
    def config(self) -> EnvironmentConfig:
        """The configuration of the latest round, which a design replaces."""
        return self.history[-1].config
