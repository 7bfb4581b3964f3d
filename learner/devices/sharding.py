"""One mesh and one table of sharding rules: where every array of the learner lives.

The mesh has three axes. `data` splits sequences and copies parameters; `fsdp` splits sequences and
parameters (ZeRO-3, arXiv 1910.02054); `tensor` splits heads, feed-forward width and vocabulary
(arXiv 1909.08053).
"""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MESH_AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

#: Logical axis -> mesh axes; axes of activations follow the gap.
RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    ("layers", None),
    ("embed", "fsdp"),
    ("vocab", "tensor"),
    ("heads", "tensor"),
    ("kv_heads", "tensor"),
    ("mlp", "tensor"),
    ("head_dim", None),
    ("norm", None),

    ("batch", BATCH_AXES),
    ("data_batch", "data"),
    ("length", None),
    ("activation", None),
)  # fmt: skip


def mesh_size(text: str) -> tuple[int, int, int]:
    """Sizes of data, fsdp and tensor from a text such as "1x8x1".

    Raises:
        ValueError: the text has another form.
    """
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", text):
        raise ValueError(f"mesh is {text!r}; it must be data x fsdp x tensor, such as '1x8x1'")
    data, fsdp, tensor = map(int, text.split("x"))
    return data, fsdp, tensor


def make_mesh(
    data: int = 1, fsdp: int = 1, tensor: int = 1, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh of `data` x `fsdp` x `tensor` devices.

    With several processes it takes the devices of all of them. Those of one process form a block
    with all of `tensor` and as much of `fsdp` as fits, so that the axes that communicate most stay
    within a process.

    Args:
        devices: as many as the product; None takes the first ones of `jax.devices()`, or all of
            them with several processes.

    Raises:
        ValueError: a size is not positive or the number of devices does not fit.
    """
    sizes = (data, fsdp, tensor)
    for name, size in zip(MESH_AXES, sizes, strict=True):
        if size < 1:
            raise ValueError(f"mesh axis {name}={size}: allowed are integers from 1 up")
    count = math.prod(sizes)
    available = list(jax.devices() if devices is None else devices)
    if devices is None and jax.process_count() == 1:
        available = available[:count]
    if len(available) != count:
        raise ValueError(
            f"a mesh of data={data}, fsdp={fsdp}, tensor={tensor} takes {count} devices; "
            f"there are {len(available)}"
        )
    processes = len({device.process_index for device in available})
    if processes > 1:
        return _mesh(_across_processes(sizes, available, processes))
    return jax.make_mesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=available)


def _mesh(devices: np.ndarray) -> Mesh:
    return Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def _across_processes(
    sizes: tuple[int, int, int], devices: list[jax.Device], processes: int
) -> np.ndarray:
    """The devices of several processes as an array of these sizes; see `make_mesh`."""
    data, fsdp, tensor = sizes
    local = len(devices) // processes
    if local % tensor:
        raise ValueError(
            f"a mesh of data={data}, fsdp={fsdp}, tensor={tensor}: over {processes} "
            f"processes with {local} devices each, allowed are products of {len(devices)} "
            f"with a tensor that divides {local}"
        )
    shards = local // tensor
    within = (shards // math.gcd(fsdp, shards), math.gcd(fsdp, shards), tensor)
    across = tuple(whole // part for whole, part in zip(sizes, within, strict=True))
    return mesh_utils.create_hybrid_device_mesh(within, across, devices, process_is_granule=True)


def folded(mesh: Mesh, times: int) -> Mesh | None:
    """The same devices, with `tensor` `times` as long and `fsdp` that much shorter.

    None if `times` does not divide `fsdp` or `tensor` would span several processes.
    """
    data, fsdp, tensor = mesh.devices.shape
    if fsdp % times:
        return None
    devices = mesh.devices.reshape(data, fsdp // times, tensor * times)
    groups = devices.reshape(-1, tensor * times)
    if any(len({device.process_index for device in group}) > 1 for group in groups):
        return None
    return _mesh(devices)


@contextlib.contextmanager
def use(mesh: Mesh) -> Iterator[None]:
    """Trace and run inside it, so that the model's constraints on activations follow `RULES`.

    Without it the model runs too, and XLA alone decides where activations live.
    """
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Sequences over `data` and `fsdp`; their number must be a multiple of `num_batch_shards`."""
    return NamedSharding(mesh, P(BATCH_AXES))


def check_batch_size(name: str, size: int, mesh: Mesh | AbstractMesh) -> None:
    """Raise `ValueError` if `size` is not a multiple of `num_batch_shards`."""
    if size % num_batch_shards(mesh):
        raise ValueError(
            f"{name}={size}: allowed are multiples of {num_batch_shards(mesh)} (data * fsdp of the "
            "mesh)"
        )


def num_batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """Number of parts that sequences are split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def replicated(mesh: Mesh) -> NamedSharding:
    """A whole copy on every device."""
    return NamedSharding(mesh, P())


def device_bytes(tree: Any) -> int:
    """Bytes on one device of arrays, or of `jax.ShapeDtypeStruct`s with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )
