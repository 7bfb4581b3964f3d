"""Limits of accelerator chips, from their vendors' data sheets."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import jax


@dataclasses.dataclass(frozen=True)
class Chip:
    """The limits of a chip, one device of JAX.

    Attributes:
        name: as in `CHIPS`.
        platform: "tpu", "cuda" or "cpu".
        kinds: what JAX calls it, `jax.Device.device_kind`.
        flops: dense operations a second in `half`.
        bandwidth: bytes a second of its memory.
        memory: bytes, as a GPU's driver or the TPU compiler reports them.
        link: bytes a second that it sends to the other chips of a slice or machine.
        per_host: chips of one host, in slices of several hosts.
        half: 16-bit dtype of its matrix units.
        clock: cycles a second, as a program's `estimated_cycles` counts them; TPUs only.
        gpu: what else the compiler for GPUs asks of one.
    """

    name: str
    platform: str
    kinds: Sequence[str]
    flops: float
    bandwidth: float
    memory: float
    link: float
    per_host: int = 8
    half: str = "bfloat16"
    clock: float | None = None
    gpu: Mapping[str, float] | None = None

    @classmethod
    def of(cls, device: jax.Device) -> Optional["Chip"]:
        """The chip that a device is; None if it is none of `CHIPS`."""
        return next((x for x in CHIPS.values() if device.device_kind in x.kinds), None)


_TABLE = Path(__file__).with_name("chips.json").read_text(encoding="utf-8")
#: Chips by name.
CHIPS = {name: Chip(name, **limits) for name, limits in json.loads(_TABLE).items()}
