"""The programs of sampling and of an update, compiled for chips without weights.

They are those of `learner.training.trainer` with the longest prompts and completions: parameters
for decoding, prefill, a segment of decoding and, without a kernel, the growth of its cache; the
gradients of one micro-batch and the optimizer.
"""

import dataclasses
import time
import types
from typing import Any

import jax
from jax.sharding import Mesh

from learner.checks import first_line
from learner.decoder.attention import obstacle
from learner.decoder.config import DecoderConfig
from learner.devices import sharding
from learner.devices.chips import Chip
from learner.plan import schedule
from learner.plan.cost import cost
from learner.plan.targets import Target
from learner.training.train_state import abstract_train_state
from learner.training.trainer import GRPOConfig, GRPOTrainer

#: Program -> the part of a step that it belongs to.
PARTS = {
    "prepare": "sampling",
    "prefill": "sampling",
    "resize": "sampling",
    "segment": "sampling",
    "gradients": "update",
    "optimizer": "update",
}

# What `learner.decoder.attention.choose` would choose on each platform.
_ATTENTION = {"tpu": "flash", "cuda": "cudnn"}


@dataclasses.dataclass(frozen=True)
class Program:
    """One program on one device, as its compiler made it. Sizes in bytes.

    Attributes:
        name: of `PARTS`.
        problem: why it does not compile, or empty. If it does not, the fields below but
            `elsewhere` have their defaults.
        arguments, outputs: of the program.
        reused: arguments whose memory the outputs take over.
        temporaries: what the compiler adds.
        elsewhere: what else is on the device while the program runs.
        compile_seconds: on this machine.
        bytes_ideal: arguments and new outputs, once each.
        bytes_moved: what it reads and writes; for a segment, in one step of decoding.
        cycles: the compiler's estimate, without kernels; None for GPUs.
        seconds: predicted, `learner.plan.cost`; None for GPUs.
        least: the same by schedules and bytes alone.
        attention: of `seconds`, those of attention kernels.
        mixed: predicted seconds of a decoding step, or of gradients, with `schedule.mixed` lengths.
        measured: seconds it took, `learner.plan.measure`; of a segment, for one step of decoding.
        executable: None if it does not compile.
    """

    name: str
    problem: str = ""
    arguments: int = 0
    outputs: int = 0
    reused: int = 0
    temporaries: int = 0
    elsewhere: int = 0
    compile_seconds: float = 0.0
    bytes_ideal: int = 0
    bytes_moved: float = 0.0
    cycles: float | None = None
    seconds: float | None = None
    least: float | None = None
    attention: float | None = None
    mixed: float | None = None
    measured: float | None = None
    executable: jax.stages.Compiled | None = dataclasses.field(default=None, repr=False)

    @property
    def total(self) -> int:
        """Bytes in use on the device while it runs."""
        return self.arguments + self.outputs - self.reused + self.temporaries + self.elsewhere


def abstract_trainer(config: DecoderConfig, training: GRPOConfig, mesh: Mesh) -> GRPOTrainer:
    """A trainer without any arrays, whose programs can be lowered."""
    params = abstract_train_state(config, training.optimizer, mesh).params
    # The parts of a tokenizer that shapes depend on.
    vocabulary = {"last": config.vocab_size - 1}
    tokenizer = types.SimpleNamespace(eos_token_id=1, pad_token_id=0, get_vocab=lambda: vocabulary)
    return GRPOTrainer(
        training,
        config,
        mesh,
        tokenizer,
        frozen_params=params if training.objective.kl_coef > 0 or training.lora.rank else None,
    )


def for_target(config: DecoderConfig, target: Target, lora_rank: int = 0) -> DecoderConfig:
    """The model with the attention kernel of a chip, if that supports the model.

    On devices at hand, what a run chooses once it has tried the kernel. As in a run, the base of
    adapters is kept in the dtype of the products.
    """
    param_dtype = config.dtype if lora_rank else config.param_dtype
    if target.at_hand:
        return dataclasses.replace(config, attention="auto", param_dtype=param_dtype)
    name = _ATTENTION[target.chip.platform]
    if obstacle(name, config) or target.chip.half != "bfloat16":  # cuDNN's needs an A100 or later.
        name = "reference"
    return dataclasses.replace(config, attention=name, param_dtype=param_dtype)


