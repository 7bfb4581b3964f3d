"""One configuration out of several proposals, and how far it may move from the previous one."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from engineer.proposal import Proposal, project
from engineer.record import RunRecord
from engineer.space import Cell, Configuration, ConfigurationSpace

CHOICES = ("first", "majority", "median", "best")
"""How one of several proposals is made the design; see `choose`."""

LOCALITY_PRICE = 0.25


def expected_signal(
    valid_rates: Mapping[str, float], config: Configuration, space: ConfigurationSpace
) -> float:
    """Sum over rows of fraction x 4 p (1 - p), with p the valid rate of the row.

    The expected variance of success in units of its largest value, so in [0, 1].
    """
    name = space.fraction_parameter
    return math.fsum(4.0 * p * (1.0 - p) * config[row, name] for row, p in valid_rates.items())


def learnability_score(
    record: RunRecord, config: Configuration, space: ConfigurationSpace
) -> float:
    """The expected signal of a configuration, less a price for moving far.

    The price is 0.25 times the mean absolute change of all numbers since the previous
    configuration, each in units of the width of its bounds: designs that keep what works are
    preferred (arXiv 2606.17682 finds good designs local).
    """
    moves = [abs(move) for move in relative_moves(record.config, config, space).values()]
    signal = expected_signal(record.valid_rates(space.rows), config, space)
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
    how: str, proposed: Sequence[Configuration], record: RunRecord, space: ConfigurationSpace
) -> tuple[Configuration, int, tuple[str, ...]]:
    """The design that several proposals amount to, by one of `CHOICES`.

    "first" is the first of them. "best" has the highest `learnability_score`, the first of equal
    ones. "majority" takes for each number the value, rounded to its decimals, that most proposals
    have, of equally frequent ones the one nearest to the previous configuration, then the smaller.
    "median" takes the median of each number. The last two may mix proposals, so fractions are
    rescaled to sum to 1.

    Returns:
      The configuration, the index of the proposal that it is or, for a mixture, that is nearest to
      it, and what had to be changed in a mixture.
    """
    if how == "first":
        return proposed[0], 0, ()
    if how == "best":
        scores = [learnability_score(record, config, space) for config in proposed]
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
    """How far one design may move from the configuration before it; infinite is off.

    Attributes:
      fraction: largest change of any fraction, above 0.
      value: largest change of any other number, in units of the width of its bounds.
    """

    fraction: float = math.inf
    value: float = math.inf


def limit_move(
    config: Configuration, previous: Configuration, space: ConfigurationSpace, limits: MoveLimits
) -> tuple[Configuration, tuple[str, ...]]:
    """The design, drawn back to where it may be, and one line for each thing drawn back.

    Fractions are drawn back along the straight line to the previous ones, so that they still sum
    to 1; other numbers are cut one by one.
    """
    cells, moves = config.cells(), relative_moves(previous, config, space)
    fraction, notes = space.fraction_parameter, []
    largest = max(abs(moves[row, fraction]) for row in space.rows)
    if largest > limits.fraction + 1e-12:
        for row in space.rows:
            part = limits.fraction / largest * moves[row, fraction]
            cells[row, fraction] = previous[row, fraction] + part
        notes.append(
            f"{fraction}: a fraction moved by {largest:.2f}, all drawn back to at most "
            f"{limits.fraction:g}"
        )
    for cell, move in moves.items():
        if cell[1] == fraction or abs(move) <= limits.value + 1e-12:
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
