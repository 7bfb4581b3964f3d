"""Exact two-agent path finding: breadth-first search over the joint cells of both agents.

The frontier holds, for each cell of agent 0, the set of cells of agent 1 as one machine word a
row (bit c of word r is cell (r, c)), so that one level is a few shifts for a whole batch. The
batch is the last axis. A word of 16 bits serves lakes up to 16 x 16, one of 32 bits up to 32 x 32.

Why first-reached times suffice: a plan is a joint phase, in which both agents are under way, until
at time t one agent is on its goal for good; the other then needs d more steps, d being its distance
with that goal blocked. The sum of costs is 2 t + d and the makespan t + d, and both grow with t.
The same holds for plans without waits before arrival, where the joint phase has no wait moves and
a shortest remainder has none anyway.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import dynamics
from mapf_jax.solver import search
from mapf_jax.types import INFINITE_COST, Array

# Frontier, visited cells, time, best cost and best makespan so far.
_SearchCarry = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]

_TABLE_CHUNK = 16  # A table of 10 x 10 is 10,000 bytes a lake; more lakes fall out of the cache.
_CHUNK = 128  # Lakes that share one search loop: wide enough for SIMD, few enough to end together.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class JointCosts:
    """Optimal costs over the allowed plans, each int32[B], `INFINITE_COST` if there is none.

    Attributes:
      cost: smallest sum of costs.
      makespan: smallest makespan.
    """

    cost: jax.Array
    makespan: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Lakes:
    """Constants of one search; B is the last axis.

    Attributes:
      rows: word[S, B], passable columns of each row.
      cell: word[S, S, S, 1], the word set of a single cell, for each cell.
      free: word[S, S, 1, B], all ones where agent 0 may be.
      stay: word[B], all ones where waits are allowed in the joint phase.
      goals: int32[2, 2, B], (agent, row or column).
      rest: int32[2, S, S, B], distance of each agent to its goal while the other's is blocked.
    """

    rows: jax.Array
    cell: jax.Array
    free: jax.Array
    stay: jax.Array
    goals: jax.Array
    rest: jax.Array


def word_type(width: int) -> type[np.unsignedinteger]:
    if width > 32:
        raise ValueError(f"size={width}: lakes wider than 32 cells are not supported")
    return np.uint16 if width <= 16 else np.uint32


def _prepare(blocked: jax.Array, goals: jax.Array, allow_wait: jax.Array) -> _Lakes:
    width = blocked.shape[-1]
    word = word_type(width)
    ones = word(np.iinfo(word).max)
    free = ~blocked
    bits = word(1) << np.arange(width, dtype=word)
    rest = jnp.stack(
        [
            search.distance_field(
                blocked | search.cell_mask(goals[:, 1 - agent], width), goals[:, agent]
            )
            for agent in range(2)
        ]
    )
    cell = np.zeros((width, width, width, 1), word)
    for row in range(width):
        cell[row, :, row, 0] = bits
    return _Lakes(
        rows=jnp.where(free, bits, word(0)).sum(-1, dtype=word).T,
        cell=jnp.asarray(cell),
        free=jnp.where(free, ones, word(0)).transpose(1, 2, 0)[:, :, None, :],
        stay=jnp.where(allow_wait, ones, word(0)),
        goals=goals.astype(jnp.int32).transpose(1, 2, 0),
        rest=rest.transpose(0, 2, 3, 1),
    )


def _shift(field: jax.Array, axis: int, step: int) -> jax.Array:
    """Moves everything one place along `axis` (step +1 or -1); what leaves the edge is lost."""
    zero = jnp.zeros_like(jax.lax.slice_in_dim(field, 0, 1, axis=axis))
    size = field.shape[axis]
    if step > 0:
        return jnp.concatenate([zero, jax.lax.slice_in_dim(field, 0, size - 1, axis=axis)], axis)
    return jnp.concatenate([jax.lax.slice_in_dim(field, 1, size, axis=axis), zero], axis)


def _expand(lakes: _Lakes, frontier: jax.Array) -> jax.Array:
    """All joint cells one legal step away. word[S, S, S, B] -> word[S, S, S, B]."""
    # Where agent 1 can be after its own move, by direction, for each old cell of agent 0.
    shifted = (
        _shift(frontier, 2, -1),
        _shift(frontier, 2, +1),
        frontier >> 1,
        frontier << 1,
        frontier & lakes.stay,
    )
    moved = [words & lakes.rows for words in shifted]
    # Agent 0 moves in direction d from cell a. It may not exchange cells with agent 1, that is
    # agent 1 may not enter a in the opposite direction (but may follow into a from elsewhere).
    reached = moved[4] & ~lakes.cell  # Agent 1 may not enter the cell in which agent 0 waits.
    for words in moved[:4]:
        reached |= words & ~lakes.cell
    reached &= lakes.stay
    opposite = (dynamics.DOWN, dynamics.UP, dynamics.RIGHT, dynamics.LEFT)
    for direction in range(4):
        legal = moved[opposite[direction]] & ~lakes.cell
        for other in range(5):
            if other != opposite[direction]:
                legal |= moved[other]
        row_step, column_step = (int(step) for step in dynamics.MOVES[direction])
        reached |= _shift(legal, 0, row_step) if row_step else _shift(legal, 1, column_step)
    return reached & lakes.free & ~lakes.cell


def _unpack(words: jax.Array, width: int) -> jax.Array:
    """word[S, B] -> bool[S, S, B]."""
    return (words[:, None, :] >> jnp.arange(width, dtype=words.dtype)[None, :, None]) & 1 != 0


def _ends(lakes: _Lakes, frontier: jax.Array) -> jax.Array:
    """int32[2, S, S, B]: remaining distance of the other agent where the first has arrived.

    Entry [i, r, c] is for agent i on its goal and the other one in (r, c); `INFINITE_COST` where
    that joint cell is not in the frontier.
    """
    width, batch = frontier.shape[0], frontier.shape[-1]
    lane = jnp.arange(batch)
    (row0, column0), (row1, column1) = lakes.goals
    first = _unpack(frontier[row0, column0, :, lane].T, width)
    words = frontier[:, :, row1, lane]  # [S, S, B]: agent 0 anywhere, agent 1 in its goal's row.
    second = (words >> column1.astype(words.dtype)) & 1 != 0
    return jnp.stack(
        [
            jnp.where(first, lakes.rest[1], INFINITE_COST),
            jnp.where(second, lakes.rest[0], INFINITE_COST),
        ]
    )


def _start_frontier(lakes: _Lakes, starts: jax.Array) -> jax.Array:
    """word[S, S, S, B] with the one joint cell of `starts` int[B, 2, 2]."""
    width = lakes.rows.shape[0]
    masks = [search.cell_mask(starts[:, agent], width).transpose(1, 2, 0) for agent in range(2)]
    word = lakes.rows.dtype
    bits = jnp.asarray(1, word) << jnp.arange(width, dtype=word)
    second = jnp.where(masks[1], bits[None, :, None], jnp.zeros((), word)).sum(1, dtype=word)
    return jnp.where(masks[0][:, :, None, :], second[None, None], jnp.zeros((), word))


def _costs_chunk(
    blocked: jax.Array, starts: jax.Array, goals: jax.Array, allow_wait: jax.Array
) -> JointCosts:
    lakes = _prepare(blocked, goals, allow_wait)
    frontier = _start_frontier(lakes, starts)

    def candidates(frontier: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
        rest = _ends(lakes, frontier).min(axis=(0, 1, 2))
        return 2 * time + rest, time + rest

    def unfinished(carry: _SearchCarry) -> jax.Array:
        frontier, _, time, cost, makespan = carry
        # A later first arrival costs at least 2 (time + 1), and takes at least time + 1.
        open_ = (2 * (time + 1) < cost) | (time + 1 < makespan)
        return jnp.any(open_ & jnp.any(frontier != 0, axis=(0, 1, 2)))

    def level(carry: _SearchCarry) -> _SearchCarry:
        frontier, visited, time, cost, makespan = carry
        frontier = _expand(lakes, frontier) & ~visited
        time = time + 1
        new_cost, new_makespan = candidates(frontier, time)
        return (
            frontier,
            visited | frontier,
            time,
            jnp.minimum(cost, new_cost),
            jnp.minimum(makespan, new_makespan),
        )

    time = jnp.zeros((), jnp.int32)
    cost, makespan = candidates(frontier, time)
    carry = (frontier, frontier, time, cost, makespan)
    _, _, _, cost, makespan = jax.lax.while_loop(unfinished, level, carry)
    return JointCosts(jnp.minimum(cost, INFINITE_COST), jnp.minimum(makespan, INFINITE_COST))


@functools.partial(jax.jit, static_argnames=("chunk",))
def joint_costs(
    blocked: Array, starts: Array, goals: Array, allow_wait: Array, chunk: int = _CHUNK
) -> JointCosts:
    """Optimal sum of costs and makespan of two agents.

    Args:
      blocked: bool[B, S, S].
      starts: int[B, 2, 2], start cells (agent, row or column).
      goals: int[B, 2, 2], goal cells.
      allow_wait: bool[B]; False searches only plans without waits before arrival.
      chunk: lakes that share one search loop.
    """
    size = min(chunk, blocked.shape[0])
    return map_chunks(_costs_chunk, size, blocked, starts, goals, allow_wait)


def map_chunks(function, chunk: int, *arrays):  # type: ignore[no-untyped-def]
    """Applies a batched function to `chunk` rows at a time; the last chunk repeats rows.

    Args:
      function: pytrees of arrays with a leading axis in, a pytree of such arrays out.
      chunk: rows of a call.
      *arrays: pytrees of arrays [B, ...].
    """
    batch = jax.tree.leaves(arrays)[0].shape[0]
    count = -(-batch // chunk)
    index = jnp.arange(count * chunk).reshape(count, chunk) % batch
    results = jax.lax.map(
        lambda rows: function(*jax.tree.map(lambda array: jnp.asarray(array)[rows], arrays)), index
    )
    return jax.tree.map(lambda x: x.reshape(count * chunk, *x.shape[2:])[:batch], results)


def _paths_chunk(
    blocked: jax.Array,
    starts: jax.Array,
    goals: jax.Array,
    allow_wait: jax.Array,
    joint_horizon: int,
    horizon: int,
) -> tuple[jax.Array, jax.Array]:
    """One cheapest plan for each lake: (int8[B, horizon + 1, 2, 2], num_steps int32[B])."""
    lakes = _prepare(blocked, goals, allow_wait)
    width, batch = blocked.shape[-1], blocked.shape[0]
    lane = jnp.arange(batch)
    first = _start_frontier(lakes, starts)

    def level(carry, time):  # type: ignore[no-untyped-def]
        frontier, visited, best = carry
        ends = _ends(lakes, frontier).reshape(-1, batch)
        choice = jnp.argmin(ends, axis=0)
        cost = 2 * time + ends[choice, lane]
        better = cost < best[0]
        best = tuple(
            jnp.where(better, new, old) for new, old in zip((cost, time, choice), best, strict=True)
        )
        following = _expand(lakes, frontier) & ~visited
        return (following, visited | following, best), frontier

    zeros = jnp.zeros((batch,), jnp.int32)
    start = (first, first, (zeros + INFINITE_COST, zeros, zeros))
    (_, _, (_, arrival, choice)), history = jax.lax.scan(
        level, start, jnp.arange(joint_horizon + 1)
    )
    # `choice` indexes [who arrives first, row and column of the other].
    arrived, other = jnp.divmod(choice, width * width)
    other_cell = jnp.stack(jnp.divmod(other, width), -1)
    both = jnp.arange(2)[None, :, None] == arrived[:, None, None]
    end = jnp.where(both, goals.astype(jnp.int32), other_cell[:, None, :])

    def backward(cells, time):  # type: ignore[no-untyped-def]
        """From the joint cells at `time` + 1 to some at `time`, while time < arrival."""
        joint_moves = jnp.asarray(dynamics.MOVES, jnp.int32)
        moves = jnp.stack(
            [jnp.repeat(joint_moves, 5, axis=0), jnp.tile(joint_moves, (5, 1))], axis=1
        )  # [25, 2, 2]
        before = cells[:, None] - moves[None]  # [B, 25, 2, 2]
        inside = jnp.all((before >= 0) & (before < width), axis=(2, 3))
        safe = jnp.clip(before, 0, width - 1)
        words = history[time, safe[..., 0, 0], safe[..., 0, 1], safe[..., 1, 0], lane[:, None]]
        known = (words >> safe[..., 1, 1].astype(words.dtype)) & 1 != 0
        swap = jnp.all(before[:, :, 0] == cells[:, None, 1], -1) & jnp.all(
            before[:, :, 1] == cells[:, None, 0], -1
        )
        waits = jnp.any(jnp.all(moves == 0, -1), -1)[None]
        possible = inside & known & ~swap & (allow_wait[:, None] | ~waits)
        earlier = before[lane, jnp.argmax(possible, axis=1)]
        cells = jnp.where((time < arrival)[:, None, None], earlier, cells)
        return cells, cells

    _, joint = jax.lax.scan(backward, end, jnp.arange(joint_horizon), reverse=True)
    joint = jnp.concatenate([joint, end[None]])  # [joint_horizon + 1, B, 2, 2]

    def forward(cells, time):  # type: ignore[no-untyped-def]
        """From `time` - 1 to `time`: the joint phase as found, then the other agent alone."""
        row, column = cells[..., 0], cells[..., 1]
        field = lakes.rest.transpose(3, 0, 1, 2)  # [B, 2, S, S]
        around = jnp.stack(
            [
                values[lane[:, None], jnp.arange(2)[None], row, column]
                for values in search.neighbours(field, INFINITE_COST)
            ],
            -1,
        )
        step = jnp.asarray(dynamics.MOVES, jnp.int32)[jnp.argmin(around, -1)]
        goal = goals.astype(jnp.int32)
        alone = jnp.where(jnp.all(cells == goal, -1, keepdims=True), cells, cells + step)
        found = joint[jnp.minimum(time, joint_horizon)]
        cells = jnp.where((time <= arrival)[:, None, None], found, alone)
        return cells, cells

    origin = starts.astype(jnp.int32)
    _, tail = jax.lax.scan(forward, origin, jnp.arange(1, horizon + 1))
    paths = jnp.concatenate([origin[None], tail]).transpose(1, 0, 2, 3)
    away = jnp.any(paths != goals[:, None].astype(jnp.int32), axis=(2, 3))
    num_steps = jnp.max(jnp.where(away, jnp.arange(1, horizon + 2)[None], 0), axis=1)
    return paths.astype(jnp.int8), num_steps.astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("joint_horizon", "horizon"))
def joint_paths(
    blocked: Array,
    starts: Array,
    goals: Array,
    allow_wait: Array,
    joint_horizon: int,
    horizon: int,
) -> tuple[jax.Array, jax.Array]:
    """One plan of optimal cost for each solvable lake of `joint_costs`' arguments.

    Args:
      joint_horizon: bound on the time of the first arrival; cost // 2 always suffices.
      horizon: bound on the length of the plan; the cost always suffices.

    Returns:
      (paths int8[B, horizon + 1, 2, 2], num_steps int32[B]); filler where there is no plan.
    """
    function = functools.partial(_paths_chunk, joint_horizon=joint_horizon, horizon=horizon)
    chunk = min(_CHUNK, blocked.shape[0])
    return map_chunks(function, chunk, blocked, starts, goals, allow_wait)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PairTables:
    """What two agents still have to pay from every joint cell; N = S * S cells in row order.

    Attributes:
      cost: uint16[B, N, N], smallest remaining sum of costs with both agents under way.
      rest: uint16[B, 2, N], of each agent alone once the other one stays on its goal for good.
      makespan: uint16[B, N, N], smallest remaining makespan.

    Entries are `TABLE_INFINITE` where there is no plan.
    """

    cost: jax.Array
    rest: jax.Array
    makespan: jax.Array


#: No cost of two agents on a lake of at most 32 x 32 cells comes near it.
TABLE_INFINITE = (1 << 16) - 1


def _first_levels(lakes: _Lakes, base, lag: int, last_base: jax.Array) -> jax.Array:  # type: ignore[no-untyped-def]
    """uint16[S, S, S, S, B]: the first c at which a joint cell is in R_c.

    R_c = base(c) | step(R_{c - lag}), a sequence that only grows; base is constant from
    `last_base` on. A step is its own inverse: following turned round is following.
    """
    width, batch = lakes.rows.shape
    shape = (width, width, width, batch)
    empty = jnp.zeros(shape, lakes.rows.dtype)
    bits = jnp.arange(width, dtype=lakes.rows.dtype)[:, None]

    def level(carry):  # type: ignore[no-untyped-def]
        number, table, sets, _ = carry
        reached = base(number) | _expand(lakes, sets[0])
        new = reached & ~sets[-1]
        fresh = ((new[..., None, :] >> bits) & 1) != 0
        table = jnp.where(fresh, number.astype(jnp.uint16), table)
        idle = jnp.where(jnp.any(new != 0), 0, carry[3] + 1)
        return number + 1, table, (*sets[1:], reached), idle

    def unfinished(carry):  # type: ignore[no-untyped-def]
        number, _, _, idle = carry
        return (number < TABLE_INFINITE) & ((idle < lag) | (number <= last_base))

    table = jnp.full((width, width, width, width, batch), TABLE_INFINITE, jnp.uint16)
    zero = jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(unfinished, level, (zero, table, (empty,) * lag, zero))[1]


def _tables_chunk(blocked: jax.Array, goals: jax.Array) -> PairTables:
    batch, width = blocked.shape[:2]
    lakes = _prepare(blocked, goals, jnp.ones(batch, bool))
    word = lakes.rows.dtype
    bits = jnp.asarray(1, word) << jnp.arange(width, dtype=word)
    on_goal = jnp.stack(
        [search.cell_mask(goals[:, agent], width).transpose(1, 2, 0) for agent in range(2)]
    )  # bool[2, S, S, B]
    second_goal = jnp.where(on_goal[1], bits[None, :, None], word.type(0)).sum(1, dtype=word)

    def one_arrived(number: jax.Array) -> jax.Array:
        """One agent is on its goal for good, and the other's remainder is at most `number`."""
        near = lakes.rest <= number
        others = jnp.where(near[1], bits[None, :, None], word.type(0)).sum(1, dtype=word)
        return jnp.where(on_goal[0][:, :, None], others[None, None], word.type(0)) | jnp.where(
            near[0][:, :, None], second_goal[None, None], word.type(0)
        )

    def both_arrived(number: jax.Array) -> jax.Array:
        return jnp.where(on_goal[0][:, :, None], second_goal[None, None], word.type(0))

    finite = jnp.where(lakes.rest < INFINITE_COST, lakes.rest, 0)
    cost = _first_levels(lakes, one_arrived, 2, finite.max())
    makespan = _first_levels(lakes, both_arrived, 1, jnp.zeros((), jnp.int32))
    cells = width * width
    rest = jnp.minimum(lakes.rest, TABLE_INFINITE).astype(jnp.uint16)
    return PairTables(
        cost=cost.reshape(cells, cells, batch).transpose(2, 0, 1),
        rest=rest.reshape(2, cells, batch).transpose(2, 0, 1),
        makespan=makespan.reshape(cells, cells, batch).transpose(2, 0, 1),
    )


@jax.jit
def pair_tables(blocked: Array, goals: Array) -> PairTables:
    """Exact remaining costs of two agents from every joint cell, for a batch of lakes.

    Args:
      blocked: bool[B, S, S].
      goals: int[B, 2, 2].
    """
    chunk = min(_TABLE_CHUNK, blocked.shape[0])
    return map_chunks(_tables_chunk, chunk, blocked, goals)


def distance_fields(blocked: Array, goals: Array) -> jax.Array:
    """int32[B, A, S, S]: from every cell the length of a shortest path to each agent's goal."""
    return jax.vmap(search.distance_field, in_axes=(None, 1), out_axes=1)(blocked, goals)


@jax.jit
def shortest_costs(blocked: Array, starts: Array, goals: Array) -> jax.Array:
    """int32[B, A]: length of each agent's own shortest path; the others are ignored."""
    fields = distance_fields(blocked, goals)
    batch = jnp.arange(blocked.shape[0])[:, None]
    agent = jnp.arange(starts.shape[1])[None]
    return fields[batch, agent, starts[..., 0], starts[..., 1]]
