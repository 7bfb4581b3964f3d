"""Rules of 2025 that adapt the difficulty of training, as designers of whole rounds.

The papers adapt after every step; a designer sees the evidence of whole rounds. Each rule here says
what it assumes in between. Rows stand for their categories or levels of difficulty; `rlve` and
`adarft` need rows in order of difficulty. All leave the other numbers of the current configuration
alone.
"""

import math

import numpy as np

from engineer.designers import Design, divided
from engineer.record import RoundRecord, RunRecord
from engineer.space import ConfigurationSpace

SEC_RATE, SEC_TEMPERATURE = 0.5, 0.4
"""Rate of SEC's updates, and temperature of its choice: the authors use 0.2, 0.4 and 1."""
PROFICIENT, WINDOW = 0.9, 4
"""Accuracy at which RLVE's window of so many levels moves up by one."""
TARGET_REWARD, SENSITIVITY, STEP, HARDEST = 0.5, 2.0, 50.0, 100.0
"""beta, alpha, eta and d_max of AdaRFT; d_min is 0."""
LOWEST, HIGHEST, GROUP = 0.2, 0.8, 8
"""Pass rates that difficulty filtering keeps, and completions of a problem."""


def sec(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """SEC, Self-Evolving Curriculum (arXiv 2505.14970): a bandit on mean |advantage|.

    In every step Q <- a r + (1 - a) Q for the rows of the batch, from Q = 0, where r is a row's
    mean absolute advantage, and rows are drawn by softmax(Q / t). For rewards of 0 and 1 with mean
    p, normalised by their standard deviation, r = 2 sqrt(p (1 - p)).

    Assumed: p is the same in all groups and steps of a round, the row's mean training valid rate.
    Groups differ, so the true r is at most this one. A row without training keeps its Q.
    """
    values = dict.fromkeys(space.rows, 0.0)
    for past in record.history:
        training = past.evidence.training
        rates = past.breakdown.valid_rates(space.rows) if training is None else training.valid_rate
        for row, p in rates.items():
            reward = 2.0 * math.sqrt(p * (1.0 - p))
            values[row] = reward + (1.0 - SEC_RATE) ** _steps(past) * (values[row] - reward)
    weights = [math.exp(value / SEC_TEMPERATURE) for value in values.values()]
    return divided(record, space, weights, "sec")


def rlve(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """The sliding window of RLVE (arXiv 2511.07317): equal parts of the rows from l to h.

    From h = 0, h <- h + 1 whenever the accuracy at h is at least 0.9, which is checked after
    every few problems there; l is 0 or, if higher, h - 3.

    Assumed: all checks of a round see the valid rates of its validation, so h rises to the first
    row below 0.9. It never falls. The paper has no hardest level; here h ends at the last row.
    """
    rows, high = len(space.rows), 0
    for past in record.history:
        rates = list(past.breakdown.valid_rates(space.rows).values())
        while high + 1 < rows and rates[high] >= PROFICIENT:
            high += 1
    low = max(high - WINDOW + 1, 0)
    return divided(record, space, [float(low <= i <= high) for i in range(rows)], "rlve")


def adarft(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """The target difficulty of AdaRFT (arXiv 2504.05520).

    Every step trains on the problems whose difficulty is next to a target, from 0 on, which then
    moves by eta tanh(alpha (R - beta)) within 0 and 100, R the step's mean reward.

    Assumed: the rows lie at equal distances from 0 to 100 and have problems enough, so that a step
    trains on one row; R is its valid rate in the last validation. The steps of all rounds after
    the first are gone through in this way, and a row's fraction is its part of those of the last.
    """
    levels, target = np.linspace(0.0, HARDEST, len(space.rows)), 0.0
    for past in record.history:
        rates = list(past.breakdown.valid_rates(space.rows).values())
        steps = np.zeros(len(levels))
        for _ in range(_steps(past)):
            nearest = int(np.argmin(np.abs(levels - target)))
            steps[nearest] += 1
            moved = target + STEP * math.tanh(SENSITIVITY * (rates[nearest] - TARGET_REWARD))
            target = min(max(moved, 0.0), HARDEST)
    return divided(record, space, steps.tolist(), "adarft")


def filtering(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """Balanced online difficulty filtering (arXiv 2504.03380), as the set that it would keep.

    The paper samples problems until enough have a pass rate within bounds, and trains on these
    alone. A row's fraction is its part of what passes of a uniform stream.

    Assumed: all problems of a row have its valid rate in the last validation, so that the number
    of right ones among 8 completions is binomial. The filter pays for what it discards; this rule
    does not, as validation was answered anyway, so all designers have equal rollouts. Equal parts
    if nothing would pass.
    """
    passing = [n for n in range(GROUP + 1) if LOWEST <= n / GROUP <= HIGHEST]
    kept = [
        math.fsum(math.comb(GROUP, n) * p**n * (1.0 - p) ** (GROUP - n) for n in passing)
        for p in record.valid_rates(space.rows).values()
    ]
    return divided(record, space, kept if any(kept) else [1.0] * len(kept), "filtering")


def _steps(past: RoundRecord) -> int:
    """Training steps of a round; 1 if unknown."""
    training = past.evidence.training
    return 1 if training is None else training.steps
