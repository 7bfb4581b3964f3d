"""Slices of accelerators to compile for, at hand or not.

The compilers are those of the wheels `jax[tpu]` and `jax[cuda12]` (extras `tpu` and `gpu`). They
need no accelerator: JAX describes one to them (`jax.experimental.topologies`).
"""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

import jax
import jinja2

from learner.devices.chips import CHIPS, Chip
from learner.plan import schedule

# Otherwise the TPU runtime looks for its machine, and admits one process only.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


# TPUs whose slices are named by their TensorCores, two per chip.
_TWO_CORES = ("v5p",)
_WHEELS = {"tpu": ("libtpu", "tpu"), "cuda": ("jax_cuda12_plugin", "gpu")}


@dataclasses.dataclass(frozen=True)
class Target:
    """The chips of one run.

    Attributes:
        name: such as "v5p-64" or "h100-8".
        chip: kind of the chips.
        count: number of chips, and of devices.
        at_hand: whether they are the devices of this process.
    """

    name: str
    chip: Chip
    count: int
    at_hand: bool = False

    @property
    def per_host(self) -> int:
        """Chips of one host; the smaller slices of v5e and v6e have one host for up to eight."""
        if self.count <= 8 and self.chip.name in ("v5e", "v6e"):
            return self.count
        return min(self.count, self.chip.per_host)

    @classmethod
    def parse(cls, name: str) -> "Target":
        """The target of a name: a chip, a dash and the number; no number means one.

        A slice of TPUs has the name its cloud gives it: v5p-64 has 64 cores, which are 32 chips.

        Raises:
            ValueError: there is no such chip, or no slice of that size.
        """
        found = re.fullmatch(r"(\w+?)(?:-([1-9]\d*))?", name)
        if found is None or found[1] not in CHIPS:
            raise ValueError(
                f"chips={name!r}: allowed are {', '.join(CHIPS)}, with a number such as v5e-8"
            )
        number = int(found[2] or 1)
        if found[1] in _TWO_CORES and found[2]:
            if number % 2:
                raise ValueError(f"chips={name!r}: {found[1]} has two cores a chip, so an even one")
            number //= 2
        if number & (number - 1):
            raise ValueError(f"chips={name!r}: allowed are powers of two")
        return cls(name, CHIPS[found[1]], number)

    @classmethod
    def of_this_process(cls) -> "Target":
        """The devices of this process. Of a CPU only the memory is known.

        Raises:
            ValueError: they are no chips of `CHIPS`.
        """
        devices = jax.local_devices()
        kind, count = devices[0].device_kind, len(devices)
        if devices[0].platform == "cpu":
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / count
            unknown = math.inf
            chip = Chip("cpu", "cpu", [kind], unknown, unknown, memory, unknown, half="float32")
        else:
            found = Chip.of(devices[0])
            if found is None:
                known = ", ".join(kind for chip in CHIPS.values() for kind in chip.kinds)
                raise ValueError(f"device_kind={kind!r}: known are {known}")
            chip = found
        name = chip.name
        if count > 1:
            name = f"{name}-{count * (2 if name in _TWO_CORES else 1)}"
        return cls(name, chip, count, at_hand=True)

    def devices(self) -> Sequence[jax.Device]:
        """Devices to compile for; nothing runs on them unless they are at hand.

        Raises:
            ValueError: the compiler of the platform is not installed.
        """
        from jax.experimental import topologies

        if self.at_hand:
            return jax.local_devices()
        module, extra = _WHEELS[self.chip.platform]
        if importlib.util.find_spec(module) is None:
            raise ValueError(
                f"chips={self.name!r}, which need not be here: needs its compiler {module}; "
                f"in a clone of the project: pip install -e '.[{extra}]'"
            )
        if self.chip.platform == "cuda":
            described = topologies.get_topology_desc(
                platform="cuda",
                topology_name=self.name,
                topology=f"1x1x{self.count}",
                target_config=_description(self.chip),
            )
            return described.devices
        shape = _slice(self.count, 3 if self.chip.name in _TWO_CORES else 2)
        # In other cases the compiler knows the hosts.
        one_host = {"chips_per_host_bounds": [2, 4, 1]} if self.per_host == 8 else {}
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{self.chip.name}:{shape}", **one_host
        )
        return described.devices[: self.count]


def _description(gpu: Chip) -> str:
    """A GPU for its compiler: text of a `GpuTargetConfigProto`, as openxla/xla keeps one for each
    card in `xla/backends/gpu/target_config/specs`."""
    text = Path(__file__).with_name("gpu.textproto").read_text(encoding="utf-8")
    return jinja2.Template(text).render({**vars(gpu), **(gpu.gpu or {})})


def _slice(count: int, dimensions: int) -> str:
    """Topology of a slice, such as "4x8"; fewer than four chips are part of a host's four."""
    exponent = max(2, count.bit_length() - 1)
    sizes = [1 << (exponent + i) // dimensions for i in range(dimensions)]
    return "2x2x1" if sizes == [1, 2, 2] else "x".join(map(str, sizes))


def use_compilers() -> None:
    """Let the compilers work without their machines; call it before JAX looks for devices."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    schedule.keep()
    jax.config.update("jax_platforms", "cpu")
