"""Ragged instances and plans brought to one static shape, and batches to a few."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import chex
import jax
import numpy as np

from mapf_jax.types import Array, Instance, Plan, stack

T = TypeVar("T")

BLOCK = 512  #: Instances that are computed at once.
#: Map widths to choose from, so that lake sizes share compiled programs.
WIDTHS = (5, 8, 10, 16, 32)
_STEPS = 16  # Plan lengths are rounded up to a multiple, so that few shapes are compiled.
_COORDINATE_LIMIT = 9999  # Clips coordinates far out of bounds.


def pad_instance(instance: Instance, width: int, num_agents: int) -> Instance:
    """An unsolved instance, or a batch, on a map of `width` with `num_agents` agents.

    The added cells are holes; the added agents are inactive and have (0, 0) as start and goal.
    The solution is dropped.

    Raises:
      ValueError: the instance is wider or has more agents than that.
    """
    cells = width - instance.blocked.shape[-1]
    agents = num_agents - instance.starts.shape[-2]
    if cells < 0 or agents < 0:
        raise ValueError(
            f"width={width}, num_agents={num_agents}: at least the instance's own width "
            f"{width - cells} and {num_agents - agents} agents are needed"
        )

    def padded(array: Array, *shape: int, value: bool | int = 0) -> np.ndarray:
        array = np.asarray(array)
        outer = array.shape[: array.ndim - len(shape)]
        result: np.ndarray = np.full(outer + shape, value, array.dtype)
        result[tuple(slice(n) for n in array.shape)] = array
        return result  # np.pad takes ten times as long.

    return Instance(
        size=instance.size,
        blocked=padded(instance.blocked, width, width, value=True),
        starts=padded(instance.starts, num_agents, 2),
        goals=padded(instance.goals, num_agents, 2),
        active=padded(instance.active, num_agents, value=False),
    )


def stack_padded(instances: Sequence[Instance], widths: Sequence[int] = ()) -> Instance:
    """A batch of single unsolved instances, with as many agents as any of them.

    Args:
      instances: at least one, of any sizes.
      widths: ascending widths of the map to choose from, so that few shapes are compiled; the
        widest instance's own width if none of them is large enough.
    """
    width = max(instance.blocked.shape[-1] for instance in instances)
    width = next((allowed for allowed in widths if allowed >= width), width)
    num_agents = max(instance.starts.shape[-2] for instance in instances)
    return stack([pad_instance(instance, width, num_agents) for instance in instances])


def stack_plans(plans: Sequence[np.ndarray | None], num_agents: int) -> Plan:
    """A batch of plans of different lengths and numbers of agents.

    Args:
      plans: int[t, agents, 2] each, with t >= 1; None for an answer that could not be read.
      num_agents: static number of agents A of the instances.

    Returns:
      A `Plan` of batch shape [B] with NumPy leaves; its T is the longest plan rounded up to a
      multiple of 16. Coordinates are clipped to four digits.
    """
    longest = max((len(plan) for plan in plans if plan is not None), default=1)
    steps = -(-longest // _STEPS) * _STEPS
    positions = np.zeros((len(plans), steps, num_agents, 2), np.int16)
    num_steps = np.zeros(len(plans), np.int32)
    counts = np.zeros(len(plans), np.int32)
    for i, plan in enumerate(plans):
        if plan is None:
            continue
        chex.assert_shape(plan, (None, None, 2))
        counts[i] = plan.shape[1]
        num_steps[i] = len(plan) - 1
        known = min(num_agents, plan.shape[1])
        cells = plan[:, :known].astype(np.int64)  # int8 may not be compared with the limit.
        clipped = np.clip(cells, -_COORDINATE_LIMIT, _COORDINATE_LIMIT)
        positions[i, : len(plan), :known] = clipped
        positions[i, len(plan) :] = positions[i, len(plan) - 1]
    parsable = np.array([plan is not None for plan in plans], bool)
    return Plan(positions=positions, num_steps=num_steps, parsable=parsable, num_agents=counts)


def in_blocks(function: Callable[..., T], *arrays: object, block: int) -> T:
    """Calls a jitted batched function on rows of fixed number, for which it is compiled once.

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
