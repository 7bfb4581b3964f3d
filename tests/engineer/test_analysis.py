"""What a design did with its evidence."""

import json

import numpy as np
import pytest

from engineer.analysis import (
    MEASURES,
    QUESTIONS,
    agreement,
    analyse,
    judge_design,
    rank_correlation,
    rules,
)
from engineer.context import VARIANTS
from engineer.evidence import Evidence, FailureBreakdown, GroupOutcome
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from experiments.families.demonstrations import random_record, rule_design
from experiments.families.lakes import texts as lakes

SPACE = lakes.lake_space((3, 4, 5, 6))


def config(*rows):
    return Configuration(SPACE.rows, SPACE.names, rows)


def evidence(valid, conflicts):
    rows = []
    for row, v, c in zip(SPACE.rows, valid, conflicts, strict=True):
        failed = dict.fromkeys(lakes.CHECKS, 0) | {"conflict_free": c, "goals_reached": 100 - v}
        rows.append(GroupOutcome(row, 100, v, v, failed))
    return Evidence(FailureBreakdown(tuple(rows), "size"))


BEFORE = config((0.4, 0.1, 0.5), (0.3, 0.1, 0.5), (0.2, 0.2, 0.5), (0.1, 0.3, 0.5))
LATEST = config((0.4, 0.2, 0.5), (0.3, 0.1, 0.5), (0.2, 0.3, 0.5), (0.1, 0.3, 0.5))
AFTER = config((0.3, 0.1, 0.5), (0.4, 0.1, 0.5), (0.25, 0.35, 0.5), (0.05, 0.1, 0.5))
RUN = RunRecord(
    (
        RoundRecord(0, BEFORE, evidence((98, 50, 40, 5), (0, 1, 2, 3)), True),
        RoundRecord(1, LATEST, evidence((95, 55, 30, 5), (5, 45, 30, 0)), False),
    ),
    2,
    4,
    1,
)


def test_by_hand():
    found = analyse(RUN, AFTER, SPACE)
    assert list(found) == list(MEASURES)
    # Changes of the fractions: -0.10, 0.10, 0.05, -0.05; ranks 1, 4, 3, 2.
    # Failures 5, 45, 70, 95 have ranks 1..4; p (1 - p) .0475 .2475 .21 .0475: 1.5, 4, 3, 1.5.
    assert found["failure_following"] == pytest.approx(1 - 6 * (0 + 4 + 0 + 4) / (4 * 15))
    assert found["signal_following"] == pytest.approx(
        np.corrcoef([1, 4, 3, 2], [1.5, 4, 3, 1.5])[0, 1]
    )
    # Conflicts 5, 45, 30, 0: ranks 2, 4, 3, 1.
    assert found["followed"] == "conflict_free"
    assert found["followed_correlation"] == pytest.approx(0.8)
    assert found["fraction_moved"] == pytest.approx(0.15)
    assert found["value_moved"] == pytest.approx((0.1 + 0.05 + 0.2) / 8)
    assert found["cells_changed"] == pytest.approx(7 / 12)
    assert (found["saturated_rows"], found["saturated_shrunk"]) == (1, 1.0)
    assert (found["hopeless_rows"], found["hopeless_eased"]) == (1, 1.0)
    # Round 1 raised the holes of sizes 3 and 5, and both got worse; only size 3's were lowered.
    assert (found["mistakes"], found["mistakes_reversed"]) == (2, 0.5)
    assert found["signal_before"] == pytest.approx(
        4 * (0.4 * 0.0475 + 0.3 * 0.2475 + 0.2 * 0.21 + 0.1 * 0.0475)
    )
    assert found["signal_after"] > found["signal_before"]
    assert json.loads(json.dumps(found)) == found


def test_nothing_to_measure_is_none():
    still = analyse(RUN, LATEST, SPACE)
    assert still["failure_following"] is still["signal_following"] is still["followed"] is None
    assert (still["fraction_moved"], still["value_moved"], still["cells_changed"]) == (0, 0, 0)
    assert (still["saturated_shrunk"], still["hopeless_eased"], still["mistakes_reversed"]) == (
        0,
        0,
        0,
    )
    one = RunRecord(RUN.history[:1], 1, 4, 1)
    assert [analyse(one, AFTER, SPACE)[name] for name in ("mistakes", "mistakes_reversed")] == [
        0,
        None,
    ]
    with pytest.raises(ValueError, match="needed"):
        analyse(RUN, Configuration(("3",), SPACE.names, ((1.0, 0.1, 0.1),)), SPACE)


