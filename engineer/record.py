"""The part of a run's record that an engineer may know, as JSON."""

import dataclasses
from collections.abc import Iterable, Mapping

from engineer.evidence import Evidence, FailureBreakdown, JsonValue
from engineer.space import Configuration


@dataclasses.dataclass(frozen=True)
class RoundRecord(JsonValue):
    """One finished round: its configuration and its evidence.

    Attributes:
      round: index of the round, from 0.
      config: the configuration of its training set.
      evidence: of its training and of the validation after it.
      cold_start: the configuration was not designed (the start of a run).
      summary: the engineer's own explanation of the configuration, if any. A context shows only
        that of the latest round (`RunRecord.summary`).
    """

    round: int
    config: Configuration
    evidence: Evidence
    cold_start: bool
    summary: str | None = None

    def __post_init__(self) -> None:
        if self.round < 0:
            raise ValueError(f"round={self.round}: must be at least 0")

    @property
    def breakdown(self) -> FailureBreakdown:
        """The validation after the round's training."""
        return self.evidence.validation


@dataclasses.dataclass(frozen=True)
class RunRecord(JsonValue):
    """Everything an engineer may know when it designs a round.

    Attributes:
      history: the finished rounds, oldest first, at least one.
      round: index of the round to be designed; later than every round of `history`.
      total_rounds: number of rounds of the whole run, round 0 included.
      epochs_per_round: passes over the training set in each round; may be a fraction.
      summary: the engineer's own explanation of the current configuration (module S), if any.
      training: texts by name for the full form of module T, if any.
      initial: the validation before any training, if there was one. Curricula may use it; no
        context shows it.
    """

    history: tuple[RoundRecord, ...]
    round: int
    total_rounds: int
    epochs_per_round: float
    summary: str | None = None
    training: Mapping[str, str] | None = None
    initial: FailureBreakdown | None = None

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
    def config(self) -> Configuration:
        """The configuration of the latest round, which a design replaces."""
        return self.history[-1].config

    def valid_rates(self, rows: Iterable[str]) -> dict[str, float]:
        """The latest valid rate of each row, 0.5 where it was not validated."""
        return self.breakdown.valid_rates(rows)
