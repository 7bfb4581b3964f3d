"""A run killed without warning at random moments ends bitwise like one that nobody touched."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def start(folder, cache, steps):
    folder.mkdir(exist_ok=True)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    script = Path(__file__).with_name("killable_run.py")
    return subprocess.Popen([sys.executable, script, folder, str(steps)], env=environment)


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    kills = 20
    steps = 12 * kills
    whole, killed, cache = (tmp_path / name for name in ("whole", "killed", "cache"))
    begin = time.monotonic()
    assert start(whole, cache, steps).wait() == 0
    took = time.monotonic() - begin
    rng = random.Random(0)
    saving = 0
    for number in range(kills):
        (killed / "alive").unlink(missing_ok=True)
        process = start(killed, cache, steps)
        # From its first step on, but for one kill in four, which falls into the start.
        while number % 4 != 3 and not (killed / "alive").exists():
            assert process.poll() is None, "the run ended before it was killed"
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (killed / "final.npz").exists(), "too few steps for so many kills"
        folder = killed / "checkpoints"
        saving += folder.exists() and any("tmp" in path.name for path in folder.iterdir())
    assert start(killed, cache, steps).wait() == 0
    print(f"\n{kills} kills, {saving} within a save; undisturbed {steps} steps in {took:.0f} s")

    with np.load(whole / "final.npz") as want, np.load(killed / "final.npz") as got:
        assert want.keys() == got.keys()
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    assert (killed / "train.jsonl").read_text() == (whole / "train.jsonl").read_text()
    assert len((whole / "train.jsonl").read_text().splitlines()) == steps
