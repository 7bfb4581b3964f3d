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

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.solver.blocks import map_chunks
from mapf_jax.solver.joint_search import TABLE_INFINITE
from mapf_jax.types import INFINITE_COST, Array

MAX_AGENTS = 6  # A state is compared as two words of 32 bits.
HOPELESS = 1 << 16  # Estimates from here on mean that some pair of agents can never arrive.
_WAIT, _STAY = 4, 5  # After the four moves: wait, and stay on the goal for good.
_NUM_OPTIONS = 6
# In searches of at least so many states, levels that fill less than 1 / _SPARSE of the capacity
# go through that part of the buffer, by a second program.
_SPARSE_CAPACITY, _SPARSE = 4096, 8
_PROBES = 2  # Slots of the table of visited states that are tried for a state.

#: COST minimises the sum of costs, MAKESPAN the makespan.
COST, MAKESPAN = "cost", "makespan"


class Group(NamedTuple):
    """Agents that have to be planned together, with their tables, on a graph of N cells.

    `pairs` says what two agents still have to pay together, by `agent_pairs`. M = N * N + 2 * N:
    both under way at (p, q), at index p * N + q; then the first alone at p (the second stays on its
    goal); then the second alone at q. To minimise the makespan only the first part counts, and
    holds the remaining makespan.
    """

    neighbours: Array  # int32[B, N, 4], the cell that each move leads to, -1 where there is none.
    starts: Array  # int32[B, A], cells.
    goals: Array  # int32[B, A].
    distance: Array  # int32[B, A, N], length of the agent's own shortest path, or >= `HOPELESS`.
    pairs: Array  # uint16[B, pairs, M].


class Effort(NamedTuple):
    """How much one search may keep."""

    capacity: int  # States of a layer.
    buffer: int  # States on the way from one layer to the next, before duplicates are dropped.
    slots: int  # States that are remembered as visited, a power of two.
    chunk: int  # Groups that share one search loop.


class SearchResult(NamedTuple):
    """What one bounded search found; B groups."""

    cost: Array  # int32[B], smallest cost (or makespan) within the bound, or `INFINITE_COST`.
    overflow: Array  # bool[B], states were dropped, so a plan may have been missed.
    peak: Array  # int32[B], states of the largest layer.
    # int32[B], smallest bound that admits a state which this one cut off; `INFINITE_COST` if none
    # was cut off, so that no larger bound helps.
    next_bound: Array
    paths: Array  # int[B, horizon + 1, A], cells of the plan; filler where there is none.


@functools.cache
def agent_pairs(num_agents: int) -> dict[tuple[int, int], int]:
    """The pairs (i, j), i < j, of agents and the place of each."""
    return {pair: k for k, pair in enumerate(itertools.combinations(range(num_agents), 2))}


