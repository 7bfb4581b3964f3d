"""Fingerprints of arrays: every bit counts, the mesh does not."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def fingerprint(tree: Any) -> list[int]:
    """A number below 2**32 for each array of a pytree; several processes call it together."""
    return [int(total) for total in jax.device_get(_weighted_sums(jax.tree.leaves(tree)))]


@jax.jit
def _weighted_sums(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Sums of all arrays in one program: with several programs, processes could deadlock."""
    return [_weighted_sum(array) for array in arrays]


def _weighted_sum(array: jax.Array) -> jax.Array:
    """u32: the elements' bits, weighted by odd numbers of their places, so that each bit counts."""
    place = jnp.uint32(0)
    for axis, size in enumerate(array.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
    bits = jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")
    return jnp.sum(bits.astype(jnp.uint32) * (2 * place + 1), dtype=jnp.uint32)
