"""Batched functions called on a fixed number of rows: compiled once, and no wider than is fast."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")

BLOCK = 512  # Instances that are computed at once.


def in_blocks(function: Callable[..., T], *arrays: object, block: int) -> T:
    """Calls a jitted batched function on rows of fixed number.

    Args:
      function: pytrees of arrays with a leading axis in, a pytree of arrays with that axis out.
      *arrays: pytrees of arrays [B, ...], B >= 1.
      block: rows of a call; the last call repeats rows to fill up.

    Returns:
      The results for the B rows, with NumPy leaves.
    """
    batch = len(jax.tree.leaves(arrays)[0])

    def call(first: int) -> T:
        rows = np.arange(first, first + block) % batch
        result = function(*jax.tree.map(lambda leaf: np.asarray(leaf)[rows], arrays))
        keep = min(block, batch - first)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:keep], result)

    results = [call(first) for first in range(0, batch, block)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)


def map_chunks(function: Callable[..., T], chunk: int, *arrays: object) -> T:
    """Applies a batched function to `chunk` rows at a time, inside a compiled program.

    Args:
      function: pytrees of arrays with a leading axis in, a pytree of such arrays out.
      chunk: rows of a call, at most; the last one repeats rows.
      *arrays: pytrees of arrays [B, ...].
    """
    batch = jax.tree.leaves(arrays)[0].shape[0]
    chunk = min(chunk, batch)
    count = -(-batch // chunk)
    index = jnp.arange(count * chunk).reshape(count, chunk) % batch
    results = jax.lax.map(
        lambda rows: function(*jax.tree.map(lambda array: jnp.asarray(array)[rows], arrays)), index
    )
    return jax.tree.map(lambda x: x.reshape(count * chunk, *x.shape[2:])[:batch], results)
