"""What does a model cost on accelerators? Their own compilers answer, with no accelerator present.

    python -m learner.plan --config=Qwen3-4B --chips=v5e-8,v5p-64,h200 --json=plan.json
    python -m learner.plan --config=Qwen3-4B --measure

Every program of sampling and of an update is compiled for each target. The compiler reports memory,
bytes, cycles and the schedules of kernels; seconds, and all that follows from them, are predicted
from these, with full caches and, for decoding, also with completions of mixed lengths. With
`--measure` the target is the devices at hand, and the programs also run there, with random weights.
Exits with 1 if something does not compile, fit or run.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jinja2
import numpy as np

from learner import checks
from learner.decoder import attention, hub
from learner.decoder.cached_attention import choose_decoding
from learner.decoder.config import CACHE_DTYPES, DTYPES, NAMES, REMAT, DecoderConfig, published
from learner.devices import draws, sharding
from learner.plan import layout as layout_lib
from learner.plan import programs as programs_lib
from learner.plan import schedule, targets
from learner.plan.layout import Layout, Work
from learner.plan.measure import measure
from learner.plan.programs import Program
from learner.plan.targets import Target
from learner.training import metrics

# Fields of a program, as columns of the table.
_COLUMNS = [
    *("arguments", "outputs", "reused", "temporaries", "elsewhere", "total"),
    *("bytes_ideal", "bytes_moved"),
]
_RATES = ("decode_tokens_per_second", "decode_roofline", "update_mfu", "run_hours")
# The publication's budget, for which hours are predicted: instances of a round, epochs, rounds.
_INSTANCES, _EPOCHS, _ROUNDS = 4000, 2, 3
_VERSIONS = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin")
_CHIPS = "v5e-8,v5p-64,v6e-8,h100-8,h200"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    module = "python -m learner.plan" if __name__ == "__main__" else None  # Else the script.
    parser = argparse.ArgumentParser(prog=module, description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--config", default="Qwen3-4B", help=f"{', '.join(NAMES)}, folders, or hub names")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--chips", default=_CHIPS, help="slices, separated by commas")
    chosen.add_argument("--measure", action="store_true", help="also run it, on these devices")
    add("--mesh", help="data x fsdp x tensor; derived if not given, as are the next two")
    add("--sequences", type=int, default=1, help="sequences of a micro-batch on each batch shard")
    add("--completions", type=int, default=32, help="sampled at a time on each batch shard")
    add(
        "--dtype",
        choices=DTYPES,
        help="dtype of activations and decoding; by default the chip's",
    )
    add("--cache_dtype", choices=CACHE_DTYPES, default="", help="of the KV cache, if not that")
    add("--remat", choices=REMAT, help="what is kept for the backward pass; derived if not given")
    add("--json", type=Path, help="file for the layouts, and for the programs that were measured")
    for field in dataclasses.fields(Work):
        default: Any = field.default
        add(f"--{field.name}", type=type(default), default=default, help=_help(field.name))
    return parser.parse_args(argv)


def _help(name: str) -> str:
    """The line of `Work`'s docstring about a field."""
    lines = (Work.__doc__ or "").splitlines()
    return next(x.partition(": ")[2] for x in lines if x.strip().startswith(f"{name}:"))


