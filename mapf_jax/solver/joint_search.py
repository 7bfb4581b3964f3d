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
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import dynamics
from mapf_jax.solver import search
from mapf_jax.solver.blocks import map_chunks
from mapf_jax.types import INFINITE_COST, Array

#: In tables of two agents' costs: no plan. No cost on a lake of at most 32 x 32 comes near it.
TABLE_INFINITE = (1 << 16) - 1
_TABLE_CHUNK = 16  # A table of 10 x 10 is 10,000 bytes a lake; more lakes fall out of the cache.
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
    arrival: jax.Array  # int32[B], time of the first arrival in a plan of that cost.
    history: Any  # word[steps, S, S, S, B], all frontiers, or None where no plan is wanted.


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


def _joint(first: jax.Array, second: jax.Array) -> jax.Array:
    """Agent 0 in cells bool[S, S, B] and agent 1 in word[S, B], as word[S, S, S, B]."""
    return jnp.where(first[:, :, None], second, jnp.zeros((), second.dtype))


def _expand(lakes: _Lakes, frontier: jax.Array) -> jax.Array:
    """All joint cells one legal step away. word[S, S, S, B] -> word[S, S, S, B]."""
    # Where agent 1 can be after its own move, by direction, for each old cell of agent 0.
    moved = [search.move(frontier, direction) & lakes.rows for direction in range(4)]
    moved.append(frontier & lakes.rows & lakes.stay)
    # Agent 0 moves in direction d from cell a. It may not exchange cells with agent 1, that is
    # agent 1 may not enter a in the opposite direction (but may follow into a from elsewhere).
    reached = moved[4] & ~lakes.cell  # Agent 1 may not enter the cell in which agent 0 waits.
    for words in moved[:4]:
        reached |= words & ~lakes.cell
    reached &= lakes.stay
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


def _search(lakes: _Lakes, starts: jax.Array, max_joint_steps: int | None = None) -> _Progress:
    """Searches until no later first arrival can cost less or end sooner.

    Args:
      lakes: constants.
      starts: int[B, 2, 2].
      max_joint_steps: where frontiers are to be kept, bound on the time of the first arrival.
    """
    width, batch = lakes.rows.shape

    def meet(state: _Progress, frontier: jax.Array, time: jax.Array) -> _Progress:
        """Enters the frontier of a time."""
        rest = _ends(lakes, frontier).min(axis=(0, 1, 2))
        history = state.history
        return _Progress(
            time=time,
            frontier=frontier,
            visited=state.visited | frontier,
            cost=jnp.minimum(state.cost, 2 * time + rest),
            makespan=jnp.minimum(state.makespan, time + rest),
            arrival=jnp.where(2 * time + rest < state.cost, time, state.arrival),
            history=None if history is None else history.at[time].set(frontier),
        )

    def unfinished(state: _Progress) -> jax.Array:
        # A later first arrival takes at least time + 1 and costs at least twice that, and the plan
        # of the least makespan so far costs at most twice its makespan.
        open_ = state.time + 1 < state.makespan
        more = jnp.any(open_ & jnp.any(state.frontier != 0, axis=(0, 1, 2)))
        return more if max_joint_steps is None else more & (state.time < max_joint_steps)

    def level(state: _Progress) -> _Progress:
        return meet(state, _expand(lakes, state.frontier) & ~state.visited, state.time + 1)

    first, second = (search.cell_words(starts[:, agent], width) for agent in range(2))
    frontier = _joint(search.unpack(first, width), second)
    unknown = jnp.full((batch,), INFINITE_COST, jnp.int32)
    history = None
    if max_joint_steps is not None:
        history = jnp.zeros((max_joint_steps + 1, *frontier.shape), frontier.dtype)
    empty = _Progress(
        jnp.zeros((), jnp.int32), frontier, jnp.zeros_like(frontier),
        unknown, unknown, jnp.zeros_like(unknown), history,
    )  # fmt: skip
    return jax.lax.while_loop(unfinished, level, meet(empty, frontier, empty.time))


