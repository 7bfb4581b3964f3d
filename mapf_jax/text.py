"""Instances as prompts, plans as text, and answers read back.

An answer is the last `<answer>` block of a text, one line per time step:

    <answer>
    0: (0,0) (2,2)
    1: (0,1) (1,2)
    </answer>

Line t holds the time t, counted from 0, and the cell (row,column) of each agent in order.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import chex
import numpy as np

from mapf_jax.padding import stack_plans
from mapf_jax.types import Array, Instance, Plan

#: Map characters of the agents' starts and goals, in agent order. The published format has letters
#: for five agents; ours goes on through the alphabet without the letters that are taken.
START_CHARACTERS = "SsABCDEIJKLMNOPQRTUVWXYZ"
GOAL_CHARACTERS = "Ggabcdeijklmnopqrtuvwxyz"
FROZEN, HOLE = "F", "H"
_PUBLISHED_LETTERS = 5

#: The part of the prompt that is the same for every instance.
RULES = Path(__file__).with_name("rules.txt").read_text()

# Bounds the arrays of plans; a path through every cell of a 32 x 32 lake has 1,023 steps.
MAX_STEPS = 1024
_FENCE = re.compile(r"```[A-Za-z0-9]*", re.ASCII)
_LINE = re.compile(r"(\d{1,6}):((?: ?\(-?\d{1,6}, ?-?\d{1,6}\))+)", re.ASCII)
_CELL = re.compile(r"\((-?\d{1,6}), ?(-?\d{1,6})\)", re.ASCII)


def map_rows(instance: Instance) -> list[str]:
    """The lake with starts and goals marked, one string a row, cells separated by a blank.

    A cell that is both a start and a goal has the letter of the start.

    Raises:
      ValueError: the instance has more agents than there are letters.
    """
    chex.assert_rank([instance.blocked, instance.starts, instance.goals], 2)
    size = int(instance.size)
    blocked = np.asarray(instance.blocked)
    grid = [[HOLE if blocked[r, c] else FROZEN for c in range(size)] for r in range(size)]
    agents = np.nonzero(instance.active)[0].tolist()
    for which, cells in ((1, instance.goals), (0, instance.starts)):
        for agent in agents:
            row, column = map(int, cells[agent])
            grid[row][column] = letters_of(agent)[which]
    return [" ".join(row) for row in grid]


def letters_of(agent: int) -> tuple[str, str]:
    """Map characters of an agent's start and goal.

    Raises:
      ValueError: there are fewer letters than agents.
    """
    if not 0 <= agent < len(START_CHARACTERS):
        raise ValueError(
            f"agent {agent}: maps have letters for {len(START_CHARACTERS)} agents, counted from 0"
        )
    return START_CHARACTERS[agent], GOAL_CHARACTERS[agent]


def prompt(instance: Instance, list_holes: bool = False) -> str:
    """The question about one instance.

    Args:
      instance: a single instance.
      list_holes: also list the cells of the holes, which spares a small model reading the map.

    The rules name the letters of agents 0 to 4, as in the published format. The lines of further
    agents name theirs.

    Raises:
      ValueError: the instance has more agents than there are letters.
    """
    size = int(instance.size)
    agents = [int(agent) for agent in np.nonzero(instance.active)[0]]
    lines = [f"Lake of {size} x {size}, {len(agents)} agents", *map_rows(instance)]
    for agent in agents:
        start, goal = _cell(instance.starts[agent]), _cell(instance.goals[agent])
        name = f"Agent {agent}"
        if agent >= _PUBLISHED_LETTERS:
            name += " ({} {})".format(*letters_of(agent))
        lines.append(f"{name}: start {start} goal {goal}")
    if list_holes:
        holes = np.argwhere(np.asarray(instance.blocked)[:size, :size])
        lines.append("Holes:" + "".join(f" {_cell(hole)}" for hole in holes))
    return RULES + "\n".join(lines)


def render_answer(paths: Array, num_steps: int) -> str:
    """The answer text of a plan int[T, A, 2] of `num_steps` moves."""
    chex.assert_shape(paths, (None, None, 2))
    lines = [
        f"{time}:" + "".join(f" {_cell(cell)}" for cell in paths[time])
        for time in range(int(num_steps) + 1)
    ]
    return "\n".join(["<answer>", *lines, "</answer>"])


def parse_answer(text: str) -> np.ndarray | None:
    """Reads the last complete `<answer>` block of a text.

    Only text after the last `</think>`, and before any later `<think>`, is read: thinking, closed
    or not, is no answer. Anything else before the block (reasoning, drafts, earlier answers) and
    after it is ignored. The block itself is read strictly: times count up from 0 and every line
    has the same number of cells; blank lines and a Markdown fence around the lines are allowed.

    Returns:
      The plan int[T, agents, 2], or None if the text has no such block.
    """
    visible = text.rpartition("</think>")[2].partition("<think>")[0]
    head, found, _ = visible.rpartition("</answer>")
    _, opened, block = head.rpartition("<answer>")
    if not (found and opened):
        return None
    lines = [line.strip(" \t\r") for line in block.split("\n")]
    lines = [line for line in lines if line]
    if len(lines) >= 2 and _FENCE.fullmatch(lines[0]) and lines[-1] == "```":
        lines = lines[1:-1]
    if not 1 <= len(lines) <= MAX_STEPS:
        return None
    cells: list[list[tuple[int, int]]] = []
    for time, line in enumerate(lines):
        match = _LINE.fullmatch(line)
        if match is None or match[1] != str(time):
            return None
        cells.append([(int(row), int(column)) for row, column in _CELL.findall(match[2])])
        if len(cells[time]) != len(cells[0]):
            return None
    return np.array(cells)


def plans_from_texts(texts: Sequence[str], num_agents: int) -> Plan:
    """Reads many answers into one batch.

    Args:
      texts: B texts, whatever they hold.
      num_agents: static number of agents A of the instances.

    Returns:
      A `Plan` of batch shape [B] with NumPy leaves, padded as `padding.stack_plans` says.
    """
    return stack_plans([parse_answer(text) for text in texts], num_agents)


def _cell(cell: Array) -> str:
    return f"({int(cell[0])},{int(cell[1])})"
