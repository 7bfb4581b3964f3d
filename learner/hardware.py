"""What accelerators can do at most, by their vendors' data sheets, and what of it is assumed.

Nothing here was measured. Peaks are those of dense bfloat16 products without sparsity; links are
those between the chips of one machine or slice, in one direction and all of a chip's together.
"""

import dataclasses

from learner import checks


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """One chip, which is one device of JAX.

    Attributes:
        name: as in `ACCELERATORS`.
        flops: bfloat16 operations a second.
        bandwidth: bytes a second of its memory.
        memory: bytes.
        link: bytes a second that it sends to other chips.
        chips_per_host: chips that one host drives.
        source: where the numbers stand.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    link: float
    chips_per_host: int
    source: str


_NVIDIA = "NVIDIA data sheet of the {} (SXM); dense, half of what it states with sparsity"
_TPU = "cloud.google.com/tpu/docs/{}; half of the bidirectional bandwidth between chips"

ACCELERATORS = {
    chip.name: chip
    for chip in (
        Accelerator("H200", 989e12, 4.8e12, 141e9, 450e9, 8, _NVIDIA.format("H200")),
        Accelerator("H100", 989e12, 3.35e12, 80e9, 450e9, 8, _NVIDIA.format("H100")),
        Accelerator("v5e", 197e12, 819e9, 16e9, 200e9, 8, _TPU.format("v5e")),
        Accelerator("v5p", 459e12, 2765e9, 95e9, 600e9, 4, _TPU.format("v5p-training")),
    )
}


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """Which part of its peaks an accelerator reaches, and what the peaks do not know.

    Attributes:
        products: share of `Accelerator.flops` in large matrix products of training and prefill.
        memory: share of `Accelerator.bandwidth` where decoding reads weights and caches.
        links: share of `Accelerator.link` in collectives.
        layer_seconds: of one layer of a decoding step, whatever its size: starting kernels.
        exchange_seconds: of one collective, whatever its size.
        causal: share of all pairs of tokens that attention in training and prefill computes.
    """

    products: float = 0.40
    memory: float = 0.70
    links: float = 0.60
    layer_seconds: float = 20e-6
    exchange_seconds: float = 5e-6
    causal: float = 0.5

    def __post_init__(self) -> None:
        for name in ("products", "memory", "links", "causal"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed are numbers in (0, 1]")
        checks.not_negative(self, "layer_seconds", "exchange_seconds")
