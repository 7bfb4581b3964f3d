"""What a family's functions return is checked: a wrong value costs one record, never the run."""

import dataclasses
import math

import numpy as np
import pytest

from experiments.families import FamilyError, family, shapes, template
from experiments.families.family import SCORED, ProblemTask
from experiments.families.shapes import ShapeError
from learner.chat import Completion

PROBLEM = {"group": "3", "terms": [100, 200]}


@pytest.fixture
def sums():
    sums = template.Sums()
    sums.texts = dataclasses.replace(sums.texts, checks=(SCORED, *sums.texts.checks))
    return sums


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (None, "verify=None: allowed are mappings"),
        ([], "verify=[]"),
        ({}, "verify.failed: is missing"),
        ({"failed": None}, "verify.failed=None: allowed are lists"),
        ({"failed": "is_number"}, "verify.failed='is_number': allowed are lists"),
        ({"failed": ["speed"]}, "verify.failed[0]='speed': allowed are ["),
        ({"failed": [["x"]]}, "verify.failed[0]=['x']"),
        ({"failed": [], "reward": "x"}, "verify.reward='x': allowed are numbers from 0 to 1"),
        ({"failed": [], "reward": math.nan}, "verify.reward=nan"),
        ({"failed": [], "reward": 1e6}, "verify.reward=1000000.0"),
        ({"failed": [], "reward": 10**400}, "verify.reward=10000"),
        ({"failed": [], "reward": True}, "verify.reward=True"),
        ({"failed": [], "group": "9"}, "verify.group='9': allowed are ['3',"),
        ({"failed": [], "group": 3}, "verify.group=3"),
        ({"failed": [], "valid": False}, "verify.valid=False: failed=[]"),
        ({"failed": ["is_number"], "optimal": True}, "verify.optimal=True"),
        ({"failed": [], "gap": math.inf}, "verify.gap=inf: allowed are finite numbers"),
        ({"failed": [], "gap": 10**400}, "verify.gap=10000"),
        ({"failed": [], "violation_time": 0.5}, "verify.violation_time=0.5"),
        ({"failed": ["is_number"], "violation_time": -(10**400)}, "verify.violation_time=-1000"),
        ({"failed": [], "features": {"a": 1}}, "verify.features="),
        ({"failed": [], "accuracy": "high"}, "verify.accuracy='high'"),
        ({"failed": [], "tokens": ["1"]}, "verify.tokens="),
        ({"failed": [], "truncated": "no"}, "verify.truncated='no'"),
    ],
)
def test_a_wrong_record_fails_scored_and_counts_as_nothing_else(sums, returned, why, caplog):
    sums.verify = lambda problem, text: returned if text == "odd" else {"failed": []}
    family._SAID.clear()
    completions = [Completion(text, 1, False) for text in ("odd", "fine", "odd")]
    found = sums.task([PROBLEM]).score(np.zeros(3, int), completions)
    assert found.rewards.tolist() == [0, 1, 0]
    assert found.records[0]["failed"] == [SCORED]
    assert found.records[0]["why"].startswith(why)
    assert sums.breakdown(found.records).by_group[0].failed[SCORED] == 2
    assert caplog.text.count("a completion could not be scored: verify") == 1


def test_what_is_optional_may_be_none_or_missing(sums):
    record = {"failed": [], "reward": None, "gap": None, "features": None, "more": object()}
    sums.verify = lambda problem, text: record
    found = sums.task([PROBLEM]).score(np.zeros(1, int), [Completion("", 1, False)])
    assert found.rewards.tolist() == [1]
    assert sums.breakdown(found.records).valid_rate == 1
    sums.reward_range = (-2.0, 3.0)
    record["reward"] = -2
    assert sums.task([PROBLEM]).score(np.zeros(1, int), [Completion("", 1, False)]).rewards == -2


ROW = {"asked": 2, "made": 1, "achieved": {"fraction": 1.0}, "details": {}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"problems": None}, r"generate\.problems=None: allowed are lists"),
        ({"problems": [3]}, r"generate\.problems\[0\]=3: allowed are mappings"),
        ({"problems": [{}]}, r"generate\.problems\[0\]\.group: is missing"),
        ({"problems": [{"group": "9"}]}, r"generate\.problems\[0\]\.group='9'"),
        ({"problems": [PROBLEM] * 2}, "a problem is there twice"),
        ({"problems": [{**PROBLEM, "a": i} for i in range(150)]}, "150 problems; allowed are 3"),
        ({"problems": [{**PROBLEM, "terms": [1, 1]}]}, "a problem of `exclude` is there"),
        ({"rows": {"9": ROW}}, r"generate\.rows='9'"),
        ({"rows": {"3": {**ROW, "made": 0.5}}}, r"generate\.rows\.'3'\.made=0\.5"),
        ({"rows": {"3": {**ROW, "achieved": {"fraction": math.nan}}}}, r"'fraction'=nan"),
        ({"notes": "few"}, r"generate\.notes='few': allowed are lists"),
    ],
)
def test_wrong_problems_are_refused_by_field(sums, change, why):
    whole = {"problems": [PROBLEM], "rows": {"3": ROW}, "notes": []}
    exclude = [{**PROBLEM, "terms": [1, 1], "id": "round-0-3"}]
    sums.check_generated(whole, 3, exclude)
    with pytest.raises(ShapeError, match=why):
        sums.check_generated({**whole, **change}, 3, exclude)


def test_errors_quote_little():
    with pytest.raises(ShapeError) as caught:
        shapes.check("x" * 10**6, int, "verify.x")
    assert len(str(caught.value)) < 300


def test_a_run_that_loses_most_of_its_time_to_verification_ends_with_advice(monkeypatch):
    def verify(problem, text):
        raise family.OutOfTimeError("verify: more than 5 s")

    monkeypatch.setattr(family, "_MOST_LOST_SECONDS", -1.0)
    monkeypatch.setattr(family, "_MOST_LOST_FRACTION", 0.0)
    task = ProblemTask([PROBLEM], str, verify)
    with pytest.raises(FamilyError, match="verification ran out of time for 0 of 0 s; lower"):
        task.score(np.zeros(1, int), [Completion("", 1, False)])
    monkeypatch.setattr(family, "_MOST_LOST_SECONDS", 600.0)
    found = ProblemTask([PROBLEM], str, verify).score(np.zeros(1, int), [Completion("", 1, False)])
    assert found.metrics.keys() == {"seconds_lost"}
