"""Plans of whole batches of instances, proven optimal where that is feasible, on all cores."""

import concurrent.futures
import math
import numbers
import os
import time

import chex
import numpy as np

from mapf_jax.plans import arrivals, rest
from mapf_jax.types import INFINITE_COST, Instance, Solution, Status, cell_type

#: Joint states that one search may keep: some 0.1 GiB for five agents.
MAX_STATES = 1 << 20
#: Wider maps have too many cells for the exact search, which numbers them with 15 bits.
MAX_EXACT_WIDTH = 127
_EASY_STATES = 1 << 17  # All instances are tried with this many before any gets more.
_CHUNKS = 16, 256  # Instances that a thread takes at once, at least and at most.


def solve(instances: Instance, max_states: int = MAX_STATES, seconds: float = math.inf) -> Solution:
    """The best plan found for every instance of a batch, and whether it is proven optimal.

    An exact search comes first. Instances that it leaves open, and maps wider than
    `MAX_EXACT_WIDTH`, get the plan of `lacam`, which may not be optimal. Results depend on
    `max_states` alone, not on the machine, as long as `seconds` is infinite.

    Args:
      instances: batch shape [B], any numbers of active agents.
      max_states: joint states of up to five agents that one exact search may keep (of more agents
        as many as take the same memory); 0 leaves everything to `lacam`. All instances are tried
        with a small part of it first.
      seconds: after this time no further exact search begins; the instances with the farthest goals
        come last.

    Returns:
      A `Solution` of batch shape [B] with NumPy leaves; where it has no plan, the paths rest on the
      starts.

    Raises:
      ValueError: there is no batch, `max_states` is no integer or below 0, or active agents do not
        start and end on free cells of the map, starts and goals each pairwise distinct.
    """
    # Numba takes half a second to import.
    from mapf_jax.solver.lacam import plan_lake
    from mapf_jax.solver.lakes import solve_lakes

    if instances.batch_shape == () or not len(instances):
        raise ValueError(
            f"instances: batch shape {instances.batch_shape}, one of [B >= 1] is needed"
        )
    if not isinstance(max_states, numbers.Integral) or max_states < 0:
        raise ValueError(f"max_states={max_states}: an integer from 0 on is needed")
    (batch,), num_agents = instances.batch_shape, instances.starts.shape[-2]
    width = instances.blocked.shape[-1]
    chex.assert_shape(instances.blocked, (batch, width, width))
    chex.assert_shape([instances.starts, instances.goals], (batch, num_agents, 2))
    chex.assert_shape(instances.active, (batch, num_agents))
    cells = cell_type(width)
    lakes = [
        np.ascontiguousarray(array, dtype)
        for array, dtype in (
            (instances.blocked, bool), (instances.starts, cells),
            (instances.goals, cells), (instances.active, bool),
        )
    ]  # fmt: skip
    _check_cells(*lakes)
    end = time.monotonic() + seconds
    labels = np.zeros((batch, 5), np.int32)
    labels[:, 0] = Status.UNKNOWN
    plans: list[tuple[np.ndarray, np.ndarray]] = []

    def search(rows: np.ndarray, states: int) -> None:
        if time.monotonic() <= end:
            blocked, starts, goals, active = (array[rows] for array in lakes)
            labels[rows], paths = solve_lakes(blocked, starts, goals, active, states)
            plans.append((rows, paths))

    def plan(row: int) -> None:
        blocked, starts, goals, active = (array[row] for array in lakes)
        status, cells = plan_lake(blocked, starts[active], goals[active])
        labels[row] = status, 0, 0, False, max(len(cells) - 1, 0)
        if len(cells):
            paths = np.repeat(starts[None, None], len(cells), axis=1)
            paths[0, :, active] = cells.swapaxes(0, 1)
            plans.append((np.array([row]), paths))

    # The farther the goals, the longer a search tends to take. Longest first keeps all threads busy
    # to the end (Graham 1969). Under a time limit shortest first decides more instances.
    distance = (np.abs(np.subtract(lakes[1], lakes[2], dtype=np.int32)).sum(-1) * lakes[3]).sum(-1)
    order = np.argsort(distance if math.isfinite(seconds) else -distance, kind="stable")
    threads = min(os.cpu_count() or 1, 32)
    workers = concurrent.futures.ThreadPoolExecutor(threads)
    chunk = int(np.clip(batch // (8 * threads), *_CHUNKS))
    exact = max_states if width <= MAX_EXACT_WIDTH else 0
    try:
        for states, size in ((min(_EASY_STATES, exact), chunk), (exact, 1)):
            rows = order[np.isin(labels[order, 0], [Status.UNKNOWN, Status.FEASIBLE])]
            chunks = [rows[i : i + size] for i in range(0, len(rows) if states else 0, size)]
            list(workers.map(search, chunks, [states] * len(chunks)))
            if states == exact:
                break
        list(workers.map(plan, order[labels[order, 0] == Status.UNKNOWN]))
    finally:
        workers.shutdown(cancel_futures=True)
    status, cost, makespan, needs_wait, moves = labels.T
    paths = np.repeat(lakes[1][:, None], moves.max() + 1, axis=1)
    for rows, found in plans:
        paths[rows] = rest(found, paths.shape[1])
    feasible = status == Status.FEASIBLE
    costs = lakes[3] * arrivals(paths, lakes[2])
    cost, makespan = np.where(feasible, (costs.sum(-1), costs.max(-1)), (cost, makespan))
    planned = feasible | (status == Status.OPTIMAL)
    return Solution(
        status=status.astype(np.int8),
        cost=np.where(planned, cost, INFINITE_COST).astype(np.int32),
        makespan=np.where(planned, makespan, INFINITE_COST).astype(np.int32),
        needs_wait=~feasible & (needs_wait != 0),
        paths=paths,
        num_steps=moves.copy(),
    )


def _check_cells(
    blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray, active: np.ndarray
) -> None:
    """Raises ValueError for illegal starts and goals, which compiled code would not notice."""
    batch, width = blocked.shape[:2]
    for name, cells in (("starts", starts), ("goals", goals)):
        row, column = np.moveaxis(np.where(active[..., None], cells, 0).astype(np.int64), -1, 0)
        inside = (np.minimum(row, column) >= 0) & (np.maximum(row, column) < width)
        lake = np.arange(batch)[:, None]
        free = inside & ~blocked[lake, np.where(inside, row, 0), np.where(inside, column, 0)]
        number = np.where(active, row * width + column, -1 - np.arange(active.shape[1]))
        distinct = np.diff(np.sort(number, axis=1), axis=1).all(axis=1)
        (wrong,) = np.nonzero((active & ~free).any(axis=1) | ~distinct)
        if wrong.size:
            raise ValueError(
                f"{name} of instance {wrong[0]}: {cells[wrong[0]][active[wrong[0]]].tolist()}; "
                "allowed are distinct free cells of its map"
            )
