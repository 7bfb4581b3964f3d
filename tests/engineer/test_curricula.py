"""Curricula and roll-back, each by hand."""

import dataclasses
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from lake_records import SPACE, bounded, config, record

from engineer import designers
from engineer.curricula import (
    StagedCurriculum,
    default_stages,
    failure_proportional,
    learnability_proportional,
    mastery,
    mutation,
    progress_bandit,
    read_stages,
    success_targeting,
)
from engineer.designers import AcceptanceTest, Design
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


@hypothesis.given(st.integers(0, 2**31), st.lists(st.integers(0, 100), min_size=3, max_size=3))
def test_mutation_makes_small_edits_of_what_has_most_signal(seed, valid):
    spread, even = config(0.1, 0.3, 0.6), config(0.34, 0.33, 0.33)
    run = record((50, 50, 50), tuple(valid), configs=(spread, even))
    rates = np.array(valid) / 100

    def signal(one):
        return math.fsum(
            part * p * (1 - p) for part, p in zip(fractions_of(one), rates, strict=True)
        )

    parent = spread if signal(spread) > signal(even) else even
    design = mutation(run, SPACE, seed)
    SPACE.check(design.config)
    assert design == mutation(run, SPACE, seed)
    moved = np.subtract(fractions_of(design.config), fractions_of(parent))
    assert abs(moved).sum() <= 2 * 3 * 0.1 + 0.02  # three edits, rounded to hundredths
    for name in ("hole_ratio", "wait_ratio"):
        changed = np.subtract(design.config.column(name), parent.column(name))
        assert abs(changed).sum() <= 3 * 0.05 + 1e-9


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


def test_stages():
    stages = default_stages(SPACE)
    wanted = ((0.933, 0.033, 0.033), (0.483, 0.483, 0.033), (0.333, 0.333, 0.333))
    for stage, fractions_of_it in zip(stages, wanted, strict=True):
        assert stage.column("data_ratio") == pytest.approx(fractions_of_it, abs=0.01)
    assert [stage["3", "hole_ratio"] for stage in stages] == [0.08, 0.17, 0.25]
    curriculum = StagedCurriculum()
    started = record((90, 90, 90))
    assert curriculum(started, SPACE, 0).config == stages[0]  # a random start is no stage
    # 0.93 or 0.94 of 0.55 and the rest of 0.9 is 0.57: not yet.
    waiting = record((55, 90, 90), configs=[stages[0]])
    design = curriculum(waiting, SPACE, 0)
    assert (design.config, design.kept_previous) == (stages[0], True)
    assert "0.57" in design.reason
    ready = record((62, 50, 50), configs=[stages[0]])
    assert curriculum(ready, SPACE, 0).config == stages[1]
    done = record((90, 90, 90), configs=[stages[2]])
    assert curriculum(done, SPACE, 0).reason == "the last stage stays"
    own = read_stages([config(1, 0, 0).to_dict(), config(0, 0, 1).to_dict()])
    assert StagedCurriculum(own)(started, SPACE, 0).config == config(1, 0, 0)
    with pytest.raises(ValueError, match="stages="):
        read_stages([])


class Asked:
    def __init__(self):
        self.count = 0

    def __call__(self, record, space, seed):
        self.count += 1
        return Design(config=config(0.5, 0.3, 0.2), source="inner")


def test_roll_back():
    first, second, third = config(0.2, 0.3, 0.5), config(0.5, 0.3, 0.2), config(0.4, 0.3, 0.3)
    inner = Asked()
    test = AcceptanceTest(inner, margin=0.05)
    worse = record((60, 60, 60), (50, 50, 50), configs=[first, second])
    design = test(worse, SPACE, 0)
    assert (design.config, design.source, design.kept_previous) == (first, "rollback", True)
    assert "fell by 0.100 in round 1, more than 0.05" in design.reason
    assert inner.count == 0
    # What is restored has its own explanation again, not that of the design that failed.
    history = tuple(
        dataclasses.replace(past, summary=text)
        for past, text in zip(worse.history, ("first", "second"), strict=True)
    )
    explained = dataclasses.replace(worse, history=history, summary="second")
    assert test(explained, SPACE, 0).summary == "first"
    for run in (
        record((60, 60, 60)),  # nothing to compare with
        record((60, 60, 60), (56, 56, 56), configs=[first, second]),  # within the margin
        record((60, 60, 60), (50, 50, 50), configs=[first, first]),  # nothing was changed
        # Just restored: it is not taken back once more.
        record((60, 60, 60), (50, 50, 50), (40, 40, 40), configs=[first, second, first]),
    ):
        assert test(run, SPACE, 0).source == "inner"
    again = record((60, 60, 60), (61, 61, 61), (40, 40, 40), configs=[first, second, third])
    assert test(again, SPACE, 0).config == second
    assert AcceptanceTest(designers.random, 0.0)(record((1, 2, 3)), SPACE, 1).config


def test_all_are_deterministic_and_of_the_space():
    tight = lakes.lake_space((3, 4, 5), {3: (0.0, 0.1)})
    tight = bounded(tight, "wait_ratio", (0.0, 1.0), (0.0, 1.0), (0.5, 0.6))
    run = record((80, 50, 20), (70, 55, 30), initial=(50, 50, 10))
    for source, designer in (
        ("failures", failure_proportional),
        ("learnability", learnability_proportional),
        ("target", success_targeting),
        ("progress", progress_bandit),
        ("staged", StagedCurriculum()),
    ):
        design = designer(run, tight, 3)
        tight.check(design.config)
        assert designer(run, tight, 3) == design
        assert design.to_dict()["source"] == source
