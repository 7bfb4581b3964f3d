"""Test-wide set-up: eight host devices, so that sharding is tested on any machine.

Also makes what several folders of tests share (`local_server`) importable.
"""

import atexit
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

# Tests are never timed: a busy machine would fail them.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

sys.path.insert(0, str(Path(__file__).parent))

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Threads of torch wait for each other in loops: with more of them than cores, a step takes ten
# times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # Tests build the same programs anew; each is compiled once a session. The workers of xdist and
    # the processes that tests start inherit the folder. It does not outlive the session: what XLA
    # compiled for one CPU may not run on another.
    _cache = tempfile.mkdtemp(prefix="jax-cache-")
    atexit.register(shutil.rmtree, _cache, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A quarter of the time of compiling. Versions of XLA that lack a flag stop the process.
_QUICK_TO_COMPILE = "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false"
_FLAGS_KNOWN_TO = "0.10."


def pytest_configure(config):
    """Lets programs be compiled without optimisation, which takes most of the time of tests.

    But for those that read what compilers make of programs, and those that compute for long, with
    `optimised`. Processes that tests start inherit the choice, but for whole runs of slow tests:
    those share their programs, which take longer to run than to compile. There only expensive
    passes of LLVM are left out (three rounds: 101 s of processor time where all is compiled and
    34 s where nothing is, against 55 s and 53 s without optimisation).

    Files go to the workers of xdist by name, after the long ones (see below): those of whole runs
    come early in that order. By default files with few tests, and those are they, come last.
    """
    config.option.loadscopereorder = False
    if config.option.markexpr == "aot":
        return
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    known = importlib.metadata.version("jaxlib").startswith(_FLAGS_KNOWN_TO)
    flags = [_QUICK_TO_COMPILE] if known else []
    if "not slow" not in config.option.markexpr:
        flags.append("--xla_llvm_disable_expensive_passes=true")
        os.environ["OPTIMISED_RUNS"] = "1"
    if flags:
        os.environ.setdefault("XLA_FLAGS", " ".join(flags))


@pytest.hookimpl(trylast=True)  # After `-m` has left tests out.
def pytest_collection_modifyitems(items):
    """Files with a test that may take longer than others come first: none runs alone at the end."""
    long = set()
    for item in items:
        allowed = item.get_closest_marker("timeout")
        if allowed and allowed.args[0] > int(item.config.getini("timeout")):
            long.add(item.path)
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture
def optimised(monkeypatch):
    """Programs are compiled as users have them, for a test that computes for long."""
    import jax  # It reads the environment, which is set above.

    option = "jax_disable_most_optimizations"
    before = jax.config.read(option)
    monkeypatch.delenv(option.upper(), raising=False)
    jax.config.update(option, False)
    yield
    jax.config.update(option, before)
