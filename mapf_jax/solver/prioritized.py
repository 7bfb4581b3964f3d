"""Prioritised planning: agents one by one, each by its shortest path round the earlier ones.

Not complete and not optimal (Erdmann and Lozano-Perez, "On multiple moving objects", 1987), but
cheap: where a plan costs no more than a lower bound it is optimal, and any plan proves that an
instance can be solved. Several orders of the agents are tried at once. A set of cells is one
machine word a row, bit c of word r being cell (r, c); every (lake, order) is one lane, and lanes
are the last axis.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import dynamics
from mapf_jax.solver import search
from mapf_jax.solver.joint_search import map_chunks, word_type
from mapf_jax.types import INFINITE_COST, Array

_LANES = 512  # Lanes that share one scan.
_OPPOSITE = (dynamics.DOWN, dynamics.UP, dynamics.RIGHT, dynamics.LEFT)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrioritizedPlan:
    """The best plan found for each lake; B lakes.

    Attributes:
      cost: int32[B], its sum of costs; `INFINITE_COST` if no order gave a plan.
      waits: bool[B], an agent waits in it before its arrival. Among plans of equal cost, one
        without waits is preferred.
      makespan: int32[B], the smallest makespan of any plan found, which may be another plan.
      paths: int8[B, horizon + 1, A, 2], filler where there is no plan.
    """

    cost: Array
    waits: Array
    makespan: Array
    paths: Array


def priority_orders(num_agents: int, limit: int) -> np.ndarray:
    """int32[P, A]: at most `limit` orders of the agents, the same for every lake.

    All of them where they are few enough, otherwise some drawn once from a fixed seed.
    """
    if num_agents <= 6:
        orders = np.array(list(itertools.permutations(range(num_agents))), np.int32)
        if len(orders) > limit:
            keep = np.random.default_rng(0).permutation(len(orders))[:limit]
            orders = orders[np.sort(keep)]
        return orders
    generator = np.random.default_rng(0)
    return np.stack([generator.permutation(num_agents) for _ in range(limit)]).astype(np.int32)


def _shift(words: jax.Array, direction: int) -> jax.Array:
    """The cells one move further; words [S, L]. What leaves the map on the right is cut later."""
    if direction == dynamics.WAIT:
        return words
    zero = jnp.zeros_like(words[:1])
    if direction == dynamics.UP:
        return jnp.concatenate([words[1:], zero])
    if direction == dynamics.DOWN:
        return jnp.concatenate([zero, words[:-1]])
    return words >> 1 if direction == dynamics.LEFT else words << 1


def _one_agent(
    free: jax.Array, taken: jax.Array, barred: jax.Array, start: jax.Array, goal: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A shortest path in space and time.

    Args:
      free: word[S, L], passable cells.
      taken: word[T + 1, S, L], cells of earlier agents at each time.
      barred: word[T, 4, S, L], cells from which a move in that direction is a swap.
      start: word[S, L], one cell.
      goal: word[S, L], one cell.

    Returns:
      (cells word[T + 1, S, L], one at a time; entered word[T, 4, S, L], the cell entered by a move
      in that direction; arrival int32[L], T + 1 where the goal is not reached in time).
    """
    steps = len(barred)

    def forward(frontier, inputs):  # type: ignore[no-untyped-def]
        taken, barred = inputs
        reached = frontier
        for direction in range(4):
            reached |= _shift(frontier & ~barred[direction], direction)
        reached &= free & ~taken
        return reached, reached

    first = start & free & ~taken[0]
    _, history = jax.lax.scan(forward, first, (taken[1:], barred))
    history = jnp.concatenate([first[None], history])
    # It may stay only from when no earlier agent passes its goal any more.
    there = jnp.any((history & goal) != 0, axis=1)
    passed = jnp.any((taken & goal) != 0, axis=1)
    times = jnp.arange(steps + 1, dtype=jnp.int32)[:, None]
    settled = jnp.max(jnp.where(passed, times + 1, 0), axis=0)
    arrival = jnp.min(jnp.where(there & (times >= settled), times, steps + 1), axis=0)

    def backward(cell, inputs):  # type: ignore[no-untyped-def]
        time, before, barred = inputs
        none = jnp.ones(cell.shape[1:], bool)
        origin = jnp.zeros_like(cell)
        entered = []
        for direction in range(4):
            candidate = _shift(cell, _OPPOSITE[direction]) & before & ~barred[direction]
            chosen = none & jnp.any(candidate != 0, axis=0)
            origin = jnp.where(chosen, candidate, origin)
            entered.append(jnp.where(chosen & (time < arrival), cell, 0))
            none &= ~chosen
        origin = jnp.where(none, cell, origin)
        origin = jnp.where(time < arrival, origin, cell)
        return origin, (origin, jnp.stack(entered))

    inputs = (jnp.arange(steps, dtype=jnp.int32), history[:-1], barred)
    _, (cells, entered) = jax.lax.scan(backward, goal, inputs, reverse=True)
    return jnp.concatenate([cells, goal[None]]), entered, arrival


