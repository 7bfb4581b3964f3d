"""One configuration out of several proposals, and how far it may move from the previous one."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from engineer.proposal import Proposal, project
from engineer.record import RunRecord
from engineer.space import Cell, Configuration, ConfigurationSpace

CHOICES = ("first", "majority", "median", "best")
"""How one of several proposals is made the design; see `choose`."""

LOCALITY_PRICE = 0.25

Score = Callable[[RunRecord, Configuration, ConfigurationSpace], float]


def learnability_score(
    record: RunRecord, config: Configuration, space: ConfigurationSpace
) -> float:
    """How much signal a configuration promises, less a price for moving far.

    The sum over rows of share x 4 p (1 - p), with p the latest valid rate of the row (0.5 where it
    was not validated): the expected variance of success in units of its largest value, so in
    [0, 1]. From it 0.25 times the mean absolute change of all numbers since the previous
    configuration is taken, each in units of the width of its bounds: designs that keep what works
    are preferred (arXiv 2606.17682 finds good designs local).
    """
    shares = config.column(space.fraction_parameter)
    signal = 0.0
    for row, share in zip(space.rows, shares, strict=True):
        outcome = record.breakdown.outcome(row)
        rate = 0.5 if outcome is None else outcome.valid_rate
        signal += share * 4.0 * rate * (1.0 - rate)
    moves = [abs(move) for move in relative_moves(record.config, config, space).values()]
    return signal - LOCALITY_PRICE * math.fsum(moves) / len(moves)


def relative_moves(
    before: Configuration, after: Configuration, space: ConfigurationSpace
) -> dict[Cell, float]:
    """By how much each number changed, in units of the width of its bounds."""
    moves = {}
    for cell in space.cells:
        low, high = space.bounds(*cell)
        moves[cell] = (after[cell] - before[cell]) / (high - low) if high > low else 0.0
    return moves


def choose(
    how: str,
    proposed: Sequence[Configuration],
    record: RunRecord,
    space: ConfigurationSpace,
    score: Score = learnability_score,
) -> tuple[Configuration, int, tuple[str, ...]]:
    """The design that several proposals amount to.

    "first" is the first of them. "best" has the highest score, the first of equal ones. "majority"
    takes for each number the value, rounded to its decimals, that most proposals have, of equally
    frequent ones the one nearest to the previous configuration, then the smaller. "median" takes
    the median of each number. The last two may mix proposals, so shares are rescaled to sum to 1.

    Args:
      how: one of `CHOICES`.
      proposed: configurations of the space, at least one.
      record: the run so far.
      space: the rows, parameters and bounds.
      score: for "best".

    Returns:
      The configuration, the index of the proposal that it is or, for a mixture, that is nearest to
      it, and what had to be changed in a mixture.

    Raises:
      ValueError: `how` is unknown, or nothing is proposed.
    """
    if how not in CHOICES:
        raise ValueError(f"choice={how!r} is unknown, allowed: {CHOICES}")
    if not proposed:
        raise ValueError("proposed: at least one configuration is needed")
    if how == "first":
        return proposed[0], 0, ()
    if how == "best":
        scores = [score(record, config, space) for config in proposed]
        index = scores.index(max(scores))
        return proposed[index], index, ()
    mixed: dict[Cell, float] = {}
    for cell in space.cells:
        values = [config[cell] for config in proposed]
        if how == "median":
            mixed[cell] = statistics.median(values)
        else:
            decimals = space.parameter(cell[1]).decimals
            counts = Counter(round(value, decimals) for value in values)
            before = record.config[cell]
            mixed[cell] = min(counts, key=lambda v: (-counts[v], abs(v - before), v))
    config, changes = project(Proposal.from_cells(mixed), record.config, space)
    distances = [
        math.fsum(map(abs, relative_moves(one, config, space).values())) for one in proposed
    ]
    return config, distances.index(min(distances)), changes


@dataclasses.dataclass(frozen=True)
class MoveLimits:
    """How far one design may move from the configuration before it.

    Attributes:
      share: largest change of any share; infinite is off.
      value: largest change of any other number, in units of the width of its bounds; infinite is
        off.

    Raises:
      ValueError: a limit is not above 0.
    """

    share: float = math.inf
    value: float = math.inf

    def __post_init__(self) -> None:
        for name in ("share", "value"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be above 0")


def limit_move(
    config: Configuration, previous: Configuration, space: ConfigurationSpace, limits: MoveLimits
) -> tuple[Configuration, tuple[str, ...]]:
    """The design, drawn back to where it may be, and one line for each thing drawn back.

    A group of shares is drawn back along the straight line to the previous shares, so that they
    still sum to 1; other numbers are cut one by one.
    """
    cells = config.cells()
    notes = []
    for group in space.simplexes:
        largest = max(abs(config[cell] - previous[cell]) for cell in group)
        if largest > limits.share + 1e-12:
            part = limits.share / largest
            for cell in group:
                cells[cell] = previous[cell] + part * (config[cell] - previous[cell])
            notes.append(
                f"{group[0][1]}: a share moved by {largest:.2f}, all drawn back to at most "
                f"{limits.share:g}"
            )
    for cell, move in relative_moves(previous, config, space).items():
        if cell in space.fraction_cells or abs(move) <= limits.value + 1e-12:
            continue
        low, high = space.bounds(*cell)
        far = math.copysign(limits.value * (high - low), move)
        if space.parameter(cell[1]).decimals == 0:
            far = float(math.trunc(far))
        cells[cell] = min(max(previous[cell] + far, low), high)
        notes.append(
            f"{space.label} {cell[0]} {cell[1]}: {config[cell]:.2f} drawn back to {cells[cell]:.2f}"
        )
    return Configuration.from_cells(cells), tuple(notes)
