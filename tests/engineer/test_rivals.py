"""Each rule against that of its paper, step by step in plain Python."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
from lake_records import SPACE, config, record

from engineer import rivals
from engineer.evidence import TrainingEvidence
from engineer.space import round_fractions
from experiments.families.lakes import texts as lakes

WIDE = lakes.lake_space(range(3, 9))
ROUNDS = ((95, 60, 10), (99, 92, 40))


def fractions(rule, run, space=SPACE):
    design = rule(run, space, 0)
    space.check(design.config)
    return design.config.column("data_ratio")


def trained(run, steps, *rates):
    """The record with so many steps in each round and the training valid rates of its rows."""
    rounds = [
        dataclasses.replace(
            past,
            evidence=dataclasses.replace(
                past.evidence, training=TrainingEvidence(steps, 0.5, 0.5, 0.5, valid_rate=of_rows)
            ),
        )
        for past, of_rows in zip(run.history, rates, strict=True)
    ]
    return dataclasses.replace(run, history=tuple(rounds))


@pytest.mark.parametrize("steps", [2, 40])
def test_sec(steps):
    rates = {"3": 0.9, "4": 0.5}, {"4": 0.75, "5": 0.0}
    q = dict.fromkeys("345", 0.0)
    for of_round in rates:
        for _ in range(steps):
            for row, p in of_round.items():
                rewards = np.repeat([1.0, 0.0], [round(100 * p), round(100 * (1 - p))])
                spread = rewards.std() or 1.0
                gain = np.abs((rewards - rewards.mean()) / spread).mean()
                q[row] = 0.5 * gain + 0.5 * q[row]
    chosen = np.exp(np.array(list(q.values())) / 0.4)
    wanted = round_fractions((chosen / chosen.sum()).tolist())
    assert fractions(rivals.sec, trained(record(*ROUNDS), steps, *rates)) == wanted
    assert len(set(wanted)) == 3


def window(*rounds):
    """The paper's rule over problems one by one, with as many right answers as the rate says."""
    low = high = 0
    for rates in rounds:
        right = tried = 0.0
        for _ in range(400):
            for level in range(low, high + 1):  # Uniform.
                if level == high:
                    right, tried = right + rates[level], tried + 1
            if tried > 8:
                if right / tried >= 0.9 and high + 1 < len(rates):
                    high += 1
                    if high - low + 1 > 4:
                        low = high - 3
                right = tried = 0.0
    return [float(low <= i <= high) for i in range(len(rounds[0]))]


@pytest.mark.parametrize(
    "rounds",
    [
        ((50, 0, 0, 0, 0, 0),),
        ((95, 92, 40, 95, 0, 0),),
        ((95, 92, 40, 0, 0, 0), (70, 70, 95, 99, 94, 10)),
        ((99, 99, 99, 99, 99, 99),),
    ],
)
def test_rlve(rounds):
    wanted = round_fractions(window(*(tuple(v / 100 for v in valid) for valid in rounds)))
    run = record(*rounds, configs=[wide(1 / 6)] * len(rounds))
    assert fractions(rivals.rlve, run, WIDE) == wanted


def wide(fraction):
    values = ((fraction, 0.2, 0.4),) * 6
    return dataclasses.replace(config(1.0, 0.0, 0.0), rows=WIDE.rows, values=values)


def test_adarft():
    """Batches of the problems next to the target, of a set with enough of every level."""
    difficulties = np.repeat([0.0, 50.0, 100.0], 64)
    target, visited = 0.0, []
    for valid in ROUNDS:
        visited = []
        for _ in range(30):
            batch = np.argsort(np.abs(difficulties - target), kind="stable")[:64]
            level = int(difficulties[batch].mean() / 50)
            visited.append(level)
            reward = valid[level] / 100
            target = float(np.clip(target + 50 * np.tanh(2 * (reward - 0.5)), 0, 100))
    wanted = round_fractions(np.bincount(visited, minlength=3).astype(float).tolist())
    rates = ({"3": 0.5}, {"3": 0.5})
    assert fractions(rivals.adarft, trained(record(*ROUNDS), 30, *rates)) == wanted
    assert len(set(wanted)) > 1


def test_filtering():
    """What a filter of groups of eight keeps of a uniform stream: 2 to 6 right answers."""
    rates = np.array(ROUNDS[-1]) / 100
    kept = scipy.stats.binom.cdf(6, 8, rates) - scipy.stats.binom.cdf(1, 8, rates)
    assert fractions(rivals.filtering, record(*ROUNDS)) == round_fractions(kept.tolist())
    assert fractions(rivals.filtering, record((100, 0, 100))) == (0.34, 0.33, 0.33)
