"""Automatic curricula as designers: baselines that read numbers, not language.

They divide the training set over the rows. All but `success_targeting` leave the other numbers of
the current configuration alone.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from engineer import designers, rivals
from engineer.designers import Design, Designer, divided, projected
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace, on_grid

FAILURES_FLOOR, LEARNABILITY_FLOOR = 0.05, 0.02
"""Added to the weight of every row, so that none vanishes."""
TARGET_FLOOR = 0.05
"""The same for `success_targeting`."""
EASY, HARD, STEP = 0.7, 0.3, 0.05
"""Valid rates above and below which `targeted` changes a row's other numbers, and by how much."""
START = 0.2
"""Where they start from if there is no configuration to change."""
RATE, TEMPERATURE, EXPLORATION = 0.5, 0.05, 0.2
"""a, t (in units of the valid rate) and e of `progress_bandit` and `explored`."""
MASTERED = 0.5
"""Valid rate from which `mastery` goes on to the next row."""


def failure_proportional(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """Data in proportion to failures: a row's fraction ~ (1 - p) + 0.05, p its valid rate."""
    rates = record.valid_rates(space.rows).values()
    return divided(record, space, [1.0 - p + FAILURES_FLOOR for p in rates], "failures")


def learnability_proportional(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """Sampling for learnability: a row's fraction ~ p (1 - p) + 0.02, p its valid rate.

    Learnability, the variance of success, is that of arXiv 2408.15099 (No Regrets: Investigating
    and Improving Regret Approximations for Curriculum Discovery), for rows in place of levels.
    """
    rates = record.valid_rates(space.rows).values()
    return divided(record, space, _learnable(rates), "learnability")


def learnability_once(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """`learnability_proportional` of the validation before training, so in every round the same.

    Without one, that after round 0 takes its place.
    """
    before = record.initial or record.history[0].breakdown
    rates = before.valid_rates(space.rows).values()
    return divided(record, space, _learnable(rates), "learnability_once")


def _learnable(rates: Iterable[float]) -> list[float]:
    return [p * (1.0 - p) + LEARNABILITY_FLOOR for p in rates]


def success_targeting(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """Moves every number of a row to where about half of the answers are valid; see `targeted`."""
    config = targeted(record.valid_rates(space.rows), record.config, space)
    return projected(space, config.cells(), "target")


def targeted(
    rates: Mapping[str, float], current: Configuration | None, space: ConfigurationSpace
) -> Configuration:
    """Data where the learning signal is, and every other number towards a valid rate of a half.

    The fraction of a row is proportional to p (1 - p) + 0.05, p its valid rate: the variance of
    success, which is the learning signal of a group of answers, plus a constant so that no row
    vanishes. Every other number goes up by 0.05 (whole numbers by 1) for p > 0.7 and down for p <
    0.3, within the bounds of the space. It assumes that higher numbers make problems harder.

    Args:
      rates: p of every row.
      current: the configuration to change; None starts from 0.2.
      space: the rows and bounds.
    """
    cells: dict[tuple[str, str], float] = {}
    for row, rate in rates.items():
        sign = (rate > EASY) - (rate < HARD)
        for name in space.names:
            if name != space.fraction_parameter:
                start = current[row, name] if current is not None and row in current.rows else START
                decimals = space.parameter(name).decimals
                bounds, step = space.bounds(row, name), STEP if decimals else 1.0
                cells[row, name] = on_grid(round(start, decimals) + sign * step, bounds, decimals)
    cells |= space.divided([rate * (1.0 - rate) + TARGET_FLOOR for rate in rates.values()])
    return Configuration.from_cells({cell: cells[cell] for cell in space.cells})


def progress_bandit(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """The online bandit of teacher-student curriculum learning (arXiv 1707.00183), over rounds.

    The reward of a row is the change of its valid rate since the previous validation (for round 0:
    the one before training, if any). An exponential average Q <- a |reward| + (1 - a) Q runs over
    the rounds from Q = 0; the absolute value also brings back rows that are being forgotten.
    Fractions are (1 - e) softmax(Q / t) + e / rows. The paper averages signed rewards and chooses
    by |Q|, in which a gain and a loss cancel, and has either softmax or exploration.
    """
    validations = [past.breakdown for past in record.history]
    if record.initial is not None:
        validations.insert(0, record.initial)
    averages = np.zeros(len(space.rows))
    rates = [list(seen.valid_rates(space.rows).values()) for seen in validations]
    for reward in np.abs(np.diff(rates, axis=0)):
        averages = RATE * reward + (1.0 - RATE) * averages
    weights = explored(np.exp((averages - averages.max()) / TEMPERATURE))
    return divided(record, space, weights, "learning_progress")


def mastery(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """Half of the data in the first row below a valid rate of 0.5, half in the rows before it.

    All of it in the first row of the space while that is below 0.5; equal parts once no row is. The
    rows before share their half equally, so that they are not forgotten, as Zaremba and Sutskever
    mix a level with easier ones (arXiv 1410.4615, Learning to Execute). Rows beyond get nothing. It
    assumes that later rows are harder.
    """
    rates = list(record.valid_rates(space.rows).values())
    return divided(record, space, mastery_weights(rates), "mastery")


def mastery_weights(rates: Sequence[float]) -> list[float]:
    """A weight for each row, from valid rates in order; equal ones if all rows are mastered."""
    first = next((i for i, rate in enumerate(rates) if rate < MASTERED), None)
    if first is None:
        return [1.0] * len(rates)
    return [0.5 / first if i < first else 0.5 * (i == first) for i in range(len(rates))]


def explored(weights: np.ndarray) -> list[float]:
    """(1 - e) w / sum(w) + e / n for n weights w, not all of them 0: no row vanishes."""
    return ((1.0 - EXPLORATION) * weights / weights.sum() + EXPLORATION / len(weights)).tolist()


BY_RULE: Mapping[str, Designer] = {
    "fixed": designers.fixed,
    "first": designers.first,
    "random": designers.random,
    "failures": failure_proportional,
    "learnability": learnability_proportional,
    "learnability_once": learnability_once,
    "target": success_targeting,
    "learning_progress": progress_bandit,
    "mastery": mastery,
    "sec": rivals.sec,
    "rlve": rivals.rlve,
    "adarft": rivals.adarft,
    "filtering": rivals.filtering,
}
"""Designers without options, by name."""
