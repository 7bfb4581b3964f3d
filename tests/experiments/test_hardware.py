"""Configurations for accelerators: they are valid, divide over their mesh, and fit."""

import pytest
from jax.sharding import AbstractMesh
from whole_runs import python

from experiments import settings as settings_lib
from experiments.configs import hardware
from learner.decoder import model
from learner.decoder.config import published
from learner.devices import sharding
from learner.plan.layout import USABLE
from learner.plan.targets import Target

MODELS = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B")
CHIPS = ("v5e-8", "v5p-64", "v6e-8", "h100-8", "h200")
CARDS = {f"Qwen3-0.6B@{card}" for card in ("t4", "l4", "a100_40gb")}

ADAPTERS = {"Qwen3-4B@l4", "Qwen3-4B@a100_40gb"}


def test_every_model_has_a_layout_that_fits_on_every_target():
    slices = {f"{model}@{chips}" for model in MODELS for chips in CHIPS}
    assert set(hardware.LAYOUTS) == slices | CARDS | ADAPTERS
    for name, layout in hardware.LAYOUTS.items():
        assert layout["fits"], name
        assert layout["peak"] <= USABLE * Target.parse(layout["chip"]).chip.memory, name


@pytest.mark.parametrize("name", hardware.LAYOUTS)
def test_configurations_are_valid_and_divide_over_their_mesh(name):
    config = hardware.get_config(name).copy_and_resolve_references()
    config.model.path = settings_lib.TINY_MODEL  # The folder of the real one is elsewhere.
    settings = settings_lib.from_config(config)
    mesh, target = settings.mesh, Target.parse(name.partition("@")[2])
    sizes = (mesh.data, mesh.fsdp, mesh.tensor)
    model.check_mesh(published(name.partition("@")[0]), AbstractMesh(sizes, sharding.MESH_AXES))
    assert mesh.data * mesh.fsdp * mesh.tensor == target.count
    assert mesh.tensor <= target.per_host
    assert settings.model.dtype == ("float16" if target.name == "t4" else "bfloat16")
    optimizer = settings.training.optimizer
    assert optimizer.moment_dtype == ("int8" if name in CARDS else "float32")
    assert (settings.training.lora.rank > 0) == (name in ADAPTERS)
    # A checkpoint has 12 bytes a parameter: those of larger models are saved by time.
    by_steps = name.startswith("Qwen3-0.6B")
    assert (settings.checkpoint.every_steps > 0) == by_steps
    assert settings.checkpoint.of_rounds == ("state" if by_steps else "weights")
    # The publication's budget, whatever the chips.
    assert settings.environment.num_instances == 4000
    assert (settings.loop.rounds, settings.training.epochs) == (3, 2.0)
    assert settings.training.num_steps(4000) == 250


def test_a_run_takes_the_configuration_by_name(tmp_path):
    def error(name):
        options = (f"--workdir={tmp_path}/run", f"--config=experiments/configs/hardware.py:{name}")
        return python("-m", "experiments.main", *options, fails=True).stderr

    # Read as far as the model's folder, which is missing.
    assert "error: model.path='Qwen3-4B'" in error("Qwen3-4B@v5p-64")
    assert "allowed are Qwen3-4B@v5e-8" in error("Qwen3-4B@v9")
