"""Test-wide set-up: eight host devices, so that sharding is tested on any machine.

Also makes what several folders of tests share (`local_server`) importable.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # Tests build the same programs anew; each is compiled once a session. The workers of xdist and
    # the processes that tests start inherit the folder. It does not outlive the session: what XLA
    # compiled for one CPU may not run on another.
    _cache = tempfile.mkdtemp(prefix="jax-cache-")
    atexit.register(shutil.rmtree, _cache, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def pytest_configure(config):
    """Lets programs of the fast run be compiled without optimisation, which takes most of it.

    The slow run, which computes for longer, has them compiled as users have. Processes that tests
    start inherit the choice.
    """
    if "not slow" in config.option.markexpr:
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
