"""Runs on accelerators: a mesh and batch sizes for each model on each machine, and what they need.

    python -m experiments.machines --only=Qwen3-4B@v5e-8

compiles the programs of a run with abstract arrays and says whether they fit (`learner.plan`);
`experiments/configs/hardware.py` is the configuration that goes with it.
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any

import ml_collections
from jax.sharding import AbstractMesh

from experiments import settings as settings_lib
from experiments.configs import qwen3_0_6b
from experiments.errors import UserError
from learner import plan
from learner.devices import sharding
from learner.hardware import ACCELERATORS, Accelerator, Assumptions
from learner.qwen3.config import Qwen3Config
from learner.qwen3.sizes import published
from learner.roofline import Deployment

MODELS = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B")

#: Tokens of the longest prompt that plans and simulations reckon with.
PROMPT_TOKENS = 512

# Share of a device's memory that programs may fill; the rest is the runtime's, and fragments.
_USABLE = 0.92


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a model lies on a machine, and how much of a batch is on it at a time.

    Attributes:
        data, fsdp, tensor: sizes of the mesh axes.
        rows: rows of a micro-batch on each row shard.
        answers: answers sampled at a time on each row shard.
    """

    data: int
    fsdp: int
    tensor: int
    rows: int
    answers: int

    @property
    def row_shards(self) -> int:
        """Over how many parts rows are split."""
        return self.data * self.fsdp


@dataclasses.dataclass(frozen=True)
class Machine:
    """Chips that one run has for itself.

    Attributes:
        chip: the accelerator.
        layouts: for each of `MODELS`.
    """

    chip: Accelerator
    layouts: dict[str, Layout]

    @property
    def room(self) -> int:
        """Bytes of a device that programs may fill."""
        return int(_USABLE * self.chip.memory)


def _machine(chip: str, *layouts: Layout) -> Machine:
    return Machine(ACCELERATORS[chip], dict(zip(MODELS, layouts, strict=True)))


#: Rows and answers at a time are about those with which a round is shortest in
#: `experiments.round_time`: more rows are padded more, and the last micro-batch is less full; more
#: answers are not faster, as finished lanes go on reading their caches. v5p-64 is named by its 64
#: cores, which are 32 chips and as many devices of JAX.
MACHINES = {
    "h200": _machine(
        "H200",
        Layout(1, 1, 1, rows=4, answers=32),
        Layout(1, 1, 1, rows=4, answers=32),
        Layout(1, 1, 1, rows=2, answers=32),
    ),
    "h100-8": _machine(
        "H100",
        Layout(1, 8, 1, rows=1, answers=16),
        Layout(1, 8, 1, rows=1, answers=16),
        Layout(1, 8, 1, rows=1, answers=32),
    ),
    "v5e-8": _machine(
        "v5e",
        Layout(1, 8, 1, rows=1, answers=8),
        Layout(1, 8, 1, rows=1, answers=8),
        Layout(1, 1, 8, rows=1, answers=32),
    ),
    "v5p-64": _machine(
        "v5p",
        Layout(4, 8, 1, rows=1, answers=16),
        Layout(4, 8, 1, rows=1, answers=16),
        Layout(4, 8, 1, rows=1, answers=16),
    ),
}

NAMES = tuple(f"{model}@{machine}" for model in MODELS for machine in MACHINES)


def split(name: str) -> tuple[str, str]:
    """The model and the machine of a name such as "Qwen3-4B@v5p-64".

    Raises:
        ValueError: it is none of `NAMES`.
    """
    if name not in NAMES:
        raise ValueError(f"hardware configuration {name!r}: allowed are {', '.join(NAMES)}")
    model, _, machine = name.partition("@")
    return model, machine


def layout(name: str) -> Layout:
    """How the model of a configuration lies on its machine; errors as of `split`."""
    model, machine = split(name)
    return MACHINES[machine].layouts[model]


