"""Exact optima of whole batches: which search to call, and what its results mean together."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import joint_search
from mapf_jax.types import INFINITE_COST, Array, Instance, Solution, Status

T = TypeVar("T")

_BLOCK = 512  # Rows handed to a compiled search at once, so that one program serves any batch.
_HORIZON_STEP = 16  # Plan lengths are rounded up to a multiple, so that few programs are compiled.


@dataclasses.dataclass(frozen=True)
class Labels:
    """Optimal costs of a batch without the plans, as NumPy arrays of shape [B].

    Attributes:
      cost: int32, optimal sum of costs; `INFINITE_COST` for an unsolvable instance.
      makespan: int32, smallest possible makespan; likewise.
      needs_wait: bool, no plan of optimal cost is free of waits before arrival.
    """

    cost: np.ndarray
    makespan: np.ndarray
    needs_wait: np.ndarray


def in_blocks(function: Callable[..., T], *arrays: Array, block: int = _BLOCK) -> T:
    """Calls a jitted batched function on rows of fixed number, so that it is compiled once.

    Args:
      function: arrays with a leading axis in, a pytree of arrays with that axis out.
      *arrays: [B, ...] each, B >= 1.
      block: rows of a call; the last call repeats rows to fill up.

    Returns:
      The results for the B rows, with NumPy leaves.
    """
    batch = len(arrays[0])
    pieces = []
    for first in range(0, batch, block):
        rows = np.arange(first, first + block) % batch
        result = function(*(np.asarray(array)[rows] for array in arrays))
        keep = min(block, batch - first)
        pieces.append(jax.tree.map(lambda leaf, keep=keep: np.asarray(leaf)[:keep], result))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *pieces)


def label(blocked: Array, starts: Array, goals: Array) -> Labels:
    """Exact optima of two-agent instances.

    Args:
      blocked: bool[B, S, S].
      starts: int[B, 2, 2].
      goals: int[B, 2, 2].
    """
    costs = in_blocks(_free_costs, blocked, starts, goals)
    solo = in_blocks(joint_search.shortest_costs, blocked, starts, goals).sum(-1)
    solvable = costs.cost < INFINITE_COST
    gap = np.where(solvable, costs.cost - solo, 0)
    # On a grid, moves alternate the colour of an agent's cell, so without waits the sum of costs
    # has the parity of the shortest paths: an odd gap proves a wait. A gap of 0 proves none,
    # because an agent that waits is later than its shortest path. The rest is searched.
    needs_wait = gap % 2 == 1
    (open_,) = np.nonzero((gap > 0) & (gap % 2 == 0))
    if open_.size:
        moving = in_blocks(
            _moving_costs, np.asarray(blocked)[open_], starts[open_], goals[open_], block=128
        )
        needs_wait[open_] = moving.cost > costs.cost[open_]
    return Labels(np.asarray(costs.cost), np.asarray(costs.makespan), needs_wait)


def optimal_paths(
    blocked: Array, starts: Array, goals: Array, labels: Labels
) -> tuple[np.ndarray, np.ndarray]:
    """A plan of optimal cost for each instance, free of waits before arrival where one exists.

    Args:
      blocked: bool[B, S, S], two-agent instances, every one solvable.
      starts: int[B, 2, 2].
      goals: int[B, 2, 2].
      labels: their labels.

    Returns:
      (paths int8[B, T, 2, 2], num_steps int32[B]), T being one more than the longest plan.
    """
    longest = int(labels.cost.max())
    horizon = -(-longest // _HORIZON_STEP) * _HORIZON_STEP
    search = functools.partial(
        joint_search.joint_paths, joint_horizon=horizon // 2, horizon=horizon
    )
    paths, num_steps = in_blocks(search, blocked, starts, goals, labels.needs_wait, block=256)
    return paths[:, : int(num_steps.max()) + 1], num_steps


def solve(instances: Instance) -> Solution:
    """Exact optimum of every instance of a batch.

    Args:
      instances: batch shape [B], two active agents each.

    Returns:
      A `Solution` of batch shape [B] with NumPy leaves. An instance without a plan has the status
      UNSOLVABLE, and paths that rest on the starts.

    Raises:
      ValueError: an instance has another number of agents than two.
    """
    counts = np.asarray(instances.active).sum(-1)
    if instances.starts.shape[-2] != 2 or np.any(counts != 2):
        raise ValueError(
            f"num_agents={sorted({int(n) for n in counts.ravel()})}: "
            "only instances of exactly 2 agents can be solved"
        )
    blocked = np.asarray(instances.blocked)
    starts, goals = np.asarray(instances.starts), np.asarray(instances.goals)
    batch = len(blocked)
    labels = label(blocked, starts, goals)
    solvable = labels.cost < INFINITE_COST
    paths = np.repeat(starts[:, None], 1, axis=1).astype(np.int8)
    num_steps = np.zeros(batch, np.int32)
    (rows,) = np.nonzero(solvable)
    if rows.size:
        known = Labels(labels.cost[rows], labels.makespan[rows], labels.needs_wait[rows])
        found, steps = optimal_paths(blocked[rows], starts[rows], goals[rows], known)
        paths = np.repeat(paths, found.shape[1], axis=1)
        paths[rows], num_steps[rows] = found, steps
    return Solution(
        status=np.where(solvable, Status.OPTIMAL, Status.UNSOLVABLE).astype(np.int8),
        cost=labels.cost,
        makespan=labels.makespan,
        needs_wait=labels.needs_wait,
        paths=paths,
        num_steps=num_steps,
    )


def _free_costs(blocked: Array, starts: Array, goals: Array) -> joint_search.JointCosts:
    return joint_search.joint_costs(blocked, starts, goals, jnp.ones(len(blocked), bool))


def _moving_costs(blocked: Array, starts: Array, goals: Array) -> joint_search.JointCosts:
    return joint_search.joint_costs(blocked, starts, goals, jnp.zeros(len(blocked), bool))
