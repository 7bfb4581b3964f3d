"""Data sets of reasoning-gym as families, and the process that they run in."""

import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from engineer import context, proposal
from engineer.evidence import Evidence
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from experiments.families.loading import FamilySettings
from experiments.families.reasoning_gym.family import ReasoningGym, ReasoningGymOptions, sandbox
from learner.chat import Completion

CURRICULA = pytest.importorskip("reasoning_gym.factory").CURRICULA
FAST = ("chain_sum", "knights_knaves", "maze", "shortest_path", "spiral_matrix")
NO_ANSWER = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
"""They give no answer: many are right, and their scores tell which."""
FEW = (
    "coin_flip", "game_of_life_halting", "knight_swap", "n_queens", "puzzle24", "tower_of_hanoi",
)  # fmt: skip
"""They have fewer than 64 distinct problems at these levels, or take too long to make them."""
LENIENT = ("game_of_life_halting",)
"""Its scores compare truth values, and what cannot be read counts as false."""


def scores(family, problems, texts):
    task = family.task(problems)
    completions = [Completion(text, 1, False) for text in texts]
    return task.score(np.arange(len(task)), completions)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in CURRICULA],
)
def test_every_data_set_is_a_family(name):
    family = ReasoningGym(ReasoningGymOptions(levels=3), name)
    family.verify_seconds = 4.0
    made = family.generate(jax.random.key(0), family.validation, 64, ())
    problems = made.problems
    assert len(problems) == sum(row.made for row in made.rows.values())
    assert (len(problems), made.notes == []) == (64, True) or name in FEW
    assert problems[0]["question"] in family.task(problems).messages(0)[0]["content"]

    right = scores(family, problems, [f"<answer>{p['answer']}</answer>" for p in problems])
    assert {problem["answer"] == "" for problem in problems} == {name in NO_ANSWER}
    assert np.mean(right.rewards) >= 0.99 or name in NO_ANSWER
    if name in NO_ANSWER:
        with pytest.raises(NotImplementedError, match=f"^{name} gives no answers"):
            family.solutions(problems)
    wrong = scores(family, problems, ["garbage"] * len(problems))
    assert np.mean(wrong.rewards) < 0.5 or name in LENIENT

    breakdown = family.breakdown(wrong.records)
    made_of = {problem["group"] for problem in problems}
    assert breakdown.names == tuple(row for row in family.space.rows if row in made_of)
    assert breakdown.names == family.space.rows or name in FEW
    past = RoundRecord(0, family.validation, Evidence(breakdown), True)
    record = RunRecord((past,), 1, total_rounds=3, epochs_per_round=1)
    text = context.compose(context.VARIANTS["V6"], record, family.texts)[0]["content"]
    assert all(f"{family.space.label} {row}: answers" in text for row in breakdown.names)

    answer = proposal.render_config(family.space.random(0), family.space)
    design, repairs = proposal.project(proposal.parse(answer, family.space), family.space)
    assert not repairs
    training = family.generate(jax.random.key(1), design, 16, problems[: len(problems) // 2])
    asked = {problem["question"] for problem in problems[: len(problems) // 2]}
    assert not asked & {problem["question"] for problem in training.problems}


def test_problems_follow_from_the_key_and_rows_from_the_levels():
    family = ReasoningGym(ReasoningGymOptions(levels=2), "chain_sum+caesar_cipher")
    assert family.space.rows == tuple(
        f"{name}_{i}" for name in ("chain_sum", "caesar_cipher") for i in (1, 2)
    )
    assert family.space.names == ("fraction",)
    assert "caesar_cipher_1 is rotation 5 to 15, words 5 to 15;" in family.texts.instruction
    first, again, other = (
        family.generate(jax.random.key(seed), family.space.uniform(), 12, ()) for seed in (0, 0, 1)
    )
    assert first == again
    assert first.problems != other.problems
    # As after a failure: a new process makes the same problems anew.
    sandbox().close()
    assert scores(family, first.problems, [p["answer"] for p in first.problems]).rewards.min() == 1
    remark = "I put it between `<answer>` and `</answer>` tags."
    texts = [f"<answer>{p['answer']}</answer>\n{remark}" for p in first.problems]
    assert scores(family, first.problems, texts).rewards.min() == 1


@pytest.mark.slow
def test_a_data_set_with_state_in_its_class_makes_the_same_problems_again():
    family = ReasoningGym(ReasoningGymOptions(), "codeio")
    problems = family.generate(jax.random.key(0), family.validation, 64, ()).problems
    assert len({problem["group"] for problem in problems}) == 4
    sandbox().close()
    found = scores(family, problems, [p["answer"] for p in problems])
    # About one in a hundred runs code that reads the clock or prints an address.
    assert np.mean(found.rewards > 0.99) > 0.95


def test_a_data_set_with_named_tuples_has_problems():
    setting = {"difficulty": [1, 1]}  # Its compiler has tuples with a field that is called `type`.
    assert sandbox().call("draw", "bf", setting, 1, 0, seconds=4.0)["answer"]


def test_problems_do_not_depend_on_what_was_made_before():
    """One data set sets the precision of decimal numbers for all."""
    made = []
    for names in (("decimal_chain_sum",), ("decimal_arithmetic", "decimal_chain_sum")):
        sandbox().close()
        for name in names:
            options = {} if name != "decimal_chain_sum" else {"decimal_places": [2, 2]}
            found = [sandbox().call("draw", name, options, 1, i, seconds=4.0) for i in range(30)]
        made.append(found)
    assert made[0] == made[1]


def test_a_solution_has_the_totals_of_a_sum_before_its_answer():
    family = ReasoningGym(ReasoningGymOptions(levels=4), "chain_sum")
    problems = family.generate(jax.random.key(0), family.validation, 64, ()).problems
    texts = family.solutions(problems)
    assert scores(family, problems, texts).rewards.min() == 1
    for problem, text in zip(problems, texts, strict=True):
        terms = re.findall("[-+]?[0-9]+", problem["question"].replace(" ", ""))
        totals = [str(sum(map(int, terms[:i]))) for i in range(2, len(terms))]
        assert text == " ".join([*totals, f"<answer>{problem['answer']}</answer>"])
    other = ReasoningGym(ReasoningGymOptions(levels=2), "maze")
    problems = other.generate(jax.random.key(0), other.validation, 4, ()).problems
    assert other.solutions(problems)[0] == f"<answer>{problems[0]['answer']}</answer>"


@pytest.mark.parametrize(
    ("name", "said", "strict", "lenient"),
    [
        ("chain_sum", "{}", True, True),
        ("chain_sum", "12 + 30 = {}", False, True),
        ("chain_sum", "The sum of 12 and 30 is {}. I hope this helps!", False, True),
        ("chain_sum", "It is {}, or maybe 1234567.", False, False),
        ("chain_sum", "<answer>{}</answer> 5", True, True),
        ("spell_backward", 'It is "{}".', False, True),
        ("spell_backward", "{}, as asked", False, False),
        ("number_sorting", "{}", True, True),  # A list: neither a number nor a word.
        ("number_sorting", "It is {}.", False, False),
    ],
)
def test_an_instruction_without_tags_has_a_lenient_reader(name, said, strict, lenient):
    for instruction, right in (
        ("Answer with the result only.", lenient),
        ("Put it between <answer> and </answer>.", strict),
        ("", strict),
    ):
        family = ReasoningGym(ReasoningGymOptions(levels=1, instruction=instruction), name)
        problems = family.generate(jax.random.key(0), family.validation, 3, ()).problems
        texts = [said.format(problem["answer"]) for problem in problems]
        found = [not record["failed"] for record in scores(family, problems, texts).records]
        assert found == [right] * 3
        assert scores(family, problems, family.solutions(problems)).rewards.min() == 1


def test_what_the_others_reach_is_chosen():
    family = ReasoningGym(ReasoningGymOptions(), "chain_sum")
    assert family.space.label == "num_terms"
    assert family.space.rows == tuple(map(str, range(2, 13)))
    assert "to solve problems of chain_sum. A generator" in family.texts.instruction
    assert "how far num_digits goes: 1 is 1, 2 is 1 to 2, 3 is" in family.texts.instruction
    cells = {**family.space.uniform().cells(), ("2", "num_digits_level"): 1.0}
    cells |= {(row, "fraction"): float(row == "2") for row in family.space.rows}
    made = family.generate(jax.random.key(0), Configuration.from_cells(cells), 300, ())
    assert {len(p["answer"].lstrip("-")) for p in made.problems} == {1, 2}
    # Two digits and a sign: there are 200 questions, most of which come before many are repeated.
    assert 150 < len(made.problems) <= 200
    assert made.notes == [f"num_terms 2: {len(made.problems)} of 300 problems"]


def test_others_with_one_level_stay_at_their_easiest():
    family = ReasoningGym(ReasoningGymOptions(levels=3, other_levels=1), "chain_sum")
    assert (family.space.rows, family.space.names) == (tuple("234"), ("fraction",))
    made = family.generate(jax.random.key(0), family.validation, 60, ())
    assert not [p for p in made.problems if re.search(r"\d\d", p["question"])]
    two = ReasoningGym(ReasoningGymOptions(levels=3, other_levels=2), "chain_sum")
    assert two.space.parameter("num_digits_level").bounds == ((1.0, 2.0),)


def test_levels_that_do_not_go_together_come_nearer():
    family = ReasoningGym(ReasoningGymOptions(), "simple_equations")
    row, parameter = family.space.rows[3], "max_terms_level"
    cells = {**family.space.uniform().cells(), (row, parameter): 1.0}
    cells |= {(one, "fraction"): float(one == row) for one in family.space.rows}
    made = family.generate(jax.random.key(0), Configuration.from_cells(cells), 4, ())
    assert made.rows[row].made == 4


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("chain_sums", r"'chain_sums' is no data set \(did you mean chain_sum"),
        ("chain_sum+acre", "'acre' has no curriculum"),
        ("chain_sum+chain_sum", "'chain_sum' is there twice"),
    ],
)
def test_what_is_no_data_set_is_refused(names, message):
    with pytest.raises(ValueError, match=rf"family='reasoning_gym:{re.escape(names)}': {message}"):
        FamilySettings(f"reasoning_gym:{names}").load_family()


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[reasoning-gym\]'"):
        ReasoningGym(ReasoningGymOptions(), "chain_sum")


def test_completions_that_would_run_as_code_do_no_harm(tmp_path):
    path = tmp_path / "written"
    for name, text in (
        ("spiral_matrix", f"[open({str(path)!r}, 'w').write('x')]"),
        ("spiral_matrix", f"[__import__('os').system('touch {path}')]"),
        ("spiral_matrix", "[print('[1, \"\"]')]"),
        ("spiral_matrix", "[exit()]"),
        ("countdown", "9**9**9**9"),
    ):
        family = ReasoningGym(ReasoningGymOptions(levels=1), name)
        family.verify_seconds = 0.6
        problems = family.generate(jax.random.key(0), family.space.uniform(), 2, ()).problems
        found = scores(family, problems, [text, f"thought</think> {problems[1]['answer']}"])
        assert found.rewards[0] < 0.5
        assert found.rewards[1] == 1
        assert found.records[1]["failed"] == []
    assert not path.exists()
    assert found.records[0]["failed"] == ["scored"]
    assert "more than 0.6 s" in found.records[0]["why"]
    assert "expected: any" not in family.text(problems[0], "9")
    assert family.example(problems[0], "9") == family.text(problems[0], "9")


def test_a_score_outside_0_to_1_is_an_error(monkeypatch):
    monkeypatch.setattr("builtins.eval", eval)  # The module replaces it.
    from experiments.families.reasoning_gym import data_sets

    source = ("chain_sum", {}, 0, 0)
    question = data_sets.draw(*source)["question"]
    data_set = SimpleNamespace()
    monkeypatch.setattr(data_sets, "_data_set", lambda *_: data_set)
    for value in (1e6, 1.01, -0.5, float("inf")):
        data_set.score_answer = lambda *_, value=value: value
        with pytest.raises(ValueError, match=r"score of chain_sum: .* allowed are 0 to 1"):
            data_sets.score(*source, question, "1")
    for value, expected in ((1 + 1e-9, 1.0), (-1e-9, 0.0), (0.5, 0.5), (float("nan"), 0.0)):
        data_set.score_answer = lambda *_, value=value: value
        assert data_sets.score(*source, question, "1") == expected
