"""Single-agent search on batches of lakes, and sets of cells as machine words.

A set of cells is one word a row, bit c of word r being cell (r, c), so that all cells move at once
by a shift. A word of 16 bits serves lakes up to 16 x 16, one of 32 bits up to 32 x 32. The batch is
the last axis of words and the first one of everything else.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import dynamics
from mapf_jax.types import INFINITE_COST, Array

#: By move, the move that undoes it.
OPPOSITE = (dynamics.DOWN, dynamics.UP, dynamics.RIGHT, dynamics.LEFT)


def cell_mask(cells: Array, width: int) -> jax.Array:
    """bool[B, S, S], True at the one cell int[B, 2] of each lake (nowhere for a cell outside)."""
    index, cells = jnp.arange(width, dtype=jnp.int32), jnp.asarray(cells).astype(jnp.int32)
    rows = index[None, :, None] == cells[:, 0, None, None]
    columns = index[None, None, :] == cells[:, 1, None, None]
    return rows & columns


def distance_field(blocked: Array, goals: Array) -> jax.Array:
    """Length of a shortest path from every cell to a goal, for a batch of lakes.

    Args:
      blocked: bool[B, S, S].
      goals: int[B, 2].

    Returns:
      int32[B, S, S]; `INFINITE_COST` where blocked or cut off from the goal.
    """
    free = ~jnp.asarray(blocked)
    at_goal = cell_mask(goals, blocked.shape[-1])
    distances = jnp.where(at_goal & free, 0, INFINITE_COST).astype(jnp.int32)

    def relax(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        field, _ = carry
        beyond = jnp.pad(field, ((0, 0), (1, 1), (1, 1)), constant_values=INFINITE_COST)
        vertical = jnp.minimum(beyond[:, :-2, 1:-1], beyond[:, 2:, 1:-1])
        nearest = jnp.minimum(vertical, jnp.minimum(beyond[:, 1:-1, :-2], beyond[:, 1:-1, 2:]))
        better = jnp.where(free, jnp.minimum(field, nearest + 1), INFINITE_COST)
        return better, jnp.any(better < field)

    field, _ = jax.lax.while_loop(lambda carry: carry[1], relax, (distances, jnp.array(True)))
    return field


@jax.jit
def shortest_costs(blocked: Array, starts: Array, goals: Array) -> jax.Array:
    """int32[B, A]: length of each agent's own shortest path; the others are ignored."""
    fields = jax.vmap(distance_field, in_axes=(None, 1), out_axes=1)(blocked, goals)
    lake, agent = jnp.ogrid[: blocked.shape[0], : starts.shape[1]]
    return fields[lake, agent, starts[..., 0], starts[..., 1]]


def column_bits(width: int) -> np.ndarray:
    """word[S], the bit of each column, in the smallest type of word that serves."""
    if width > 32:
        raise ValueError(f"size={width}: lakes wider than 32 cells are not supported")
    word = np.uint16 if width <= 16 else np.uint32
    return np.left_shift(1, np.arange(width, dtype=word))


def pack(mask: jax.Array) -> jax.Array:
    """Sets of cells: bool[..., S, B] by column -> word[..., B]."""
    bits = column_bits(mask.shape[-2])
    return jnp.where(mask, bits[:, None], bits.dtype.type(0)).sum(-2, dtype=bits.dtype)


def unpack(words: jax.Array, width: int) -> jax.Array:
    """The inverse of `pack`: word[..., B] -> bool[..., S, B]."""
    return (words[..., None, :] >> jnp.arange(width, dtype=words.dtype)[:, None]) & 1 != 0


def shift(field: jax.Array, axis: int, step: int) -> jax.Array:
    """Moves everything one place along `axis` (step +1 or -1); what leaves the edge is lost."""
    padding = [(step, -step, 0) if i == axis else (0, 0, 0) for i in range(field.ndim)]
    return jax.lax.pad(field, field.dtype.type(0), padding)


def move(words: jax.Array, direction: int) -> jax.Array:
    """The sets word[..., S, B] after one of the four moves.

    Bits that leave a map narrower than a word on the right are still there, to be masked.
    """
    if direction in (dynamics.UP, dynamics.DOWN):
        return shift(words, words.ndim - 2, -1 if direction == dynamics.UP else +1)
    return words >> 1 if direction == dynamics.LEFT else words << 1
