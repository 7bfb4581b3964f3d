"""Exact optima of whole batches: which search to call, and what its results mean together."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import plans
from mapf_jax.solver import group_solver, joint_search, search
from mapf_jax.solver.blocks import BLOCK, in_blocks
from mapf_jax.solver.group_search import Effort
from mapf_jax.types import INFINITE_COST, Array, Instance, Solution, Status

#: Maps are cut to the next of these widths, so that lake sizes share compiled programs.
WIDTHS = (5, 8, 10, 16, 32)
_WIDE_BLOCK = 32  # Lakes of a call that are more than 16 cells wide.
_HISTORY_BYTES = 1 << 28  # What the layers of one call of the plan search may take.
_HORIZON_STEP = 16  # Plan lengths are rounded up to a multiple, so that few programs are compiled.


class Labels(NamedTuple):
    """Optimal costs of a batch without the plans."""

    cost: np.ndarray  # int32[B], optimal sum of costs; `INFINITE_COST` if there is no plan.
    makespan: np.ndarray  # int32[B], smallest possible makespan; likewise.
    needs_wait: np.ndarray  # bool[B], no plan of optimal cost is free of waits before arrival.


def label(blocked: Array, starts: Array, goals: Array) -> Labels:
    """Exact optima of two-agent instances.

    Args:
      blocked: bool[B, S, S].
      starts: int[B, 2, 2].
      goals: int[B, 2, 2].
    """
    batch, width = blocked.shape[:2]
    chex.assert_shape(blocked, (batch, width, width))
    chex.assert_shape([starts, goals], (batch, 2, 2))
    block = BLOCK if width <= 16 else _WIDE_BLOCK
    lakes = (np.asarray(blocked), np.asarray(starts), np.asarray(goals))
    cost, makespan = in_blocks(joint_search.joint_costs, *lakes, np.ones(batch, bool), block=block)
    shortest = in_blocks(search.shortest_costs, *lakes, block=block).sum(-1)
    gap = np.where(cost < INFINITE_COST, cost - shortest, 0)
    # On a grid, moves alternate the colour of an agent's cell, so without waits the sum of costs
    # has the parity of the shortest paths: an odd gap proves a wait. A gap of 0 proves none,
    # because an agent that waits is later than its shortest path. The rest is searched.
    needs_wait = gap % 2 == 1
    (open_,) = np.nonzero((gap > 0) & (gap % 2 == 0))
    if open_.size:
        some, no_waits = [array[open_] for array in lakes], np.zeros(len(open_), bool)
        moving, _ = in_blocks(joint_search.joint_costs, *some, no_waits, block=min(block, 128))
        needs_wait[open_] = moving > cost[open_]
    return Labels(cost, makespan, needs_wait)


def optimal_paths(blocked: Array, starts: Array, goals: Array, labels: Labels) -> np.ndarray:
    """A plan of optimal cost for each instance, free of waits before arrival where one exists.

    Args:
      blocked: bool[B, S, S], two-agent instances, every one solvable.
      starts: int[B, 2, 2].
      goals: int[B, 2, 2].
      labels: their labels.

    Returns:
      int8[B, T, 2, 2], T being one more than the longest plan.
    """
    horizon = -(-int(labels.cost.max()) // _HORIZON_STEP) * _HORIZON_STEP
    function = functools.partial(joint_search.joint_paths, horizon=horizon)
    # The search keeps every layer: wide lakes and long plans are cut into smaller calls.
    width = blocked.shape[-1]
    layers = width**3 * (2 if width <= 16 else 4) * (horizon // 2 + 1)
    block = 1 << int(np.log2(np.clip(_HISTORY_BYTES // layers, 1, 256)))
    paths = in_blocks(function, blocked, starts, goals, labels.needs_wait, block=block)
    return paths[:, : int(plans.arrivals(paths, goals).max()) + 1]


def solve(instances: Instance, efforts: Sequence[Effort] = group_solver.EFFORTS) -> Solution:
    """Exact optimum of every instance of a batch.

    Agents that cannot meet, because they live in different parts of their lake, are solved apart.
    Two agents that can meet are always decided. Groups of three and more are decided by
    certificates or by a search of limited memory (`group_solver`); where that does not suffice,
    and for such groups of more than 6 agents or on lakes wider than 16 cells without a
    certificate, the status is UNDECIDED.

    Args:
      instances: batch shape [B], any numbers of active agents.
      efforts: what a search may keep, smallest first.

    Returns:
      A `Solution` of batch shape [B] with NumPy leaves. An instance without a plan has the status
      UNSOLVABLE; where the status is not OPTIMAL, the paths rest on the starts.
    """
    if instances.batch_shape == () or not len(instances):
        raise ValueError(
            f"instances: batch shape {instances.batch_shape}, one of [B >= 1] is needed"
        )
    (batch,), num_agents = instances.batch_shape, instances.starts.shape[-2]
    width = instances.blocked.shape[-1]
    chex.assert_shape([instances.starts, instances.goals], (batch, num_agents, 2))
    chex.assert_shape(instances.active, (batch, num_agents))
    lakes = (instances.blocked, instances.starts, instances.goals, instances.active)
    blocked, starts, goals, active = map(np.asarray, lakes)
    sizes = np.asarray(instances.size)
    widths = np.array([min([w for w in WIDTHS if size <= w < width] + [width]) for size in sizes])
    order, solved = [], []
    for cut in np.unique(widths):
        (rows,) = np.nonzero(widths == cut)
        some = (blocked[rows, :cut, :cut], starts[rows], goals[rows], active[rows])
        order.append(rows)
        solved.append(solve_arrays(*some, efforts))
    back = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda leaf: leaf[back], plans.join(solved))


def solve_arrays(
    blocked: np.ndarray,
    starts: np.ndarray,
    goals: np.ndarray,
    active: np.ndarray,
    efforts: Sequence[Effort] = group_solver.EFFORTS,
) -> Solution:
    """`solve` on maps of one width.

    Args:
      blocked: bool[B, S, S].
      starts: int8[B, A, 2].
      goals: int8[B, A, 2].
      active: bool[B, A].
      efforts: what a search may keep, smallest first.
    """
    num_agents = active.shape[1]
    reach = in_blocks(_reaches, blocked, starts, goals, block=BLOCK)
    reach &= active[:, :, None] & active[:, None, :]
    # The first agent whose goal an agent can reach names its part of the lake.
    part = np.argmax(reach, axis=1)
    stuck = np.any(active & ~reach[:, range(num_agents), range(num_agents)], axis=1)
    paths = starts[:, None].astype(np.int8)
    # teams[b, i, j]: agent j lives in the part of the lake that agent i names.
    teams = active[:, None] & (part[:, None] == np.arange(num_agents)[:, None])
    sizes = np.where(stuck[:, None], 0, teams.sum(-1))
    found = {name: np.zeros(sizes.shape, int) for name in ("status", *Labels._fields)}
    for size in np.unique(sizes[sizes > 0]):
        rows, names = np.nonzero(sizes == size)
        agents = np.argsort(~teams[rows, names], axis=1, kind="stable")[:, :size]
        solved = _solve_teams(
            blocked[rows], starts[rows[:, None], agents], goals[rows[:, None], agents], efforts
        )
        for name, values in found.items():
            values[rows, names] = getattr(solved, name)
        steps = max(paths.shape[1], solved.paths.shape[1])
        paths = plans.rest(paths, steps)
        team_paths = plans.rest(np.asarray(solved.paths), steps)
        paths[rows[:, None, None], np.arange(steps)[None, :, None], agents[:, None, :]] = team_paths
    # A part without a plan settles its lake, also where another part stays open.
    unsolvable = stuck | np.any(found["status"] == Status.UNSOLVABLE, axis=1)
    optimal = ~unsolvable & np.all(found["status"] == Status.OPTIMAL, axis=1)
    status = np.where(optimal, Status.OPTIMAL, Status.UNDECIDED)
    paths = np.where(optimal[:, None, None, None], paths, starts[:, None])
    num_steps = np.where(active & optimal[:, None], plans.arrivals(paths, goals), 0).max(1)
    return Solution(
        status=np.where(unsolvable, Status.UNSOLVABLE, status).astype(np.int8),
        cost=np.where(optimal, found["cost"].sum(1), INFINITE_COST).astype(np.int32),
        makespan=np.where(optimal, found["makespan"].max(1), INFINITE_COST).astype(np.int32),
        needs_wait=np.any(found["needs_wait"], axis=1) & optimal,
        paths=paths[:, : int(num_steps.max(initial=0)) + 1].astype(np.int8),
        num_steps=num_steps.astype(np.int32),
    )


def _solve_teams(
    blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray, efforts: Sequence[Effort]
) -> Solution:
    """Teams of one number of agents that live in one part of their lakes."""
    if starts.shape[1] != 2:
        return group_solver.solve_groups(blocked, starts, goals, efforts)
    labels = label(blocked, starts, goals)
    solvable = labels.cost < INFINITE_COST
    paths = starts[:, None].astype(np.int8)
    (rows,) = np.nonzero(solvable)
    if rows.size:
        known = Labels(*(values[rows] for values in labels))
        found = optimal_paths(blocked[rows], starts[rows], goals[rows], known)
        paths = np.repeat(paths, found.shape[1], axis=1)
        paths[rows] = found
    return Solution(
        status=np.where(solvable, Status.OPTIMAL, Status.UNSOLVABLE).astype(np.int8),
        **labels._asdict(),
        paths=paths,
        num_steps=plans.arrivals(paths, goals).max(1),
    )


@jax.jit
def _reaches(blocked: Array, starts: Array, goals: Array) -> jax.Array:
    """bool[B, A, A]: is there a way from the start of agent j to the goal of agent i?"""
    fields = search.distance_fields(blocked, goals)
    lake, agent, _ = jnp.ogrid[: blocked.shape[0], : goals.shape[1], :1]
    row, column = starts[:, None, :, 0], starts[:, None, :, 1]
    return fields[lake, agent, row, column] < INFINITE_COST
