"""Counting the outcomes of a validation."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engineer.evidence import DrawnFailure, Evidence, FailureBreakdown, Statistics, TrainingEvidence
from engineer.record import RunRecord
from engineer.space import on_grid, round_fractions
from experiments.families.demonstrations import random_record
from experiments.families.lakes.texts import CHECKS, TEXTS, lake_space

RECORDS = [
    {"group": "3", "valid": True, "optimal": True, "failed": []},
    {"group": "5", "valid": False, "failed": ["conflict_free", "goals_reached"]},
    {"group": "3", "valid": False, "failed": ["parsable", "conflict_free", "goals_reached"]},
    {"group": "3", "valid": False, "failed": ["conflict_free"]},
    {"group": "5", "valid": True, "optimal": False, "failed": []},
]


def breakdown_of(records):
    return FailureBreakdown.from_records(records, checks=CHECKS, label="size", alone=TEXTS.alone)


def with_values(name, values):
    return [{**record, name: value} for record, value in zip(RECORDS, values, strict=True)]


def test_counts_by_group():
    breakdown = breakdown_of(RECORDS)
    three, five = breakdown.by_group
    assert (three.name, three.answers, three.valid, three.optimal) == ("3", 3, 1, 1)
    assert (five.name, five.answers, five.valid, five.optimal) == ("5", 2, 1, 0)
    # Completion 2 cannot be parsed: its conflict and goals are not counted.
    assert three.failed == {
        **dict.fromkeys(CHECKS, 0), "parsable": 1, "conflict_free": 1,
    }  # fmt: skip
    assert five.failed["goals_reached"] == five.failed["conflict_free"] == 1
    assert breakdown.failures("conflict_free") == 2
    assert (breakdown.answers, breakdown.valid_rate, breakdown.optimal_rate) == (5, 0.4, 0.2)
    assert three.valid_rate == pytest.approx(1 / 3)
    assert breakdown.outcome("4") is None


def test_truncated_completions_are_counted_by_row_valid_or_not():
    found = breakdown_of(with_values("truncated", [True, True, False, False, False]))
    assert [row.truncated for row in found.by_group] == [1, 1]
    assert [row.truncated_rate for row in found.by_group] == [1 / 3, 1 / 2]
    assert FailureBreakdown.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    unknown = breakdown_of(RECORDS)
    assert unknown.by_group[0].truncated is None
    assert "truncated" not in unknown.to_dict()["by_size"]["3"]
    with pytest.raises(ValueError, match=r"outcomes of 3: truncated=4: .*the 3 answers"):
        dataclasses.replace(found.by_group[0], truncated=4)


def test_rows_of_which_more_than_a_fifth_is_truncated_stand_out():
    records = [{"group": group, "valid": True, "failed": [], "truncated": i < count}
               for group, count in (("3", 2), ("5", 3)) for i in range(10)]  # fmt: skip
    assert [row.name for row in breakdown_of(records).truncated_rows] == ["5"]


def test_a_check_or_feature_named_twice_counts_once():
    """As by a `verify` that adds a check for every line that fails it."""
    features = [["a"], [], ["a", "b"], None, ["b"]]
    records = with_values("features", features)
    twice = [
        {**record, "failed": record["failed"] * 2, "features": record["features"] and more * 2}
        for record, more in zip(records, features, strict=True)
    ]
    assert breakdown_of(twice) == breakdown_of(records)


def test_a_valid_completion_is_optimal_where_nothing_says_otherwise():
    plain = [{k: v for k, v in record.items() if k != "optimal"} for record in RECORDS]
    assert breakdown_of(plain).optimal_rate == 0.4


def test_what_cannot_be_judged_further_counts_once():
    failed = [check for check in CHECKS if check != "parsable"]
    for names, counted in ((failed, "agent_count"), (CHECKS, "parsable")):
        breakdown = breakdown_of([{"group": "3", "valid": False, "failed": names}])
        assert {check: breakdown.failures(check) for check in CHECKS} == {
            check: int(check == counted) for check in CHECKS
        }


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sets(st.sampled_from(CHECKS))), min_size=1))
def test_every_completion_counts_once(outcomes):
    records = [{"group": g, "valid": not f, "failed": sorted(f)} for g, f in outcomes]
    breakdown = breakdown_of(records)
    assert breakdown.answers == len(records)
    assert breakdown.valid_rate == np.mean([not f for _, f in outcomes])
    for name in {g for g, _ in outcomes}:
        row = breakdown.outcome(name)
        assert row.answers == sum(g == name for g, _ in outcomes)
        failed = [f for g, f in outcomes if g == name]
        assert row.failed["parsable"] == sum("parsable" in f for f in failed)
        others = sum("agent_count" in f and "parsable" not in f for f in failed)
        assert row.failed["agent_count"] == others


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"valid": True, "failed": ["parsable"]}, r"valid\[0\]=True contradicts"),
        ({"valid": False, "failed": []}, r"valid\[0\]=False contradicts"),
        ({"valid": False, "optimal": True, "failed": ["parsable"]}, r"optimal\[0\]=True"),
        ({"valid": False, "failed": ["speed"]}, r"failed\[0\]=\['speed'\]: allowed are"),
    ],
)
def test_contradictions_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        breakdown_of([{"group": "3", **change}])
    with pytest.raises(ValueError, match="at least one is needed"):
        breakdown_of([])


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


def test_statistics_by_group():
    three, five = breakdown_of(with_values("violation_time", [None, 2, None, 3, None])).by_group
    assert three.violation_time == Statistics(1, 3.0, 3.0, 3.0, 3.0)
    assert five.violation_time == Statistics(1, 2.0, 2.0, 2.0, 2.0)
    three, five = breakdown_of(with_values("gap", [0, 7, 7, 7, 4])).by_group  # Valid ones count.
    assert (three.gap.mean, five.gap.mean) == (0.0, 4.0)
    three, _ = breakdown_of(with_values("tokens", [10, 20, 30, 40, 50])).by_group
    assert three.length == Statistics(3, 26.6667, 10.0, 30.0, 40.0)
    assert three.gap is None


def test_evidence_and_runs_survive_json():
    breakdown = breakdown_of(with_values("tokens", range(5)))
    evidence = Evidence(
        breakdown,
        TrainingEvidence(9, 0.5, 0.6, 0.7, {"3": 0.5}, {"3": {"x": 0.1}}, {"3": {"x": 0.2}}),
        (DrawnFailure("3", ("conflict_free",), "a\nb", held_out=True),),
    )
    assert Evidence.from_dict(json.loads(json.dumps(evidence.to_dict()))) == evidence
    record = random_record(3, lake_space((3, 4, 10)), TEXTS)
    assert record.breakdown.names == ("3", "4", "10")  # In numerical, not in textual order.
    first = dataclasses.replace(record.history[0], evidence=evidence)
    record = dataclasses.replace(
        record, history=(first, *record.history[1:]), initial=breakdown, training={"a": "b"}
    )
    assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record
    for broken in ({}, {"validation": {}, "training": None, "failures": []}):
        with pytest.raises(ValueError, match=r"Evidence|breakdown"):
            Evidence.from_dict(broken)
    with pytest.raises(ValueError, match="nondegenerate_fraction=2"):
        TrainingEvidence(1, 0.0, 0.0, 2.0)


def test_grids_and_shares():
    assert on_grid(0.337, (0.0, 1.0)) == 0.34
    assert on_grid(0.9, (0.0, 5 / 9)) == 0.55  # the largest within the bounds
    assert on_grid(0.1, (0.123, 0.2)) == 0.13
    assert on_grid(0.5, (0.3333, 0.3336)) == 0.3333  # no such number within the bounds
    assert round_fractions([1.0, 1.0, 1.0]) == (0.34, 0.33, 0.33)
    assert round_fractions([5, 3, 2], 4) == (0.5, 0.25, 0.25)  # Exactly 2, 1.2 and 0.8 units.
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights = rng.dirichlet(np.full(rng.integers(1, 9), 0.3))
        shares = round_fractions(weights.tolist())
        assert sum(round(100 * s) for s in shares) == 100
        assert np.abs(np.asarray(shares) - weights).max() < 0.01 + 1e-9
