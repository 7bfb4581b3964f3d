"""What commands set in their process."""

import jax
import pytest

from experiments import process


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
