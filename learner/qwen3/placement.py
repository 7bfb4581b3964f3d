"""Where the parameters live on the mesh."""

from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding

from learner.devices import sharding
from learner.qwen3.config import Qwen3Config
from learner.qwen3.model import logical_axes


def check(config: Qwen3Config, mesh: Mesh) -> None:
    """Raise `ValueError` if a dimension of the model does not divide over its mesh axis."""
    for field, axis in (
        ("num_attention_heads", "tensor"),
        ("num_key_value_heads", "tensor"),
        ("intermediate_size", "tensor"),
        ("vocab_size", "tensor"),
        ("hidden_size", "fsdp"),
    ):
        value, size = getattr(config, field), mesh.shape[axis]
        if value % size:
            allowed = [n for n in range(1, min(value, 64) + 1) if value % n == 0]
            raise ValueError(
                f"{field} is {value}, which mesh axis {axis}={size} does not divide; "
                f"allowed sizes of {axis}: {allowed}"
            )


def param_shardings(config: Qwen3Config, mesh: Mesh) -> dict[str, Any]:
    """The tree of the parameters, with a `NamedSharding` for every array.

    Raises:
        ValueError: a dimension does not divide over its mesh axis.
    """
    check(config, mesh)
    return jax.tree.map(
        lambda names: NamedSharding(mesh, nn.logical_to_mesh_axes(names, sharding.RULES)),
        logical_axes(config),
        is_leaf=lambda x: isinstance(x, tuple),
    )
