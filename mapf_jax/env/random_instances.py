"""Random lakes drawn inside a compiled program, each goal within reach of its start."""

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.solver import search
from mapf_jax.types import Array, Instance

_TRIES = 32


def draw_instance(key: jax.Array, size: int, num_agents: int, num_holes: Array | int) -> Instance:
    """One instance with all its starts and goals in one connected part of the lake.

    The holes are uniform over all sets of `num_holes` cells of which some connected part has room
    for 2 `num_agents` cells, weighted by the share of free cells in such parts; starts and goals
    are uniform in the part of a uniform free cell. Agents can reach their goals one by one; that
    a joint plan exists is not guaranteed (`mapf_jax.generate` does that).

    A lake is drawn again until it has such a part. After 32 tries, which only happens on lakes
    that are nearly full of holes, it is left without holes: starts and goals are then still
    sound, the number of holes is not.

    Args:
      key: PRNG key.
      size: width of the lake, static.
      num_agents: static, at most `size * size / 2`.
      num_holes: at most `size * size - 2 * num_agents`.

    Returns:
      A single unsolved instance; all agents are active.

    Raises:
      ValueError: there is no room for the starts and goals.
    """
    cells, needed = size * size, 2 * num_agents
    if needed > cells:
        raise ValueError(
            f"num_agents={num_agents}: at most {cells // 2} have room on a lake of size {size}"
        )

    def draw(key: jax.Array, holes: Array | int) -> tuple[jax.Array, jax.Array]:
        """(free bool[S, S], part bool[S, S], the connected part of one of its free cells)."""
        order = jax.random.permutation(key, cells)
        free = (order >= holes).reshape(size, size)
        seed = (order == cells - 1).reshape(size, size)  # Free, for not all cells are holes.

        def spread(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            part, _ = carry
            up, down, left, right = search.neighbours(part, False)
            wider = (part | up | down | left | right) & free
            return wider, jnp.any(wider != part)

        part, _ = jax.lax.while_loop(lambda carry: carry[1], spread, (seed, jnp.array(True)))
        return free, part

    def too_small(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return carry[2].sum() < needed

    def again(
        carry: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        tries = carry[0] + 1
        holes = jnp.where(tries < _TRIES, num_holes, 0)
        return tries, *draw(jax.random.fold_in(key, tries), holes)

    first = (jnp.zeros((), jnp.int32), *draw(jax.random.fold_in(key, 0), num_holes))
    _, free, part = jax.lax.while_loop(too_small, again, first)
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
