"""Fingerprints of arrays: every bit counts, the mesh does not."""

from typing import Any

import jax
import jax.numpy as jnp


def fingerprint(tree: Any) -> list[int]:
    """A number below 2**32 for each array of a pytree; several processes call it together.

    One array after another: so processes cannot deadlock, and on CPUs, where the weighted elements
    are in memory before they are added, this takes no more of it than one array does.
    """
    return [int(_weighted_sum(array)) for array in jax.tree.leaves(tree)]


@jax.jit
def _weighted_sum(array: jax.Array) -> jax.Array:
    """u32: the elements' bits, weighted by odd numbers of their places, so that each bit counts."""
    place = jnp.uint32(0)
    for axis, size in enumerate(array.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
    bits = jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")
    return jnp.sum(bits.astype(jnp.uint32) * (2 * place + 1), dtype=jnp.uint32)