def test_rules_answer_what_they_can():
    said = rules(analyse(RUN, AFTER, SPACE))
    assert list(said) == list(QUESTIONS)
    # 15 % of the set and a mean of .044 moved: local. One of two mistakes was taken back.
    for question in ("evidence", "locality", "saturation", "backing_off", "correction"):
        assert said[question] is True, question
    assert said["cause"] is said["task_model"] is None  # For a judge alone.
    still = rules(analyse(RUN, LATEST, SPACE))
    assert (still["evidence"], still["saturation"], still["correction"]) == (None, False, False)
    far = config((0.05, 0.9, 0.5), (0.05, 0.9, 0.5), (0.05, 0.9, 0.5), (0.85, 0.9, 0.5))
    assert rules(analyse(RUN, far, SPACE))["locality"] is False


def test_agreement_by_a_known_case():
    # The first example of Wikipedia's "Cohen's kappa": 20 and 15 of 50 alike, kappa 0.4.
    ruled = [True] * 25 + [False] * 25
    scores = [5] * 20 + [1] * 5 + [4] * 10 + [3] * 15
    assert agreement(ruled, scores) == {
        "designs": 50,
        "agreement": pytest.approx(0.7),
        "kappa": pytest.approx(0.4),
    }
    # Only what both speak of counts; where all say the same there is no kappa.
    found = agreement([True, None, True, True], [5, 5, None, 4])
    assert found == {"designs": 2, "agreement": 1.0, "kappa": None}
    assert agreement([None], [3]) == {"designs": 0, "agreement": None, "kappa": None}


def test_rank_correlation_against_a_reference_by_hand():
    rng = np.random.default_rng(0)
    for _ in range(50):
        first, second = rng.integers(0, 5, 8).tolist(), rng.integers(0, 5, 8).tolist()

        def ranks(values):
            return [np.mean([i for i, v in enumerate(sorted(values)) if v == x]) for x in values]

        expected = np.corrcoef(ranks(first), ranks(second))[0, 1]
        assert rank_correlation(first, second) == pytest.approx(expected)
    assert rank_correlation([1, 1], [1, 2]) is None
    assert rank_correlation([1], [1]) is None


def test_the_demonstrated_rule_follows_the_signal():
    """A rule that is known to follow p (1 - p) is found to, and to spare what is solved."""
    space = lakes.lake_space(range(3, 11))
    found, chance = [], []
    for seed in range(60):
        run = random_record(seed, space, lakes.TEXTS)
        found.append(analyse(run, rule_design(run, space, VARIANTS["V3"]), space))
        chance.append(analyse(run, space.random(seed), space))
    # Half of the changes are those of what was there before, so the correlation is far from 1.
    following, by_chance = (
        np.mean([f["signal_following"] for f in group if f["signal_following"] is not None])
        for group in (found, chance)
    )
    assert following > 0.25 > 0.15 > by_chance
    assert np.mean([f["signal_after"] - f["signal_before"] for f in found]) > 0.05
    assert np.mean([f["value_moved"] for f in found]) < 0.05


def test_an_llm_judge():
    scores = dict.fromkeys(QUESTIONS, 4) | {"correction": None}
    asked = []

    def judge(chat, seed):
        asked.append((chat, seed))
        return ["I would rather not.", f"Well {{}}.\n{json.dumps(scores)}"][len(asked) - 1]

    judgement = judge_design(judge, "the context", "the answer", seed=5)
    assert judgement["scores"] == scores
    assert [seed for _, seed in asked] == [5, 6]
    content = asked[0][0][0]["content"]
    assert "the context" in content
    assert "the answer" in content
    assert all(question in content for question in QUESTIONS.values())
    loose = ", ".join(f"'{name}': {4.0 if n else 'None'}" for name, n in scores.items())
    for text in ("{" + loose + ",}", json.dumps({**scores, "comment": "so so"}, indent=1)):
        assert judge_design(lambda c, s, t=text: t, "", "", 0)["scores"] == scores
    for bad in ({**scores, "locality": 6}, {**scores, "locality": True}, {"locality": 1}):
        assert judge_design(lambda c, s, b=bad: json.dumps(b), "", "", 0) is None
    for text in ("", "{}", "{" + "[" * 100_000 + "}", '{"locality": ' + "9" * 5_000 + "}"):
        assert judge_design(lambda c, s, t=text: t, "", "", 0) is None
