"""The memory plan: against arithmetic, against what really is on devices, and its command."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from learner import plan
from learner.devices import sharding
from learner.qwen3 import model, placement
from learner.qwen3.sizes import NAMES, published
from learner.sampling.sampler import Sampler, SamplingParams
from learner.training.lora import LoraConfig
from learner.training.train_state import OptimizerConfig, create_train_state
from learner.training.trainer import GRPOConfig

TRAINING = GRPOConfig(
    prompts_per_step=16, group_size=4, micro_batch_rows=8, max_new_tokens=48, sampling_rows=64
)
GB = 10**9


def params_on_one_device(config, mesh):
    placed = placement.param_shardings(config, mesh)
    sizes = jax.tree.map(
        lambda x, s: int(np.prod(s.shard_shape(x.shape))) * x.dtype.itemsize,
        model.abstract_params(config),
        placed,
    )
    return sum(jax.tree.leaves(sizes))


@pytest.mark.parametrize(
    ("name", "billions", "without_embedding"),
    [
        ("Qwen3-0.6B", 0.6, 0.44),
        ("Qwen/Qwen3-1.7B", 1.7, 1.4),
        ("Qwen3-4B", 4.0, 3.6),
        ("Qwen3-8B", 8.2, 6.95),
    ],
)
def test_published_sizes_are_those_of_the_report(name, billions, without_embedding):
    """Parameters, all and without embeddings, as the model cards round them."""
    config = published(name)
    total = sum(x.size for x in jax.tree.leaves(model.abstract_params(config)))
    matrices = (1 if config.tie_word_embeddings else 2) * config.vocab_size * config.hidden_size
    assert total / 1e9 == pytest.approx(billions, abs=0.05)
    assert (total - matrices) / 1e9 == pytest.approx(without_embedding, abs=0.05)
    assert {published(n).head_dim for n in NAMES} == {128}
    with pytest.raises(ValueError, match=r"name is 'Qwen3-5B'; published are"):
        published("Qwen3-5B")


def test_training_plan_is_the_arithmetic_of_adam(tiny_model):
    """Parameters, gradients and two moments, split over fsdp and tensor and not over data."""
    mesh = sharding.make_mesh(2, 2, 2)
    one = params_on_one_device(tiny_model, mesh)
    gradients, optimizer = plan.plan_training(tiny_model, TRAINING, mesh, 30).programs
    small = 2_000  # counters, sums, one micro-batch
    assert gradients.arguments == pytest.approx(2 * one, abs=8 * small)
    assert gradients.elsewhere == pytest.approx(2 * one, abs=small)
    assert optimizer.arguments == pytest.approx(4 * one, abs=small)
    assert optimizer.reused == pytest.approx(3 * one, abs=small)
    assert optimizer.outputs == pytest.approx(3 * one, abs=small)
    assert gradients.temporaries > one  # the micro-batch's own gradient, and activations
    assert gradients.total == sum(
        (gradients.arguments, gradients.outputs, -gradients.reused, gradients.temporaries,
         gradients.elsewhere)
    )  # fmt: skip

    # What options save, of the state: half of one moment; all but adapters and their moments.
    state = plan._state_bytes(tiny_model, TRAINING, mesh)
    half = dataclasses.replace(TRAINING, optimizer=OptimizerConfig(moment_dtype="bfloat16"))
    assert state - plan._state_bytes(tiny_model, half, mesh) == pytest.approx(one / 2, abs=small)
    adapters = dataclasses.replace(TRAINING, lora=LoraConfig(rank=1))
    assert plan._state_bytes(tiny_model, adapters, mesh) < one
    assert plan._frozen_bytes(tiny_model, adapters, mesh) == one


def test_sampling_plan_is_what_the_sampler_holds(tiny_model, monkeypatch):
    """Exact sizes of weights and caches, against the arrays of a real call."""
    mesh = sharding.make_mesh(2, 2, 2)
    config = dataclasses.replace(tiny_model, dtype="bfloat16")
    got = plan.plan_sampling(config, TRAINING, mesh, 30)
    programs = {program.name: program for program in got.programs}
    assert list(programs) == ["prepare", "prefill", "resize", "segment"]
    assert got.peak == max(program.total for program in got.programs)

    held = {}
    sampler = Sampler(
        config, mesh, SamplingParams(max_new_tokens=48), 0, max_rows=64, vocab_size=264
    )
    segment = sampler.segment

    def spy(params, prompts, cache, *rest):
        for name, tree in (("weights", params), ("prompts", prompts), ("completions", cache)):
            first = [x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree)]
            held[name] = max(held.get(name, 0), sum(first))
        return segment(params, prompts, cache, *rest)

    monkeypatch.setattr(sampler, "segment", spy)
    params = model.init_params(jax.random.key(0), config)
    state = create_train_state(params, config, TRAINING.optimizer, mesh)
    prompts = [[1] * 30] * 16
    sampler(state.params, prompts, jax.random.split(jax.random.key(0), 16), num_samples=4)
    assert programs["prepare"].outputs == held["weights"]
    assert programs["prefill"].reused == held["prompts"]
    assert programs["segment"].reused == held["completions"]
    on_device = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    assert programs["segment"].elsewhere == on_device
    assert programs["prefill"].elsewhere == on_device + held["completions"]


def test_verdict_says_what_to_change(tiny_model):
    mesh = sharding.make_mesh(1, 2, 1)
    training = dataclasses.replace(TRAINING, micro_batch_rows=8)
    program = plan.Program("segment", 30 * GB, 20 * GB, 20 * GB, 5 * GB, 15 * GB)
    sampling = plan.Plan("sampling", (program, dataclasses.replace(program, elsewhere=0)))
    assert sampling.peak == 50 * GB
    verdict = plan.verdict(sampling, tiny_model, training, mesh, 60 * GB)
    assert verdict == "sampling needs 50 of 60 GB: fits"
    verdict = plan.verdict(sampling, tiny_model, training, mesh, 40 * GB)
    assert verdict.startswith("sampling needs 50 of 40 GB: does not fit. What to change:")
    assert "larger fsdp axis (now 2)" in verdict
    assert "--completions, now 32" in verdict
    assert "keys and values take 20 GB" in verdict
    assert "larger tensor axis (now 1; 2 is the next)" in verdict
    update = dataclasses.replace(sampling, part="training")
    verdict = plan.verdict(update, tiny_model, training, mesh, 40 * GB)
    assert "--rows, now 4" in verdict
    assert "--remat=full (now none)" in verdict
    assert "--moment_dtype=bfloat16" in verdict
    thrifty = dataclasses.replace(
        training,
        micro_batch_rows=2,
        optimizer=OptimizerConfig(moment_dtype="bfloat16"),
        lora=LoraConfig(rank=2),
    )
    full = dataclasses.replace(tiny_model, remat="full")
    verdict = plan.verdict(update, full, thrifty, mesh, 40 * GB)
    assert not any(option in verdict for option in ("--rows", "--remat", "--moment", "--lora"))


def test_qwen3_4b_compiles_for_eight_devices_and_fits():
    """The update, one micro-batch of 8 x 512 tokens; no weights, a few seconds."""
    config = published("Qwen3-4B", dtype="bfloat16", remat="full")
    training = dataclasses.replace(TRAINING, micro_batch_rows=8, max_new_tokens=256)
    update = plan.plan_training(config, training, sharding.make_mesh(fsdp=8), 256)
    gradients, optimizer = update.programs
    # 4.022 billion parameters, four float32 copies of them over eight devices.
    assert optimizer.arguments / GB == pytest.approx(4 * 4 * 4.0225 / 8, rel=1e-3)
    assert 2 < gradients.temporaries / GB < 20
    assert update.peak < 40 * GB


def test_command_plans_for_more_devices_than_there_are(tiny_model, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_model.to_hf()))

    def run(*options):
        command = [sys.executable, "-m", "learner.plan", *options]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ, timeout=300
        )

    small = ("--max_new_tokens=40", "--prompt_length=16", "--completions=8", "--parts=sampling")
    done = run(f"--config={tmp_path}", "--mesh=3x4x1", "--memory=0.000001", *small)
    assert done.returncode == 1, done.stderr
    assert "12 devices (data 3, fsdp 4, tensor 1), GB of each" in done.stdout
    assert "does not fit" in done.stdout
    assert "an upper estimate" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "devices"), [("1x1x1", 1), ("1x8x1", 8), ("32x8x1", 256)])
def test_qwen3_4b_fits_devices_of_141_gigabytes(mesh, devices, capfd):
    """Every program of sampling and training, traced, sharded and compiled without weights."""
    options = ["--config=Qwen3-4B", f"--mesh={mesh}", "--memory=141"]
    done = subprocess.run([sys.executable, "-m", "learner.plan", *options], check=False)
    out = capfd.readouterr().out
    assert done.returncode == 0
    assert re.search(rf"^{devices} devices? \(data ", out, re.MULTILINE)
    for part in ("sampling", "training"):
        assert re.search(rf"^{part} needs [\d.]+ of 141 GB: fits$", out, re.MULTILINE), out
    for program in ("prepare", "prefill", "segment", "resize"):
        assert re.search(rf"^{program} +[\d.]+", out, re.MULTILINE), out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config=Qwen3-4B", "--mesh=8"], "mesh is '8'; it must be data x fsdp x tensor"),
        (["--config=no-such-model"], "'no-such-model' is not a folder"),
        (["--config=Qwen3-4B", "--parts=serving"], r"parts=\['serving'\]: allowed are"),
    ],
)
def test_command_refuses_by_name(options, message, capsys):
    assert plan.main(options) == 2
    assert re.search(message, capsys.readouterr().err)
