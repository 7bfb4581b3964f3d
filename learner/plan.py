"""Does a model train and sample on given devices? The memory of every program, without weights.

    python -m learner.plan --config=Qwen3-4B --mesh=1x1x1,1x8x1,32x8x1

The programs are those of `learner.training.trainer`: sampling (parameters for decoding, prefill, a
segment of decoding at the capacity for the longest completions) and a GRPO update (gradients of
one micro-batch of the longest rows, the optimizer). Each is traced, split over the mesh and
compiled with abstract arrays, for as many devices as asked for, all pretended by this CPU.

What is exact: arguments and results, which follow from shapes and shardings alone. What is an
estimate: temporaries, which are those of the CPU compiler. It turns bfloat16 products into float32
ones and keeps whole copies of weights and caches for that, as no accelerator does; so the programs
are compiled in float32, whose temporaries are about twice those of bfloat16. Attention is the
reference; the kernels of accelerators need less.

Exits with 1 if something does not fit.
"""

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax.sharding import Mesh

from learner import hub
from learner.devices import sharding
from learner.qwen3 import model
from learner.qwen3.config import DTYPES, REMAT, Qwen3Config
from learner.qwen3.sizes import NAMES, published
from learner.training.grpo import ObjectiveConfig
from learner.training.lora import LoraConfig
from learner.training.train_state import OptimizerConfig, abstract_train_state
from learner.training.trainer import GRPOConfig, GRPOTrainer

_GIGABYTE = 10**9
_DEVICE_COUNT = "--xla_force_host_platform_device_count"
# The order of operations that needs little memory, not the one that keeps many threads busy.
_COMPILER_OPTIONS = {"xla_cpu_enable_concurrency_optimized_scheduler": False}


@dataclasses.dataclass(frozen=True)
class Program:
    """The memory of one device while one program runs, in bytes.

    Attributes:
        reused: arguments whose memory the outputs take over.
        temporaries: what the compiler adds; an estimate, see the module.
        elsewhere: what lives on the device at that time and is no argument.
    """

    name: str
    arguments: int
    outputs: int
    reused: int
    temporaries: int
    elsewhere: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.arguments + self.outputs - self.reused + self.temporaries + self.elsewhere


@dataclasses.dataclass(frozen=True)
class Plan:
    """The memory of one device in one part of a training step.

    Attributes:
        part: "sampling" or "training".
        programs: in the order in which they run.
    """

    part: str
    programs: tuple[Program, ...]

    @property
    def peak(self) -> int:
        """Bytes of the program that needs most."""
        return max(program.total for program in self.programs)


@dataclasses.dataclass(frozen=True)
class _Vocabulary:
    """What shapes depend on of a tokenizer."""

    size: int
    eos_token_id: int = 1
    pad_token_id: int = 0

    def get_vocab(self) -> dict[str, int]:
        return {"last": self.size - 1}


def plan_sampling(
    config: Qwen3Config, training: GRPOConfig, mesh: Mesh, prompt_length: int
) -> Plan:
    """The memory of sampling the completions of one step; the state of training stays where it is.

    Args:
        config: the model.
        training: how it is trained and sampled.
        mesh: devices of any kind; nothing runs on them.
        prompt_length: tokens of the longest prompt.

    Raises:
        ValueError: model, options and mesh do not go together.
    """
    programs = _programs(
        config, lambda c: abstract_trainer(c, training, mesh).lower_sampling(prompt_length)
    )
    weights, prompt_cache = programs["prepare"].outputs, programs["prefill"].reused
    sample_cache = programs["segment"].reused
    resident = _state_bytes(config, training, mesh) + _frozen_bytes(config, training, mesh)
    if training.lora.rank:
        resident += _param_bytes(config, mesh)  # The base and its adapters, merged.
    elsewhere = {
        "prepare": resident - programs["prepare"].arguments,
        "prefill": resident + sample_cache,
        "resize": resident + weights + prompt_cache,
        "segment": resident,
    }
    return _plan("sampling", programs, elsewhere)


