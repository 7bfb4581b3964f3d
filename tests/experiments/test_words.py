"""Small questions in plain words."""

import jax
import pytest

from engineer.space import Configuration
from experiments.bridges.rounds import Rounds
from experiments.families import words
from experiments.families.loading import FamilySettings
from experiments.families.words import Words
from experiments.ring.validation import validation_set
from experiments.settings import from_config
from experiments.text.errors import UserError


@pytest.fixture(scope="module")
def mixed():
    return FamilySettings("words:mixed").load_family()


@pytest.fixture(scope="module")
def sums():
    return FamilySettings("words:sums").load_family()


def only(family, row):
    """The whole set from one row."""
    return Configuration.from_dict({one: {"fraction": float(one == row)} for one in family._rows})


def unordered(problems):
    return {(problem["group"], *sorted(problem["operands"])) for problem in problems}


def test_rows_are_sizes_of_one_kind_or_kinds_with_sizes(sums, mixed):
    assert (sums.space.label, sums.space.rows) == ("digits", ("1", "2", "3"))
    assert "each number of digits" in sums.texts.instruction
    assert mixed.space.rows == words.MIXED
    assert Words("sums_2+sums_1").space.rows == ("1", "2")
    assert Words("backward+sums_3").space.rows[0] == "sums_3"


@pytest.mark.parametrize("names", ["", "sum", "sums_4", "sums+sums_2", "mixed+larger_3"])
def test_unknown_and_repeated_names_are_refused(names):
    with pytest.raises(ValueError, match=rf"family='words:{names.replace('+', '.')}': .*allowed"):
        Words(names)


@pytest.mark.parametrize("name", ["rounds", "num_instances", "num_validation"])
def test_rounds_in_other_trainers_need_problems(name, sums):
    counts = {"rounds": 1, "num_instances": 4, "num_validation": 4, name: 0}
    with pytest.raises(ValueError, match=f"{name}=0: allowed is 1 or more"):
        Rounds(sums, seed=0, **counts)


def test_each_row_of_the_validation_set_needs_a_problem(sums):
    settings = from_config({"family": "words:sums", "validation": {"num_instances": 2}})
    with pytest.raises(UserError, match=r"num_instances=2: no problem of digits \d could be made"):
        validation_set(settings, sums)


@pytest.mark.parametrize("family", ["sums", "mixed"])
def test_training_shares_no_problem_with_validation_whatever_the_seeds(family, request):
    family = request.getfixturevalue(family)
    held_out = family.validation_set(jax.random.key(3), 10**4).problems
    drawn = family.generate(jax.random.key(4), family.space.uniform(), 10**4, ()).problems
    assert not unordered(drawn) & unordered(held_out)


def test_a_row_gives_each_of_its_problems_once_and_says_how_many_there_are(sums):
    training, validation = sums.problems["1"]
    assert training + validation == 9 * 9
    made = sums.generate(jax.random.key(0), only(sums, "1"), 200, ())
    assert len({tuple(problem["operands"]) for problem in made.problems}) == training
    assert made.notes == [f"digits 1: {training} of 200 problems; a row has no more for training"]
    excluded = made.problems[:10]
    again = sums.generate(jax.random.key(1), only(sums, "1"), 200, excluded)
    assert len(again.problems) == training - 10
    assert not unordered(again.problems) & {("1", 0, 0)}
    assert [p for p in excluded if p in again.problems] == []


def test_a_quarter_of_each_row_is_held_out():
    every = Words("+".join(words.KINDS))
    for training, validation in every.problems.values():
        assert 0.18 < validation / (training + validation) < 0.32


def test_its_own_answers_are_right_and_others_wrong(mixed):
    problems = mixed.generate(jax.random.key(0), mixed.space.uniform(), 80, ()).problems
    assert {problem["group"] for problem in problems} == set(words.MIXED)
    for problem, answer in zip(problems, mixed.solutions(problems), strict=True):
        assert mixed.verify(problem, answer) == {"failed": []}
        assert mixed.verify(problem, f"{answer}0{answer}x") == {"failed": ["right"]}
        assert mixed.verify(problem, "?") == {"failed": ["has_answer"]}


@pytest.mark.parametrize(
    ("kind", "operands", "answer"),
    [
        ("sums", (761, 481), 1242),
        ("differences", (61, 48), 13),
        ("larger", (7, 3), 7),
        ("vowels", ("orange",), 3),
        ("last_letter", ("garden",), "n"),
        ("backward", ("cat",), "tac"),
    ],
)
def test_answers(kind, operands, answer):
    assert words.KINDS[kind].answer(*operands) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("761 + 481 = 1242.", 1242),
        ("The sum is 1,242!", 1242),
        ("1242.0", 1242),
        (r"\(\boxed{1{,}242}\)", 1242),
        (r"761 + 481 = -1\,242.5", -1242.5),
        ("761-481", 481),
        ("It is -3", -3),
        ("12.5", 12.5),
        ("4 \u2212 7 = \u22123", -3),
        ("none", None),
    ],
)
def test_the_last_number_counts(text, number):
    assert words.read_number(text) == number


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("N", "n"),
        ('The last letter of "garden" is n.', "n"),
        ('The last letter of the word "garden" is "n."', "n"),
        ('"n" is the last letter of garden', "n"),
        ("It's **N**", "n"),
        ('"Garden"', "garden"),
        ("123", None),
    ],
)
def test_the_last_quoted_word_counts_or_else_the_last_word(text, word):
    assert words.read_word(text, asked="garden") == word
