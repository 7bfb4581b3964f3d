"""Exact optima of whole batches of instances, on all cores of the host."""

import concurrent.futures
import math
import os
import time

import chex
import numpy as np

from mapf_jax.plans import rest
from mapf_jax.types import INFINITE_COST, Instance, Solution, Status

#: Joint states that one search may keep: some 0.1 GiB for five agents.
MAX_STATES = 1 << 20
_EASY_STATES = 1 << 17  # All instances are tried with so many before any gets more.
_CHUNKS = 16, 256  # Instances that a thread takes at once, at least and at most.


def solve(instances: Instance, max_states: int = MAX_STATES, seconds: float = math.inf) -> Solution:
    """Exact optimum of every instance of a batch.

    Results depend on `max_states` alone, not on the machine, as long as `seconds` is infinite.

    Args:
      instances: batch shape [B], any numbers of active agents.
      max_states: joint states that one search may keep; an instance that would need more is
        UNDECIDED. All are tried with a small part of it first.
      seconds: when they are over, no further instance is begun: those left, which are those with
        the farthest goals, are UNDECIDED.

    Returns:
      A `Solution` of batch shape [B] with NumPy leaves. An instance without a plan has the status
      UNSOLVABLE; where the status is not OPTIMAL, the paths rest on the starts.

    Raises:
      ValueError: there is no batch, `max_states` is below 1, or active agents do not start and end
        on free cells of the map, starts and goals each pairwise distinct.
    """
    from mapf_jax.solver.lakes import solve_lakes  # Numba takes half a second to import.

    if instances.batch_shape == () or not len(instances):
        raise ValueError(
            f"instances: batch shape {instances.batch_shape}, one of [B >= 1] is needed"
        )
    if max_states < 1:
        raise ValueError(f"max_states={max_states}: at least 1 is needed")
    (batch,), num_agents = instances.batch_shape, instances.starts.shape[-2]
    width = instances.blocked.shape[-1]
    chex.assert_shape(instances.blocked, (batch, width, width))
    chex.assert_shape([instances.starts, instances.goals], (batch, num_agents, 2))
    chex.assert_shape(instances.active, (batch, num_agents))
    lakes = [
        np.ascontiguousarray(array, dtype)
        for array, dtype in (
            (instances.blocked, bool), (instances.starts, np.int8),
            (instances.goals, np.int8), (instances.active, bool),
        )
    ]  # fmt: skip
    _check_cells(*lakes)
    end = time.monotonic() + seconds
    labels = np.zeros((batch, 5), np.int32)
    labels[:, 0] = Status.UNDECIDED
    plans: list[tuple[np.ndarray, np.ndarray]] = []

    def attempt(rows: np.ndarray, states: int) -> None:
        if time.monotonic() <= end:
            blocked, starts, goals, active = (array[rows] for array in lakes)
            labels[rows], paths = solve_lakes(blocked, starts, goals, active, states)
            plans.append((rows, paths))

    # The farther the goals, the longer a search tends to take. Longest first keeps all threads busy
    # to the end (Graham 1969). Under a time limit shortest first decides more instances.
    distance = (np.abs(np.subtract(lakes[1], lakes[2], dtype=np.int16)).sum(-1) * lakes[3]).sum(-1)
    order = np.argsort(distance if math.isfinite(seconds) else -distance, kind="stable")
    threads = min(os.cpu_count() or 1, 32)
    workers = concurrent.futures.ThreadPoolExecutor(threads)
    chunk = int(np.clip(batch // (8 * threads), *_CHUNKS))
    try:
        for states, size in ((min(_EASY_STATES, max_states), chunk), (max_states, 1)):
            rows = order[labels[order, 0] == Status.UNDECIDED]
            chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
            list(workers.map(attempt, chunks, [states] * len(chunks)))
            if states == max_states:
                break
    finally:
        workers.shutdown(cancel_futures=True)
    status, cost, makespan, needs_wait, moves = labels.T
    optimal = status == Status.OPTIMAL
    paths = np.repeat(lakes[1][:, None], moves.max() + 1, axis=1)
    for rows, found in plans:
        paths[rows] = rest(found, paths.shape[1])
    return Solution(
        status=status.astype(np.int8),
        cost=np.where(optimal, cost, INFINITE_COST),
        makespan=np.where(optimal, makespan, INFINITE_COST),
        needs_wait=needs_wait != 0,
        paths=paths,
        num_steps=moves.copy(),
    )


def _check_cells(
    blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray, active: np.ndarray
) -> None:
    """Raises ValueError for what no instance may have; compiled code would not notice."""
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