def summary(
    config: DecoderConfig, target: Target, work: Work, layout: Layout, programs: list[Program]
) -> dict[str, Any]:
    """Metrics of a target; None where no compiler predicts times, or none were measured."""
    by_name = {program.name: program for program in programs}
    predicted = {name: program.seconds for name, program in by_name.items()}
    least = {name: program.least for name, program in by_name.items()}
    measured = {name: program.measured for name, program in by_name.items()}
    step, gradients = by_name["segment"], by_name["gradients"]
    slots = layout.completions * layout.shards
    # What tiles without a visible pair save is the same in both predictions.
    saved = (gradients.seconds or 0) - (gradients.mixed or 0)

    def found(seconds: dict[str, float | None]) -> dict[str, float | None]:
        full = rates(config, target, work, layout, step.bytes_ideal, seconds)
        less = {"gradients": seconds["gradients"] and seconds["gradients"] - saved}
        mixed = rates(config, target, work, layout, step.bytes_ideal, seconds | less)
        return full | {"mixed_update_mfu": mixed["update_mfu"]}

    in_use = metrics.machine({}, {}).get(f"{metrics.MACHINE}device_memory_peak")
    return {
        "chip": target.name,
        "mesh": layout.mesh,
        "chips": target.count,
        "sequences": layout.sequences,
        "completions": layout.completions,
        "remat": layout.remat,
        "fits": layout_lib.fits(programs, target),
        "peak": max(program.total for program in programs),
        "memory": target.chip.memory,
        "peak_in_use": in_use and in_use * 2**30,
        **found(predicted),
        "mixed_tokens_per_second": step.mixed and slots / step.mixed,
        "decode_attention": _fraction(step),
        "update_attention": _fraction(gradients),
        "least": found(least),
        "measured": rates(config, target, work, layout, step.bytes_ideal, measured),
    }


def _fraction(program: Program) -> float | None:
    """Of a program's predicted time, that of attention."""
    if program.attention is None or not program.seconds:
        return None
    return program.attention / program.seconds


def rates(
    config: DecoderConfig,
    target: Target,
    work: Work,
    layout: Layout,
    step_bytes: int,
    seconds: dict[str, float | None],
) -> dict[str, float | None]:
    """What follows from the seconds of programs; None if those are unknown.

    Args:
        config: the model.
        target: what they run on.
        work: what is trained.
        layout: how.
        step_bytes: what a step of decoding needs to read and write.
        seconds: of each program; of "segment", for one step.
    """
    chip, step, gradients = target.chip, seconds["segment"], seconds["gradients"]
    if step is None or gradients is None:
        return dict.fromkeys(_RATES)
    tokens = layout.completions * layout.shards / step
    completions = work.prompts_per_step * work.group_size
    sequences, length = layout.training(work).sequence_shapes(work.prompt_length, layout.shards)[0]
    per_sequence = length // (work.prompt_length + work.max_new_tokens)
    micro_batches = math.ceil(completions / (sequences * per_sequence))
    update = micro_batches * gradients + (seconds["optimizer"] or 0)
    prompts, lengths = (np.full(completions, x) for x in (work.prompt_length, work.max_new_tokens))
    flops = metrics.update_flops(config, prompts, lengths, work.lora_rank > 0)
    flops /= target.count * chip.flops
    steps = _INSTANCES * _EPOCHS * _ROUNDS / work.prompts_per_step
    run = steps * (completions * work.max_new_tokens / tokens + update)
    known = math.isfinite(chip.bandwidth)
    roofline = step_bytes / chip.bandwidth / step if known else None
    mfu = flops / update if known else None
    return dict(zip(_RATES, (tokens, roofline, mfu, run / 3600), strict=True))


def table(target: dict[str, Any], programs: list[Program]) -> str:
    """A target in Markdown: its programs, in gigabytes (1e9 bytes) a device, and predictions."""
    text = Path(__file__).with_name("target.md").read_text(encoding="utf-8")
    template = jinja2.Template(text, trim_blocks=True, undefined=jinja2.StrictUndefined)
    return template.render(target=target, programs=programs, columns=_COLUMNS, rounds=_ROUNDS)


