"""Exact search for groups of agents: breadth first over joint states, within a bound on the cost.

A joint state holds the cell of every agent and which agents have arrived for good. Layer t of the
search holds the states that can be reached in t steps and from which a lower bound still permits a
plan within the bound; bounds are raised until a plan is found or everything reachable has been
seen. This is breadth-first iterative-deepening A* (Zhou and Hansen, "Breadth-first heuristic
search", Artificial Intelligence 170, 2006) with the successors of a state made one agent at a time
(operator decomposition; Standley, "Finding optimal solutions to cooperative pathfinding problems",
2010). The lower bound joins exact costs of all pairs of agents: they leave few states of narrow
lakes, where conflict-based search has to enumerate constraints and cannot prove that there is no
plan at all.

Every array has a fixed size: a layer keeps at most `capacity` states. Where more would be needed
the search says so (`overflow`), and nothing is concluded from what it did not find.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.solver.joint_search import TABLE_INFINITE, map_chunks
from mapf_jax.types import INFINITE_COST, Array

MAX_AGENTS = 6  # A state is compared as two words of 32 bits.
HOPELESS = 1 << 16  # Estimates from here on mean that some pair of agents can never arrive.
_WAIT, _STAY = 4, 5  # After the four moves: wait, and stay on the goal for good.
_NUM_OPTIONS = 6
_SPARSE = (
    8  # Layers that fill less than this part of the capacity go through this part of the room,
)
_SPARSE_CAPACITY = 4096  # in searches large enough to be worth a second program.
_PROBES = 2  # Slots of the table of visited states that are tried for a state.

#: COST minimises the sum of costs, MAKESPAN the makespan.
COST, MAKESPAN = "cost", "makespan"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Group:
    """Agents that have to be planned together, with their tables, on a graph of N cells.

    Attributes:
      neighbours: int32[B, N, 4], the cell that each move leads to, -1 where there is none.
      starts: int32[B, A], start cell of each agent.
      goals: int32[B, A].
      distance: int32[B, A, N], length of the agent's own shortest path; at least `HOPELESS` where
        there is none.
      pairs: uint16[B, pairs, M], what two agents still have to pay together, by pair (i, j), i < j,
        in the order of `itertools.combinations`. M = N * N + 2 * N: both under way at (p, q), at
        index p * N + q; then i alone at p (j stays on its goal); then j alone at q. To minimise
        the makespan only the first part counts, and holds the remaining makespan.
    """

    neighbours: Array
    starts: Array
    goals: Array
    distance: Array
    pairs: Array


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much one search may keep.

    Attributes:
      capacity: states of a layer.
      room: states on the way from one layer to the next, before duplicates are dropped.
      slots: states that are remembered as visited, a power of two.
      chunk: groups that share one search loop.
    """

    capacity: int
    room: int
    slots: int
    chunk: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SearchResult:
    """What one bounded search found; B groups.

    Attributes:
      cost: int32[B], smallest cost (or makespan) of a plan within the bound; `INFINITE_COST` if
        none was met.
      overflow: bool[B], states were dropped, so a plan may have been missed.
      peak: int32[B], states of the largest layer.
      next_bound: int32[B], smallest bound that admits a state which this one cut off;
        `INFINITE_COST` if none was cut off, so that no larger bound helps.
      paths: int8 or int16[B, horizon + 1, A], the cells of the plan; filler where there is none.
    """

    cost: Array
    overflow: Array
    peak: Array
    next_bound: Array
    paths: Array


def lower_bound(excess: Array, num_agents: int) -> jax.Array:
    """How much more than its shortest paths a group has to pay, from what its pairs have to.

    Each agent i pays some x_i >= 0 more than its own shortest path, and x_i + x_j >= excess_ij.
    The least sum of such x is, by linear programming duality, a largest fractional matching, whose
    extreme points are edges of weight 1 and odd cycles of weight 1/2; costs are integers, so it is
    rounded up. (Edge-weighted vertex cover as in Li et al., "Improved heuristics for multi-agent
    path finding with conflict-based search", 2019, relaxed.) Beyond five agents only pairs of
    edges and triangles are considered, which is a lower bound still.

    Args:
      excess: int32[..., pairs], in the order of `itertools.combinations`.
      num_agents: A.

    Returns:
      int32[...].
    """
    twice = _lower_bound_terms(num_agents)
    values = jnp.einsum("...p,kp->...k", jnp.asarray(excess, jnp.int32), twice)
    return (jnp.max(values, axis=-1) + 1) // 2