def plan_training(
    config: Qwen3Config, training: GRPOConfig, mesh: Mesh, prompt_length: int
) -> Plan:
    """The memory of an update; arguments and errors as of `plan_sampling`."""
    programs = _programs(
        config, lambda c: abstract_trainer(c, training, mesh).lower_update(prompt_length)
    )
    state = abstract_train_state(config, training.optimizer, mesh, training.lora)
    frozen = _frozen_bytes(config, training, mesh)
    elsewhere = {"gradients": _tree_bytes(state.opt_state), "optimizer": frozen}
    return _plan("training", programs, elsewhere)


def _plan(part: str, programs: dict[str, Program], elsewhere: dict[str, int]) -> Plan:
    """The programs in the order of `elsewhere`, which says what else is on the device."""
    named = ((programs[name], size) for name, size in elsewhere.items() if name in programs)
    return Plan(part, tuple(dataclasses.replace(p, elsewhere=size) for p, size in named))


def _programs(
    config: Qwen3Config, lower: Callable[[Qwen3Config], dict[str, jax.stages.Lowered]]
) -> dict[str, Program]:
    """The programs that `lower` makes, compiled in float32 (see the module)."""
    real = lower(config)
    is_float32 = config.dtype == "float32"
    twins = real if is_float32 else lower(dataclasses.replace(config, dtype="float32"))
    return {name: _program(name, real[name], twins[name]) for name in real}


def abstract_trainer(config: Qwen3Config, training: GRPOConfig, mesh: Mesh) -> GRPOTrainer:
    """A trainer without any arrays, whose programs can be lowered."""
    params = abstract_train_state(config, training.optimizer, mesh).params
    return GRPOTrainer(
        training,
        config,
        mesh,
        _Vocabulary(config.vocab_size),
        reference_params=params if training.objective.kl_coef > 0 else None,
        base_params=params if training.lora.rank else None,
    )


def _program(name: str, real: Any, twin: Any) -> Program:
    """Arguments and results of `real`, temporaries of its float32 twin."""
    compiled = twin.compile(_COMPILER_OPTIONS)
    arguments = _shard_bytes(real.args_info, compiled.input_shardings)
    outputs = _shard_bytes(real.out_info, compiled.output_shardings)
    return Program(
        name=name,
        arguments=sum(size for _, size in arguments),
        outputs=sum(size for _, size in outputs),
        reused=sum(size for argument, size in arguments if argument.donated),
        temporaries=compiled.memory_analysis().temp_size_in_bytes,
        elsewhere=0,
    )


def _shard_bytes(infos: Any, shardings: Any) -> list[tuple[Any, int]]:
    """Leaves with their bytes on one device; an argument that no program uses takes none."""
    leaves, structure = jax.tree.flatten(infos)
    places = cast(Any, structure).flatten_up_to(shardings)
    return [
        (leaf, math.prod(place.shard_shape(leaf.shape)) * leaf.dtype.itemsize if place else 0)
        for leaf, place in zip(leaves, places, strict=True)
    ]


def _tree_bytes(tree: Any) -> int:
    return sum(size for _, size in _shard_bytes(tree, jax.tree.map(lambda x: x.sharding, tree)))


def _state_bytes(config: Qwen3Config, training: GRPOConfig, mesh: Mesh) -> int:
    return _tree_bytes(abstract_train_state(config, training.optimizer, mesh, training.lora))


def _param_bytes(config: Qwen3Config, mesh: Mesh) -> int:
    return _tree_bytes(abstract_train_state(config, OptimizerConfig(), mesh).params)


def _frozen_bytes(config: Qwen3Config, training: GRPOConfig, mesh: Mesh) -> int:
    """Reference model and base of adapters."""
    copies = (training.objective.kl_coef > 0) + (training.lora.rank > 0)
    return copies * _param_bytes(config, mesh)


# Report ----------------------------------------------------------------------


def table(plan: Plan) -> str:
    """The programs of a plan, a line each, in gigabytes (1e9 bytes) of one device."""
    columns = ("arguments", "outputs", "reused", "temporaries", "elsewhere", "total")
    lines = [f"{plan.part:<12}" + "".join(f"{column:>13}" for column in columns)]
    for program in plan.programs:
        values = (getattr(program, column) / _GIGABYTE for column in columns)
        lines.append(f"{program.name:<12}" + "".join(f"{value:>13.3g}" for value in values))
    return "\n".join(lines)


