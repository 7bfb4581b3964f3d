"""Prompts, answers and drawings; the parser under hypothesis against a strict reader."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapf_jax import Plan, plans_from_texts, prompt, render, render_answer, solve
from mapf_jax.text import RULES, parse_answer
from mapf_jax.types import make_instance, stack

INSTANCE = make_instance(["F F F", "F H F", "F F F"], [(0, 0), (2, 2)], [(2, 0), (0, 0 + 1)])


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


def test_answer_round_trip():
    solution = solve(stack([INSTANCE]))
    text = render_answer(solution.paths[0], solution.num_steps[0])
    plan = plans_from_texts([text, "nothing"], 2)
    assert plan.parsable.tolist() == [True, False]
    assert plan.num_steps[0] == solution.num_steps[0]
    steps = int(solution.num_steps[0]) + 1
    np.testing.assert_array_equal(plan.positions[0, :steps], solution.paths[0, :steps])
    assert (plan.positions[0, steps:] == solution.paths[0, steps - 1]).all()


GOOD = "<answer>\n0: (0,0) (2,2)\n1: (1,0) (2,1)\n</answer>"
PLAN = (((0, 0), (2, 2)), ((1, 0), (2, 1)))


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "<think>maybe <answer>\n0: (5,5) (5,6)\n</answer></think>\n" + GOOD,
        "first <answer>\n0: (5,5) (5,6)\n</answer> no, better:\n" + GOOD + "\nDone.",
        "<answer>\n```\n0: (0,0) (2,2)\n1: (1,0) (2,1)\n```\n</answer>",
        "<answer>\r\n0: (0, 0) (2, 2)\r\n\r\n  1: (1,0) (2,1)  \n</answer>",
    ],
)
def test_accepted(text):
    answer = parse_answer(text)
    assert answer is not None
    assert answer.cells == PLAN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0: (0,0) (2,2)",
        "<answer></answer>",
        "<answer>\n0: (0,0) (2,2)\n",
        "</answer>\n0: (0,0)\n<answer>",
        "<answer>\n0: (0,0) (2,2)\n2: (1,0) (2,1)\n</answer>",
        "<answer>\n1: (0,0) (2,2)\n</answer>",
        "<answer>\n0: (0,0) (2,2)\n1: (1,0)\n</answer>",
        "<answer>\n0: (0,0) (2,x)\n</answer>",
        "<answer>\n0: (0,0) (2,2) and so on\n</answer>",
        "<answer>\n0: (0.0,0) (2,2)\n</answer>",
        "<answer>\n0: (\u0660,0) (2,2)\n</answer>",
        "<think>I would say " + GOOD + " or not</think> I do not know",
        "<think>I would say " + GOOD,
    ],
)
def test_refused(text):
    assert parse_answer(text) is None


def strict_reader(text):
    """An independent reader: the last block, line by line, without regular expressions on cells."""
    head, mark, tail = text.rpartition("</answer>")
    if not mark or "</think>" in tail:
        return None
    before, mark, body = head.rpartition("<answer>")
    if not mark:
        return None
    thinking = before.rpartition("<think>")
    if thinking[1] and "</think>" not in thinking[2] + body:
        return None
    lines = [line.strip(" \t\r") for line in body.split("\n")]
    lines = [line for line in lines if line]
    if len(lines) > 1 and lines[0][:3] == "```" and lines[-1] == "```":
        lines = lines[1:-1]
    plan = []
    for time, line in enumerate(lines):
        label, colon, rest = line.partition(":")
        if label != str(time) or not colon:
            return None
        cells = []
        for piece in rest.replace(", ", ",").split(")")[:-1]:
            numbers = piece.strip(" ").removeprefix("(").split(",")
            if len(numbers) != 2 or any(not re.fullmatch("-?[0-9]+", n) for n in numbers):
                return None
            cells.append(tuple(int(n) for n in numbers))
        if not cells or not rest.endswith(")"):
            return None
        plan.append(tuple(cells))
    if not plan or len({len(cells) for cells in plan}) != 1:
        return None
    return tuple(plan)


tags = ["<answer>", "</answer>", "<think>", "</think>", "```", GOOD]
lines = ["0: (0,0) (2,2)\n", "1: (1,0) (2,1)\n", "0:", "1:", "2:", "\n"]
cells = [" (0,0)", " (1,2)", " (-1,0)", " (0, 3)", " ", "(", ")", ",", "7", "99999999999999"]
strange = ["x", "\u2028", "\x0b", "\u00e9"]
pieces = st.sampled_from([*tags, *lines, *cells, *strange])


@settings(max_examples=3000, deadline=None)
@given(st.lists(pieces, max_size=24).map("".join) | st.text(max_size=60))
def test_nothing_is_accepted_that_a_strict_reader_refuses(text):
    answer = parse_answer(text)
    if answer is not None:
        assert strict_reader(text) == answer.cells
    plan = plans_from_texts([text], 2)
    assert plan.parsable[0] == (answer is not None)
    assert np.abs(plan.positions).max() < 10_000


def test_drawings_mark_what_went_wrong():
    plan = plans_from_texts(["<answer>\n0: (0,0) (2,2)\n1: (1,1) (2,1)\n</answer>"], 2)
    single = Plan(plan.positions[0], plan.num_steps[0], plan.parsable[0], plan.num_agents[0])
    frames = render.ascii_frames(INSTANCE, single)
    assert frames[0] == "t = 0\n0 g F\nF H F\nG F 1"
    assert frames[1] == "t = 1\nF g F\nF # F\nG 1 F\nagent 0 at (1,1): illegal move, hole"
    assert render.ascii_instance(INSTANCE) == "S g F\nF H F\nG F s"