@functools.cache
def _lower_bound_terms(num_agents: int) -> np.ndarray:
    """int32[K, pairs]: twice the weights of the matchings of `lower_bound`."""
    pairs = {pair: k for k, pair in enumerate(itertools.combinations(range(num_agents), 2))}
    terms: set[tuple[int, ...]] = set()

    def add(edges: list[tuple[int, int]], halves: list[tuple[int, int]]) -> None:
        row = [0] * len(pairs)
        for weight, group in ((2, edges), (1, halves)):
            for i, j in group:
                row[pairs[min(i, j), max(i, j)]] += weight
        terms.add(tuple(row))

    agents = range(num_agents)
    for first in pairs:
        add([first], [])
        for second in pairs:
            if not set(first) & set(second):
                add([first, second], [])
    for a, b, c in itertools.combinations(agents, 3):
        triangle = [(a, b), (b, c), (a, c)]
        add([], triangle)
        for edge in pairs:
            if not set(edge) & {a, b, c}:
                add([edge], triangle)
    if num_agents == 5:
        for order in itertools.permutations(range(1, 5)):
            cycle = [0, *order]
            add([], [(cycle[k], cycle[(k + 1) % 5]) for k in range(5)])
    return np.array(sorted(terms), np.int32)


def pair_excess(group: Group, positions: Array, parked: Array) -> jax.Array:
    """How much more than their shortest paths each pair of agents still has to pay.

    Args:
      group: one group (no batch axis).
      positions: int32[K, A], cells.
      parked: int32[K], bit i is set where agent i stays on its goal for good.

    Returns:
      int32[K, pairs]; at least `HOPELESS` where a pair can never arrive.
    """
    own = jnp.take_along_axis(group.distance.T, positions, axis=0)
    columns = [
        _pair_total(group, k, pair, positions[:, pair[0]], positions[:, pair[1]], parked)
        - own[:, pair[0]]
        - own[:, pair[1]]
        for k, pair in enumerate(itertools.combinations(range(positions.shape[1]), 2))
    ]
    return jnp.stack(columns, -1)


def _pair_total(
    group: Group, k: int, pair: tuple[int, int], first: Array, second: Array, parked: Array
) -> jax.Array:
    """int32[...]: what pair k = (i, j) still has to pay with its agents at `first` and `second`."""
    cells = group.neighbours.shape[0]
    first_parked, second_parked = ((parked >> agent) & 1 != 0 for agent in pair)
    index = first * cells + second
    index = jnp.where(second_parked, cells * cells + first, index)
    index = jnp.where(first_parked, cells * cells + cells + second, index)
    total = group.pairs[k][index].astype(jnp.int32)
    total = jnp.where(total == TABLE_INFINITE, 2 * HOPELESS, total)
    return jnp.where(first_parked & second_parked, 0, total)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Layer:
    """States of one time; K = capacity.

    Attributes:
      positions: int32[K, A]; parked: int32[K]; paid: int32[K], cost so far; alive: bool[K].
    """

    positions: jax.Array
    parked: jax.Array
    paid: jax.Array
    alive: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Table:
    """Visited states, open addressing; H slots.

    Attributes:
      low, high: uint32[H], the state.
      paid: int32[H], the least cost at which it was met, -1 where the slot is empty.
    """

    low: jax.Array
    high: jax.Array
    paid: jax.Array


def _state_words(
    positions: jax.Array, parked: jax.Array, cells: int
) -> tuple[jax.Array, jax.Array]:
    """Two words that identify a state: three agents in each, and who is parked."""
    half = (positions.shape[1] + 1) // 2
    words = []
    for agents in (range(half), range(half, positions.shape[1])):
        word = jnp.zeros(positions.shape[:1], jnp.uint32)
        for agent in agents:
            word = word * cells + positions[:, agent].astype(jnp.uint32)
        words.append(word)
    return words[0], words[1] * 64 + parked.astype(jnp.uint32)


def _slot(low: jax.Array, high: jax.Array, slots: int) -> jax.Array:
    mixed = low * jnp.uint32(0x9E3779B1) ^ (high * jnp.uint32(0x85EBCA77))
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0xC2B2AE3D)
    return ((mixed ^ (mixed >> 13)) & jnp.uint32(slots - 1)).astype(jnp.int32)


