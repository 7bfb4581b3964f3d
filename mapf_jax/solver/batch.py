"""Exact optima of whole batches: which search to call, and what its results mean together."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import plans
from mapf_jax.solver import group_solver, joint_search
from mapf_jax.solver.blocks import BLOCK, in_blocks
from mapf_jax.solver.group_search import Effort
from mapf_jax.types import INFINITE_COST, Array, Instance, Solution, Status

#: Maps are cut to the next of these widths, so that lake sizes share compiled programs.
WIDTHS = (5, 8, 10, 16, 32)
_WIDE_BLOCK = 32  # Lakes of a call that are more than 16 cells wide.
_HISTORY_BYTES = 1 << 28  # What the layers of one call of the plan search may take.
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


def label(blocked: Array, starts: Array, goals: Array) -> Labels:
    """Exact optima of two-agent instances.

    Args:
      blocked: bool[B, S, S].
      starts: int[B, 2, 2].
      goals: int[B, 2, 2].
    """
    block = BLOCK if blocked.shape[-1] <= 16 else _WIDE_BLOCK
    costs = in_blocks(_free_costs, blocked, starts, goals, block=block)
    solo = in_blocks(joint_search.shortest_costs, blocked, starts, goals, block=block).sum(-1)
    solvable = costs.cost < INFINITE_COST
    gap = np.where(solvable, costs.cost - solo, 0)
    # On a grid, moves alternate the colour of an agent's cell, so without waits the sum of costs
    # has the parity of the shortest paths: an odd gap proves a wait. A gap of 0 proves none,
    # because an agent that waits is later than its shortest path. The rest is searched.
    needs_wait = gap % 2 == 1
    (open_,) = np.nonzero((gap > 0) & (gap % 2 == 0))
    if open_.size:
        moving = in_blocks(
            _moving_costs, np.asarray(blocked)[open_], starts[open_], goals[open_],
            block=min(block, 128),
        )  # fmt: skip
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
    # The search keeps every layer: wide lakes and long plans are cut into smaller calls.
    width = blocked.shape[-1]
    layers = width**3 * (2 if width <= 16 else 4) * (horizon // 2 + 1)
    block = 1 << int(np.log2(np.clip(_HISTORY_BYTES // layers, 1, 256)))
    paths, num_steps = in_blocks(search, blocked, starts, goals, labels.needs_wait, block=block)
    return paths[:, : int(num_steps.max()) + 1], num_steps


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
    width = instances.blocked.shape[-1]
    sizes = np.asarray(instances.size)
    starts, goals = np.asarray(instances.starts), np.asarray(instances.goals)
    active = np.asarray(instances.active)
    pieces: list[tuple[np.ndarray, Solution]] = []
    widths = np.array([min([w for w in WIDTHS if size <= w < width] + [width]) for size in sizes])
    for cut in np.unique(widths):
        (rows,) = np.nonzero(widths == cut)
        blocked = np.asarray(instances.blocked)[rows, :cut, :cut]
        solved = solve_arrays(blocked, starts[rows], goals[rows], active[rows], efforts)
        pieces.append((rows, solved))
    order = np.argsort(np.concatenate([rows for rows, _ in pieces]))
    joined = plans.join([piece for _, piece in pieces])
    return jax.tree.map(lambda leaf: leaf[order], joined)


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
    batch, num_agents = active.shape
    reach = in_blocks(_reaches, blocked, starts, goals, block=BLOCK)
    reach &= active[:, :, None] & active[:, None, :]
    # The first agent whose goal an agent can reach names its part of the lake.
    part = np.argmax(reach, axis=1)
    stuck = np.any(active & ~reach[:, range(num_agents), range(num_agents)], axis=1)
    status = np.where(stuck, Status.UNSOLVABLE, Status.OPTIMAL)
    cost, makespan = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
    needs_wait = np.zeros(batch, bool)
    paths = starts[:, None].astype(np.int8)
    # teams[b, i, j]: agent j lives in the part of the lake that agent i names.
    teams = active[:, None] & (part[:, None] == np.arange(num_agents)[:, None])
    sizes = np.where(stuck[:, None], 0, teams.sum(-1))
    for size in np.unique(sizes[sizes > 0]):
        rows, names = np.nonzero(sizes == size)
        agents = np.argsort(~teams[rows, names], axis=1, kind="stable")[:, :size]
        solved = _solve_teams(
            blocked[rows], starts[rows[:, None], agents], goals[rows[:, None], agents], efforts
        )
        # A part without a plan settles its lake, also where another part stays open.
        undecided = rows[solved.status == Status.UNDECIDED]
        status[undecided[status[undecided] != Status.UNSOLVABLE]] = Status.UNDECIDED
        status[rows[solved.status == Status.UNSOLVABLE]] = Status.UNSOLVABLE
        known = solved.status == Status.OPTIMAL
        np.add.at(cost, rows, np.where(known, solved.cost, 0))
        np.maximum.at(makespan, rows, np.where(known, solved.makespan, 0))
        np.logical_or.at(needs_wait, rows, solved.needs_wait)
        steps = max(paths.shape[1], solved.paths.shape[1])
        paths = plans.rest(paths, steps)
        team_paths = plans.rest(np.asarray(solved.paths), steps)
        paths[rows[:, None, None], np.arange(steps)[None, :, None], agents[:, None, :]] = team_paths
    optimal = status == Status.OPTIMAL
    paths = np.where(optimal[:, None, None, None], paths, starts[:, None])
    num_steps = np.where(active, plans.arrivals(paths, goals), 0).max(1)
    num_steps = np.where(optimal, num_steps, 0).astype(np.int32)
    return Solution(
        status=status.astype(np.int8),
        cost=np.where(optimal, cost, INFINITE_COST).astype(np.int32),
        makespan=np.where(optimal, makespan, INFINITE_COST).astype(np.int32),
        needs_wait=needs_wait & optimal,
        paths=paths[:, : int(num_steps.max(initial=0)) + 1].astype(np.int8),
        num_steps=num_steps,
    )


def _solve_teams(
    blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray, efforts: Sequence[Effort]
) -> Solution:
    """Teams of one number of agents that live in one part of their lakes."""
    if starts.shape[1] != 2:
        return group_solver.solve_groups(blocked, starts, goals, efforts)
    labels = label(blocked, starts, goals)
    solvable = labels.cost < INFINITE_COST
    paths, num_steps = starts[:, None].astype(np.int8), np.zeros(len(starts), np.int32)
    (rows,) = np.nonzero(solvable)
    if rows.size:
        known = Labels(labels.cost[rows], labels.makespan[rows], labels.needs_wait[rows])
        found, num_steps[rows] = optimal_paths(blocked[rows], starts[rows], goals[rows], known)
        paths = np.repeat(paths, found.shape[1], axis=1)
        paths[rows] = found
    return Solution(
        status=np.where(solvable, Status.OPTIMAL, Status.UNSOLVABLE).astype(np.int8),
        cost=labels.cost,
        makespan=labels.makespan,
        needs_wait=labels.needs_wait,
        paths=paths,
        num_steps=num_steps,
    )


@jax.jit
def _reaches(blocked: Array, starts: Array, goals: Array) -> jax.Array:
    """bool[B, A, A]: is there a way from the start of agent j to the goal of agent i?"""
    fields = joint_search.distance_fields(blocked, goals)
    lake = jnp.arange(blocked.shape[0])[:, None, None]
    agent = jnp.arange(goals.shape[1])[None, :, None]
    row, column = starts[:, None, :, 0], starts[:, None, :, 1]
    return fields[lake, agent, row, column] < INFINITE_COST


def _free_costs(blocked: Array, starts: Array, goals: Array) -> joint_search.JointCosts:
    return joint_search.joint_costs(blocked, starts, goals, jnp.ones(len(blocked), bool))


def _moving_costs(blocked: Array, starts: Array, goals: Array) -> joint_search.JointCosts:
    return joint_search.joint_costs(blocked, starts, goals, jnp.zeros(len(blocked), bool))
