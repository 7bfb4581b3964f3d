"""Drawings of instances and plans in plain text."""

import numpy as np

from mapf_jax import dynamics
from mapf_jax.text import FROZEN, GOAL_CHARACTERS, HOLE, map_rows
from mapf_jax.types import Instance, Plan


def ascii_instance(instance: Instance) -> str:
    """The lake with starts (`S s A B C`) and goals (`G g a b c`), cells separated by blanks."""
    return "\n".join(map_rows(instance))


def ascii_frames(instance: Instance, plan: Plan) -> list[str]:
    """One drawing for each time step of a parsable single plan.

    Agents are digits, goals `G g a b c`, `#` marks a cell with a rule broken in it at that time;
    below the lake one line names each broken rule with its agents and cells.
    """
    size = int(instance.size)
    blocked = np.asarray(instance.blocked)
    positions = np.asarray(plan.positions)
    agents = np.nonzero(instance.active)[0]
    frames = []
    for time in range(int(plan.num_steps) + 1):
        grid = [[HOLE if blocked[r, c] else FROZEN for c in range(size)] for r in range(size)]
        for agent in agents:
            row, column = instance.goals[agent]
            grid[row][column] = GOAL_CHARACTERS[agent]
        before = positions[max(time - 1, 0)]
        broken = dynamics.violations(instance, before, positions[time])
        notes = []
        for agent in agents:
            row, column = (int(value) for value in positions[time, agent])
            rules = [name for name, flags in vars(broken).items() if flags[agent]]
            if 0 <= row < size and 0 <= column < size:
                grid[row][column] = "#" if rules else str(agent)
            if rules:
                names = ", ".join(rule.replace("_", " ") for rule in rules)
                notes.append(f"agent {agent} at ({row},{column}): {names}")
        lines = [f"t = {time}", *(" ".join(row) for row in grid), *notes]
        frames.append("\n".join(lines))
    return frames
