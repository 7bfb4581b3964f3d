"""Functions of whole plans. A plan is the cells int[..., T, A, 2] of A agents at T >= 1 times."""

from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np

from mapf_jax.types import Array, Instance, Solution

T = TypeVar("T", np.ndarray, jax.Array)
Tree = TypeVar("Tree", Solution, Instance)


def arrivals(paths: T, goals: Array) -> T:
    """int32[..., A]: the first time from which each agent stays on its goal; T if it is elsewhere.

    Args:
      paths: int[..., T, A, 2].
      goals: int[..., A, 2].
    """
    away = (paths != goals[..., None, :, :]).any(-1)
    times = np.arange(1, paths.shape[-3] + 1, dtype=np.int32)
    return (away.astype(np.int32) * times[:, None]).max(-2)


def waiting(paths: T, arrivals: T) -> T:
    """bool[B, A]: the agent stays in a cell for a step before its arrival (int[B, A])."""
    still = (paths[:, 1:] == paths[:, :-1]).all(-1)
    early = np.arange(paths.shape[1] - 1)[:, None] < arrivals[:, None]
    return (still & early).any(1)


def rest(paths: np.ndarray, steps: int) -> np.ndarray:
    """[B, `steps`, A, 2]: the plans made longer by staying in their last cells."""
    return np.pad(paths, ((0, 0), (0, steps - paths.shape[1]), (0, 0), (0, 0)), mode="edge")


def join(batches: Sequence[Tree]) -> Tree:
    """Batches of solutions, or of solved instances, as one; shorter plans rest."""

    def joined(*leaves: np.ndarray) -> np.ndarray:
        if np.ndim(leaves[0]) == 4:  # Plans, the only leaves of different lengths.
            steps = max(leaf.shape[1] for leaf in leaves)
            return np.concatenate([rest(np.asarray(leaf), steps) for leaf in leaves])
        return np.concatenate(leaves)

    return jax.tree.map(joined, *batches)
