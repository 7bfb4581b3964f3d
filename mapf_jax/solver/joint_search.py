"""Exact two-agent path finding: breadth-first search over the joint cells of both agents.

The frontier holds, for each cell of agent 0, the set of cells of agent 1 (`search`'s words), so
that one level is a few shifts for a whole batch.

Why first-reached times suffice: a plan is a joint phase, in which both agents are under way, until
at time t one agent is on its goal for good; the other then needs d more steps, d being its distance
with that goal blocked. The sum of costs is 2 t + d and the makespan t + d, and both grow with t.
The same holds for plans without waits before arrival, where the joint phase has no wait moves and
a shortest remainder has none anyway.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import dynamics
from mapf_jax.solver import search
from mapf_jax.types import INFINITE_COST, Array

_CHUNK = 128  # Lakes that share one search loop: wide enough for SIMD, few enough to end together.


class _Lakes(NamedTuple):
    """Constants of one search."""

    rows: jax.Array  # word[S, B], passable columns of each row.
    cell: jax.Array  # word[S, S, S, 1], the set of a single cell, for each cell.
    free: jax.Array  # word[S, S, 1, B], all ones where agent 0 may be.
    stay: jax.Array  # word[B], all ones where waits are allowed in the joint phase.
    goals: jax.Array  # int32[2, 2, B], (agent, row or column).
    rest: jax.Array  # int32[2, S, S, B], distance to each goal while the other one is blocked.


class _Progress(NamedTuple):
    """A search under way."""

    time: jax.Array  # int32[], of the frontier.
    frontier: jax.Array  # word[S, S, S, B], joint cells first reached at this time.
    visited: jax.Array  # word[S, S, S, B], joint cells reached so far.
    cost: jax.Array  # int32[B], smallest sum of costs so far.
    makespan: jax.Array  # int32[B], likewise.


def _prepare(blocked: jax.Array, goals: jax.Array, allow_wait: jax.Array) -> _Lakes:
    width = blocked.shape[-1]
    bits = search.column_bits(width)
    ones, none = ~bits.dtype.type(0), bits.dtype.type(0)
    free = ~blocked.transpose(1, 2, 0)
    rest = [
        search.distance_field(
            blocked | search.cell_mask(goals[:, 1 - agent], width), goals[:, agent]
        )
        for agent in range(2)
    ]
    cell = bits[None, :, None] * np.eye(width, dtype=bits.dtype)[:, None]
    return _Lakes(
        rows=search.pack(free),
        cell=jnp.asarray(cell[..., None]),
        free=jnp.where(free, ones, none)[:, :, None],
        stay=jnp.where(allow_wait, ones, none),
        goals=goals.astype(jnp.int32).transpose(1, 2, 0),
        rest=jnp.stack(rest).transpose(0, 2, 3, 1),
    )


def _expand(lakes: _Lakes, frontier: jax.Array) -> jax.Array:
    """All joint cells one legal step away. word[S, S, S, B] -> word[S, S, S, B]."""
    # Where agent 1 can be after its own move, by direction, for each old cell of agent 0.
    moved = [search.move(frontier, direction) & lakes.rows for direction in range(4)]
    moved.append(frontier & lakes.rows & lakes.stay)
    # Agent 0 moves in direction d from cell a. It may not exchange cells with agent 1, that is
    # agent 1 may not enter a in the opposite direction (but may follow into a from elsewhere), nor
    # at all where agent 0 waits in it.
    reached = functools.reduce(jnp.bitwise_or, moved) & ~lakes.cell & lakes.stay
    for direction, opposite in enumerate(search.OPPOSITE):
        legal = moved[opposite] & ~lakes.cell
        for other in range(5):
            if other != opposite:
                legal |= moved[other]
        row_step, column_step = (int(step) for step in dynamics.MOVES[direction])
        reached |= search.shift(legal, 0 if row_step else 1, row_step or column_step)
    return reached & lakes.free & ~lakes.cell


def _ends(lakes: _Lakes, frontier: jax.Array) -> jax.Array:
    """int32[2, S, S, B]: remaining distance of the other agent where the first has arrived.

    Entry [i, r, c] is for agent i on its goal and the other one in (r, c); `INFINITE_COST` where
    that joint cell is not in the frontier.
    """
    lake = jnp.arange(frontier.shape[-1])
    (row0, column0), (row1, column1) = lakes.goals
    first = search.unpack(frontier[row0, column0, :, lake].T, frontier.shape[0])
    words = frontier[:, :, row1, lake]  # [S, S, B]: agent 0 anywhere, agent 1 in its goal's row.
    second = (words >> column1.astype(words.dtype)) & 1 != 0
    return jnp.where(jnp.stack([first, second]), lakes.rest[::-1], INFINITE_COST)


def _search(lakes: _Lakes, starts: jax.Array) -> _Progress:
    """Searches from the joint cells int[B, 2, 2] until no later arrival is cheaper or sooner."""
    width, batch = lakes.rows.shape

    def meet(state: _Progress, frontier: jax.Array, time: jax.Array) -> _Progress:
        """Enters the frontier of a time."""
        rest = _ends(lakes, frontier).min(axis=(0, 1, 2))
        return _Progress(
            time=time,
            frontier=frontier,
            visited=state.visited | frontier,
            cost=jnp.minimum(state.cost, 2 * time + rest),
            makespan=jnp.minimum(state.makespan, time + rest),
        )

    def unfinished(state: _Progress) -> jax.Array:
        # A later first arrival takes at least time + 1 and costs at least twice that, and the plan
        # of the least makespan so far costs at most twice its makespan.
        open_ = state.time + 1 < state.makespan
        return jnp.any(open_ & jnp.any(state.frontier != 0, axis=(0, 1, 2)))

    def level(state: _Progress) -> _Progress:
        return meet(state, _expand(lakes, state.frontier) & ~state.visited, state.time + 1)

    # Agent 0 in its one cell, bool[S, S, B], and there agent 1 in its own, word[S, B].
    first, second = (search.cell_mask(starts[:, i], width).transpose(1, 2, 0) for i in range(2))
    words = search.pack(second)
    frontier = jnp.where(first[:, :, None], words, jnp.zeros((), words.dtype))
    unknown = jnp.full((batch,), INFINITE_COST, jnp.int32)
    empty = _Progress(jnp.int32(0), frontier, jnp.zeros_like(frontier), unknown, unknown)
    return jax.lax.while_loop(unfinished, level, meet(empty, frontier, empty.time))


@jax.jit
def joint_costs(
    blocked: Array, starts: Array, goals: Array, allow_wait: Array
) -> tuple[jax.Array, jax.Array]:
    """Optimal sum of costs and makespan of two agents.

    Args:
      blocked: bool[B, S, S].
      starts: int[B, 2, 2], start cells (agent, row or column).
      goals: int[B, 2, 2], goal cells.
      allow_wait: bool[B]; False searches only plans without waits before arrival.

    Returns:
      (cost int32[B], makespan int32[B]); `INFINITE_COST` where there is no plan.
    """
    batch = len(blocked)
    chunk = min(_CHUNK, batch)
    # The last chunk repeats rows.
    rows = jnp.arange(-(-batch // chunk) * chunk).reshape(-1, chunk) % batch

    def costs(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = _search(_prepare(blocked[rows], goals[rows], allow_wait[rows]), starts[rows])
        return found.cost, found.makespan

    cost, makespan = jax.lax.map(costs, rows)
    return cost.reshape(-1)[:batch], makespan.reshape(-1)[:batch]
