"""Layouts of a model on a slice of chips: the mesh, and how much of a batch runs at a time."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from learner import checks
from learner.decoder import model
from learner.decoder.cached_attention import choose_decoding
from learner.decoder.config import DecoderConfig
from learner.devices import sharding
from learner.plan.programs import PARTS, Program, compiled
from learner.plan.targets import Target
from learner.training.grpo import ObjectiveConfig
from learner.training.lora import LoraConfig
from learner.training.train_state import OptimizerConfig
from learner.training.trainer import GRPOConfig

#: Fraction of a device's memory for programs; the rest is for the runtime and fragmentation.
USABLE = 0.92

_MOST_SEQUENCES, _MOST_COMPLETIONS = 4, 64
_MOST_TRIES = 4  # Layouts that are compiled for one target.
# Bytes per parameter in an update, without moments: itself, its gradient, the gradients' sum.
_UPDATE_BYTES = 12
# Bytes per parameter of its moments, by `Work.moment_dtype`.
_MOMENT_BYTES = {"float32": 8, "bfloat16": 6, "int8": 2}
# Latency of an exchange in a layer, whatever its size; only to rank layouts.
_EXCHANGE_SECONDS = 5e-6


@dataclasses.dataclass(frozen=True)
class Work:
    """The training to plan for, on any chips.

    Attributes:
        prompt_length: tokens of the longest prompt.
        max_new_tokens: tokens of the longest completion.
        group_size: completions to a prompt.
        cache_fraction: the cache's size, as a fraction of what the longest completions need.
        prompts_per_step: prompts of one update.
        moment_dtype: dtype of Adam's moments, see `learner.training.train_state.OptimizerConfig`.
        lora_rank: rank of adapters; 0 trains all parameters.
        kl_coef: above 0 adds a reference model.

    Raises:
        ValueError: a field is out of its range.
    """

    prompt_length: int = 512
    max_new_tokens: int = 1024
    cache_fraction: float = 1.0
    group_size: int = 8
    prompts_per_step: int = 32
    moment_dtype: str = "float32"
    lora_rank: int = 0
    kl_coef: float = 0.0

    def __post_init__(self) -> None:
        checks.integers(
            self, prompt_length=1, max_new_tokens=1, group_size=2, prompts_per_step=1, lora_rank=0
        )
        checks.positive(self, "cache_fraction")
        checks.fractions(self, "cache_fraction")
        checks.not_negative(self, "kl_coef")
        checks.choices(self, moment_dtype=tuple(_MOMENT_BYTES))


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh and batch sizes.

    Attributes:
        data, fsdp, tensor: sizes of the mesh axes.
        sequences: sequences of a micro-batch on each batch shard.
        completions: completions sampled at a time for each batch shard; decoding may place
            sequences differently (`learner.sampling.sampler`).
        remat: what is kept of every block for the backward pass, see `DecoderConfig`.
    """

    data: int
    fsdp: int
    tensor: int
    sequences: int
    completions: int
    remat: str = "full"

    @property
    def shards(self) -> int:
        """Number of batch shards."""
        return self.data * self.fsdp

    @property
    def mesh(self) -> str:
        """The sizes of the axes, as option `--mesh` spells them."""
        return f"{self.data}x{self.fsdp}x{self.tensor}"

    def on(self, devices: Sequence[jax.Device]) -> Mesh:
        """The mesh of these devices."""
        return sharding.make_mesh(self.data, self.fsdp, self.tensor, devices=devices)

    def training(self, work: Work) -> GRPOConfig:
        """The options of training; no fewer prompts than can be sampled at a time."""
        completions = self.completions * self.shards
        return GRPOConfig(
            prompts_per_step=max(work.prompts_per_step, completions // work.group_size),
            group_size=work.group_size,
            micro_batch_size=self.sequences * self.shards,
            max_new_tokens=work.max_new_tokens,
            sampling_slots=completions,
            cache_fraction=work.cache_fraction,
            objective=ObjectiveConfig(kl_coef=work.kl_coef),
            optimizer=OptimizerConfig(moment_dtype=work.moment_dtype),
            lora=LoraConfig(rank=work.lora_rank),
        )


def first_remat(config: DecoderConfig) -> str:
    """The `remat` to try first: the kernel of TPUs is worth the memory of its results."""
    return "attention" if config.attention == "flash" else "full"


def layouts(
    config: DecoderConfig, target: Target, work: Work, remat: str | None = None
) -> list[Layout]:
    """Layouts that should fit, the fastest first, judged by weights, state and caches alone.

    Most of a step is decoding. For each token it reads the caches of its completions and the
    weights, split over `tensor` and the part of `fsdp` that decoding folds into it, all on one
    host, as processes sample alone. Among layouts that decode equally fast, updates are fastest
    with the smallest `tensor`, which exchanges the fewest activations.
    """
    parameters = sum(x.size for x in jax.tree.leaves(model.abstract_params(config)))
    memory = USABLE * target.chip.memory
    itemsize = 4 if config.dtype == "float32" else 2
    state = parameters * (_UPDATE_BYTES + _MOMENT_BYTES[work.moment_dtype])
    if work.lora_rank:  # The base alone: adapters are small.
        state = parameters * itemsize
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    # Without a kernel the cache has no pages, and exists in two sizes while it grows.
    paged = choose_decoding(config).name != "reference"
    fraction, caches = (work.cache_fraction, 1.0) if paged else (1.0, 1.5)
    cache = fraction * work.max_new_tokens + work.prompt_length / work.group_size
    cache *= jnp.dtype(config.kv_dtype).itemsize * per_token
    per_sequence = 4 * itemsize * config.num_hidden_layers * config.hidden_size
    per_sequence *= work.prompt_length + work.max_new_tokens
    found: list[tuple[float, Layout]] = []
    sizes = [1 << n for n in range(target.count.bit_length())]
    for tensor, fsdp in itertools.product(sizes, sizes):
        data = target.count // (tensor * fsdp)
        divides = config.num_key_value_heads % tensor == config.hidden_size % fsdp == 0
        if not data or not divides or tensor > target.per_host:
            continue
        split = tensor * max(
            n
            for n in sizes
            if math.gcd(fsdp, target.per_host // tensor) % n == 0
            and config.num_key_value_heads % (tensor * n) == 0
        )
        weights, resident = itemsize * parameters / split, state / (fsdp * tensor)
        most = int((memory - weights - resident) / (caches * cache / tensor))
        batch = work.prompts_per_step * work.group_size // (data * fsdp)
        if resident > 0.85 * memory or most < 1 or batch < 1:
            continue
        completions = _power_below(min(_MOST_COMPLETIONS, most, batch))
        sequences = _power_below(
            min(_MOST_SEQUENCES, max(1, int((memory - resident) / per_sequence)), batch)
        )
        seconds = (weights + completions * cache / tensor) / target.chip.bandwidth
        seconds += (split > 1) * 2 * config.num_hidden_layers * _EXCHANGE_SECONDS
        layout = Layout(data, fsdp, tensor, sequences, completions, remat or first_remat(config))
        found.append((float(f"{seconds / (layout.shards * completions):.3g}"), layout))
    return [x for _, x in sorted(found, key=lambda pair: (pair[0], pair[1].tensor, pair[1].fsdp))]


def fits(programs: list[Program], target: Target) -> bool:
    """Whether every program compiles and leaves the runtime its part of the memory."""
    return all(not p.problem and p.total <= USABLE * target.chip.memory for p in programs)


def plan(
    config: DecoderConfig,
    target: Target,
    work: Work,
    layout: Layout | None = None,
    remat: str | None = None,
) -> tuple[Layout, list[Program]]:
    """Compile a model for a slice, with the first layout that fits or, if none does, the last one.

    A layout that does not fit is tried again with half the completions at a time if sampling is
    too large, and half the sequences, or less kept for the backward pass, if the update is.

    Args:
        config: the model; `learner.plan.programs.for_target`.
        target: the chips.
        work: what is trained.
        layout: the only one to try; None derives it.
        remat: that of derived layouts; None derives it, too.

    Raises:
        ValueError: no layout is possible, or the chips have no compiler here.
    """
    devices, tries, known = target.devices(), _MOST_TRIES, dict[str, Program]()
    one: Layout | None
    for one in [layout] if layout else layouts(config, target, work, remat):
        while one is not None:
            mesh, training = one.on(devices), one.training(work)
            model_config = dataclasses.replace(config, remat=one.remat)
            programs = compiled(
                model_config, training, mesh, work.prompt_length, target.chip, known
            )
            tries -= 1
            if layout or tries == 0 or fits(programs, target):
                return one, programs
            one = _smaller(one, programs, target)
    raise ValueError(
        f"chips={target.name!r}: too little memory for this model and completions of "
        f"{work.max_new_tokens} tokens; take more chips, shorter completions, or lora_rank"
    )


def _smaller(layout: Layout, programs: list[Program], target: Target) -> Layout | None:
    """The layout with half of what does not fit; None if that cannot be halved."""
    parts = {PARTS[p.name] for p in programs if not fits([p], target)}
    sequences, completions, remat = layout.sequences, layout.completions, layout.remat
    if "update" in parts and sequences == 1 and remat == "attention":
        remat = "full"
    elif "update" in parts:
        sequences //= 2
    if "sampling" in parts:
        completions //= 2
    if sequences < 1 or completions < 1:
        return None
    return dataclasses.replace(layout, sequences=sequences, completions=completions, remat=remat)


def _power_below(number: int) -> int:
    """The largest power of two up to a number."""
    return 1 << number.bit_length() - 1
