"""Prioritised planning: agents one by one, each by its shortest path round the earlier ones.

Not complete and not optimal (Erdmann and Lozano-Perez, "On multiple moving objects", 1987), but
cheap: where a plan costs no more than a lower bound it is optimal, and any plan proves that an
instance can be solved. Several orders of the agents are tried at once. Sets of cells are `search`'s
words; their batch, here L, is every order of every lake.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.plans import waiting
from mapf_jax.solver import search
from mapf_jax.solver.blocks import map_chunks
from mapf_jax.types import INFINITE_COST, Array

_CHUNK = 512  # Orders of lakes that share one scan.


class FoundPlans(NamedTuple):
    """The best plan found for each lake: the cheapest, and of those one without waits."""

    cost: Array  # int32[B], its sum of costs; `INFINITE_COST` if none was found.
    waits: Array  # bool[B], an agent waits in it before its arrival.
    makespan: Array  # int32[B], smallest makespan of any plan found, which may be another plan.
    paths: Array  # int8[B, horizon + 1, A, 2], filler where there is no plan.


def _priority_orders(num_agents: int, limit: int) -> np.ndarray:
    """int32[P, A]: at most `limit` orders of the agents, the same for every lake.

    All of them where they are few enough, otherwise some drawn once from a fixed seed.
    """
    generator = np.random.default_rng(0)
    if num_agents > 6:
        orders = np.stack([generator.permutation(num_agents) for _ in range(limit)])
    else:
        orders = np.array(list(itertools.permutations(range(num_agents))))
        if len(orders) > limit:
            orders = orders[np.sort(generator.permutation(len(orders))[:limit])]
    return orders.astype(np.int32)


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
            reached |= search.move(frontier & ~barred[direction], direction)
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
            candidate = search.move(cell, search.OPPOSITE[direction]) & before & ~barred[direction]
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
    rows = jnp.argmax(words != 0, axis=-2)
    columns = jnp.argmax(search.unpack(jnp.max(words, axis=-2), words.shape[-2]), axis=-2)
    return jnp.stack([rows, columns], -1).astype(jnp.int8)


def _plan_chunk(
    blocked: jax.Array, starts: jax.Array, goals: jax.Array, orders: np.ndarray, horizon: int
) -> FoundPlans:
    batch, width = blocked.shape[:2]
    num_orders, num_agents = orders.shape
    word = search.column_bits(width).dtype

    def of_rank(cells: jax.Array, rank: int) -> jax.Array:
        """word[S, L], the cells int[batch, A, 2] of the agents that come at this place."""
        by_agent = [search.cell_words(cells[:, agent], width) for agent in range(num_agents)]
        return jnp.stack(by_agent, -1)[..., orders[:, rank]].reshape(width, -1)

    free = jnp.repeat(search.pack(~blocked.transpose(1, 2, 0)), num_orders, axis=1)
    taken = jnp.zeros((horizon + 1, *free.shape), word)
    barred = jnp.zeros((horizon, 4, *free.shape), word)
    paths, arrivals = [], []
    for rank in range(num_agents):
        cells, entered, arrived = _one_agent(
            free, taken, barred, of_rank(starts, rank), of_rank(goals, rank)
        )
        taken = taken | cells
        barred = barred | entered[:, jnp.array(search.OPPOSITE)]
        paths.append(_cells_of(cells))
        arrivals.append(arrived)
    arrival, path = jnp.stack(arrivals), jnp.stack(paths)  # [A by rank, L], [A, T + 1, L, 2]
    waits = waiting(path, arrival).any(0).reshape(batch, num_orders)
    found = jnp.all(arrival <= horizon, axis=0)
    cost, makespan = (
        jnp.where(found, total, INFINITE_COST).reshape(batch, num_orders)
        for total in (arrival.sum(0), arrival.max(0))
    )
    best = jnp.argmin(2 * cost + waits, axis=1)
    row = jnp.arange(batch)
    rank_of = jnp.asarray(np.argsort(orders, axis=1))[best]  # [batch, A]
    return FoundPlans(
        cost=cost[row, best].astype(jnp.int32),
        waits=waits[row, best],
        makespan=makespan.min(1).astype(jnp.int32),
        paths=path[rank_of, :, (row * num_orders + best)[:, None]].swapaxes(1, 2),
    )


@functools.partial(jax.jit, static_argnames=("num_orders", "horizon"))
def prioritized_plans(
    blocked: Array, starts: Array, goals: Array, num_orders: int, horizon: int
) -> FoundPlans:
    """Plans of a batch of lakes by prioritised planning.

    Args:
      blocked: bool[B, S, S].
      starts: int[B, A, 2].
      goals: int[B, A, 2].
      num_orders: at most so many orders of the agents are tried.
      horizon: no path is longer.
    """
    orders = _priority_orders(starts.shape[1], num_orders)
    function = functools.partial(_plan_chunk, orders=orders, horizon=horizon)
    return map_chunks(function, max(1, _CHUNK // len(orders)), blocked, starts, goals)
