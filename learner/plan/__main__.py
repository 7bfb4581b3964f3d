"""What does a model cost on accelerators? Their own compilers answer, with no accelerator present.

    python -m learner.plan --config=Qwen3-4B --chips=v5e-8,v5p-64,h200 --json=plan.json

Every program of sampling and of an update is compiled for each target. The compiler reports memory,
bytes and cycles; seconds, and all that follows from them, are predicted from these. Exits with 1 if
something does not compile, does not fit, or breaks a promise of the update.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from learner import checks, hub
from learner.devices import sharding
from learner.plan import layout as layout_lib
from learner.plan import programs as programs_lib
from learner.plan import targets
from learner.plan.layout import Layout, Work
from learner.plan.programs import Program
from learner.plan.targets import Target
from learner.qwen3.config import DTYPES, NAMES, REMAT, Qwen3Config, published

# Fields of a program, as columns of the table.
_COLUMNS = (
    *("arguments", "outputs", "reused", "temporaries", "elsewhere", "total"),
    *("bytes_ideal", "bytes_moved"),
)
# The publication's budget, for which hours are predicted: instances of a round, epochs, rounds.
_INSTANCES, _EPOCHS, _ROUNDS = 4000, 2, 3
_VERSIONS = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m learner.plan", description=(__doc__ or "").split("\n\n")[0]
    )
    add = parser.add_argument
    add("--config", default="Qwen3-4B", help=f"{', '.join(NAMES)}, folders, or hub names")
    add("--chips", default="v5e-8,v5p-64,v6e-8,h100-8,h200", help="slices, separated by commas")
    add("--mesh", help="data x fsdp x tensor; derived if not given, as are the next two")
    add("--rows", type=int, default=1, help="rows of a micro-batch on each row shard")
    add("--completions", type=int, default=32, help="sampled at a time on each row shard")
    add(
        "--dtype",
        choices=DTYPES,
        help="dtype of activations, decoding and cache; by default the chip's",
    )
    add("--remat", choices=REMAT, default="full", help="what is kept for the backward pass")
    add("--json", type=Path, help="file for all figures")
    for field in dataclasses.fields(Work):
        default: Any = field.default
        add(f"--{field.name}", type=type(default), default=default, help=_help(field.name))
    return parser.parse_args(argv)


def _help(name: str) -> str:
    """The line of `Work`'s docstring about a field."""
    lines = (Work.__doc__ or "").splitlines()
    return next(x.partition(": ")[2] for x in lines if x.strip().startswith(f"{name}:"))


def summary(
    config: Qwen3Config, target: Target, work: Work, layout: Layout, programs: list[Program]
) -> dict[str, Any]:
    """Metrics of a target; None where the compiler reports no cycles to predict them from."""
    named = {program.name: program for program in programs}
    chip, step, gradients = target.chip, named["segment"], named["gradients"]
    row: dict[str, Any] = {
        "chip": target.name,
        "mesh": layout.mesh,
        "chips": target.count,
        "rows": layout.rows,
        "completions": layout.completions,
        "fits": layout_lib.fits(programs, target),
        "peak": max(program.total for program in programs),
        "memory": chip.memory,
        "decode_tokens_per_second": None,
        "decode_roofline": None,
        "update_mfu": None,
        "run_hours": None,
    }
    if step.seconds is None or gradients.seconds is None:
        return row
    tokens = layout.completions * layout.shards / step.seconds
    completions = work.prompts_per_step * work.group_size
    per_row = layout.rows * work.completions_per_row * layout.shards
    micro_batches = math.ceil(completions / per_row)
    update = micro_batches * gradients.seconds + (named["optimizer"].seconds or 0)
    # Counts every prompt, though rows with several completions compute theirs once.
    flops = programs_lib.update_flops(
        config, completions, work.prompt_length, work.max_new_tokens
    ) / (target.count * chip.flops)
    steps = _INSTANCES * _EPOCHS * _ROUNDS / work.prompts_per_step
    seconds = steps * (completions * work.max_new_tokens / tokens + update)
    row |= {
        "decode_tokens_per_second": tokens,
        "decode_roofline": step.bytes_ideal / chip.bandwidth / step.seconds,
        "update_mfu": flops / update,
        "run_hours": seconds / 3600,
    }
    return row


