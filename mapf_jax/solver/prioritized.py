"""Prioritised planning: agents one by one, each by its shortest path round the earlier ones.

Not complete and not optimal (Erdmann and Lozano-Perez, "On multiple moving objects", 1987).
"""

import numpy as np

from mapf_jax.dynamics import MOVES, WAIT
from mapf_jax.solver.compiled import compiled


@compiled
def prioritized_plan(
    blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray, order: np.ndarray, horizon: int
) -> np.ndarray:
    """A plan in one order of the agents, on the map, starts and goals of an `Instance`.

    Args:
      order: int[A], the agents, the first one first.
      horizon: no path takes more steps.

    Returns:
      int8[T, A, 2], of T = 0 times where an agent finds no path.
    """
    width, agents = len(blocked), len(starts)
    paths = np.empty((horizon + 1, agents, 2), np.int8)
    occupant = np.full((horizon + 1, width, width), -1, np.int16)
    end = 0
    for agent in order:
        row, column = goals[agent]
        settled = 0  # From here on no earlier agent passes the goal.
        for t in range(horizon + 1):
            if occupant[t, row, column] >= 0:
                settled = t + 1
        # The step that led to each cell at each time, -1 where it is not reached.
        entered = np.full((horizon + 1, width, width), -1, np.int8)
        if occupant[0, starts[agent, 0], starts[agent, 1]] < 0:
            entered[0, starts[agent, 0], starts[agent, 1]] = WAIT
        t = 0
        while t < horizon and (t < settled or entered[t, row, column] < 0):
            for r in range(width):
                for c in range(width):
                    for step in range(len(MOVES) if entered[t, r, c] >= 0 else 0):
                        rr, cc = r + MOVES[step, 0], c + MOVES[step, 1]
                        if not (0 <= rr < width and 0 <= cc < width) or blocked[rr, cc]:
                            continue
                        other = occupant[t, rr, cc]
                        swap = other >= 0 and step != WAIT and occupant[t + 1, r, c] == other
                        if occupant[t + 1, rr, cc] < 0 and not swap:
                            entered[t + 1, rr, cc] = step
            t += 1
        if t < settled or entered[t, row, column] < 0:
            return paths[:0]
        end = max(end, t)
        for later in range(t, horizon + 1):
            paths[later, agent, 0], paths[later, agent, 1] = row, column
            occupant[later, row, column] = agent
        while t > 0:
            step = entered[t, row, column]
            row, column = row - MOVES[step, 0], column - MOVES[step, 1]
            t -= 1
            paths[t, agent, 0], paths[t, agent, 1] = row, column
            occupant[t, row, column] = agent
    return paths[: end + 1]