def verdict(plan: Plan, config: Qwen3Config, training: GRPOConfig, mesh: Mesh, memory: int) -> str:
    """Whether a plan fits into `memory` bytes; if not, what to change, the most useful first."""
    needed = f"{plan.part} needs {plan.peak / _GIGABYTE:.3g} of {memory / _GIGABYTE:.3g} GB"
    if plan.peak <= memory:
        return f"{needed}: fits"
    advice = _advice(plan, config, training, mesh)
    return "\n  ".join([f"{needed}: does not fit. What to change:", *advice])


def _advice(plan: Plan, config: Qwen3Config, training: GRPOConfig, mesh: Mesh) -> list[str]:
    def gigabytes(size: int) -> str:
        return f"{size / _GIGABYTE:.3g} GB"

    advice = [
        f"a larger fsdp axis (now {mesh.shape['fsdp']}): parameters and optimizer take "
        f"{gigabytes(_state_bytes(config, training, mesh))} of each device, in inverse proportion "
        "to it"
    ]
    shards = sharding.num_row_shards(mesh)
    if plan.part == "training":
        temporaries = gigabytes(max(program.temporaries for program in plan.programs))
        rows = training.micro_batch_rows // shards
        if rows > 1:
            advice.append(
                f"fewer rows at a time on each device (--rows, now {rows}): temporaries take "
                f"{temporaries}"
            )
        if config.remat not in ("full", "offload"):
            advice.append(
                f"--remat=full (now {config.remat}): keeps only the input of each block of the "
                f"{temporaries} of temporaries"
            )
        if (several := training.completions_per_row) > 1:
            advice.append(f"fewer completions in a row (--completions_per_row, now {several})")
    else:
        segment = next(program for program in plan.programs if program.name == "segment")
        advice.append(
            "fewer completions at a time on each device (--completions, now "
            f"{training.sampling_rows // shards}), or shorter ones (--max_new_tokens, now "
            f"{training.max_new_tokens}): their keys and values take {gigabytes(segment.reused)}"
        )
        kv_heads, tensor = config.num_key_value_heads, mesh.shape["tensor"]
        if larger := [n for n in range(tensor + 1, kv_heads + 1) if kv_heads % n == 0]:
            advice.append(
                f"a larger tensor axis (now {tensor}; {larger[0]} is the next): the weights for "
                f"decoding take {gigabytes(plan.programs[0].outputs)}, and fsdp does not split them"
            )
    if not training.lora.rank:
        if training.optimizer.moment_dtype == "float32":
            saved = gigabytes(_param_bytes(config, mesh) // 2)
            advice.append(f"--moment_dtype=bfloat16: saves {saved}")
        advice.append("--lora_rank=16: no moments and no optimizer for the model's parameters")
    return advice


# Command ---------------------------------------------------------------------


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m learner.plan", description=(__doc__ or "").split("\n\n")[0]
    )
    add = parser.add_argument
    add("--config", required=True, help=f"{', '.join(NAMES)}, a folder, or a hub name")
    add("--mesh", default="1x1x1,1x8x1,32x8x1", help="data x fsdp x tensor, one or several")
    add("--memory", type=float, default=141.0, help="gigabytes (1e9 bytes) of one device")
    add("--parts", default="sampling,training", help="which to plan")
    add("--dtype", choices=DTYPES, default="bfloat16", help="of activations, decoding and cache")
    add("--remat", choices=REMAT, default="full", help="what the backward pass finds kept")
    add("--moment_dtype", choices=DTYPES, default="float32", help="of Adam's first moment")
    add("--lora_rank", type=int, default=0, help="adapters of this rank; 0 trains all parameters")
    add("--kl_coef", type=float, default=0.0, help="above 0 there is a reference model")
    add("--prompt_length", type=int, default=512, help="tokens of the longest prompt")
    add("--max_new_tokens", type=int, default=1024, help="tokens of the longest completion")
    add("--group_size", type=int, default=8, help="completions to each prompt")
    add("--rows", type=int, default=1, help="rows of a micro-batch on each row shard")
    add("--completions_per_row", type=int, default=1, help="completions that share a row")
    add("--completions", type=int, default=64, help="sampled at a time on each row shard")
    return parser.parse_args(argv)


