"""Single-agent search: distance fields and connected regions of a lake, batched."""

import jax
import jax.numpy as jnp

from mapf_jax.types import INFINITE_COST, Array


def neighbours(field: Array, fill: Array | int | bool) -> tuple[jax.Array, ...]:
    """The values of the up, down, left and right neighbours of each cell.

    Args:
      field: [..., S, S].
      fill: the value beyond the edge.

    Returns:
      Four arrays of the same shape.
    """
    pads = [(0, 0)] * (field.ndim - 2) + [(1, 1), (1, 1)]
    padded = jnp.pad(jnp.asarray(field), pads, constant_values=fill)
    return (
        padded[..., :-2, 1:-1],
        padded[..., 2:, 1:-1],
        padded[..., 1:-1, :-2],
        padded[..., 1:-1, 2:],
    )


def distance_field(blocked: Array, goals: Array) -> jax.Array:
    """Length of a shortest path from every cell to a goal, for a batch of lakes.

    Args:
      blocked: bool[B, S, S].
      goals: int[B, 2].

    Returns:
      int32[B, S, S]; `INFINITE_COST` where blocked or cut off from the goal.
    """
    width = blocked.shape[-1]
    at_goal = cell_mask(goals, width)
    free = ~jnp.asarray(blocked)
    distances = jnp.where(at_goal & free, 0, INFINITE_COST).astype(jnp.int32)

    def relax(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        field, _ = carry
        up, down, left, right = neighbours(field, INFINITE_COST)
        nearest = jnp.minimum(jnp.minimum(up, down), jnp.minimum(left, right))
        better = jnp.where(free, jnp.minimum(field, nearest + 1), INFINITE_COST)
        return better, jnp.any(better < field)

    field, _ = jax.lax.while_loop(lambda carry: carry[1], relax, (distances, jnp.array(True)))
    return field


def cell_mask(cells: Array, width: int) -> jax.Array:
    """bool[B, S, S], True at the one cell int[B, 2] of each lake (nowhere for a cell outside)."""
    index = jnp.arange(width)
    rows = index[None, :, None] == cells[:, 0, None, None]
    columns = index[None, None, :] == cells[:, 1, None, None]
    return rows & columns