def compiled(
    config: DecoderConfig,
    training: GRPOConfig,
    mesh: Mesh,
    prompt_length: int,
    chip: Chip,
    known: dict[str, Program],
) -> list[Program]:
    """All programs of a step, compiled for the devices of a mesh.

    Args:
        config: the model; `for_target`.
        training: how it is trained and sampled.
        mesh: devices of the chip, `learner.plan.targets`; nothing runs on them here.
        prompt_length: tokens of the longest prompt.
        chip: what the devices are.
        known: programs by their text; what is compiled here is added. JAX would return one that was
            compiled before without compiling, and so without its schedules.

    Raises:
        ValueError: model, options and mesh do not go together.
    """
    trainer = abstract_trainer(config, training, mesh)
    params = abstract_train_state(config, training.optimizer, mesh).params
    lowered = trainer.sampler.lower(
        params, training.prompts_per_step, training.group_size, prompt_length
    ) | trainer.lower_update(prompt_length)
    state = abstract_train_state(config, training.optimizer, mesh, training.lora)
    made = {}
    for name in (name for name in PARTS if name in lowered):
        full, mixed = (
            x(prompt_length, training.max_new_tokens) for x in (schedule.full, schedule.mixed)
        )
        times = trainer.sampler.segment_tokens if name == "segment" else 1
        caches = {"segment": (full, mixed), "gradients": (None, mixed)}.get(name, (None, None))
        text = lowered[name].as_text()
        if text not in known:
            known[text] = compile_program(name, lowered[name], chip, times, caches)
        made[name] = known[text]

    needs_frozen = training.objective.kl_coef > 0 or training.lora.rank
    frozen = sharding.device_bytes(params) if needs_frozen else 0
    resident = sharding.device_bytes(state) + frozen
    weights, prompt_cache = made["prepare"].outputs, made["prefill"].reused
    elsewhere = {
        "prepare": resident - made["prepare"].arguments,
        "prefill": resident + made["segment"].reused,
        "resize": resident + weights + prompt_cache,
        "segment": resident,
        "gradients": sharding.device_bytes(state.opt_state),
        "optimizer": frozen,
    }
    return [dataclasses.replace(p, elsewhere=elsewhere[name]) for name, p in made.items()]


def compile_program(
    name: str,
    lowered: jax.stages.Lowered,
    chip: Chip,
    times: int = 1,
    caches: tuple[schedule.Caches | None, schedule.Caches | None] = (None, None),
) -> Program:
    """Compile a program.

    Args:
        name: of the program.
        lowered: the program, for devices of the chip.
        chip: what the devices are.
        times: iterations of its loop, if that has no known trip count; the cost is that of one.
        caches: of a decoding step: full ones, and mixed ones. Sequences of an update are full, or
            filled with completions of mixed lengths.
    """
    schedule.forget()
    start = time.perf_counter()
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:  # The TPU compiler reports what does not fit.
        return Program(name, problem=first_line(error)[:300])
    seconds = time.perf_counter() - start
    memory: Any = program.memory_analysis()
    text = program.as_text() or ""
    of_all, of_mixed = (cost(text, chip, times, x) for x in caches)

    def each(total: float | None) -> float | None:
        return None if total is None else total / times

    arguments, outputs = memory.argument_size_in_bytes, memory.output_size_in_bytes
    reused = memory.alias_size_in_bytes
    return Program(
        name=name,
        arguments=arguments,
        outputs=outputs,
        reused=reused,
        temporaries=memory.temp_size_in_bytes,
        compile_seconds=seconds,
        bytes_ideal=arguments + outputs - reused,
        bytes_moved=of_all.nbytes / times,
        cycles=each(of_all.cycles),
        seconds=each(of_all.seconds),
        least=each(of_all.least),
        attention=each(of_all.attention),
        mixed=each(of_mixed.seconds),
        executable=program,
    )
