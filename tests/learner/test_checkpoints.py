"""Saving and restoring: exact, on any mesh, and never half a checkpoint."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.decoder import model
from learner.devices import sharding
from learner.training import checkpoints as checkpoints_module
from learner.training.checkpoints import Checkpoints, DamagedCheckpointError
from learner.training.train_state import (
    OptimizerConfig,
    TrainState,
    abstract_train_state,
    create_train_state,
)

OPTIMIZER = OptimizerConfig(learning_rate=1e-3)


def new_state(config, mesh, seed=0):
    params = model.init_params(jax.random.key(seed), config)
    return create_train_state(params, config, OPTIMIZER, mesh)


def test_restores_exactly_onto_another_mesh(tiny_model, tmp_path, caplog):
    state = new_state(tiny_model, sharding.make_mesh(data=2, fsdp=2, tensor=2))
    noise = jax.tree.map(lambda x: x + jnp.asarray(0.5, x.dtype), state.opt_state)
    state = TrainState(state.step + 3, state.updates + 2, state.params, noise)
    metadata = {"round": 1, "task": {"average": 0.1 + 0.2}, "names": ["a", "b"]}
    with Checkpoints(tmp_path / "run") as checkpoints:
        assert checkpoints.latest_step() is None
        checkpoints.save(3, state, metadata)
    for mesh in (sharding.make_mesh(fsdp=4, tensor=2), sharding.make_mesh()):
        abstract = abstract_train_state(tiny_model, OPTIMIZER, mesh)
        with Checkpoints(tmp_path / "run", read_only=True) as checkpoints:
            restored, record = checkpoints.restore(abstract)
        assert record == metadata
        chex.assert_trees_all_equal(restored, state)
        for leaf, want in zip(jax.tree.leaves(restored), jax.tree.leaves(abstract), strict=True):
            assert leaf.sharding == want.sharding
    assert "does not exist" not in caplog.text  # A run that resumes would show it.


def test_what_is_open_for_reading_stays_as_it_is(tiny_model, one_device, tmp_path):
    state = new_state(tiny_model, one_device)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
    with Checkpoints(tmp_path, keep=1, read_only=True) as checkpoints:
        for change in (lambda: checkpoints.save(2, state, {}), lambda: checkpoints.remove_after(0)):
            with pytest.raises(ValueError, match="opened with read_only=True"):
                change()
        assert checkpoints.steps() == [1]
    with pytest.raises(ValueError, match="keep=0: allowed are integers from 1"):
        Checkpoints(tmp_path, keep=0)


def test_a_checkpoint_of_another_configuration_is_not_called_damaged(
    tiny_model, one_device, tmp_path
):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, new_state(tiny_model, one_device), {})
        for change, said in (
            ({"param_dtype": "bfloat16"}, r"float32\[.* in it, and bfloat16\["),
            ({"vocab_size": 96}, r"\['embedding'\] is float32\[264, 32\] in it, .*\[96, 32\]"),
            ({"tie_word_embeddings": False}, r"is nothing in it, and float32\["),
        ):
            other = dataclasses.replace(tiny_model, **change)
            abstract = abstract_train_state(other, OPTIMIZER, one_device)
            with pytest.raises(ValueError, match=f"is of another configuration: .*{said}") as error:
                checkpoints.restore(abstract)
            assert not isinstance(error.value, DamagedCheckpointError)


def test_keeps_the_newest(tiny_model, one_device, tmp_path):
    abstract = abstract_train_state(tiny_model, OPTIMIZER, one_device)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        with pytest.raises(FileNotFoundError, match="no checkpoint any"):
            checkpoints.restore(abstract)
        for step in (1, 2, 5):
            checkpoints.save(step, new_state(tiny_model, one_device, seed=step), {"step": step})
        assert checkpoints.steps() == [2, 5]
        state, metadata = checkpoints.restore(abstract, 2)
        assert metadata == {"step": 2}
        chex.assert_trees_all_equal(state, new_state(tiny_model, one_device, seed=2))
        with pytest.raises(ValueError, match=r"step=5.*larger"):
            checkpoints.save(5, state, {})
        with pytest.raises(FileNotFoundError, match="no checkpoint 1"):
            checkpoints.restore(abstract, 1)


def test_keeps_what_is_to_be_kept(tiny_model, one_device, tmp_path):
    abstract = abstract_train_state(tiny_model, OPTIMIZER, one_device)
    for steps in ((1, 2, 3), (4, 5, 6, 7)):  # What was kept of the first half is read again.
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step in steps:
                state = new_state(tiny_model, one_device, seed=step)
                checkpoints.save(step, state, {"step": step}, keep=step in (1, 5))
            kept = checkpoints.steps()
            assert kept == ([1, 2, 3] if 3 in steps else [1, 5, 6, 7])
            assert checkpoints.restore(abstract, kept[0])[1] == {"step": kept[0]}


def test_a_state_may_be_donated_while_it_is_written(one_device, tmp_path):
    """Several saves in flight of a state that each step overwrites in place."""
    place = sharding.replicated(one_device)
    double = jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree), donate_argnums=0)
    state = jax.device_put(
        TrainState(np.int32(1), np.int32(1), np.ones(4_000_000, np.float32), np.ones(3)), place
    )
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state)
    with Checkpoints(tmp_path, keep=None) as checkpoints:
        for step in range(1, 5):
            state = double(state)
            checkpoints.save(step, state, {})
            for _ in range(2):
                state = double(state)
        for step in range(1, 5):
            saved, _ = checkpoints.restore(abstract, step)
            want = 2 ** (3 * step - 2)
            assert int(saved.step) == want
            np.testing.assert_array_equal(saved.params, np.full(4_000_000, want, np.float32))


def test_a_large_state_is_written_at_once_on_cpus(one_device, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints_module, "_COPIED", 10_000_000)
    arrays = np.int32(1), np.int32(1), np.ones(4_000_000, np.float32), np.ones(3)
    state = jax.device_put(TrainState(*arrays), sharding.replicated(one_device))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        assert (tmp_path / "1").exists()


SAVE_FOREVER = """
import sys, jax, jax.numpy as jnp
from learner.training.checkpoints import Checkpoints, DamagedCheckpointError
from learner.training.train_state import TrainState
checkpoints = Checkpoints(sys.argv[1], keep=None)
for step in range(10_000):
    value = jnp.full((1_000_000,), step, jnp.float32)
    checkpoints.save(step, TrainState(jnp.int32(step), jnp.int32(step), value, value), {"s": step})