def _cells_of(words: jax.Array) -> jax.Array:
    """int8[..., L, 2], the one cell of each word[..., S, L]."""
    width = words.shape[-2]
    rows = jnp.argmax(words != 0, axis=-2)
    word = jnp.max(words, axis=-2)
    bits = jnp.arange(width, dtype=words.dtype)
    columns = jnp.argmax((word[..., None] >> bits) & 1, axis=-1)
    return jnp.stack([rows, columns], -1).astype(jnp.int8)


def _chunk(
    blocked: jax.Array, starts: jax.Array, goals: jax.Array, orders: np.ndarray, horizon: int
) -> PrioritizedPlan:
    batch, width = blocked.shape[:2]
    num_orders, num_agents = orders.shape
    lanes = batch * num_orders
    word = word_type(width)
    bits = jnp.asarray(1, word) << jnp.arange(width, dtype=word)

    def words_of(mask: jax.Array) -> jax.Array:  # bool[batch, S, S] -> word[S, batch, 1]
        return jnp.where(mask, bits, word(0)).sum(-1, dtype=word).T[:, :, None]

    def one_cell(cells: jax.Array) -> jax.Array:  # int[batch, A, 2] -> word[A, S, batch, 1]
        return jnp.stack(
            [words_of(search.cell_mask(cells[:, agent], width)) for agent in range(num_agents)]
        )

    shape = (width, batch, num_orders)
    free = jnp.broadcast_to(words_of(~blocked), shape).reshape(width, lanes)
    start_words, goal_words = one_cell(starts), one_cell(goals)

    def of_rank(words: jax.Array, rank: int) -> jax.Array:
        chosen = words[orders[:, rank], :, :, 0]  # [P, S, batch]
        return chosen.transpose(1, 2, 0).reshape(width, lanes)

    taken = jnp.zeros((horizon + 1, width, lanes), word)
    barred = jnp.zeros((horizon, 4, width, lanes), word)
    paths, arrivals = [], []
    for rank in range(num_agents):
        cells, entered, arrival = _one_agent(
            free, taken, barred, of_rank(start_words, rank), of_rank(goal_words, rank)
        )
        taken = taken | cells
        barred = barred | entered[:, jnp.array(_OPPOSITE)]
        paths.append(_cells_of(cells))  # [T + 1, L, 2]
        arrivals.append(arrival)
    arrival = jnp.stack(arrivals)  # [A by rank, L]
    found = jnp.all(arrival <= horizon, axis=0)
    path = jnp.stack(paths)  # [A by rank, T + 1, L, 2]
    still = jnp.all(path[:, 1:] == path[:, :-1], axis=-1)
    early = jnp.arange(horizon)[None, :, None] < arrival[:, None]
    waits = jnp.any(still & early, axis=(0, 1)).reshape(batch, num_orders)
    cost = jnp.where(found, arrival.sum(0), INFINITE_COST).reshape(batch, num_orders)
    makespan = jnp.where(found, arrival.max(0), INFINITE_COST).reshape(batch, num_orders)
    best = jnp.argmin(2 * cost + waits, axis=1)
    row = jnp.arange(batch)
    path = path.reshape(num_agents, horizon + 1, batch, num_orders, 2)
    rank_of = jnp.asarray(np.argsort(orders, axis=1))[best]  # [batch, A]
    chosen = path[
        rank_of[:, None], jnp.arange(horizon + 1)[None, :, None], row[:, None, None],
        best[:, None, None],
    ]  # fmt: skip
    return PrioritizedPlan(
        cost=cost[row, best].astype(jnp.int32),
        waits=waits[row, best],
        makespan=makespan.min(1).astype(jnp.int32),
        paths=chosen,
    )


@functools.partial(jax.jit, static_argnames=("num_orders", "horizon"))
def prioritized_plans(
    blocked: Array, starts: Array, goals: Array, num_orders: int, horizon: int
) -> PrioritizedPlan:
    """Plans of a batch of lakes by prioritised planning.

    Args:
      blocked: bool[B, S, S].
      starts: int[B, A, 2].
      goals: int[B, A, 2].
      num_orders: at most so many orders of the agents are tried.
      horizon: no path is longer.
    """
    orders = priority_orders(starts.shape[1], num_orders)
    chunk = max(1, min(_LANES // len(orders), blocked.shape[0]))
    function = functools.partial(_chunk, orders=orders, horizon=horizon)
    return map_chunks(function, chunk, blocked, starts, goals)
