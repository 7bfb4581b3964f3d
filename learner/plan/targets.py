"""Slices of accelerators to compile for; none of them has to be at hand.

The compilers are those of the wheels `jax[tpu]` and `jax[cuda12]` (extras `tpu` and `gpu`). They
need no accelerator: JAX describes one to them (`jax.experimental.topologies`).
"""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Sequence

import jax

# The TPU runtime looks for its machine otherwise, and lets one process have it.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a chip, one device of JAX, can do at most by its vendor's data sheet.

    Attributes:
        name: as in `CHIPS`.
        platform: "tpu" or "cuda".
        flops: dense bfloat16 operations a second (float16 where there is no bfloat16).
        bandwidth: bytes a second of its memory.
        memory: bytes.
        link: bytes a second that it sends to the other chips of a slice or machine.
        per_host: chips that one host drives, of slices of several hosts.
        clock: cycles a second, for TPUs: what `estimated_cycles` of a program count.
        description: of a GPU for its compiler: text of a `GpuTargetConfigProto`, as openxla/xla
            keeps one for each card in `xla/backends/gpu/target_config/specs`.
    """

    name: str
    platform: str
    flops: float
    bandwidth: float
    memory: float
    link: float
    per_host: int = 8
    clock: float | None = None
    description: str = ""


def _gpu(
    name: str,
    flops: float,
    bandwidth: float,
    memory: float,
    link: float,
    *,
    capability: str,
    cores: int,
    clock_ghz: float,
    l2: int,
    shared: int,
    threads: int = 2048,
) -> Chip:
    major, minor = capability.split(".")
    feature = "" if int(major) < 9 else " feature_extension: ACCELERATED_FEATURES"
    description = f"""
        gpu_device_info {{
          threads_per_block_limit: 1024 threads_per_warp: 32
          shared_memory_per_block: 49152 shared_memory_per_core: {shared}
          shared_memory_per_block_optin: {shared - 1024} threads_per_core_limit: {threads}
          core_count: {cores} fpus_per_core: {64 if major in "78" and minor != "9" else 128}
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          memory_bandwidth: {bandwidth:.0f} l2_cache_size: {l2} clock_rate_ghz: {clock_ghz}
          device_memory_size: {memory:.0f}
          cuda_compute_capability {{ major: {major} minor: {minor}{feature} }}
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
        device_description_str: "{name}"
        """
    return Chip(name, "cuda", flops, bandwidth, memory, link, description=description)


#: Memory of GPUs as their drivers report it, of TPUs as their compiler does.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", "tpu", 197e12, 819e9, 15.75 * 2**30, 200e9, 4, 1.5e9),
        Chip("v5p", "tpu", 459e12, 2765e9, 95.74 * 2**30, 600e9, 4, 1.75e9),
        Chip("v6e", "tpu", 918e12, 1640e9, 31.25 * 2**30, 448e9, 4, 1.75e9),
        _gpu("t4", 65e12, 320e9, 15.6e9, 16e9,
             capability="7.5", cores=40, clock_ghz=1.59, l2=4 << 20, shared=65536, threads=1024),
        _gpu("l4", 121e12, 300e9, 23.7e9, 32e9,
             capability="8.9", cores=58, clock_ghz=2.04, l2=48 << 20, shared=102400, threads=1536),
        _gpu("a100", 312e12, 2039e9, 85.1e9, 300e9,
             capability="8.0", cores=108, clock_ghz=1.41, l2=40 << 20, shared=167936),
        _gpu("h100", 989e12, 3352e9, 84.94e9, 450e9,
             capability="9.0", cores=132, clock_ghz=1.98, l2=50 << 20, shared=233472),
        _gpu("h200", 989e12, 4800e9, 151.4e9, 450e9,
             capability="9.0", cores=132, clock_ghz=1.98, l2=50 << 20, shared=233472),
        _gpu("b200", 2250e12, 7672e9, 191.5e9, 900e9,
             capability="10.0", cores=148, clock_ghz=1.965, l2=126 << 20, shared=233472),
    )
}  # fmt: skip

# TPUs of which a slice is named by its TensorCores, two a chip.
_TWO_CORES = ("v5p",)
_WHEELS = {"tpu": ("libtpu", "tpu"), "cuda": ("jax_cuda12_plugin", "gpu")}


@dataclasses.dataclass(frozen=True)
class Target:
    """Some chips that one run has for itself.

    Attributes:
        name: such as "v5p-64" or "h100-8".
        chip: which.
        count: number of chips, and of devices.
    """

    name: str
    chip: Chip
    count: int

    @property
    def per_host(self) -> int:
        """Chips that one host drives; the smaller slices of v5e and v6e have one for eight."""
        if self.count <= 8 and self.chip.name in ("v5e", "v6e"):
            return self.count
        return min(self.count, self.chip.per_host)

    @classmethod
    def parse(cls, name: str) -> "Target":
        """The target of a name: a chip, a dash and its number; no number means one.

        A slice of TPUs has the name its cloud gives it: v5p-64 has 64 cores, which are 32 chips.

        Raises:
            ValueError: there is no such chip, or no slice of so many.
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

    def devices(self) -> Sequence[jax.Device]:
        """Devices to compile for; nothing runs on them.

        Raises:
            ValueError: the compiler of the platform is not installed.
        """
        from jax.experimental import topologies

        module, extra = _WHEELS[self.chip.platform]
        if importlib.util.find_spec(module) is None:
            raise ValueError(
                f"chips={self.name!r}: its compiler is not installed; "
                f"pip install 'mapf-frozenlake-rl[{extra}]' brings it, with or without the chip"
            )
        if self.chip.platform == "cuda":
            described = topologies.get_topology_desc(
                platform="cuda",
                topology_name=self.name,
                topology=f"1x1x{self.count}",
                target_config=self.chip.description,
            )
            return described.devices
        shape = _slice(self.count, 3 if self.chip.name in _TWO_CORES else 2)
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{self.chip.name}:{shape}"
        )
        return described.devices[: self.count]


def _slice(count: int, dimensions: int) -> str:
    """How so many chips lie in a slice, "4x8" say; fewer than four are part of a host's four."""
    exponent = max(2, count.bit_length() - 1)
    sizes = [1 << (exponent + i) // dimensions for i in range(dimensions)]
    return "2x2x1" if sizes == [1, 2, 2] else "x".join(map(str, sizes))


def use_compilers() -> None:
    """Let the compilers work without their machines; before JAX looks for any."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")
