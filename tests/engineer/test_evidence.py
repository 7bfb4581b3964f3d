"""Counting the outcomes of a validation."""

import dataclasses
import json

import numpy as np
import pytest

from engineer.evidence import DrawnFailure, Evidence, Statistics, TrainingEvidence
from engineer.record import RoundRecord, RunRecord
from engineer.space import on_grid, round_fractions
from experiments.families.lakes.demonstrations import random_record
from experiments.families.lakes.texts import CHECKS, TEXTS, lake_breakdown, lake_space


def _flags(**failed):
    count = 5
    return {check: np.asarray(failed.get(check, [False] * count)) for check in CHECKS}


SIZES = np.array([3, 5, 3, 3, 5])
VALID = np.array([True, False, False, False, True])
OPTIMAL = np.array([True, False, False, False, False])
FAILED = _flags(
    parsable=np.array([0, 0, 1, 0, 0], bool),
    conflict_free=np.array([0, 1, 1, 1, 0], bool),
    goals_reached=np.array([0, 1, 1, 0, 0], bool),
)


def test_counts_by_size():
    breakdown = lake_breakdown(SIZES, VALID, OPTIMAL, FAILED)
    three, five = breakdown.by_group
    assert (three.name, three.answers, three.valid, three.optimal) == ("3", 3, 1, 1)
    assert (five.name, five.answers, five.valid, five.optimal) == ("5", 2, 1, 0)
    # Answer 2 cannot be parsed: its conflict and goals are not counted.
    assert three.failed == {
        **dict.fromkeys(CHECKS, 0), "parsable": 1, "conflict_free": 1,
    }  # fmt: skip
    assert five.failures("goals_reached") == five.failures("conflict_free") == 1
    assert breakdown.failures("conflict_free") == 2
    assert (breakdown.answers, breakdown.valid_rate, breakdown.optimal_rate) == (5, 0.4, 0.2)
    assert three.valid_rate == pytest.approx(1 / 3)
    assert breakdown.outcome("4") is None


def test_an_answer_about_other_agents_counts_as_that_alone():
    failed = {check: np.array([check != "parsable"]) for check in CHECKS}
    breakdown = lake_breakdown(np.array([3]), np.array([False]), np.array([False]), failed)
    assert {check: breakdown.failures(check) for check in CHECKS} == {
        check: int(check == "agent_count") for check in CHECKS
    }


def test_json_round_trip():
    record = random_record(3, lake_space((3, 4, 10)), TEXTS)
    for past in record.history:
        assert RoundRecord.from_dict(json.loads(json.dumps(past.to_dict()))) == past
        assert past.breakdown.names == ("3", "4", "10")  # in numerical, not in textual order


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"valid": np.array([True, True, False, False, True])}, r"valid\[1\]=True contradicts"),
        ({"valid": np.array([False, False, False, False, True])}, r"valid\[0\]=False contradicts"),
        ({"optimal": np.array([True, True, False, False, False])}, r"optimal\[1\]=True"),
        ({"valid": VALID[:4]}, r"valid: bool\[5\] is needed, got bool\[4\]"),
        ({"sizes": SIZES.astype(float)}, "size: an array"),
        ({"failed": {"parsable": VALID}}, "failed: checks"),
        ({"failed": {**FAILED, "speed": VALID}}, "failed: checks"),
    ],
)
def test_contradictions_are_refused(change, message):
    arrays = {"sizes": SIZES, "valid": VALID, "optimal": OPTIMAL, "failed": FAILED, **change}
    with pytest.raises(ValueError, match=message):
        lake_breakdown(**arrays)


def test_a_run_record_is_in_order():
    record = random_record(0, lake_space((3,)), TEXTS)
    for change, message in (
        ({"history": ()}, "history"),
        ({"history": record.history * 2}, "ascending"),
        ({"round": record.history[-1].round}, "round="),
        ({"round": record.total_rounds}, "total_rounds"),
        ({"epochs_per_round": 0}, "epochs_per_round=0"),
    ):
        fields = {**vars(record), **change}
        with pytest.raises(ValueError, match=message):
            RunRecord(**fields)


def test_statistics_by_size():
    times = np.array([-1, 2, -1, 3, -1])
    gaps = np.array([0, -1, -1, -1, 4])
    length = np.array([10, 20, 30, 40, 50])
    three, five = lake_breakdown(
        SIZES, VALID, OPTIMAL, FAILED, violation_time=times, gap=gaps, length=length
    ).by_group
    assert three.violation_time == Statistics(1, 3.0, 3.0, 3.0, 3.0)
    assert five.violation_time == Statistics(1, 2.0, 2.0, 2.0, 2.0)
    assert (three.gap.mean, five.gap.mean) == (0.0, 4.0)
    assert three.length == Statistics(3, 26.6667, 10.0, 30.0, 40.0)
    unknown = lake_breakdown(SIZES, VALID, OPTIMAL, FAILED, gap=np.full(5, -1))
    assert unknown.by_group[0].gap is None
    with pytest.raises(ValueError, match=r"gap: integers\[5\]"):
        lake_breakdown(SIZES, VALID, OPTIMAL, FAILED, gap=gaps / 2)


def test_evidence_and_runs_survive_json():
    breakdown = lake_breakdown(SIZES, VALID, OPTIMAL, FAILED, length=np.arange(5))
    evidence = Evidence(
        breakdown,
        TrainingEvidence(9, 0.5, 0.6, 0.7, {"3": 0.5}, {"3": {"x": 0.1}}, {"3": {"x": 0.2}}),
        (DrawnFailure("3", ("conflict_free",), "a\nb", held_out=True),),
    )
    assert Evidence.from_dict(json.loads(json.dumps(evidence.to_dict()))) == evidence
    record = random_record(2, lake_space((3, 4)), TEXTS)
    first = dataclasses.replace(record.history[0], evidence=evidence)
    record = dataclasses.replace(
        record, history=(first, *record.history[1:]), initial=breakdown, training={"a": "b"}
    )
    assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record
    for broken in ({}, {"validation": {}, "training": None, "failures": []}):
        with pytest.raises(ValueError, match=r"evidence|breakdown"):
            Evidence.from_dict(broken)
    with pytest.raises(ValueError, match="nondegenerate_fraction=2"):
        TrainingEvidence(1, 0.0, 0.0, 2.0)


def test_grids_and_shares():
    assert on_grid(0.337, (0.0, 1.0)) == 0.34
    assert on_grid(0.9, (0.0, 5 / 9)) == 0.55  # the largest within the bounds
    assert on_grid(0.1, (0.123, 0.2)) == 0.13
    assert on_grid(0.5, (0.3333, 0.3336)) == 0.3333  # no such number within the bounds
    assert round_fractions([1.0, 1.0, 1.0]) == (0.34, 0.33, 0.33)
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights = rng.dirichlet(np.full(rng.integers(1, 9), 0.3))
        shares = round_fractions(weights.tolist())
        assert sum(round(100 * s) for s in shares) == 100
        assert np.abs(np.asarray(shares) - weights).max() < 0.01 + 1e-9