"""


def test_killed_save_leaves_no_half_checkpoint(tmp_path):
    folder = tmp_path / "run"
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "JAX_NUM_CPU_DEVICES": "1"}
    process = subprocess.Popen([sys.executable, "-c", SAVE_FOREVER, str(folder)], env=environment)
    try:
        deadline = time.monotonic() + 120
        # Kill in the middle of a later save: as soon as its temporary folder is there.
        while not ((folder / "1").exists() and any("tmp" in p.name for p in folder.iterdir())):
            assert process.poll() is None, "the saving process ended early"
            assert time.monotonic() < deadline
            time.sleep(0.0005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    leftovers = [p.name for p in folder.iterdir() if "tmp" in p.name]
    if not leftovers:  # The save got through before the signal: put such a folder there.
        (folder / "777.orbax-checkpoint-tmp-0").mkdir()
    scalar = jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding.replicated(sharding.make_mesh()))
    array = jax.ShapeDtypeStruct((1_000_000,), jnp.float32, sharding=scalar.sharding)
    with Checkpoints(folder, keep=None, read_only=True) as checkpoints:
        steps = checkpoints.steps()
        assert steps == list(range(len(steps)))
        assert len(steps) >= 2
        state, metadata = checkpoints.restore(
            TrainState(step=scalar, updates=scalar, params=array, opt_state=array)
        )
        assert metadata == {"s": steps[-1]}
        np.testing.assert_array_equal(state.params, np.full(1_000_000, steps[-1], np.float32))
        assert int(state.step) == steps[-1]
    with Checkpoints(folder, keep=None) as checkpoints:  # And it goes on from there.
        checkpoints.save(steps[-1] + 1, state, {})
        assert checkpoints.latest_step() == steps[-1] + 1
    assert not [p.name for p in folder.iterdir() if "tmp" in p.name]


def test_a_damaged_checkpoint_is_refused_and_an_older_one_is_restored(one_device, tmp_path):
    """A byte flipped in any file changes nothing unseen; files that say nothing may be broken."""
    place = sharding.replicated(one_device)
    value = jax.random.normal(jax.random.key(0), (3000,))
    state = jax.device_put(
        TrainState(
            np.int32(7), np.int32(7), {"a": value, "b": value.astype(jnp.bfloat16)}, [value]
        ),
        place,
    )
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state)
    metadata = {"task": {"mean": 0.1}, "names": ("a",)}
    with Checkpoints(tmp_path, keep=None) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state, metadata)
    refused = []
    for path in sorted(path for path in (tmp_path / "3").rglob("*") if path.is_file()):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 4
        path.write_bytes(damaged)
        with Checkpoints(tmp_path, keep=None, read_only=True) as checkpoints:
            try:
                restored, record = checkpoints.restore(abstract)
            except DamagedCheckpointError as error:
                refused.append(error)
            else:
                assert record == {"task": {"mean": 0.1}, "names": ["a"]}
                chex.assert_trees_all_equal(restored, state)
        path.write_bytes(whole)
    assert len(refused) >= 4
    for error in refused:
        assert str(error).startswith(f"{tmp_path}: checkpoint 3 is damaged (")
        assert str(error).endswith("; older are [1, 2]")
        assert error.older == [1, 2]
    with Checkpoints(tmp_path, keep=None) as checkpoints:
        chex.assert_trees_all_equal(checkpoints.restore(abstract, 2)[0], state)
        checkpoints.remove_after(2)
        assert checkpoints.steps() == [1, 2]
        checkpoints.save(3, state, {}, keep=True)
    path = tmp_path / "3" / "metrics" / "metrics"
    path.write_text(path.read_text()[:-3])
    with pytest.raises(DamagedCheckpointError, match=rf"{path} is not JSON.*remove {tmp_path}/3 "):
        Checkpoints(tmp_path, keep=None)
