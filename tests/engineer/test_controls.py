"""Controls of a comparison of designers."""

import dataclasses

import pytest
from lake_records import SPACE, config, record

from engineer import controls
from engineer.controls import with_rows_renamed
from engineer.curricula import learnability_proportional
from engineer.designers import Design
from engineer.evidence import DrawnFailure, Evidence, Shortfall, TrainingEvidence


def test_shuffled_evidence_is_the_same_under_other_names():
    run = record((90, 50, 20), (95, 55, 25), initial=(80, 40, 10))
    training = TrainingEvidence(4, 0.5, 0.6, 0.9, {"3": 0.9, "5": 0.2})
    failure = DrawnFailure("4", ("parsable",), "a text", False)
    latest = run.history[-1]
    evidence = Evidence(latest.breakdown, training, (failure,))
    latest = dataclasses.replace(latest, evidence=evidence)
    run = dataclasses.replace(run, history=(run.history[0], latest))
    seen = []

    def inner(record, space, seed):
        seen.append(record)
        return learnability_proportional(record, space, seed)

    for seed in range(20):
        designed = controls.shuffled(inner)(run, SPACE, seed)
        shuffled = seen[-1]
        assert designed == learnability_proportional(shuffled, SPACE, seed)
        rates = shuffled.valid_rates(SPACE.rows)
        assert list(rates) == list(SPACE.rows)
        assert sorted(rates.values()) == [0.25, 0.55, 0.95]
        name = {rate: row for row, rate in rates.items()}
        assert shuffled.initial.outcome(name[0.55]).valid_rate == 0.4
        assert shuffled.history[0].breakdown.outcome(name[0.55]).valid_rate == 0.5
        assert shuffled.history[1].evidence.training.valid_rate == {
            name[0.95]: 0.9,
            name[0.25]: 0.2,
        }
        assert shuffled.history[1].evidence.failures[0].name == name[0.55]
        assert [past.config for past in shuffled.history] == [past.config for past in run.history]
    orders = {tuple(one.valid_rates(SPACE.rows).values()) for one in seen}
    assert len(orders) == 6


def test_a_local_edit_goes_the_same_way_for_a_tenth_at_most():
    run = record((90, 50, 20), configs=[config(0.2, 0.3, 0.5, holes=0.2, waits=0.4)])
    wanted = config(0.6, 0.3, 0.1, holes=0.26, waits=0.9)
    design = controls.local(lambda *_: Design(wanted, "somebody"))(run, SPACE, 0)
    assert design.source == "somebody"
    assert design.config.column("data_ratio") == pytest.approx((0.3, 0.3, 0.4))
    assert design.config.column("hole_ratio") == (0.26,) * 3  # In small steps already.
    assert design.config.column("wait_ratio") == pytest.approx((0.5,) * 3)
    same = controls.local(lambda *_: Design(run.config, "nobody"))(run, SPACE, 0)
    assert same.config == run.config


def test_what_was_made_of_a_configuration_is_renamed_with_it_alone():
    short = Shortfall(96, 7, 24, True, {"3": (7, 96)})
    numbers = {"3": {"data_ratio": 1.0}}
    training = TrainingEvidence(1, 0.0, 0.0, 0.0, {"3": 0.5}, numbers, numbers, (short,))
    run = record((90, 50, 20))
    (first,) = run.history
    found = dataclasses.replace(first.evidence, training=training)
    run = dataclasses.replace(run, history=(dataclasses.replace(first, evidence=found),))
    names = {"3": "4", "4": "5", "5": "3"}
    for configs, row in ((True, "4"), (False, "3")):
        moved = with_rows_renamed(run, names, configs=configs).history[0].evidence.training
        assert list(moved.valid_rate) == ["4"]  # Outcomes always move.
        assert list(moved.asked) == list(moved.achieved) == list(moved.shortfalls[0].rows) == [row]