def config(name: str) -> ml_collections.ConfigDict:
    """The options of a run: the publication's budget on the machine's mesh; errors as of `split`.

    The path of the model is its name and has to be replaced by that of a folder.
    """
    place = layout(name)
    options = qwen3_0_6b.get_config()
    options.model.path = split(name)[0]
    options.mesh.data, options.mesh.fsdp, options.mesh.tensor = place.data, place.fsdp, place.tensor
    options.training.micro_batch_rows = place.rows * place.row_shards
    options.training.sampling_rows = place.answers * place.row_shards
    return options


def run_settings(options: ml_collections.ConfigDict) -> settings_lib.Settings:
    """Checked settings, whether or not the model's folder is on this machine."""
    options = options.copy_and_resolve_references()
    options.model.path = settings_lib.TINY_MODEL
    return settings_lib.from_config(options)


def model_config(name: str) -> Qwen3Config:
    """The model of a configuration as it is computed there; errors as of `split`."""
    options = config(name).model
    return published(split(name)[0], dtype=options.dtype, remat=options.remat)


def deployment(name: str, assumptions: Assumptions | None = None) -> Deployment:
    """The model of a configuration on its machine, for `learner.roofline`; errors as of `split`."""
    place = layout(name)
    return Deployment(
        model_config(name),
        MACHINES[split(name)[1]].chip,
        place.data,
        place.fsdp,
        place.tensor,
        assumptions or Assumptions(),
    )


def plans(name: str, parts: Sequence[str] = ("sampling", "training")) -> list[plan.Plan]:
    """The memory of one device, by compilation for as many devices of this machine.

    Args:
        name: one of `NAMES`.
        parts: "sampling", "training" or both; sampling takes half a minute to compile.

    Raises:
        ValueError: as `split`, or JAX has too few devices here.
    """
    place = layout(name)
    training = run_settings(config(name)).training
    mesh = sharding.make_mesh(place.data, place.fsdp, place.tensor)
    planners = {"sampling": plan.plan_sampling, "training": plan.plan_training}
    return [planners[part](model_config(name), training, mesh, PROMPT_TOKENS) for part in parts]


def verdicts(name: str, made: Sequence[plan.Plan]) -> list[str]:
    """Whether each plan fits the machine, and if not, what to change."""
    place = layout(name)
    # Sizes are all that is asked of it, so there need not be as many devices.
    mesh: Any = AbstractMesh((place.data, place.fsdp, place.tensor), sharding.MESH_AXES)
    training = run_settings(config(name)).training
    room = MACHINES[split(name)[1]].room
    return [plan.verdict(one, model_config(name), training, mesh, room) for one in made]


def main(argv: Sequence[str] | None = None) -> int:
    """Plan, print, and return 1 if something does not fit, 2 if the options are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.machines",
        description=__doc__.split("\n\n")[0] if __doc__ else None,
    )
    add = parser.add_argument
    add("--only", default=",".join(NAMES), help="configurations, separated by commas")
    add("--parts", default="sampling,training", help="what to plan")
    options = parser.parse_args(argv)
    fits = True
    try:
        names = options.only.split(",")
        layouts = [layout(name) for name in names]
        plan.use_host_devices(max(math.prod((x.data, x.fsdp, x.tensor)) for x in layouts))
        print("| configuration | mesh | rows | answers | part | GB needed | GB there | |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        advice = []
        for name, place in zip(names, layouts, strict=True):
            made = plans(name, options.parts.split(","))
            room = MACHINES[split(name)[1]].room
            for one, verdict in zip(made, verdicts(name, made), strict=True):
                fits &= one.peak <= room
                print(
                    f"| {name} | {place.data}x{place.fsdp}x{place.tensor} | {place.rows} "
                    f"| {place.answers} | {one.part} | {one.peak / 1e9:.1f} | {room / 1e9:.1f} "
                    f"| {'fits' if one.peak <= room else 'does not fit'} |",
                    flush=True,
                )
                if one.peak > room:
                    advice.append(f"{name}: {verdict}")
        print("\n".join(["", *advice]) if advice else "", end="")
    except (ValueError, KeyError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
