"""Configurations for accelerators: they are valid, divide over their mesh, and fit."""

import os
import subprocess
import sys

import jax
import pytest
from jax.sharding import AbstractMesh

from experiments import machines
from learner.devices import sharding
from learner.qwen3 import placement


@pytest.mark.parametrize("name", machines.NAMES)
def test_configurations_are_valid_and_divide_over_their_mesh(name):
    settings = machines.run_settings(machines.config(name))
    mesh = settings.mesh
    sizes = (mesh.data, mesh.fsdp, mesh.tensor)
    placement.check(machines.model_config(name), AbstractMesh(sizes, sharding.MESH_AXES))
    machine = machines.deployment(name)
    chips = {"h200": 1, "h100-8": 8, "v5e-8": 8, "v5p-64": 32}[machines.split(name)[1]]
    assert machine.chips == chips
    # The weights for decoding lie on the chips of one host.
    assert machine.tensor <= machine.chip.chips_per_host
    # The publication's budget, whatever the machine.
    assert settings.environment.num_instances == 4000
    assert (settings.loop.rounds, settings.training.epochs) == (3, 2.0)
    assert settings.training.num_steps(4000) == 250


def test_the_tightest_configuration_fits_and_says_what_to_change_if_not(monkeypatch):
    """Qwen3-4B on eight chips of 16 GB: the update compiled with abstract arrays."""
    assert len(jax.devices()) >= 8
    name = "Qwen3-4B@v5e-8"
    (training,) = made = machines.plans(name, ["training"])
    room = machines.MACHINES["v5e-8"].room
    # State and gradients, four float32 copies over eight chips, and what the step needs besides.
    assert 4 * 4 * 4.02e9 / 8 < training.peak < room < 16e9
    (verdict,) = machines.verdicts(name, made)
    assert verdict.endswith("fits")
    assert "not" not in verdict
    monkeypatch.setattr(machines, "_USABLE", 0.5)
    (verdict,) = machines.verdicts(name, made)
    assert "does not fit. What to change:" in verdict
    assert "a larger fsdp axis (now 1)" in verdict
    assert "--moment_dtype=bfloat16" in verdict


def test_a_run_takes_the_configuration_by_name(tmp_path):
    command = [sys.executable, "-m", "experiments.main", f"--workdir={tmp_path}/run"]

    def run(name):
        done = subprocess.run(
            [*command, f"--config=experiments/configs/hardware.py:{name}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        return done.returncode, done.stderr

    code, error = run("Qwen3-4B@v5p-64")  # Read as far as the model's folder, which is missing.
    assert code == 1
    assert "error: model.path='Qwen3-4B'" in error
    code, error = run("Qwen3-4B@v9")
    assert code != 0
    assert "allowed are Qwen3-0.6B@h200" in error


def test_the_command_refuses_by_name(capsys):
    assert machines.main(["--only=Qwen3-4B@tpu"]) == 2
    assert "hardware configuration 'Qwen3-4B@tpu'" in capsys.readouterr().err


@pytest.mark.slow
def test_all_configurations_fit():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.machines"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XLA_FLAGS": ""},
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("| fits |") == 2 * len(machines.NAMES)
