"""Random lakes drawn inside a compiled program, each goal within reach of its start."""

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.solver import search
from mapf_jax.types import INFINITE_COST, Array, Instance

_TRIES = 32
_Draw = tuple[jax.Array, jax.Array, jax.Array]


def draw_instance(key: jax.Array, size: int, num_agents: int, num_holes: Array | int) -> Instance:
    """One instance with all its starts and goals in one connected part of the lake.

    Each agent alone can reach its goal; that a joint plan exists is not guaranteed
    (`mapf_jax.generate` guarantees it). Holes are drawn uniformly, starts and goals uniformly in
    the connected part of a uniform free cell. If that part has fewer than 2 `num_agents` cells,
    the lake is drawn again; after 32 tries, which only lakes nearly full of holes need, it is left
    without holes.

    Args:
      key: PRNG key.
      size: width of the lake, static.
      num_agents: static, at most `size * size / 2`.
      num_holes: at most `size * size - 2 * num_agents`.

    Returns:
      A single unsolved instance; all agents are active.

    Raises:
      ValueError: the lake has too few cells for the starts and goals.
    """
    cells, needed = size * size, 2 * num_agents
    if needed > cells:
        raise ValueError(
            f"num_agents={num_agents}: at most {cells // 2} fit on a lake of size {size}"
        )

    def draw(carry: _Draw) -> _Draw:
        """(tries, free bool[S, S], part bool[S, S]: the connected part of one of its cells)."""
        tries = carry[0]
        order = jax.random.permutation(jax.random.fold_in(key, tries), cells)
        free = (order >= jnp.where(tries < _TRIES, num_holes, 0)).reshape(size, size)
        cell = jnp.stack(jnp.divmod(jnp.argmax(order), size))  # Free, for not all are holes.
        part = search.distance_field(~free[None], cell[None])[0] < INFINITE_COST
        return tries + 1, free, part

    nothing = jnp.zeros((size, size), bool)
    _, free, part = jax.lax.while_loop(
        lambda carry: carry[2].sum() < needed, draw, (jnp.zeros((), jnp.int32), nothing, nothing)
    )
    noise = jax.random.uniform(jax.random.fold_in(key, _TRIES + 1), (cells,))
    _, chosen = jax.lax.top_k(jnp.where(part.reshape(-1), noise, -1.0), needed)
    positions = jnp.stack(jnp.divmod(chosen, size), -1).astype(jnp.int8)
    return Instance(
        size=jnp.asarray(np.int32(size)),
        blocked=~free,
        starts=positions[:num_agents],
        goals=positions[num_agents:],
        active=jnp.ones((num_agents,), bool),
    )
