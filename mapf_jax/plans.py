"""What whole plans say, for batches of NumPy arrays on the host.

A plan is the cells int[B, T, A, 2] of A agents at T times, T >= 1. (`verify.path_costs` is the
counterpart inside compiled programs.)
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from mapf_jax.types import Solution


def arrivals(paths: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """int32[B, A]: the first time from which each agent stays on its goal; T if it is elsewhere.

    Args:
      paths: int[B, T, A, 2].
      goals: int[B, A, 2].
    """
    away = np.any(paths != goals[:, None], axis=-1)
    times = np.arange(1, paths.shape[1] + 1, dtype=np.int32)
    return np.max(np.where(away, times[:, None], 0), axis=1)


def waiting(paths: np.ndarray, arrivals: np.ndarray) -> np.ndarray:
    """bool[B, A]: the agent stays in a cell for a step before its arrival (int[B, A])."""
    still = np.all(paths[:, 1:] == paths[:, :-1], axis=-1)
    early = np.arange(paths.shape[1] - 1)[:, None] < arrivals[:, None]
    waits: np.ndarray = np.any(still & early, axis=1)
    return waits


def rest(paths: np.ndarray, steps: int) -> np.ndarray:
    """[B, `steps`, A, 2]: the plans made longer by staying in their last cells."""
    return np.pad(paths, ((0, 0), (0, steps - paths.shape[1]), (0, 0), (0, 0)), mode="edge")


def join(solutions: Sequence[Solution]) -> Solution:
    """Batches of solutions as one; shorter plans rest."""
    steps = max(solution.paths.shape[1] for solution in solutions)
    longer = [
        dataclasses.replace(solution, paths=rest(np.asarray(solution.paths), steps))
        for solution in solutions
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *longer)
