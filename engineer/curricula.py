"""Automatic and manual curricula as designers: baselines that read numbers and no language.

All of them divide the training set over the rows and leave the other numbers of the current
configuration alone, except for the manual curriculum, whose stages are whole configurations.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from engineer.designers import Design
from engineer.proposal import Proposal, project
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace, on_grid, round_fractions

UNSEEN = 0.5
"""Valid rate of a row that was not validated."""


@dataclasses.dataclass(frozen=True)
class FailureShares:
    """Data in proportion to failures: share of a row ~ (1 - p) + `floor`, with p its valid rate."""

    floor: float = 0.05
    source: str = "failures"

    def __post_init__(self) -> None:
        _check_unit("floor", self.floor)

    def design(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The current configuration with other shares."""
        del seed
        rates = valid_rates(record, space)
        weights = {row: 1.0 - rate + self.floor for row, rate in rates.items()}
        return _with_shares(record, space, weights, self.source)


@dataclasses.dataclass(frozen=True)
class LearnabilityShares:
    """Sampling for learnability: share of a row ~ p (1 - p) + `floor`, with p its valid rate.

    The learnability of a level is that of arXiv 2408.15099 (No Regrets: Investigating and
    Improving Regret Approximations for Curriculum Discovery), there of single levels, here of
    rows; the floor keeps a rest of every row.
    """

    floor: float = 0.02
    source: str = "learnability"

    def __post_init__(self) -> None:
        _check_unit("floor", self.floor)

    def design(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The current configuration with other shares."""
        del seed
        rates = valid_rates(record, space)
        weights = {row: rate * (1.0 - rate) + self.floor for row, rate in rates.items()}
        return _with_shares(record, space, weights, self.source)


@dataclasses.dataclass(frozen=True)
class ProgressBandit:
    """Teacher-student curriculum learning (arXiv 1707.00183), its online bandit, on rounds.

    The reward of a row in a round is the change of its valid rate since the validation before
    (before round 0: the one before any training, if there was one). An exponential average
    Q <- a |reward| + (1 - a) Q runs over the rounds, from Q = 0; the absolute value also brings
    back a row that is being forgotten. Shares are (1 - e) softmax(Q / t) + e / rows.

    Attributes:
      rate: a, in (0, 1].
      temperature: t, above 0, in units of the valid rate.
      exploration: e, in [0, 1].
    """

    rate: float = 0.5
    temperature: float = 0.05
    exploration: float = 0.2
    source: str = "progress"

    def __post_init__(self) -> None:
        _check_unit("rate", self.rate)
        _check_unit("exploration", self.exploration)
        if self.rate == 0 or not self.temperature > 0:
            raise ValueError(
                f"rate={self.rate}, temperature={self.temperature}: both must be above 0"
            )

    def design(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The current configuration with other shares."""
        del seed
        validations = [past.breakdown for past in record.history]
        if record.initial is not None:
            validations.insert(0, record.initial)
        values = dict.fromkeys(space.rows, 0.0)
        for before, after in itertools.pairwise(validations):
            for row in space.rows:
                old, new = before.outcome(row), after.outcome(row)
                if old is not None and new is not None:
                    reward = abs(new.valid_rate - old.valid_rate)
                    values[row] = self.rate * reward + (1.0 - self.rate) * values[row]
        highest = max(values.values())
        exponentials = {
            row: math.exp((value - highest) / self.temperature) for row, value in values.items()
        }
        total = math.fsum(exponentials.values())
        weights = {
            row: (1.0 - self.exploration) * e / total + self.exploration / len(space.rows)
            for row, e in exponentials.items()
        }
        return _with_shares(record, space, weights, self.source)


@dataclasses.dataclass(frozen=True)
class StagedCurriculum:
    """A curriculum made by hand: stages in a fixed order, the next as soon as one is mastered.

    A stage is mastered if the valid rate, averaged over the rows by their shares of the stage,
    reached `threshold` in a round that was trained on it. The last stage stays. A current
    configuration that is no stage (the random start of a run) is followed by the first.

    Attributes:
      stages: configurations of the space; if there are none, those of `default_stages`.
      threshold: in [0, 1].
    """

    stages: tuple[Configuration, ...] = ()
    threshold: float = 0.6
    source: str = "staged"

    def __post_init__(self) -> None:
        _check_unit("threshold", self.threshold)

    def design(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The configuration of the stage that is due."""
        del seed
        stages = self.stages or default_stages(space)
        for stage in stages:
            space.check(stage)
        if record.config not in stages:
            return Design(config=stages[0], source=self.source)
        at = stages.index(record.config)
        shares = record.config.column(space.fraction_parameter)
        rates = valid_rates(record, space).values()
        rate = math.fsum(share * rate for share, rate in zip(shares, rates, strict=True))
        if rate >= self.threshold and at + 1 < len(stages):
            return Design(config=stages[at + 1], source=self.source)
        last = at + 1 == len(stages)
        return Design(
            config=record.config,
            source=self.source,
            kept_previous=True,
            reason="the last stage stays"
            if last
            else f"stage {at} has valid rate {rate:.2f}, the next begins at {self.threshold:g}",
        )


def default_stages(space: ConfigurationSpace, count: int = 3) -> tuple[Configuration, ...]:
    """Stages in which rows are opened in their order and all other numbers rise.

    With R rows, stage k of `count` (from 1) divides 0.9 of the set equally over the first
    ceil(k R / count) rows and the rest over all rows; the other numbers stand at k / count of the
    way from their lower bound to the middle of where random draws lie. It takes for granted that
    later rows and higher numbers are harder.
    """
    stages = []
    for k in range(1, count + 1):
        opened = math.ceil(k * len(space.rows) / count)
        weights = {
            row: (0.9 / opened if i < opened else 0.0) + 0.1 / len(space.rows)
            for i, row in enumerate(space.rows)
        }
        cells = space.uniform().cells()
        for row, name in space.cells:
            if (row, name) not in space.fraction_cells:
                bounds = space.random_bounds(row, name)
                middle = (bounds[0] + bounds[1]) / 2
                value = bounds[0] + k / count * (middle - bounds[0])
                cells[row, name] = on_grid(value, bounds, space.parameter(name).decimals)
        cells |= _shares(space, weights)
        stages.append(Configuration.from_cells(cells))
    return tuple(stages)


def read_stages(table: Sequence[Mapping[str, Mapping[str, float]]]) -> tuple[Configuration, ...]:
    """Stages from a list of mappings as `Configuration.from_dict` reads them.

    Raises:
      ValueError: it is no such list, or empty.
    """
    if not isinstance(table, Sequence) or not table:
        raise ValueError(f"stages={table!r}: a list of configurations is needed")
    return tuple(Configuration.from_dict(stage) for stage in table)


def valid_rates(record: RunRecord, space: ConfigurationSpace) -> dict[str, float]:
    """The latest valid rate of each row, `UNSEEN` where it was not validated."""
    outcomes = {row: record.breakdown.outcome(row) for row in space.rows}
    return {row: UNSEEN if one is None else one.valid_rate for row, one in outcomes.items()}


def _with_shares(
    record: RunRecord, space: ConfigurationSpace, weights: Mapping[str, float], source: str
) -> Design:
    cells = record.config.cells() | _shares(space, weights)
    config, repairs = project(Proposal.from_cells(cells), record.config, space)
    return Design(config=config, source=source, repairs=repairs)


def _shares(
    space: ConfigurationSpace, weights: Mapping[str, float]
) -> dict[tuple[str, str], float]:
    name = space.fraction_parameter
    units = 10 ** space.parameter(name).decimals
    shares = round_fractions([weights[row] for row in space.rows], units)
    return {(row, name): share for row, share in zip(space.rows, shares, strict=True)}


def _check_unit(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value}: allowed are numbers in [0, 1]")
