"""What commands set in their process before they work: memory, and what libraries report."""

import ctypes
import logging
import os
from pathlib import Path

import jax
from absl import logging as absl_logging

# Numbers of mallopt(3): M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD.
_OPTIONS = ((-8, 1), (-4, 0), (-1, 2**31 - 1), (-2, 2**28))


def keep_freed_memory() -> None:
    """Keeps freed memory in the process, which makes training on a CPU faster.

    XLA asks for its temporary buffers anew at every call. The GNU C library hands large ones back
    to the kernel each time, and the page faults of touching them again took about a quarter of the
    processor time of a training step of the tiny model. Does nothing with another C library.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):
        return
    for option, value in _OPTIONS:
        library.mallopt(option, value)


def quieten(level: int = absl_logging.ERROR) -> None:
    """Hides that accelerators are missing, and Orbax's messages below a level.

    Below warnings it reports every step of every save; its warnings say that it only reads.
    """
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    absl_logging.set_verbosity(level)


def keep_compiled(folder: Path) -> None:
    """Keeps compiled programs of accelerators in a folder, so that a resumed run compiles nothing.

    Unless JAX_COMPILATION_CACHE_DIR names another one. Not on CPUs: what is compiled for one may
    not run on another, and a run's folder may move.
    """
    if jax.default_backend() != "cpu" and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(folder.resolve()))
