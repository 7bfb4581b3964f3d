"""Instances and plans drawn in plain text, and lakes read from such a drawing."""

import jax
import numpy as np

from mapf_jax.text import FROZEN, GOAL_CHARACTERS, HOLE, START_CHARACTERS, letters_of, map_rows
from mapf_jax.types import Instance, Plan, make_instance
from mapf_jax.verify import plan_violations

_violations = jax.jit(plan_violations)


def ascii_instance(instance: Instance) -> str:
    """The lake with starts (`S s A B C`) and goals (`G g a b c`), cells separated by blanks."""
    return "\n".join(map_rows(instance))


def instance_from_ascii(drawing: str) -> Instance:
    """Reads what `ascii_instance` draws; blanks between the cells and empty lines may differ.

    Raises:
      ValueError: the drawing is not square, has a character that means nothing, the same letter
        twice, or agents that lack a start or a goal; the message says where.
    """
    rows = [line.split() for line in drawing.splitlines() if line.strip()]
    grid = ["".join(row) for row in rows]
    if not grid or any(len(row) != len(grid) for row in grid):
        widths = sorted({len(row) for row in grid})
        raise ValueError(f"drawing: {len(grid)} rows of {widths} cells, the map must be square")
    found: dict[str, tuple[int, int]] = {}
    for r, row in enumerate(grid):
        for c, character in enumerate(row):
            if character in FROZEN + HOLE:
                continue
            if character not in START_CHARACTERS + GOAL_CHARACTERS:
                raise ValueError(f"drawing: {character!r} in row {r}, column {c} means nothing")
            if character in found:
                raise ValueError(f"drawing: {character!r} is in {found[character]} and ({r}, {c})")
            found[character] = (r, c)
    starts: list[tuple[int, int]] = []
    goals: list[tuple[int, int]] = []
    for agent in range(-(-len(found) // 2)):
        for cells, letter in zip((starts, goals), letters_of(agent), strict=True):
            if letter not in found:
                raise ValueError(f"drawing: {letter!r} of agent {agent} is missing")
            cells.append(found[letter])
    lake = [
        "".join(FROZEN if character in found else character for character in row) for row in grid
    ]
    return make_instance(lake, starts, goals)


def ascii_frames(instance: Instance, plan: Plan) -> list[str]:
    """One drawing for each time step of a parsable single plan.

    Agents are digits (their last one from agent 10 on), goals `G g a b c`, `#` marks a cell with a
    rule broken in it at that time; below the lake one line names each broken rule with its agent
    and cell.
    """
    size = int(instance.size)
    positions = np.asarray(plan.positions)
    broken = vars(jax.tree.map(np.asarray, _violations(instance, plan.positions)))
    agents = np.nonzero(instance.active)[0].tolist()
    lake = np.where(np.asarray(instance.blocked)[:size, :size], HOLE, FROZEN)
    for agent in agents:
        lake[tuple(instance.goals[agent])] = letters_of(agent)[1]
    frames = []
    for time in range(int(plan.num_steps) + 1):
        grid, notes = lake.copy(), []
        for agent in agents:
            row, column = positions[time, agent].tolist()
            rules = [name.replace("_", " ") for name, flags in broken.items() if flags[time, agent]]
            if rules:
                notes.append(f"agent {agent} at ({row},{column}): {', '.join(rules)}")
            if 0 <= row < size and 0 <= column < size and grid[row, column] != "#":
                grid[row, column] = "#" if rules else str(agent % 10)
        frames.append("\n".join([f"t = {time}", *map(" ".join, grid), *notes]))
    return frames
