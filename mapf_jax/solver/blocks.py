"""Calls of jitted batched functions on a fixed number of rows, so that each is compiled once."""

import concurrent.futures
import os
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np

T = TypeVar("T")

BLOCK = 512  # Lakes that the solver takes at once.
_WORKERS = min(os.cpu_count() or 1, 8)


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

    def piece(first: int) -> T:
        rows = np.arange(first, first + block) % batch
        result = function(*jax.tree.map(lambda leaf: np.asarray(leaf)[rows], arrays))
        keep = min(block, batch - first)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:keep], result)

    first, *others = range(0, batch, block)
    pieces = [piece(first)]
    if others:
        # A compiled loop of small operations keeps one core busy; several run side by side.
        with concurrent.futures.ThreadPoolExecutor(_WORKERS) as workers:
            pieces += workers.map(piece, others)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *pieces)