def model_config(name: str, **compute: Any) -> Qwen3Config:
    """The configuration of a published model, of a folder, or of a model on the hub.

    Args:
        compute: compute options, as of `Qwen3Config.from_hf`.

    Raises:
        ValueError: there is none, or an option is invalid.
    """
    if name.removeprefix("Qwen/") in NAMES:
        return published(name, **compute)
    return Qwen3Config.from_folder(hub.model_folder(name, files=["config.json"]), **compute)


def mesh_sizes(text: str) -> list[tuple[int, int, int]]:
    """Sizes of (data, fsdp, tensor) from text such as "1x8x1,32x8x1"; see `sharding.mesh_size`."""
    return [sharding.mesh_size(part) for part in text.split(",")]


def use_host_devices(count: int) -> None:
    """Make this machine's CPU look like `count` devices; before anything uses JAX's devices."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if not flag.startswith(_DEVICE_COUNT)]
    os.environ["XLA_FLAGS"] = " ".join([*flags, f"{_DEVICE_COUNT}={count}"])
    jax.config.update("jax_platforms", "cpu")


def main(argv: Sequence[str] | None = None) -> int:
    """Plan for every mesh that is asked for, print, and return 1 if something does not fit."""
    options = _arguments(argv)
    planners = {"sampling": plan_sampling, "training": plan_training}
    fits = True
    try:
        parts = options.parts.split(",")
        if unknown := set(parts) - set(planners):
            raise ValueError(f"parts={sorted(unknown)}: allowed are {tuple(planners)}")
        config = model_config(options.config, dtype=options.dtype, remat=options.remat)
        sizes = mesh_sizes(options.mesh)
        use_host_devices(max(math.prod(size) for size in sizes))
        print(_heading(config, options))
        for size in sizes:
            mesh = sharding.make_mesh(*size)
            training = _training(options, sharding.num_row_shards(mesh))
            names = ", ".join(f"{axis} {n}" for axis, n in mesh.shape.items())
            print(f"\n{mesh.size} device{'s' * (mesh.size > 1)} ({names}), GB of each")
            for part in parts:
                plan = planners[part](config, training, mesh, options.prompt_length)
                memory = int(options.memory * _GIGABYTE)
                print(table(plan))
                print(verdict(plan, config, training, mesh, memory), flush=True)
                fits &= plan.peak <= memory
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if fits else 1


def _training(options: argparse.Namespace, shards: int) -> GRPOConfig:
    """So many prompts in a step that the completions sampled at a time are as many as allowed."""
    completions = options.completions * shards
    return GRPOConfig(
        prompts_per_step=max(1, completions // options.group_size),
        group_size=options.group_size,
        micro_batch_rows=options.rows * shards,
        completions_per_row=options.completions_per_row,
        max_new_tokens=options.max_new_tokens,
        sampling_rows=completions,
        objective=ObjectiveConfig(kl_coef=options.kl_coef),
        optimizer=OptimizerConfig(moment_dtype=options.moment_dtype),
        lora=LoraConfig(rank=options.lora_rank),
    )


def _heading(config: Qwen3Config, options: argparse.Namespace) -> str:
    parameters = sum(x.size for x in jax.tree.leaves(model.abstract_params(config)))
    return (
        f"{options.config}: {parameters / 1e9:.2f} billion parameters, {config.param_dtype}, "
        f"computed in {config.dtype}, remat {config.remat}.\n"
        f"Prompts of {options.prompt_length} tokens, completions of {options.max_new_tokens}; on "
        f"each row shard {options.completions} completions sampled and {options.rows} rows of "
        f"{options.completions_per_row} trained at a time.\n"
        "Compiled for CPUs, in float32 and with the reference attention: arguments and outputs "
        "are exact,\ntemporaries an upper estimate of what another platform needs."
    )


if __name__ == "__main__":
    sys.exit(main())