def lower_bound(excess: Array, num_agents: int) -> jax.Array:
    """How much more than its shortest paths a group has to pay, from what its pairs have to.

    Each agent i pays some x_i >= 0 more than its own shortest path, and x_i + x_j >= excess_ij.
    The least sum of such x is, by linear programming duality, a largest fractional matching, whose
    extreme points are edges of weight 1 and odd cycles of weight 1/2; costs are integers, so it is
    rounded up. (Edge-weighted vertex cover as in Li et al., "Improved heuristics for multi-agent
    path finding with conflict-based search", 2019, relaxed.) Beyond five agents not all matchings
    are considered, which is a lower bound still.

    Args:
      excess: int32[..., pairs], by `agent_pairs`.
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

    def cycle(*agents: int) -> dict[tuple[int, ...], int]:
        edges = zip(agents, (*agents[1:], agents[0]), strict=True)
        return {tuple(sorted(edge)): 1 for edge in edges}

    parts: list[dict[tuple[int, ...], int]] = [{pair: 2} for pair in agent_pairs(num_agents)]
    parts += [cycle(*agents) for agents in itertools.combinations(range(num_agents), 3)]
    if num_agents == 5:
        parts += [cycle(0, *agents) for agents in itertools.permutations(range(1, 5))]
    terms = parts + [
        first | second
        for first, second in itertools.combinations(parts, 2)
        if not set(itertools.chain(*first)) & set(itertools.chain(*second))
    ]
    rows = [[term.get(pair, 0) for pair in agent_pairs(num_agents)] for term in terms]
    return np.unique(np.array(rows, np.int32), axis=0)


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
        _pair_total(group, (i, j), positions[:, i], positions[:, j], parked) - own[:, i] - own[:, j]
        for i, j in agent_pairs(positions.shape[1])
    ]
    return jnp.stack(columns, -1)


def _pair_total(
    group: Group, pair: tuple[int, int], first: Array, second: Array, parked: Array
) -> jax.Array:
    """int32[...]: what a pair still has to pay with its agents at `first` and `second`."""
    cells, num_agents = group.neighbours.shape[0], group.goals.shape[0]
    first_parked, second_parked = ((parked >> agent) & 1 != 0 for agent in pair)
    index = first * cells + second
    index = jnp.where(second_parked, cells * cells + first, index)
    index = jnp.where(first_parked, cells * cells + cells + second, index)
    total = group.pairs[agent_pairs(num_agents)[pair]][index].astype(jnp.int32)
    total = jnp.where(total == TABLE_INFINITE, 2 * HOPELESS, total)
    return jnp.where(first_parked & second_parked, 0, total)


class _Layer(NamedTuple):
    """States of one time; K = capacity."""

    positions: jax.Array  # int32[K, A], cells.
    parked: jax.Array  # int32[K], bit i is set where agent i stays on its goal for good.
    paid: jax.Array  # int32[K], cost so far.
    alive: jax.Array  # bool[K], False for a place that holds no state.


class _Table(NamedTuple):
    """Visited states, open addressing; H slots."""

    low: jax.Array  # uint32[H], the state.
    high: jax.Array
    paid: jax.Array  # int32[H], the least cost at which it was met, -1 where the slot is empty.


class _Progress(NamedTuple):
    """A search under way; B groups."""

    time: jax.Array  # int32[], of the layer.
    retry: jax.Array  # bool[], the part of the buffer was too small for the next level.
    layer: _Layer
    table: _Table
    best: jax.Array  # int32[B], smallest cost of a plan so far.
    end_time: jax.Array  # int32[B], last time of that plan before its end.
    end_state: jax.Array  # int32[B], its state in that layer.
    overflow: jax.Array  # These three as in `SearchResult`.
    peak: jax.Array
    next_bound: jax.Array
    positions: jax.Array  # int[horizon + 1, B, K, A], cells of all layers.
    parents: jax.Array  # int32[horizon + 1, B, K], each state's place in the layer before.


def _state_words(
    positions: jax.Array, parked: jax.Array, cells: int
) -> tuple[jax.Array, jax.Array]:
    """Two words that identify a state: three agents in each, and who is parked."""
    low = high = jnp.zeros(positions.shape[:1], jnp.uint32)
    half = (positions.shape[1] + 1) // 2
    for agent, cell in enumerate(positions.astype(jnp.uint32).T):
        low, high = (low * cells + cell, high) if agent < half else (low, high * cells + cell)
    return low, high * 64 + parked.astype(jnp.uint32)


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
    buffer: int, objective: str,
) -> tuple[_Layer, jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """All states one step after those of a layer that the bound permits, at most `buffer` of them.

    Returns:
      (layer of `buffer` states, int32[buffer] index of the state that each comes from, bool[]
      whether there were more, int32[] smallest bound that admits a state which was cut off).
    """
    capacity, num_agents = layer.positions.shape
    option, place = jnp.arange(_NUM_OPTIONS)[None], jnp.arange(buffer)
    overflow = jnp.zeros((), bool)
    next_bound = jnp.full((), INFINITE_COST, jnp.int32)

    def admit(candidates: jax.Array, least: jax.Array) -> jax.Array:
        """Those that the bound permits; the others say which bound would."""
        nonlocal next_bound
        cut = candidates & (least > bound) & (least < HOPELESS)
        next_bound = jnp.minimum(next_bound, jnp.min(jnp.where(cut, least, INFINITE_COST)))
        return candidates & (least <= bound)

    # One row for each way to move agents 0..agent-1; `own` holds distances from their new cells
    # and from the old cells of the others.
    source = jnp.minimum(place, capacity - 1)
    alive = layer.alive[source] & (place < capacity)
    after = jnp.zeros((buffer, num_agents), jnp.int32)
    own = jnp.take_along_axis(group.distance.T, layer.positions, axis=0)[source]
    parked, paid = layer.parked[source], layer.paid[source]
    most = time + own.max(-1) if objective == MAKESPAN else jnp.zeros((buffer,), jnp.int32)
    for agent in range(num_agents):
        before = layer.positions[source]
        here = before[:, agent]
        on_goal = (here == group.goals[agent])[:, None]
        was_parked = ((parked >> agent) & 1 != 0)[:, None]
        there = jnp.concatenate([group.neighbours[here], here[:, None], here[:, None]], 1)
        legal = (there >= 0) & alive[:, None] & ((option != _WAIT) | allow_wait)
        legal &= jnp.where(option == _STAY, on_goal, ~was_parked)
        there = jnp.maximum(there, 0)
        for other in range(agent):
            entered = after[:, other, None] == there
            swapped = (after[:, other] == here)[:, None] & (before[:, other, None] == there)
            legal &= ~entered & ~swapped
        distance = group.distance[agent][there]
        if objective == COST:
            new_paid = paid[:, None] + jnp.where(option == _STAY, 0, 1)
            new_parked = parked[:, None] | jnp.where(option == _STAY, 1 << agent, 0)
            base = new_paid + own.sum(-1, keepdims=True) - own[:, agent, None] + distance
            # Who waits on its goal without staying there has to leave it and to come back.
            least = base + jnp.where((option == _WAIT) & on_goal, 2, 0)
        else:
            legal &= option != _STAY
            new_paid = jnp.broadcast_to(paid[:, None], there.shape)
            new_parked = jnp.broadcast_to(parked[:, None], there.shape)
            base = least = jnp.maximum(most[:, None], time + 1 + distance)
        index, count = _compact(admit(legal, least).reshape(-1), buffer)
        overflow |= count > buffer
        origin = index // _NUM_OPTIONS
        source = source[origin]
        after = after[origin].at[:, agent].set(there.reshape(-1)[index])
        own = own[origin].at[:, agent].set(distance.reshape(-1)[index])
        parked, paid = new_parked.reshape(-1)[index], new_paid.reshape(-1)[index]
        # Pairs only now: a table look-up costs more than everything above. What a pair pays on top
        # may be that very detour, so the detour does not count here.
        base, most = base.reshape(-1)[index], most[origin]
        for other in range(agent):
            total = _pair_total(group, (other, agent), after[:, other], after[:, agent], parked)
            if objective == COST:
                most = jnp.maximum(most, total - own[:, other] - own[:, agent])
            else:
                most = jnp.maximum(most, time + 1 + total)
        if objective == COST:
            alive = admit(place < count, base + most)
        else:
            most = jnp.maximum(base, most)
            alive = admit(place < count, most)
    if objective == COST:
        excess = lower_bound(pair_excess(group, after, parked), num_agents)
        alive = admit(alive, paid + own.sum(-1) + excess)
    return _Layer(after, parked, paid, alive), source, overflow, next_bound


def _search_chunk(
    group: Group, bound: jax.Array, allow_wait: jax.Array,
    effort: Effort, horizon: int, objective: str,
) -> SearchResult:  # fmt: skip
    batch, num_agents = group.starts.shape
    cells, capacity = group.neighbours.shape[1], effort.capacity
    small = jnp.int8 if cells <= 127 else jnp.int16
    row = jnp.arange(batch)
    successors = jax.vmap(
        functools.partial(_successors, objective=objective), in_axes=(0, 0, None, 0, 0, None)
    )
    remember = jax.vmap(functools.partial(_remember, cells=cells))

    @jax.vmap
    def select(layer: _Layer, source: jax.Array) -> tuple[_Layer, jax.Array, jax.Array]:
        """The living states in a layer of `capacity`, and how many there were in all."""
        index, count = _compact(layer.alive, capacity)
        chosen = jax.tree.map(lambda leaf: leaf[index], layer)
        return chosen._replace(alive=jnp.arange(capacity) < count), source[index], count

    def expand(state: _Progress, buffer: int) -> _Progress:
        """One level; nothing is entered if `buffer` is a part of `effort.buffer` and too small."""
        limit = jnp.minimum(bound, state.best - 1)
        following, source, more, cut = successors(
            group, state.layer, state.time, limit, allow_wait, buffer
        )
        retry = jnp.any(more) if buffer < effort.buffer else jnp.zeros((), bool)
        alive = following.alive & ~retry
        done = alive & jnp.all(following.positions == group.goals[:, None], axis=-1)
        total = following.paid if objective == COST else state.time + 1
        total = jnp.where(done, total, INFINITE_COST)
        choice = jnp.argmin(total, axis=1)
        better = total[row, choice] < state.best
        best = jnp.where(better, total[row, choice], state.best)
        table, alive = remember(state.table, following._replace(alive=alive & ~done))
        if objective == MAKESPAN:
            # A search of everything that can be reached is in vain once something was dropped.
            alive &= ~(more & (bound >= HOPELESS - 1))[:, None]
        selected, parent, count = select(following._replace(alive=alive), source)
        layer = jax.tree.map(lambda old, new: jnp.where(retry, old, new), state.layer, selected)
        later = state.time + 1
        return _Progress(
            time=jnp.where(retry, state.time, later),
            retry=retry,
            layer=layer,
            table=table,
            best=best,
            end_time=jnp.where(better, state.time, state.end_time),
            end_state=jnp.where(better, source[row, choice], state.end_state),
            overflow=state.overflow | (more & ~retry) | (count > capacity),
            peak=jnp.maximum(state.peak, count),
            next_bound=jnp.minimum(state.next_bound, cut),
            positions=state.positions.at[later].set(layer.positions.astype(small)),
            parents=state.parents.at[later].set(parent),
        )

    def unfinished(state: _Progress) -> jax.Array:
        return (state.time < horizon) & jnp.any(state.layer.alive)

    def crowded(state: _Progress) -> jax.Array:
        """Whether the next level wants the whole buffer."""
        count = jnp.sum(state.layer.alive, axis=1, dtype=jnp.int32)
        return state.retry | jnp.any(count > capacity // _SPARSE)

    def level(state: _Progress) -> _Progress:
        """Levels of few states in a part of the buffer, then one or more in the whole of it."""
        if capacity < _SPARSE_CAPACITY:
            return expand(state, effort.buffer)
        state = jax.lax.while_loop(
            lambda state: unfinished(state) & ~crowded(state),
            lambda state: expand(state, effort.buffer // _SPARSE),
            state,
        )
        return jax.lax.while_loop(
            lambda state: unfinished(state) & crowded(state),
            lambda state: expand(state, effort.buffer),
            state,
        )

    zeros, unknown = jnp.zeros((batch,), jnp.int32), jnp.full((batch,), INFINITE_COST, jnp.int32)
    words = jnp.zeros((batch, effort.slots), jnp.uint32)
    first = _Layer(
        positions=jnp.broadcast_to(group.starts[:, None], (batch, capacity, num_agents)),
        parked=jnp.zeros((batch, capacity), jnp.int32),
        paid=jnp.zeros((batch, capacity), jnp.int32),
        alive=jnp.broadcast_to(jnp.arange(capacity) == 0, (batch, capacity)),
    )
    history = jnp.zeros((horizon + 1, batch, capacity, num_agents), small)
    start = _Progress(
        time=jnp.zeros((), jnp.int32),
        retry=jnp.zeros((), bool),
        layer=first,
        table=_Table(words, words, jnp.full(words.shape, -1, jnp.int32)),
        best=unknown,
        end_time=zeros,
        end_state=zeros,
        overflow=jnp.zeros((batch,), bool),
        peak=zeros,
        next_bound=unknown,
        positions=history.at[0].set(first.positions.astype(small)),
        parents=jnp.zeros(history.shape[:-1], jnp.int32),
    )
    found = jax.lax.while_loop(unfinished, level, start)

    def backward(state: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.where(time == found.end_time, found.end_state, state)
        joint = found.positions[time, row, state]
        joint = jnp.where((time <= found.end_time)[:, None], joint, group.goals.astype(small))
        return found.parents[time, row, state], joint

    _, paths = jax.lax.scan(backward, zeros, jnp.arange(horizon + 1), reverse=True)
    return SearchResult(
        cost=found.best,
        overflow=found.overflow | jnp.any(found.layer.alive, axis=1),
        peak=found.peak,
        next_bound=found.next_bound,
        paths=paths.transpose(1, 0, 2),
    )


@functools.partial(jax.jit, static_argnames=("effort", "horizon", "objective"))
def bounded_search(
    group: Group,
    bound: Array,
    allow_wait: Array,
    effort: Effort,
    horizon: int,
    objective: str,
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
    return map_chunks(function, effort.chunk, group, bound, allow_wait)
