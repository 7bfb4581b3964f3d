"""Batched functions called on a fixed number of rows: compiled once, and no wider than is fast."""

from collections.abc import Callable
from typing import TypeVar

import jax
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
