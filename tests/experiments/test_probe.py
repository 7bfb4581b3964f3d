"""What a model can do before any training, and what follows from it."""

import numpy as np
import pytest

from experiments import probe
from experiments.families.words import Words
from experiments.probe import Found, Row
from experiments.settings import from_config
from learner.chat import Completion

FAMILY = Words("sums_1+sums_2")


def found(texts, greedy, truncated=()):
    """Of one problem of each row, with two sampled completions and a greedy one."""
    problems = [{"group": "1", "operands": [2, 3]}, {"group": "2", "operands": [20, 30]}]
    task = FAMILY.task(problems)
    completions = [Completion(text, 5, i in truncated) for i, text in enumerate(texts)]
    scores = task.score(np.array([0, 0, 1, 1]), completions)
    ends = task.score(np.arange(2), [Completion(text, 5, False) for text in greedy])
    return Found(problems, completions, scores.records, scores.rewards.reshape(2, 2), ends.records)


def test_rows_have_rates_of_their_own():
    each = found(["5", "6", "50", "50"], ["5", "40"], truncated=[1, 2, 3])
    assert each.rows(FAMILY) == [Row("1", 0.5, 1.0, 0.5, 1.0), Row("2", 1.0, 0.0, 1.0, 0.0)]


def test_failures_that_contain_the_solution_show_a_reader_at_fault():
    assert found(["5 of 6", "15", "50", "50"], ["", ""]).unread(FAMILY) == 0.5
    assert found(["5", "5", "50", "50"], ["", ""]).unread(FAMILY) is None


def test_examples_are_a_valid_and_a_failed_completion_as_they_are():
    lines = list(found(["5", "5", "20\n30", "50"], ["5", "50"], truncated=[2]).examples(FAMILY))
    assert lines[0] == "digits 1, valid:"
    assert lines[3] == "digits 2, wrong answer, truncated:"
    assert lines[4] == "  asked 'What is 20 plus 30? Answer with the number only.'"
    assert lines[5] == r"  answered '20\n30'"


GOOD, SOLVED, HOPELESS = Row("a", 0.5, 0.6, 0, 0.9), Row("b", 1, 1, 0, 0.1), Row("c", 0, 0, 0, 0)
CUT = Row("d", 0, 0, 0.5, 0)


@pytest.mark.parametrize(
    ("rows", "unread", "words"),
    [
        ([GOOD], None, "training can begin with task a"),
        (
            [GOOD, SOLVED, HOPELESS],
            0.0,
            "training can begin with task a; solved already: task b; no signal yet: task c",
        ),
        ([HOPELESS], 0.05, "no row has a signal: a warm start or easier rows come first"),
        (
            [GOOD, CUT],
            None,
            "budget: task d reach 12 tokens; try 24 before anything else; "
            "training can begin with task a; no signal yet: task d",
        ),
        (
            [GOOD],
            0.3,
            "reader: 30% of the failed completions contain the solution; ask for its form, or read "
            "more leniently; training can begin with task a",
        ),
    ],
)
def test_advice(rows, unread, words):
    assert probe.advice("task", rows, unread, 12) == words


def test_a_family_is_probed_with_both_ways_of_sampling():
    options = {"num_instances": 8, "samples": 3, "temperature": 1.0, "max_new_tokens": 8}
    settings = from_config({"family": "words:sums_1", "validation": options})

    def completer(*texts):
        def complete(params, chats, key, count=1):
            assert params == "weights"
            return [Completion(texts[i % len(texts)], 1, i == 0) for i in range(len(chats) * count)]

        return complete

    family = settings.load_family()
    each = probe.probe(settings, family, (completer("no", "no", "7"), completer("-1")), "weights")
    assert len(each.problems) == len(each.greedy) == 8
    assert [record["failed"] for record in each.records[:2]] == [["has_answer"]] * 2
    sevens = np.array([sum(problem["operands"]) == 7 for problem in each.problems])
    np.testing.assert_array_equal(each.rewards[:, 2], sevens)
    (row,) = each.rows(family)
    assert row == Row("1", sevens.mean() / 3, 0.0, 1 / 24, sevens.mean())


@pytest.mark.slow
def test_a_model_can_begin_on_its_own_family_and_not_on_another(capsys):
    own = "experiments/families/template.py:family"
    arguments = ["--problems=3", "--samples=4", "--max_new_tokens=12"]
    names = f"reasoning_gym:spell_backward,{own},words:sums_1"
    probe.main(["--model=sums", f"--families={names}", *arguments])
    first, none, sums, words = capsys.readouterr().out.split("\n\n")
    assert "parameters" in first
    assert "no problem of word_len 11 could be made" in none  # The others are probed all the same.
    assert sums.startswith(f"{own}: 18 problems, 4 completions of each")
    assert "training can begin with length" in sums
    assert "no row has a signal" in words


def test_what_is_wrong_is_one_line(capsys):
    with pytest.raises(SystemExit, match=r"error: family='words:nothing': .*allowed are mixed"):
        probe.main(["--model=tiny", "--families=words:nothing"])
    with pytest.raises(SystemExit, match="error: problems=0: allowed are integers from 1 up"):
        probe.main(["--model=tiny", "--families=words:sums", "--problems=0"])
    with pytest.raises(SystemExit, match=r"error: .*samples=8: only with temperature above 0"):
        probe.main(["--model=tiny", "--families=lakes", "--temperature=0"])