def _remember(table: _Table, layer: _Layer, cells: int) -> tuple[_Table, jax.Array]:
    """Enters states and tells which of them are new or cheaper than when they were met before.

    A state for which no slot is found is kept and forgotten: it may be searched twice.
    """
    low, high = _state_words(layer.positions, layer.parked, cells)
    paid, alive = layer.paid, layer.alive
    slots, count = table.paid.shape[0], low.shape[0]
    number = jnp.arange(count, dtype=jnp.int32)
    slot = _slot(low, high, slots)
    looking = alive
    for _ in range(_PROBES):
        known = table.paid[slot]
        same = (known >= 0) & (table.low[slot] == low) & (table.high[slot] == high)
        seen = looking & same & (known <= paid)
        alive &= ~seen
        looking &= ~seen
        # Of several states that want a slot the cheapest takes it.
        wants = looking & (same | (known < 0))
        claim = jnp.full((slots,), INFINITE_COST * 1024, jnp.int32)
        rank = jnp.minimum(paid, 1023) * (1 << 20) + number
        claim = claim.at[jnp.where(wants, slot, slots)].min(rank, mode="drop")
        winner = claim[slot] & ((1 << 20) - 1)
        wins = wants & (winner == number)
        place = jnp.where(wins, slot, slots)
        table = _Table(
            low=table.low.at[place].set(low, mode="drop"),
            high=table.high.at[place].set(high, mode="drop"),
            paid=table.paid.at[place].set(paid, mode="drop"),
        )
        winner = jnp.minimum(winner, count - 1)
        beaten = wants & ~wins & (low[winner] == low) & (high[winner] == high)
        beaten &= paid[winner] <= paid  # Ranks tie at high costs.
        alive &= ~beaten
        looking &= ~wins & ~beaten
        slot = (slot + 1) & (slots - 1)
    return table, alive


