"""Instances as prompts, plans as text, and answers read back.

An answer is the last `<answer>` block of a text that can be read, one line per time step:

    <answer>
    0: (0,0) (2,2)
    1: (0,1) (1,2)
    </answer>

Line t holds the time t, counted from 0, and the cell (row,column) of each agent in order.
`parse_answer` says which deviations are read as well.
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
RULES = Path(__file__).with_name("rules.txt").read_text(encoding="utf-8")

#: Bounds the arrays of plans; a path through every cell of a 32 x 32 lake has 1,023 steps.
MAX_STEPS = 1024
_TAG = re.compile(r"<[ \t]{0,3}(/?)[ \t]{0,3}answer[ \t]{0,3}>", re.IGNORECASE | re.ASCII)
_FENCE = re.compile(r"```[A-Za-z0-9]*", re.ASCII)
# Other Unicode blanks, hyphens and full-width signs; zero-width characters are dropped.
_LOOKALIKES = str.maketrans(
    dict.fromkeys("\t\r\xa0\u2002\u2003\u2007\u2008\u2009\u200a\u202f\u3000", " ")
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
    | dict.fromkeys("\u200b\u2060\ufeff")
    | dict(zip("\uff08\uff09\uff0c\uff1a\uff1b", "(),:;", strict=True))
)
_BLANKS = re.compile(" {2,}")
_NUMBER = r"-?\d{1,6}"
_CELL = re.compile(rf"\( ?({_NUMBER}) ?, ?({_NUMBER}) ?\)", re.ASCII)
_PAIR = re.compile(r"\d *, *-?\d", re.ASCII)
# A blank can match in one place only: with two, a long line that is no plan takes exponential time.
_LINE = re.compile(
    r"(?:[-+*\u2022] )?(?:\*\*)?(?:(?:time|step|time step|timestep) |t ?=? ?)?(?P<time>\d{1,6})"
    rf"(?:\*\*)? ?:(?:\*\*)?(?P<cells>(?:(?: ?[,;])? ?\( ?{_NUMBER} ?, ?{_NUMBER} ?\))+) ?[,;.]?",
    re.ASCII | re.IGNORECASE,
)


def map_rows(instance: Instance) -> list[str]:
    """The lake with starts and goals marked, one string a row, cells separated by a blank.

    A cell that is both a start and a goal has the letter of the start.

    Raises:
      ValueError: it is a batch, or has more agents than there are letters.
    """
    instance.check_single()
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

    The rules name the letters of agents 0 to 4, as in the published format. The lines of further
    agents name theirs.

    Args:
      instance: a single instance.
      list_holes: also list the cells of the holes, which spares a small model reading the map.

    Raises:
      ValueError: it is a batch, or has more agents than there are letters.
    """
    instance.check_single()
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


def answer_blocks(text: str) -> list[str]:
    """The texts between each `<answer>` and the next `</answer>`, in order.

    Only text after the last `</think>`, and before any later `<think>`, is searched: thinking,
    closed or not, is no answer. Tags may be of any case. Of nested blocks only the innermost
    counts; tags without a partner are ignored.
    """
    visible = text.rpartition("</think>")[2].partition("<think>")[0]
    blocks: list[str] = []
    begin: int | None = None
    for tag in _TAG.finditer(visible):
        if not tag[1]:
            begin = tag.end()
        elif begin is not None:
            blocks.append(visible[begin : tag.start()])
            begin = None
    return blocks


def parse_answer(text: str) -> np.ndarray | None:
    """Reads the last of `answer_blocks` that holds a plan or a pair of numbers.

    So a remark about the tags after the answer does not replace it, but a later plan that cannot be
    read does: then there is no answer. The times of a block count up from 0, and every line has the
    same number of cells, or there is no plan. Deviations that leave one meaning are read: tags in
    backticks or in bold, blank lines, a Markdown fence around the lines, blanks anywhere between
    numbers and signs, commas or semicolons between cells, `Step 0:`, `t=0:` and `**0:**`, a bullet
    (`-`, `+`, `*` and a blank) before a line, a comma, semicolon or full stop after it, and other
    Unicode blanks, hyphens and full-width signs. Everything else is no plan: missing, repeated or
    zero-padded times, words, names of agents, other brackets, tables, several times on a line, an
    open block.

    Returns:
      The plan int[T, agents, 2], or None if the text has no such block.
    """
    for block in reversed(answer_blocks(text)):
        plain = block.translate(_LOOKALIKES)
        if (plan := _plan(plain)) is not None or _PAIR.search(plain):
            return plan
    return None


def _plan(block: str) -> np.ndarray | None:
    lines = [line.strip(" ") for line in block.split("\n")]
    lines = [_BLANKS.sub(" ", line) for line in lines if line not in ("", "`", "**")]
    if len(lines) >= 2 and _FENCE.fullmatch(lines[0]) and lines[-1] == "```":
        lines = lines[1:-1]
    if not 1 <= len(lines) <= MAX_STEPS:
        return None
    cells: list[list[tuple[int, int]]] = []
    for time, line in enumerate(lines):
        match = _LINE.fullmatch(line)
        if match is None or match["time"] != str(time):
            return None
        cells.append([(int(row), int(column)) for row, column in _CELL.findall(match["cells"])])
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
