"""Calls of jitted batched functions on a fixed number of rows, so that each is compiled once."""

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np

T = TypeVar("T")

BLOCK = 512


def in_blocks(function: Callable[..., T], *arrays: object, block: int = BLOCK) -> T:
    """Calls a jitted batched function on rows of fixed number.

    Args:
      function: pytrees of arrays with a leading axis in, a pytree of arrays with that axis out.
      *arrays: pytrees of arrays [B, ...], B >= 1.
      block: rows of a call; the last call repeats rows to fill up.

    Returns:
      The results for the B rows, with NumPy leaves.
    """
    batch = len(jax.tree.leaves(arrays)[0])
    pieces = []
    for first in range(0, batch, block):
        rows = np.arange(first, first + block) % batch
        result = function(*jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], arrays))
        keep = min(block, batch - first)
        pieces.append(jax.tree.map(lambda leaf, keep=keep: np.asarray(leaf)[:keep], result))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *pieces)