def _compact(alive: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Indices of the first `size` true entries, and how many there are in all."""
    ends = jnp.cumsum(alive, dtype=jnp.int32)
    index = jnp.searchsorted(ends, jnp.arange(1, size + 1, dtype=jnp.int32))
    return jnp.minimum(index, alive.shape[0] - 1), ends[-1]


def _successors(
    group: Group, layer: _Layer, time: jax.Array, bound: jax.Array, allow_wait: jax.Array,
    room: int, objective: str,
) -> tuple[_Layer, jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """All states one step after those of a layer that the bound permits, at most `room` of them.

    Returns:
      (layer of `room` states, int32[room] index of the state that each comes from, bool[] whether
      there were more, int32[] smallest bound that admits a state which was cut off).
    """
    capacity, num_agents = layer.positions.shape
    pairs = {pair: k for k, pair in enumerate(itertools.combinations(range(num_agents), 2))}
    option = jnp.arange(_NUM_OPTIONS)[None]
    source = jnp.minimum(jnp.arange(room), capacity - 1)
    alive = layer.alive[source] & (jnp.arange(room) < capacity)
    # One row for each way to move agents 0..agent-1; `own` holds distances from their new cells
    # and from the old cells of the others.
    after = jnp.zeros((room, num_agents), jnp.int32)
    own = jnp.take_along_axis(group.distance.T, layer.positions, axis=0)[source]
    parked, paid = layer.parked[source], layer.paid[source]
    most = time + own.max(-1) if objective == MAKESPAN else jnp.zeros((room,), jnp.int32)
    overflow = jnp.zeros((), bool)
    next_bound = jnp.full((), INFINITE_COST, jnp.int32)
    for agent in range(num_agents):
        before = layer.positions[source]
        here = before[:, agent]
        on_goal = here == group.goals[agent]
        stays = jnp.broadcast_to(here[:, None], (room, 2))
        there = jnp.concatenate([group.neighbours[here], stays], 1)
        was_parked = (parked >> agent) & 1 != 0
        legal = (there >= 0) & alive[:, None]
        there = jnp.maximum(there, 0)
        legal &= (option != _WAIT) | allow_wait
        legal &= jnp.where(option == _STAY, on_goal[:, None], ~was_parked[:, None])
        for other in range(agent):
            entered = after[:, other, None] == there
            swapped = (after[:, other] == here)[:, None] & (before[:, other, None] == there)
            legal &= ~entered & ~swapped
        mask, distance = parked[:, None], group.distance[agent][there]
        if objective == COST:
            legal_cost = jnp.where(option == _STAY, 0, 1)
            new_paid = paid[:, None] + legal_cost
            mask = mask | jnp.where(option == _STAY, 1 << agent, 0)
            # Who waits on its goal without staying there has to leave it and to come back.
            detour = jnp.where((option == _WAIT) & on_goal[:, None], 2, 0)
            rest = own.sum(-1, keepdims=True) - own[:, agent, None] + distance
            base = new_paid + rest
            least = base + detour
        else:
            legal &= option != _STAY
            new_paid = jnp.broadcast_to(paid[:, None], there.shape)
            mask = jnp.broadcast_to(mask, there.shape)
            base = least = jnp.maximum(most[:, None], time + 1 + distance)
        cut = legal & (least > bound) & (least < HOPELESS)
        next_bound = jnp.minimum(next_bound, jnp.min(jnp.where(cut, least, INFINITE_COST)))
        index, count = _compact((legal & (least <= bound)).reshape(-1), room)
        overflow |= count > room
        origin = index // _NUM_OPTIONS
        source = source[origin]
        after = after[origin].at[:, agent].set(there.reshape(-1)[index])
        own = own[origin].at[:, agent].set(distance.reshape(-1)[index])
        parked, paid = mask.reshape(-1)[index], new_paid.reshape(-1)[index]
        # Pairs only now: a table look-up costs more than everything above. What a pair pays on top
        # may be that very detour, so the detour does not count here.
        base, most = base.reshape(-1)[index], most[origin]
        for other in range(agent):
            pair = (other, agent)
            total = _pair_total(group, pairs[pair], pair, after[:, other], after[:, agent], parked)
            if objective == COST:
                most = jnp.maximum(most, total - own[:, other] - own[:, agent])
            else:
                most = jnp.maximum(most, time + 1 + total)
        alive = jnp.arange(room) < count
        least = base + most if objective == COST else jnp.maximum(base, most)
        cut = alive & (least > bound) & (least < HOPELESS)
        next_bound = jnp.minimum(next_bound, jnp.min(jnp.where(cut, least, INFINITE_COST)))
        alive &= least <= bound
        if objective == MAKESPAN:
            most = least
    if objective == COST:
        least = paid + own.sum(-1) + lower_bound(pair_excess(group, after, parked), num_agents)
        cut = alive & (least > bound) & (least < HOPELESS)
        next_bound = jnp.minimum(next_bound, jnp.min(jnp.where(cut, least, INFINITE_COST)))
        alive &= least <= bound
    return _Layer(after, parked, paid, alive), source, overflow, next_bound


def _select(layer: _Layer, source: jax.Array, capacity: int):  # type: ignore[no-untyped-def]
    """The living states at the front of a layer of `capacity`, and how many there were in all."""
    index, count = _compact(layer.alive, capacity)
    alive = jnp.arange(capacity) < count
    layer = _Layer(layer.positions[index], layer.parked[index], layer.paid[index], alive)
    return layer, source[index], count


def _search_chunk(
    group: Group, bound: jax.Array, allow_wait: jax.Array,
    effort: Effort, horizon: int, objective: str,
) -> SearchResult:  # fmt: skip
    batch, num_agents = group.starts.shape
    cells = group.neighbours.shape[1]
    capacity = effort.capacity
    small = jnp.int8 if cells <= 127 else jnp.int16
    lane = jnp.arange(batch)
    first = _Layer(
        positions=jnp.broadcast_to(group.starts[:, None], (batch, capacity, num_agents)),
        parked=jnp.zeros((batch, capacity), jnp.int32),
        paid=jnp.zeros((batch, capacity), jnp.int32),
        alive=jnp.broadcast_to(jnp.arange(capacity) == 0, (batch, capacity)),
    )
    slots = (batch, effort.slots)
    table = _Table(
        jnp.zeros(slots, jnp.uint32), jnp.zeros(slots, jnp.uint32), jnp.full(slots, -1, jnp.int32)
    )
    successors = jax.vmap(
        functools.partial(_successors, objective=objective), in_axes=(0, 0, None, 0, 0, None)
    )
    select = jax.vmap(functools.partial(_select, capacity=capacity))
    remember = jax.vmap(functools.partial(_remember, cells=cells))

    def expand(carry, room):  # type: ignore[no-untyped-def]
        """One level. Where `room` is less than `effort.room` and too little, nothing is entered."""
        (
            time, _, layer, table, best, end, limit, overflow, peak, next_bound, positions, parents,
        ) = carry  # fmt: skip
        following, source, more, cut = successors(group, layer, time, limit, allow_wait, room)
        retry = jnp.any(more) if room < effort.room else jnp.zeros((), bool)
        following = dataclasses.replace(following, alive=following.alive & ~retry)
        done = following.alive & jnp.all(following.positions == group.goals[:, None], axis=-1)
        total = following.paid if objective == COST else jnp.full_like(following.paid, time + 1)
        total = jnp.where(done, total, INFINITE_COST)
        choice = jnp.argmin(total, axis=1)
        better = total[lane, choice] < best
        best = jnp.where(better, total[lane, choice], best)
        end = (
            jnp.where(better, time, end[0]),
            jnp.where(better, source[lane, choice], end[1]),
        )
        limit = jnp.minimum(limit, best - 1)
        following = dataclasses.replace(following, alive=following.alive & ~done)
        table, alive = remember(table, following)
        if objective == MAKESPAN:
            # A search of everything that can be reached is in vain once something was dropped.
            alive &= ~(more & (bound >= HOPELESS - 1))[:, None]
        following = dataclasses.replace(following, alive=alive)
        selected, parent, count = select(following, source)
        layer = jax.tree.map(lambda old, new: jnp.where(retry, old, new), layer, selected)
        positions = positions.at[time + 1].set(layer.positions.astype(small))
        parents = parents.at[time + 1].set(parent)
        return (
            jnp.where(retry, time, time + 1), retry, layer, table, best, end, limit,
            overflow | (more & ~retry) | (count > capacity), jnp.maximum(peak, count),
            jnp.minimum(next_bound, cut), positions, parents,
        )  # fmt: skip

    def unfinished(carry):  # type: ignore[no-untyped-def]
        return (carry[0] < horizon) & jnp.any(carry[2].alive)

    def crowded(carry):  # type: ignore[no-untyped-def]
        """Whether the next level wants the whole room."""
        count = jnp.sum(carry[2].alive, axis=1, dtype=jnp.int32)
        return carry[1] | jnp.any(count > capacity // _SPARSE)

    def level(carry):  # type: ignore[no-untyped-def]
        """Levels of few states in a part of the room, then one or more in the whole of it."""
        if capacity < _SPARSE_CAPACITY:
            return expand(carry, effort.room)
        carry = jax.lax.while_loop(
            lambda carry: unfinished(carry) & ~crowded(carry),
            lambda carry: expand(carry, effort.room // _SPARSE),
            carry,
        )
        return jax.lax.while_loop(
            lambda carry: unfinished(carry) & crowded(carry),
            lambda carry: expand(carry, effort.room),
            carry,
        )

    zeros = jnp.zeros((batch,), jnp.int32)
    history = (horizon + 1, batch, capacity)
    carry = (
        jnp.zeros((), jnp.int32), jnp.zeros((), bool), first, table, zeros + INFINITE_COST,
        (zeros, zeros), bound, jnp.zeros((batch,), bool), zeros, zeros + INFINITE_COST,
        jnp.zeros((*history, num_agents), small).at[0].set(first.positions.astype(small)),
        jnp.zeros(history, jnp.int32),
    )  # fmt: skip
    carry = jax.lax.while_loop(unfinished, level, carry)
    _, _, layer, _, best, end, _, overflow, peak, next_bound, positions, parents = carry

    def backward(state, time):  # type: ignore[no-untyped-def]
        state = jnp.where(time == end[0], end[1], state)
        joint = positions[time, lane, state]
        joint = jnp.where((time <= end[0])[:, None], joint, group.goals.astype(small))
        return parents[time, lane, state], joint

    _, paths = jax.lax.scan(backward, zeros, jnp.arange(horizon + 1), reverse=True)
    return SearchResult(
        cost=best,
        overflow=overflow | jnp.any(layer.alive, axis=1),
        peak=peak,
        next_bound=next_bound,
        paths=paths.transpose(1, 0, 2),
    )


@functools.partial(jax.jit, static_argnames=("effort", "horizon", "objective"))
def bounded_search(
    group: Group,
    bound: Array,
    allow_wait: Array,
    effort: Effort,
    horizon: int,
    objective: str = COST,
) -> SearchResult:
    """The best plan of every group whose cost is within its bound.

    Args:
      group: B groups of 2 to `MAX_AGENTS` agents.
      bound: int32[B].
      allow_wait: bool[B]; False searches only plans without waits before arrival.
      effort: what may be kept.
      horizon: no plan is longer; a search that goes on then counts as overflow.
      objective: `COST` or `MAKESPAN`.
    """
    function = functools.partial(_search_chunk, effort=effort, horizon=horizon, objective=objective)
    return map_chunks(function, min(effort.chunk, bound.shape[0]), group, bound, allow_wait)
