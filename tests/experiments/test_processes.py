"""Several processes over the loopback: one history, whoever dies on the way.

Four devices in every run: of one process, of two with two each, or of four with one each. So all
compute the same sharded programs. What remains is the order of sums between devices, of which
Adam's division makes a little more in every step.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import micro_model
import numpy as np
import pytest
from several_processes import free_port
from whole_runs import ROOT, story

DEVICES = 4
OPTIONS = [
    "--config=experiments/configs/tiny.py",
    "--config.model.scan_unroll=1",
    "--config.mesh.data=2",
    "--config.mesh.fsdp=2",
    "--config.loop.rounds=2",
    "--config.lakes.sizes=(3,4)",
    "--config.environment.num_instances=16",
    "--config.lakes.max_candidates=4096",
    "--config.validation.num_instances=16",
    "--config.validation.max_new_tokens=16",
    "--config.lakes.reward.short_length=2",
    "--config.lakes.reward.long_length=16",
    "--config.training.epochs=2.0",
    "--config.training.curriculum.method=replay",
    "--config.training.prompts_per_step=4",
    "--config.training.group_size=4",
    "--config.training.max_new_tokens=16",
    "--config.training.micro_batch_size=4",
    "--config.training.optimizer.learning_rate=5e-5",
    "--config.checkpoint.every_steps=2",
    "--config.engineer.max_new_tokens=16",
    "--config.engineer.tries=1",
]
STEPS = 8
#: Adapters, further draws, TensorBoard; three prompts do not share evenly.
MORE = [
    "--config.training.lora.rank=2",
    "--config.training.epochs=0.75",
    "--config.training.prompts_per_step=3",
    "--config.training.curriculum.method=uniform",
    "--config.training.degenerate_groups=resample",
    "--config.training.max_resamples=1",
    "--config.training.optimizer.learning_rate=2e-4",
    "--config.training.optimizer.warmup_steps=0",
    "--config.validation.num_instances=15",
    "--config.log.tensorboard=True",
]
MAIN = ["-m", "experiments.main"]
DESIGNING = [str(Path(__file__).with_name("designing_run.py"))]
#: Between the figures of a step of runs with different numbers of processes.
TOLERANCE = 1e-4


@dataclasses.dataclass
class Run:
    """The processes of one run, and the files with what each printed."""

    processes: list
    logs: list

    def finish(self, timeout=400):
        """Exit codes of all; kills what has not ended in time."""
        end = time.monotonic() + timeout
        try:
            for process in self.processes:
                process.wait(max(0.1, end - time.monotonic()))
        finally:
            self.kill()
        return [process.returncode for process in self.processes]

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def text(self, index):
        return self.logs[index].read_text()

    def wait_for(self, condition, timeout=400):
        end = time.monotonic() + timeout
        while not condition():
            assert all(process.poll() is None for process in self.processes), self.text(0)[-3000:]
            assert time.monotonic() < end, self.text(0)[-3000:]
            time.sleep(0.02)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a number of processes of the run in a folder; none of them outlives the tests."""
    shared = tmp_path_factory.mktemp("shared")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(shared / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # Most of the time goes into compiling, as processes have no cache in common.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    micro_model.write(shared / "model")
    runs = []

    def begin(workdir, count, *options, program=MAIN, failing=""):
        port = free_port()
        devices = {"JAX_NUM_CPU_DEVICES": str(DEVICES // count)}
        command = [sys.executable, *program, f"--workdir={workdir}", *OPTIONS]
        command += [f"--config.model.path={shared / 'model'}", *options]
        run = Run([], [])
        for index in range(count):
            where = [f"--coordinator=127.0.0.1:{port}", f"--num_processes={count}"]
            where += [f"--process_id={index}"]
            log = shared / f"{len(runs)}-{index}.log"
            with log.open("w") as file:
                run.processes.append(
                    subprocess.Popen(
                        [*command, *(where if count > 1 else [])],
                        cwd=ROOT,
                        env={**environment, **devices, "FAILING": failing},
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )
            run.logs.append(log)
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.kill()


def lines(workdir, index):
    """What is there of the training log of a round."""
    path = workdir / "rounds" / str(index) / "train.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def last_saved(workdir):
    """Training steps, over all rounds, of the newest complete checkpoint; 0 without one."""
    folders = (workdir / "checkpoints").glob("*")
    return max((int(folder.name) for folder in folders if folder.name.isdigit()), default=0)


def assert_same_history(got, want, steps=STEPS):
    told, expected = (story(folder, 2) for folder in (got, want))
    for index in range(2):
        mine, others = (of.pop(f"train {index}") for of in (told, expected))
        assert len(mine) == len(others) == steps
        for line, other in zip(mine, others, strict=True):
            assert line.keys() == other.keys()
            ours, theirs = (list(map(of.get, other)) for of in (line, other))
            np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    assert told == expected


def steps_of(workdir):
    """The figures of all steps."""
    told = story(workdir, 2)
    return told["train 0"] + told["train 1"]


@pytest.fixture(scope="module")
def one_process(start, tmp_path_factory):
    """The folder of a run of one process."""
    workdir = tmp_path_factory.mktemp("one")
    run = start(workdir, 1)
    assert run.finish() == [0], run.text(0)[-3000:]
    history = steps_of(workdir)
    # There is something to agree about.
    assert len({step["reward"] for step in history}) > STEPS, history
    assert sum(step["updates"] for step in history) > STEPS
    return workdir


@pytest.mark.slow
def test_processes_asked_to_leave_and_killed_and_others_that_go_on(start, one_process, tmp_path):
    """Two that leave, four of which one is killed, two of which the first is, and then one."""

    def killed(run, index):
        run.processes[index].kill()
        began = time.monotonic()
        codes = run.finish(60)
        assert time.monotonic() - began < 60
        assert codes.pop(index) == -signal.SIGKILL
        assert set(codes) <= {69, -signal.SIGABRT}
        for other in set(range(len(run.logs))) - {index}:
            text = run.text(other)
            assert "another process is gone" in text or "another task died" in text

    run = start(tmp_path, 2)
    run.wait_for(lambda: len(lines(tmp_path, 0)) >= 3)
    run.processes[1].send_signal(signal.SIGTERM)
    assert run.finish() == [75, 75], run.text(0)[-3000:]
    steps = len(lines(tmp_path, 0)) + len(lines(tmp_path, 1))
    assert 3 <= steps < 2 * STEPS
    assert (tmp_path / "checkpoints" / str(steps)).is_dir()
    assert "the same command goes on" in run.text(0)

    run = start(tmp_path, 4)
    # Saving goes on behind the steps: the log may be ahead of the last complete checkpoint.
    run.wait_for(lambda: last_saved(tmp_path) > max(steps, STEPS))
    killed(run, 2)
    assert "another process is gone" in run.text(0)

    # Process 0 has the coordination service, which jax notices to be gone by itself.
    run = start(tmp_path, 2)
    run.wait_for(lambda: "resuming after step" in run.text(0))
    assert "before training" not in run.text(1), "only the first process tells of the run"
    killed(run, 0)

    run = start(tmp_path, 1)
    assert run.finish() == [0], run.text(0)[-3000:]
    assert "of round 2" in run.text(0)
    assert_same_history(tmp_path, one_process)


@pytest.mark.slow
def test_adapters_further_draws_and_a_design(start, tmp_path):
    folders = {count: tmp_path / str(count) for count in (1, 2)}
    runs = [start(folders[count], count, *MORE, program=DESIGNING) for count in folders]
    for run in runs:
        assert set(run.finish()) == {0}, run.text(0)[-3000:]
    assert_same_history(folders[2], folders[1], steps=4)
    history = steps_of(folders[1])
    assert {step["draws"] for step in history} == {1, 2}
    assert sum(step["updates"] for step in history) > 4

    for folder in folders.values():
        design = json.loads((folder / "rounds" / "0" / "design" / "design.json").read_text())
        assert not design["kept_previous"], "nothing was designed"
        assert len(list((folder / "tensorboard").iterdir())) == 1, "only the first process writes"
        assert {path.name for path in (folder / "checkpoints").iterdir()} == {"4", "6", "8"}


@pytest.mark.slow
def test_an_error_of_one_process_stops_the_others(start, tmp_path):
    run = start(tmp_path, 2, *MORE, program=DESIGNING, failing="0")
    run.wait_for(lambda: "No space left on device" in run.text(0))
    began = time.monotonic()
    codes = run.finish(60)
    assert time.monotonic() - began < 60
    assert codes[0] == 1
    assert codes[1] in (69, -signal.SIGABRT)
    assert "another process is gone" in run.text(1) or "another task died" in run.text(1)


def test_impossible_meshes_stop_all(start, tmp_path):
    axes = ("data=1", "fsdp=1", "tensor=4")
    run = start(tmp_path, 2, *(f"--config.mesh.{axis}" for axis in axes))
    assert run.finish() == [1, 1]
    for index in range(2):
        assert "allowed are products of 4 with a tensor that divides 2" in run.text(index)
