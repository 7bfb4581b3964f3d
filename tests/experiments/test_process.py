"""What commands set in their process."""

import collections
import sys

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from whole_runs import python

from experiments.run import process
from experiments.settings import ModelSettings
from learner.decoder import model
from learner.decoder.config import DecoderConfig
from learner.devices import sharding
from learner.sampling.distribution import SamplingParams
from learner.sampling.sampler import Sampler


@pytest.mark.parametrize(
    ("backend", "environment", "kept"),
    [("tpu", "", True), ("gpu", "", True), ("cpu", "", False), ("tpu", "/other", False)],
)
def test_programs_of_accelerators_are_kept(tmp_path, monkeypatch, backend, environment, kept):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", environment)
    before = jax.config.jax_compilation_cache_dir
    try:
        process.keep_compiled(tmp_path / "cache")
        expected = str((tmp_path / "cache").resolve()) if kept else before
        assert jax.config.jax_compilation_cache_dir == expected
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


SAVES = """
import sys
import jax.numpy as jnp
from absl import logging
from orbax.checkpoint import checkpoint_manager
from experiments.run import process
from learner.training.checkpoints import Checkpoints
from learner.training.train_state import TrainState

checkpoint_manager._WAIT_FOR_PREV_SAVE_WARNING_THRESHOLD_SECS = 0.0
process.quieten(logging.WARNING)
with Checkpoints(sys.argv[1]) as checkpoints:
    for step in range(2):
        checkpoints.save(step, TrainState(*map(jnp.ones, (1, 1, 9, 9))), {})
logging.warning("this is of use")
"""


def test_orbax_says_nothing_of_saves(tmp_path):
    (line,) = python("-c", SAVES, tmp_path).stderr.splitlines()
    assert "this is of use" in line


BUFFERS = """
import numpy as np
from experiments.run import process

def resident(megabytes):
    buffer = np.ones(megabytes * 2**20, np.int8)
    del buffer
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmRSS"))

process.keep_freed_memory()
print(resident(1), resident(300), resident(2500), end=" ")
process.return_freed_memory()
print(resident(1))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_is_kept_until_a_phase_ends():
    before, kept, above_2_gib, returned = map(int, python("-c", BUFFERS).stdout.split())
    assert kept - before > 250
    assert above_2_gib - before > 2450
    assert returned - before < 50


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """What a run keeps, in a folder of its own; the number of each event of JAX's cache."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    counts = collections.Counter()

    def count(event, **_):
        counts[event.rpartition("/")[2]] += 1

    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    process.keep_compiled(tmp_path)
    monkeypatch.undo()
    compilation_cache.reset_cache()
    jax.monitoring.register_event_listener(count)
    yield counts
    jax.monitoring.unregister_event_listener(count)
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.slow
def test_what_has_been_compiled_is_not_compiled_again(kept):
    """All programs of sampling, small ones too, come from the folder."""
    config = DecoderConfig.from_folder(ModelSettings().folder)
    params = model.init_params(jax.random.key(0), config)

    def sample():
        jax.clear_caches()
        kept.clear()
        sampler = Sampler(config, sharding.make_mesh(), SamplingParams(max_new_tokens=40), 0)
        sampler(params, [[1, 2, 3]], jax.random.split(jax.random.key(0), 1), num_samples=2)
        return dict(kept)

    first, second = sample(), sample()
    assert first["cache_misses"] > 2
    assert second.get("cache_misses", 0) == 0
    assert second["cache_hits"] >= first["cache_misses"]
