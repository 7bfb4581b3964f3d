"""Instances as prompts, plans as text, and answers read back.

An answer is the last `<answer>` block of a text, one line a time step:

    <answer>
    0: (0,0) (2,2)
    1: (0,1) (1,2)
    </answer>

Line t holds the time t, counted from 0, and the cell (row,column) of each agent in order.
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from mapf_jax.types import Array, Instance, Plan

#: Map characters of the agents' starts and goals, in agent order.
START_CHARACTERS = "SsABC"
GOAL_CHARACTERS = "Ggabc"
FROZEN, HOLE = "F", "H"

#: The part of the prompt that is the same for every instance.
RULES = (
    "Several agents cross a frozen lake at the same time. Plan a path for every agent from its "
    "start to its goal, with the smallest total number of steps.\n"
    "The lake is a square grid. Cells are written (row,column), counted from 0 at the upper left. "
    "On the map F is frozen and can be walked on, H is a hole; S s A B C are the starts and "
    "G g a b c the goals of agents 0 1 2 3 4.\n"
    "In every time step each agent moves one cell up, down, left or right, or waits, all at once. "
    "No agent may leave the lake or enter a hole. Two agents may never be in one cell at the same "
    "time, and two agents may not exchange their cells in one step; an agent may enter a cell that "
    "another one leaves in the same step. An agent that has arrived stays on its goal and still "
    "blocks it.\n"
    "You may think first. Then answer with one line for each time step, from time 0 with the "
    "starts to the time when all agents are on their goals: the time, a colon, and the cell of "
    "every agent in order, between <answer> and </answer>, like this:\n"
    "<answer>\n0: (0,0) (2,1)\n1: (0,1) (2,1)\n</answer>\n"
)

# A longer answer cannot be right for any lake, and is not read further.
MAX_STEPS = 1024
_COORDINATE_LIMIT = 9999  # Everything beyond is as far out of bounds.
_LINE = re.compile(r"(\d{1,6}):((?: ?\(-?\d{1,6}, ?-?\d{1,6}\))+)", re.ASCII)
_CELL = re.compile(r"\((-?\d{1,6}), ?(-?\d{1,6})\)", re.ASCII)


@dataclasses.dataclass(frozen=True)
class ParsedAnswer:
    """The plan that a text holds: `cells[t][agent]` is (row, column)."""

    cells: tuple[tuple[tuple[int, int], ...], ...]


def map_rows(instance: Instance) -> list[str]:
    """The lake with starts and goals marked, one string a row, cells separated by a blank."""
    size = int(instance.size)
    blocked = np.asarray(instance.blocked)
    grid = [[HOLE if blocked[r, c] else FROZEN for c in range(size)] for r in range(size)]
    for cells, characters in (
        (instance.starts, START_CHARACTERS),
        (instance.goals, GOAL_CHARACTERS),
    ):
        for agent in np.nonzero(instance.active)[0]:
            row, column = (int(value) for value in cells[agent])
            grid[row][column] = characters[agent]
    return [" ".join(row) for row in grid]


def prompt(instance: Instance, list_holes: bool = False) -> str:
    """The question about one instance.

    Args:
      instance: a single instance.
      list_holes: also list the cells of the holes, which spares a small model reading the map.
    """
    size = int(instance.size)
    agents = np.nonzero(instance.active)[0]
    lines = [f"Lake of {size} x {size}, {len(agents)} agents", *map_rows(instance)]
    for agent in agents:
        start, goal = _cell(instance.starts[agent]), _cell(instance.goals[agent])
        lines.append(f"Agent {agent}: start {start} goal {goal}")
    if list_holes:
        holes = np.argwhere(np.asarray(instance.blocked)[:size, :size])
        lines.append("Holes:" + "".join(f" {_cell(hole)}" for hole in holes))
    return RULES + "\n".join(lines)


def render_answer(paths: Array, num_steps: int) -> str:
    """The answer text of a plan int[T, A, 2] of `num_steps` moves."""
    lines = [
        f"{time}:" + "".join(f" {_cell(cell)}" for cell in paths[time])
        for time in range(int(num_steps) + 1)
    ]
    return "\n".join(["<answer>", *lines, "</answer>"])


def parse_answer(text: str) -> ParsedAnswer | None:
    """Reads the last complete `<answer>` block of a text.

    Anything before it (reasoning, drafts, earlier answers) is ignored. The block itself is read
    strictly: times count up from 0 and every line names equally many cells; blank lines and a
    Markdown fence around the lines are allowed.

    Returns:
      The plan, or None if the text has no such block.
    """
    end = text.rfind("</answer>")
    begin = text.rfind("<answer>", 0, end) if end >= 0 else -1
    if begin < 0:
        return None
    # What stands inside of thinking, closed or not, is no answer.
    if "</think>" in text[end:] or text.rfind("<think>", 0, begin) > text.rfind("</think>", 0, end):
        return None
    block = text[begin + len("<answer>") : end]
    lines = [line.strip(" \t\r") for line in block.split("\n")]
    lines = [line for line in lines if line]
    if len(lines) >= 2 and lines[0].startswith("```") and lines[-1] == "```":
        lines = lines[1:-1]
    if not 1 <= len(lines) <= MAX_STEPS:
        return None
    cells: list[tuple[tuple[int, int], ...]] = []
    for time, line in enumerate(lines):
        match = _LINE.fullmatch(line)
        if match is None or match[1] != str(time):
            return None
        cells.append(tuple((int(r), int(c)) for r, c in _CELL.findall(match[2])))
        if len(cells[time]) != len(cells[0]):
            return None
    return ParsedAnswer(tuple(cells))


def plans_from_texts(texts: Sequence[str], num_agents: int) -> Plan:
    """Reads many answers into one batch.

    Args:
      texts: B texts, whatever they hold.
      num_agents: static number of agents A of the instances.

    Returns:
      A `Plan` of batch shape [B] with NumPy leaves; its T is the longest answer rounded up to a
      multiple of 16, so that few shapes are compiled.
    """
    answers = [parse_answer(text) for text in texts]
    longest = max((len(answer.cells) for answer in answers if answer), default=1)
    steps = -(-longest // 16) * 16
    positions = np.zeros((len(texts), steps, num_agents, 2), np.int16)
    num_steps = np.zeros(len(texts), np.int32)
    counts = np.zeros(len(texts), np.int32)
    for i, answer in enumerate(answers):
        if answer is None:
            continue
        cells = np.clip(np.array(answer.cells), -_COORDINATE_LIMIT, _COORDINATE_LIMIT)
        counts[i] = cells.shape[1]
        num_steps[i] = len(cells) - 1
        known = min(num_agents, cells.shape[1])
        positions[i, : len(cells), :known] = cells[:, :known]
        positions[i, len(cells) :] = positions[i, len(cells) - 1]
    parsable = np.array([answer is not None for answer in answers], bool)
    return Plan(positions=positions, num_steps=num_steps, parsable=parsable, num_agents=counts)


def _cell(cell: Array) -> str:
    return f"({int(cell[0])},{int(cell[1])})"
