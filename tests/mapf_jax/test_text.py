"""Prompts and answers; the parser under hypothesis against an independent strict reader."""

import numpy as np
import pytest
import strict_reader
from hypothesis import given, settings
from hypothesis import strategies as st

from mapf_jax import pad_instance, plans_from_texts, prompt, render_answer, solve
from mapf_jax.text import MAX_STEPS, RULES, parse_answer
from mapf_jax.types import make_instance, stack

INSTANCE = make_instance(["F F F", "F H F", "F F F"], [(0, 0), (2, 2)], [(2, 0), (0, 1)])


def test_prompt():
    lines = prompt(INSTANCE, list_holes=True).removeprefix(RULES).split("\n")
    assert lines == [
        "Lake of 3 x 3, 2 agents",
        "S g F",
        "F H F",
        "G F s",
        "Agent 0: start (0,0) goal (2,0)",
        "Agent 1: start (2,2) goal (0,1)",
        "Holes: (1,1)",
    ]


def many_agents(count):
    size = 2 * count // 7 + 3
    cells = [(r, c) for r in range(size) for c in range(size)]
    return make_instance(["F" * size] * size, cells[:count], cells[count : 2 * count])


def test_prompt_names_the_letters_that_the_rules_do_not():
    lines = prompt(many_agents(7)).removeprefix(RULES).split("\n")
    assert lines[1:4] == ["S s A B C", "D E G g a", "b c d e F"]
    assert lines[-3:] == [
        "Agent 4: start (0,4) goal (2,1)",
        "Agent 5 (D d): start (1,0) goal (2,2)",
        "Agent 6 (E e): start (1,1) goal (2,3)",
    ]
    with pytest.raises(ValueError, match=r"agent 24: maps have letters for 24 agents"):
        prompt(many_agents(25))


def test_answer_round_trip():
    solution = solve(stack([pad_instance(INSTANCE, 5, 2)]))  # A width that other tests compile.
    text = render_answer(solution.paths[0], solution.num_steps[0])
    plan = plans_from_texts([text, "nothing"], 2)
    assert plan.parsable.tolist() == [True, False]
    assert plan.num_steps[0] == solution.num_steps[0]
    steps = int(solution.num_steps[0]) + 1
    np.testing.assert_array_equal(plan.positions[0, :steps], solution.paths[0, :steps])
    assert (plan.positions[0, steps:] == solution.paths[0, steps - 1]).all()


GOOD = "<answer>\n0: (0,0) (2,2)\n1: (1,0) (2,1)\n</answer>"
OTHER = "<answer>\n0: (5,5) (5,6)\n</answer>"


def cells_of(answer):
    return tuple(tuple(map(tuple, cells)) for cells in answer.tolist())


def agree(text):
    """Checks the parser on a text, and says whether it was accepted."""
    answer = parse_answer(text)
    assert (None if answer is None else cells_of(answer)) == strict_reader.read(text)
    return answer is not None


tags = ["<answer>", "</answer>", "< Answer >", "</ANSWER>", "<think>", "</think>", "```", "```\n"]
lines = ["0: (0,0) (2,2)\n", "1: (1,0) (2,1)\n", "0:", "1:", "2:", "\n", GOOD, OTHER]
cells = [" (0,0)", " (1,2)", " (-1,0)", " ( 0, 3 )", " ", "(", ")", ",", "7", "9" * 7, "1" * 5000]
forms = [
    "- ",
    "* ",
    "Step ",
    "time step ",
    "t=",
    "T = ",
    "**",
    ";",
    ".",
    "\u2212",
    "\xa0",
    "\u200b",
    "\uff08",
    "\uff0c",
]
strange = ["x", "\u2028", "\x0b", "\u00e9", "\ud800", "\x00", "\r", "\t"]
pieces = st.sampled_from([*tags, *lines, *cells, *forms, *strange])
texts = st.lists(pieces, max_size=24).map("".join) | st.text(max_size=80)


@st.composite
def loosely_written(draw):
    """An answer in the form asked for, with deviations that may or may not leave one meaning."""
    gaps = st.sampled_from(["", " ", "", "\t", "  ", "\xa0", ",", "; ", "\u200b", "x"])
    heads = st.sampled_from(["", "Step ", "- ", "* t=", "**", "time ", "\u2212", "+ **Time Step "])
    form = "{}{}{}:{}(0{},1){}( -1,2){}\n"
    text = "".join(
        form.format(draw(heads), time, *(draw(gaps) for _ in range(5)))
        for time in range(draw(st.integers(1, 3)))
    )
    return f"{GOOD}<answer>{draw(gaps)}\n{text}</Answer>"


@settings(max_examples=300)
@given(st.lists(texts | loosely_written(), min_size=8, max_size=8))
def test_nothing_is_accepted_that_a_strict_reader_refuses(texts):
    accepted = [agree(text) for text in texts]
    plan = plans_from_texts(texts, 2)
    assert plan.parsable.tolist() == accepted
    assert np.abs(plan.positions).max() < 10_000


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("<think>" * 150_000, False),
        ("<answer>" * 70_000 + "</answer>" * 60_000, False),
        (GOOD * 20_000, True),
        ("<answer>\n0:" + " (1,1)" * 170_000 + "\n</answer>", True),
        ("<answer>\n0: (" + "9" * 1_000_000 + ",0)\n</answer>", False),
        ("<answer>\n0: (1,1)" + " " * 1_000_000 + "(1,1)\n</answer>", True),
        ("<answer>\n0: (1,1)" + " ," * 500_000 + "(1,1)\n</answer>", False),
        ("<answer>\n" + "-" * 1_000_000 + "\n</answer>", False),
        ("<" * 1_000_000, False),
        ("<answer>" + "\n" * 1_000_000 + "0: (1,1)\n</answer>", True),
        (
            "<answer>\n" + "\n".join(f"{t}: (1,1) (2,2)" for t in range(50_000)) + "\n</answer>",
            False,
        ),
        ("<answer>\n" + "0: (0,0)\n" * 100_000 + "</answer>", False),
        ("\u00e9\U0001f9ca" * 500_000 + GOOD, True),
        ("(" * 1_000_000 + GOOD, True),
    ],
    ids=range(14),
)
def test_texts_of_a_megabyte(text, accepted):
    assert (parse_answer(text) is not None) == accepted
    assert plans_from_texts([text], 2).parsable[0] == accepted


@pytest.mark.timeout(60)
@pytest.mark.parametrize("between", ["", " ", ",", ", ", " , ", " ;", "; "])
@pytest.mark.parametrize("end", ["x", " (", ",,", "(1,1", "0"])
def test_a_long_line_that_is_no_plan_takes_no_time(between, end):
    cells = between.join(["(1,1)", "( 2 , 1 )"] * 500)
    assert parse_answer(f"<answer>\n0: {cells}{end}\n</answer>") is None
    assert parse_answer(f"<answer>\n0: {cells}\n</answer>").shape == (1, 1000, 2)


def test_answers_up_to_the_largest_number_of_steps():
    for steps, accepted in ((MAX_STEPS, True), (MAX_STEPS + 1, False)):
        rows = "\n".join(f"{t}: (1,1)" for t in range(steps))
        assert agree(f"<answer>\n{rows}\n</answer>") == accepted