def advice(programs: list[Program], layout: Layout, work: Work, config: DecoderConfig) -> list[str]:
    """What to change where something does not fit, the most useful first."""
    heaviest = max(programs, key=lambda program: (bool(program.problem), program.total))
    if programs_lib.PARTS[heaviest.name] == "sampling":
        found = [
            f"fewer completions at a time (--completions, now {layout.completions}), or shorter "
            f"ones (--max_new_tokens, now {work.max_new_tokens})",
            f"a larger tensor axis (--mesh, now {layout.mesh}): it splits the weights for decoding",
        ]
    else:
        found = [f"fewer sequences at a time (--sequences, now {layout.sequences})"] * (
            layout.sequences > 1
        )
        if config.remat not in ("full", "offload"):
            found.append(f"--remat=full (now {config.remat})")
        found.append(f"a larger fsdp axis (--mesh, now {layout.mesh}): it splits the state")
    if not work.lora_rank:
        found += ["--moment_dtype=int8", "--lora_rank=16: no gradients of the model's parameters"]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Plan for every target and print; 1 if something does not fit, 2 if options are wrong."""
    draws.pin()
    options = _arguments(argv)
    if options.measure:  # By default JAX takes three quarters of a GPU's memory.
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", str(layout_lib.USABLE))
        schedule.keep()
    else:
        targets.use_compilers()
    sound = True
    try:
        work = Work(**{x.name: getattr(options, x.name) for x in dataclasses.fields(Work)})
        result: dict[str, Any] = {
            "versions": {x: _version(x) for x in _VERSIONS},
            "work": dataclasses.asdict(work),
            "targets": [],
            "programs": [],
        }
        if options.json:  # Now, not after compiling, if it cannot be made.
            options.json.parent.mkdir(parents=True, exist_ok=True)
        if options.measure:
            chosen = [Target.of_this_process()]
        else:
            chosen = [Target.parse(name) for name in options.chips.split(",")]
        mesh_sizes = sharding.mesh_size(options.mesh) if options.mesh else None
        print(
            f"Prompts of {work.prompt_length} tokens, completions of up to {work.max_new_tokens}; "
            "GB of one device."
        )
        for name in options.config.split(","):
            for target in chosen:
                dtype = options.dtype or target.chip.half
                compute = {"dtype": dtype, "cache_dtype": options.cache_dtype}
                config = _model(name, **compute)
                config = programs_lib.for_target(config, target, work.lora_rank)
                remat, given = options.remat or layout_lib.first_remat(config), None
                if mesh_sizes:
                    given = Layout(*mesh_sizes, options.sequences, options.completions, remat)
                layout, programs = layout_lib.plan(config, target, work, given, options.remat)
                config = dataclasses.replace(config, remat=layout.remat)
                if target.at_hand and layout_lib.fits(programs, target):
                    mesh, training = layout.on(target.devices()), layout.training(work)
                    try:
                        programs = measure(programs, config, training, mesh, work.prompt_length)
                    except jax.errors.JaxRuntimeError as error:  # More memory than predicted, say.
                        print(f"error: not measured: {checks.first_line(error)}", file=sys.stderr)
                        sound = False
                planned = {
                    "config": name,
                    "dtype": config.dtype,
                    "cache_dtype": config.kv_dtype,
                    **summary(config, target, work, layout, programs),
                }
                print(table(planned, programs), flush=True)
                if target.at_hand:
                    print(*_attention(config), sep="\n", flush=True)
                if not planned["fits"]:
                    print("\nWhat to change:\n")
                    print(*(f"- {x}" for x in advice(programs, layout, work, config)), sep="\n")
                sound &= planned["fits"]
                result["targets"].append(planned)
                if target.at_hand:
                    result["programs"] += [{"config": name} | _record(x) for x in programs]
                if options.json:
                    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"error: {checks.one_line(error)}", file=sys.stderr)
        return 2
    return 0 if sound else 1


def _model(name: str, **compute: Any) -> DecoderConfig:
    """A published model, or that of a folder or of the hub."""
    if name.removeprefix("Qwen/") in NAMES:
        return published(name, **compute)
    return DecoderConfig.from_folder(hub.model_folder(name, files=["config.json"]), **compute)


def _attention(config: DecoderConfig) -> Iterator[str]:
    """Lines about the kernels that a run chooses here."""
    for what, choose in (("attention", attention.choose), ("decoding", choose_decoding)):
        chosen = choose(config)
        yield f"- {what}: {chosen.name} ({chosen.reason})"


def _record(program: Program) -> dict[str, Any]:
    """A program as JSON values."""
    values = {**vars(program), "compiles": not program.problem}
    del values["executable"]
    return {"program": values.pop("name"), **values}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