def _costs_chunk(
    blocked: jax.Array, starts: jax.Array, goals: jax.Array, allow_wait: jax.Array
) -> tuple[jax.Array, jax.Array]:
    found = _search(_prepare(blocked, goals, allow_wait), starts)
    return found.cost, found.makespan


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
    return map_chunks(_costs_chunk, _CHUNK, blocked, starts, goals, allow_wait)


def _paths_chunk(
    blocked: jax.Array, starts: jax.Array, goals: jax.Array, allow_wait: jax.Array, horizon: int
) -> jax.Array:
    """One cheapest plan for each lake, int8[B, horizon + 1, 2, 2]."""
    lakes = _prepare(blocked, goals, allow_wait)
    width, batch = blocked.shape[-1], blocked.shape[0]
    lake, goals = jnp.arange(batch), goals.astype(jnp.int32)
    max_joint_steps = horizon // 2
    found = _search(lakes, starts, max_joint_steps)
    arrival, history = found.arrival, found.history
    last = jnp.moveaxis(history[arrival, ..., lake], 0, -1)
    # Who arrives first, and row and column of the other one then.
    choice = jnp.argmin(_ends(lakes, last).reshape(-1, batch), axis=0)
    arrived, *other = jnp.unravel_index(choice, (2, width, width))
    is_there = (jnp.arange(2) == arrived[:, None])[..., None]
    end = jnp.where(is_there, goals, jnp.stack(other, -1)[:, None])
    steps = jnp.asarray(dynamics.MOVES, jnp.int32)
    joint_moves = jnp.array(list(itertools.product(dynamics.MOVES, repeat=2)), jnp.int32)
    waits = jnp.any(jnp.all(joint_moves == 0, -1), -1)

    def backward(cells: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
        """From the joint cells at `time` + 1 to some at `time`, while time < arrival."""
        before = cells[:, None] - joint_moves  # [B, 25, 2, 2]
        inside = jnp.all((before >= 0) & (before < width), axis=(2, 3))
        safe = jnp.clip(before, 0, width - 1)
        words = history[time, safe[..., 0, 0], safe[..., 0, 1], safe[..., 1, 0], lake[:, None]]
        known = (words >> safe[..., 1, 1].astype(words.dtype)) & 1 != 0
        swap = jnp.all(before == cells[:, None, ::-1], axis=(2, 3))
        possible = inside & known & ~swap & (allow_wait[:, None] | ~waits)
        earlier = before[lake, jnp.argmax(possible, axis=1)]
        cells = jnp.where((time < arrival)[:, None, None], earlier, cells)
        return cells, cells

    _, joint = jax.lax.scan(backward, end, jnp.arange(max_joint_steps), reverse=True)
    joint = jnp.concatenate([joint, end[None]])  # [max_joint_steps + 1, B, 2, 2]
    around = search.neighbours(lakes.rest.transpose(3, 0, 1, 2), INFINITE_COST)  # each [B, 2, S, S]

    def forward(cells: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
        """From `time` - 1 to `time`: the joint phase as found, then the other agent alone."""
        at = (lake[:, None], jnp.arange(2), cells[..., 0], cells[..., 1])
        step = steps[jnp.argmin(jnp.stack([values[at] for values in around], -1), -1)]
        alone = jnp.where(jnp.all(cells == goals, -1, keepdims=True), cells, cells + step)
        together = joint[jnp.minimum(time, max_joint_steps)]
        cells = jnp.where((time <= arrival)[:, None, None], together, alone)
        return cells, cells

    origin = starts.astype(jnp.int32)
    _, tail = jax.lax.scan(forward, origin, jnp.arange(1, horizon + 1))
    return jnp.concatenate([origin[None], tail]).transpose(1, 0, 2, 3).astype(jnp.int8)


@functools.partial(jax.jit, static_argnames=("horizon",))
def joint_paths(
    blocked: Array, starts: Array, goals: Array, allow_wait: Array, horizon: int
) -> jax.Array:
    """One plan of optimal cost for each solvable lake of `joint_costs`' arguments.

    Args:
      blocked, starts, goals, allow_wait: as there.
      horizon: bound on the length of the plan; the cost always suffices.

    Returns:
      int8[B, horizon + 1, 2, 2]; filler where there is no plan.
    """
    function = functools.partial(_paths_chunk, horizon=horizon)
    return map_chunks(function, _CHUNK, blocked, starts, goals, allow_wait)


def _first_levels(
    lakes: _Lakes, base: Callable[[jax.Array], jax.Array], lag: int, last_base: jax.Array
) -> jax.Array:
    """uint16[B, N, N]: the first c at which a joint cell is in R_c; N = S * S.

    R_c = base(c) | step(R_{c - lag}), a sequence that only grows; base is constant from
    `last_base` on. A step is its own inverse: following turned round is following.
    """
    width, batch = lakes.rows.shape

    def level(carry):  # type: ignore[no-untyped-def]
        number, table, sets, idle = carry
        reached = base(number) | _expand(lakes, sets[0])
        new = reached & ~sets[-1]
        table = jnp.where(search.unpack(new, width), number.astype(jnp.uint16), table)
        idle = jnp.where(jnp.any(new != 0), 0, idle + 1)
        return number + 1, table, (*sets[1:], reached), idle

    def unfinished(carry):  # type: ignore[no-untyped-def]
        number, _, _, idle = carry
        return (number < TABLE_INFINITE) & ((idle < lag) | (number <= last_base))

    table = jnp.full((width, width, width, width, batch), TABLE_INFINITE, jnp.uint16)
    empty, zero = jnp.zeros((width, width, width, batch), lakes.rows.dtype), jnp.int32(0)
    table = jax.lax.while_loop(unfinished, level, (zero, table, (empty,) * lag, zero))[1]
    return table.reshape(width * width, width * width, batch).transpose(2, 0, 1)


def _tables_chunk(blocked: jax.Array, goals: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    batch, width = blocked.shape[:2]
    lakes = _prepare(blocked, goals, jnp.ones(batch, bool))
    on_goal = [search.cell_mask(goals[:, agent], width).transpose(1, 2, 0) for agent in range(2)]
    second_goal = search.pack(on_goal[1])

    def one_arrived(number: jax.Array) -> jax.Array:
        """One agent is on its goal for good, and the other's remainder is at most `number`."""
        near = lakes.rest <= number
        return _joint(on_goal[0], search.pack(near[1])) | _joint(near[0], second_goal)

    def both_arrived(number: jax.Array) -> jax.Array:
        return _joint(on_goal[0], second_goal)

    farthest = jnp.where(lakes.rest < INFINITE_COST, lakes.rest, 0).max()
    rest = jnp.minimum(lakes.rest, TABLE_INFINITE).astype(jnp.uint16)
    return (
        _first_levels(lakes, one_arrived, 2, farthest),
        rest.reshape(2, width * width, batch).transpose(2, 0, 1),
        _first_levels(lakes, both_arrived, 1, jnp.int32(0)),
    )


@jax.jit
def pair_tables(blocked: Array, goals: Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What two agents still have to pay from every joint cell, for a batch of lakes.

    Args:
      blocked: bool[B, S, S].
      goals: int[B, 2, 2].

    Returns:
      (cost uint16[B, N, N], the smallest remaining sum of costs with both agents under way;
      rest uint16[B, 2, N], of each agent alone once the other one stays on its goal for good;
      makespan uint16[B, N, N], the smallest remaining makespan), by cell in row order, N = S * S;
      `TABLE_INFINITE` where there is no plan.
    """
    return map_chunks(_tables_chunk, _TABLE_CHUNK, blocked, goals)
