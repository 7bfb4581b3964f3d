"""The simulation of a round: closed forms, a real sampler, and what must not depend on what."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from experiments import machines, scaling
from experiments.round_time import (
    PHASES,
    AnswerLengths,
    HostCosts,
    Workload,
    round_phases,
    segments,
)
from learner.devices import sharding
from learner.hardware import Assumptions
from learner.qwen3 import model
from learner.qwen3.config import Qwen3Config
from learner.sampling.sampler import Sampler, SamplingParams
from learner.sampling.slots import RUNNING

RNG = np.random.default_rng(0)


def decoding_steps(lengths, slots, lanes, longest=4096, steps=32):
    found = list(segments(np.asarray(lengths), slots, lanes, longest, steps))
    return sum(s.steps for s in found), sum(s.steps * s.running for s in found)


def test_without_refill_the_longest_answer_decides():
    lengths = RNG.integers(1, 4097, (16, 8))
    assert decoding_steps(lengths, 16, 8)[0] == lengths.max()
    # Of geometric lengths the longest of n is known: the sum over k of 1 - (1 - (1 - p)^k)^n.
    n, p = 32, 0.02
    k = np.arange(0, 5000)
    want = np.sum(1 - (1 - (1 - p) ** k) ** n)
    got = [decoding_steps(RNG.geometric(p, (n, 1)), n, 1, 1 << 14)[0] for _ in range(400)]
    spread = np.std(got) / np.sqrt(len(got))
    assert np.mean(got) == pytest.approx(want, abs=4 * spread)


def test_with_refill_the_mean_decides():
    # Every lane is refilled as soon as it is free: no lane is idle but in the end.
    lengths = RNG.integers(1, 201, (400, 1))
    steps, busy = decoding_steps(lengths, 8, 1, 200, steps=1)
    assert busy == lengths.sum()
    assert lengths.sum() / 8 <= steps <= lengths.sum() / 8 + 200
    # Equal lengths leave no lane idle however they are cut into segments.
    steps, busy = decoding_steps(np.full((24, 4), 100), 8, 2, 128)
    assert (steps, busy) == (24 * 4 * 100 // 16, 24 * 4 * 100)
    # Waiting for an eighth of many lanes, or the end of a segment, costs little of it.
    lengths = RNG.integers(1, 2001, (3200, 1))
    steps, busy = decoding_steps(lengths, 64, 1, 2000)
    assert 0.9 < busy / (64 * steps) <= 1


def test_segments_are_those_of_the_sampler(monkeypatch):
    """A real sampler on answers of random lengths: the same segments, lanes and room."""
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    mesh = sharding.make_mesh(1, 1, 1)
    sampling = SamplingParams(max_new_tokens=96, stop_token_ids=(1, 2))
    sampler = Sampler(config, mesh, sampling, 0, max_rows=16, segment_tokens=8)
    seen, shape = [], []
    real = sampler.segment

    def spy(params, prompts, cache, lanes, *rest):
        before = np.asarray(lanes.counts)
        running = np.asarray(lanes.finish) == RUNNING
        room = cache.keys[0].shape[-1]
        out = real(params, prompts, cache, lanes, *rest)
        steps = (np.asarray(out[1].counts) - before)[running].max()
        seen.append((int(steps), int(running.sum()), room))
        shape.append(before.shape)
        return out

    monkeypatch.setattr(sampler, "segment", spy)
    params = model.init_params(jax.random.key(0), config)
    prompts = [[3, i % 60, 5] for i in range(24)]
    samples = sampler(params, prompts, jax.random.split(jax.random.key(1), 24), num_samples=3)
    lengths = samples.lengths.reshape(24, 3)
    assert lengths.std() > 10
    want = [(s.steps, s.running, s.room) for s in segments(lengths, *shape[0], longest=96, steps=8)]
    assert seen == want


def workload(name="Qwen3-4B@h100-8", lengths=None, **options):
    settings = machines.run_settings(machines.config(name))
    return Workload(settings, lengths or AnswerLengths(1000.0), steps=2, **options)


def test_phases_of_a_round():
    name = "Qwen3-4B@h100-8"
    machine = machines.deployment(name)
    phases = round_phases(workload(), machine)
    assert phases.seconds == pytest.approx(sum(getattr(phases, p) for p in PHASES))
    assert min(getattr(phases, p) for p in PHASES) >= 0
    assert phases.stragglers == 0  # One host waits for nobody.
    assert 0 < phases.lanes < 1
    # 8,000 prompts and answers, of a mean length that the cut at 4,096 makes a little smaller.
    assert phases.tokens == pytest.approx(250 * 256 * 1000, rel=0.1)
    # Products at their peak take less time than everything at assumed shares of the peaks.
    assert 0 < phases.products < 0.4 * phases.seconds

    # Everything twice as fast: half the time, where nothing has a time of its own.
    bare = Assumptions(0.5, 0.5, 0.5, layer_seconds=0, exchange_seconds=0)
    free = HostCosts(score=0, lane=0, instances=1e12, storage=1e30)
    slow = round_phases(workload(hosts=free), dataclasses.replace(machine, assumptions=bare))
    fast = dataclasses.replace(bare, products=1.0, memory=1.0, links=1.0)
    quick = round_phases(workload(hosts=free), dataclasses.replace(machine, assumptions=fast))
    assert slow.seconds == pytest.approx(2 * quick.seconds, rel=1e-6)

    # Hosts that sample apart wait for the slowest; answers of one length leave nobody waiting.
    many = machines.deployment("Qwen3-4B@v5p-64")
    assert round_phases(workload("Qwen3-4B@v5p-64"), many).stragglers > 0
    equal = workload("Qwen3-4B@v5p-64", AnswerLengths(1000.0, sigma=0.0))
    assert round_phases(equal, many).stragglers == pytest.approx(0, abs=1e-9)
    assert round_phases(equal, many).lanes == pytest.approx(1)

    # A store that does not keep up makes training wait.
    assert phases.checkpoints == 0
    assert round_phases(workload(hosts=HostCosts(storage=1e6)), machine).checkpoints > 0
    with pytest.raises(ValueError, match="allowed are multiples of data \\* fsdp = 32"):
        round_phases(workload("Qwen3-4B@v5e-8"), many)


def test_lengths(tmp_path):
    lengths = AnswerLengths(1000.0, sigma=0.5).draw(RNG, 200_000, 1 << 20)
    assert lengths.mean() == pytest.approx(1000, rel=0.01)
    assert np.log(lengths).std() == pytest.approx(0.5, rel=0.02)
    assert AnswerLengths(1000.0, sigma=2.0).draw(RNG, 1000, 1500).max() == 1500

    folder = tmp_path / "rounds" / "0"
    folder.mkdir(parents=True)
    lines = [json.dumps({"id": str(n), "tokens": n}) for n in (10, 20, 30)]
    (folder / "answers.jsonl").write_text("\n".join(lines) + "\n")
    of_run = AnswerLengths.of_run(tmp_path, 100.0)
    assert set(of_run.draw(RNG, 100, 4096)) == {50, 100, 150}
    with pytest.raises(ValueError, match=r"has no rounds/\*/answers.jsonl"):
        AnswerLengths.of_run(tmp_path / "rounds", 100.0)


def test_tables(capsys):
    assert scaling.main(["--machines=Qwen3-0.6B@h200,Qwen3-4B@v5p-64"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "@" in line]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    assert [cell[1:3] for cell in cells] == [["Qwen3-0.6B@h200", "1"], ["Qwen3-4B@v5p-64", "32"]]
    for cell in cells:  # Chip-hours are hours times chips.
        assert float(cell[6].replace(",", "")) == pytest.approx(
            float(cell[2]) * float(cell[5]), rel=0.05
        )
    assert scaling.main(["--chips=32,1024", "--prompts=32,1024", "--model=Qwen3-1.7B"]) == 0
    shown = capsys.readouterr().out
    assert "1024 chips (128x8x1), 1024 prompts" in shown
    assert all(name in shown for name in PHASES)
    shares = [float(line.split("|")[3].strip(" %")) for line in shown.splitlines()[3:13]]
    assert sum(shares) == pytest.approx(100, abs=0.6)
    for options, message in (
        (["--machines=Qwen3-4B@a100"], "allowed are Qwen3-0.6B@h200"),
        (["--chips=30"], "allowed are multiples of fsdp"),
        (["--chips=32,64,128", "--prompts=1,2"], "one number, or one for each"),
    ):
        assert scaling.main(options) == 2
        assert message in capsys.readouterr().err
