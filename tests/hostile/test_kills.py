"""A run killed without warning at random moments ends bitwise like one that nobody touched."""

import random
import time

import killable_run
import numpy as np
import pytest
import whole_runs


def start(*arguments):
    process = whole_runs.PROCESSES.Process(target=killable_run.main, args=arguments)
    process.start()
    return process


def end(process):
    process.join(500)
    assert process.exitcode == 0


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    kills = 20
    steps = 12 * kills
    whole, killed, cache = (tmp_path / name for name in ("whole", "killed", "cache"))
    begin = time.monotonic()
    end(start(whole, cache, steps))
    took = time.monotonic() - begin
    rng = random.Random(0)
    saving = 0
    for number in range(kills):
        (killed / "alive").unlink(missing_ok=True)
        process = start(killed, cache, steps)
        # From its first step on, but for one kill in four, which falls into the start.
        while number % 4 != 3 and not (killed / "alive").exists():
            assert process.is_alive(), "the run ended before it was killed"
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.join()
        assert not (killed / "final.npz").exists(), "too few steps for so many kills"
        folder = killed / "checkpoints"
        saving += folder.exists() and any("tmp" in path.name for path in folder.iterdir())
    end(start(killed, cache, steps))
    print(f"\n{kills} kills, {saving} within a save; undisturbed {steps} steps in {took:.0f} s")

    with np.load(whole / "final.npz") as want, np.load(killed / "final.npz") as got:
        assert want.keys() == got.keys()
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    assert (killed / "train.jsonl").read_text() == (whole / "train.jsonl").read_text()
    assert len((whole / "train.jsonl").read_text().splitlines()) == steps