def table(row: dict[str, Any], programs: list[Program]) -> str:
    """A target in Markdown: its programs, in gigabytes (1e9 bytes) a device, and predictions."""
    text = Path(__file__).with_name("target.md").read_text()
    template = jinja2.Template(text, trim_blocks=True, undefined=jinja2.StrictUndefined)
    return template.render(row=row, programs=programs, columns=_COLUMNS, rounds=_ROUNDS)


def advice(programs: list[Program], layout: Layout, work: Work, config: Qwen3Config) -> list[str]:
    """What to change where something does not fit, the most useful first."""
    heaviest = max(programs, key=lambda program: (bool(program.problem), program.total))
    if programs_lib.PARTS[heaviest.name] == "sampling":
        found = [
            f"fewer completions at a time (--completions, now {layout.completions}), or shorter "
            f"ones (--max_new_tokens, now {work.max_new_tokens})",
            f"a larger tensor axis (--mesh, now {layout.mesh}): it splits the weights for decoding",
        ]
    else:
        found = [f"fewer rows at a time (--rows, now {layout.rows})"] * (layout.rows > 1)
        if config.remat not in ("full", "offload"):
            found.append(f"--remat=full (now {config.remat})")
        found.append(f"a larger fsdp axis (--mesh, now {layout.mesh}): it splits the state")
    if not work.lora_rank:
        found += ["--moment_dtype=int8", "--lora_rank=16: no gradients of the model's parameters"]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Plan for every target and print; 1 if something does not fit, 2 if options are wrong."""
    options = _arguments(argv)
    targets.use_compilers()
    work = Work(**{x.name: getattr(options, x.name) for x in dataclasses.fields(Work)})
    result: dict[str, Any] = {
        "versions": {x: _version(x) for x in _VERSIONS},
        "work": dataclasses.asdict(work),
        "targets": [],
        "programs": [],
    }
    sound = True
    try:
        chosen = [Target.parse(name) for name in options.chips.split(",")]
        given = None
        if options.mesh:
            given = Layout(*sharding.mesh_size(options.mesh), options.rows, options.completions)
        print(
            f"Prompts of {work.prompt_length} tokens, completions of up to {work.max_new_tokens}; "
            "GB of one device."
        )
        for name in options.config.split(","):
            for target in chosen:
                dtype = options.dtype or target.chip.half
                compute = {"dtype": dtype, "remat": options.remat}
                if name.removeprefix("Qwen/") in NAMES:
                    config = published(name, **compute)
                else:
                    folder = hub.model_folder(name, files=["config.json"])
                    config = Qwen3Config.from_folder(folder, **compute)
                layout, programs = layout_lib.plan(config, target, work, given)
                row = {
                    "config": name,
                    "dtype": dtype,
                    **summary(config, target, work, layout, programs),
                }
                print(table(row, programs), flush=True)
                if not row["fits"]:
                    print("\nWhat to change:\n")
                    print(*(f"- {x}" for x in advice(programs, layout, work, config)), sep="\n")
                for promise in (x for program in programs for x in program.broken):
                    print(f"- broken promise: {promise}")
                sound &= row["fits"] and not any(program.broken for program in programs)
                result["targets"].append(row)
                place = {"config": name, "chip": target.name, "mesh": layout.mesh}
                result["programs"] += [place | _record(program) for program in programs]
                if options.json:
                    options.json.write_text(json.dumps(result, indent=1) + "\n")
    except ValueError as error:
        print(f"error: {checks.one_line(error)}", file=sys.stderr)
        return 2
    return 0 if sound else 1


def _record(program: Program) -> dict[str, Any]:
    """A program as JSON values."""
    values = dataclasses.asdict(program)
    return {"program": values.pop("name"), "compiles": not program.problem, **values}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
