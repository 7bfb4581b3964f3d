"""A tiny model is made for a family other than lakes, and goes through the loop."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym")
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_a_model_is_made_for_sums_and_designs_them(tmp_path):
    commands = {
        "warm_start": (
            *("--layers=1", "--width=64", "--steps=6", "--rows=16", "--solutions=64"),
            *("--designs=32", "--contexts=V1,full", "--out=model"),
        ),
        "main": (
            *("--config.model.path=model", "--workdir=run", "--config.loop.rounds=2"),
            *("--config.environment.num_instances=8", "--config.training.prompts_per_step=4"),
            *("--config.training.epochs=1.0", "--config.training.degenerate_groups=keep"),
        ),
    }
    common = (
        *("--config.family=reasoning_gym:chain_sum", "--config.reasoning_gym.levels=4"),
        "--config.validation.num_instances=8",
    )
    for name, flags in commands.items():
        done = subprocess.run(
            [sys.executable, "-m", f"experiments.{name}", *common, *flags],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    card = json.loads((tmp_path / "model/warm_start.json").read_text())
    assert card["parameters"] < 100_000
    rates = card["validation"]
    assert [name for name in rates if name.startswith("valid_")] == [f"valid_{n}" for n in "2345"]
    design = json.loads((tmp_path / "run/rounds/0/design/design.json").read_text())
    assert list(design["config"]) == ["2", "3", "4", "5"]
    assert design["raw_texts"]
    made = [json.loads(line) for line in (tmp_path / "run/rounds/1/instances.jsonl").open()]
    assert {problem["group"] for problem in made} <= set(design["config"])
    assert "num_terms" in (tmp_path / "run/report.html").read_text()


@pytest.mark.slow
def test_the_run_of_sums_tiny_gains_in_a_sixth_of_its_steps(tmp_path):
    command = [sys.executable, "-m", "experiments.main", "--config=sums_tiny", "--workdir=run"]
    command += ["--config.loop.rounds=1", "--config.environment.num_instances=1824"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=500)
    rates = [
        json.loads((tmp_path / "run" / name / "validation.json").read_text())["valid_rate"]
        for name in ("initial", "rounds/0")
    ]
    assert rates[1] > rates[0] + 0.05
