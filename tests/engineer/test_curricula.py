"""Curricula, each by hand."""

import math

import pytest
from lake_records import SPACE, bounded, config, record

from engineer.curricula import (
    BY_RULE,
    failure_proportional,
    learnability_once,
    learnability_proportional,
    mastery,
    progress_bandit,
    success_targeting,
)
from experiments.families.lakes import texts as lakes


def fractions_of(one):
    return one.column("data_ratio")


def fractions(design):
    assert design.config.column("hole_ratio") == (0.2,) * 3  # nothing but fractions moves
    assert design.config.column("wait_ratio") == (0.4,) * 3
    return fractions_of(design.config)


def test_failures_and_learnability():
    run = record((90, 50, 20))
    # 0.15, 0.55 and 0.85 of 1.55.
    assert fractions(failure_proportional(run, SPACE, 0)) == (0.10, 0.35, 0.55)
    # p (1 - p) + 0.02: 0.11, 0.27 and 0.18 of 0.56.
    assert fractions(learnability_proportional(run, SPACE, 0)) == (0.20, 0.48, 0.32)
    # A size that was not validated counts as half solved.
    # 0.02, 0.02 and 0.27 of 0.31.
    unseen = learnability_proportional(record((100, 0)), SPACE, 0)
    assert fractions(unseen) == (0.07, 0.06, 0.87)


def test_learnability_once_is_that_before_training():
    before = fractions(learnability_proportional(record((10, 50, 90)), SPACE, 0))
    run = record((90, 50, 20), (99, 90, 20), initial=(10, 50, 90))
    assert fractions(learnability_once(run, SPACE, 0)) == before
    without = fractions(learnability_once(record((10, 50, 90), (90, 9, 9)), SPACE, 0))
    assert without == before


def test_first_returns_to_round_0():
    configs = [config(0.5, 0.3, 0.2, holes=0.1), config(0.1, 0.1, 0.8)]
    run = record((1, 1, 1), (2, 2, 2), configs=configs)
    assert BY_RULE["first"](run, SPACE, 0).config == configs[0]


def test_success_targeting_moves_every_number():
    design = success_targeting(record((90, 50, 20)), SPACE, 0)
    # p (1 - p) + 0.05: 0.14, 0.30 and 0.21 of 0.65.
    assert design.config.column("data_ratio") == (0.22, 0.46, 0.32)
    # From 0.2 and 0.4: up where p > 0.7, down where p < 0.3.
    assert design.config.column("hole_ratio") == (0.25, 0.2, 0.15)
    assert design.config.column("wait_ratio") == (0.45, 0.4, 0.35)


@pytest.mark.parametrize(
    ("valid", "wanted"),
    [
        ((20, 90, 90), (1.0, 0.0, 0.0)),  # the first row is not mastered
        ((90, 40, 90), (0.5, 0.5, 0.0)),
        ((90, 50, 0), (0.25, 0.25, 0.5)),
        ((90, 50, 60), (0.34, 0.33, 0.33)),  # nothing is left
    ],
)
def test_mastery(valid, wanted):
    assert fractions(mastery(record(valid), SPACE, 0)) == wanted


def test_learning_progress():
    run = record((40, 40, 40), (20, 40, 45), initial=(40, 20, 40))
    # a = 0.5: Q = 0.5 * 0.2 = 0.1; 0.5 * 0.5 * 0.2 = 0.05; 0.5 * 0.05 = 0.025. Forgetting counts.
    weights = [math.exp(q / 0.05) for q in (0.1, 0.05, 0.025)]
    wanted = [0.8 * w / sum(weights) + 0.2 / 3 for w in weights]
    got = fractions(progress_bandit(run, SPACE, 0))
    assert got == pytest.approx(wanted, abs=0.01)
    assert got[0] > got[1] > got[2]
    still = record((40, 40, 40))  # nothing known yet
    assert fractions(progress_bandit(still, SPACE, 0)) == (0.34, 0.33, 0.33)


def test_all_are_deterministic_and_of_the_space():
    tight = lakes.lake_space((3, 4, 5), {3: (0.0, 0.1)})
    tight = bounded(tight, "wait_ratio", (0.0, 1.0), (0.0, 1.0), (0.5, 0.6))
    run = record((80, 50, 20), (70, 55, 30), initial=(50, 50, 10))
    for source, designer in BY_RULE.items():
        design = designer(run, tight, 3)
        tight.check(design.config)
        assert designer(run, tight, 3) == design
        assert design.to_dict()["source"] == source
