"""Process-wide setup of commands: memory, logging and the compilation cache."""

import ctypes
import logging
import os
import sys
from pathlib import Path
from typing import Any

import jax
from absl import logging as absl_logging

# Numbers of mallopt(3): M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD. -1 is no threshold.
_KEEP_ALL = ((-8, 1), (-4, 0), (-1, -1), (-2, 2**28))


def keep_freed_memory() -> None:
    """Keeps freed memory in the process, which makes training on a CPU faster.

    XLA allocates its temporary buffers on every call. The GNU C library returns large ones to the
    kernel each time, and the page faults of touching them again took about a quarter of the
    processor time of a step of the tiny model, and a sixth of that of an update of SmolLM2-135M.
    Does nothing with another C library.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt"):
        for option, value in _KEEP_ALL:
            library.mallopt(option, value)


def return_freed_memory() -> None:
    """Returns to the kernel what is free now.

    To be called between phases, such as training and validation: what one leaves free between
    buffers that stay may be too small for those of the next.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def quieten(level: int = absl_logging.ERROR) -> None:
    """Hides library messages that are useless, or are raised as errors anyway.

    These are messages about missing accelerators and about checkpoints without a score, on CPUs
    also about saves that are waited for on purpose, Orbax's messages below a level (it reports
    every step of every save; its warnings say that it only reads), and the tracebacks of its
    threads, whose errors the main thread raises.
    """
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    absl_logging.set_verbosity(level)
    absl_logging.get_absl_logger().addFilter(_of_use)
    sys.unraisablehook = _unless_of_a_failed_save


def _of_use(record: logging.LogRecord) -> bool:
    text = str(record.msg)
    waits = "Waiting for previous save" in text and jax.default_backend() == "cpu"
    return not (record.exc_info or waits or "`tracked_metric`" in text)


def _unless_of_a_failed_save(unraisable: Any) -> None:
    """Ignores TensorStore calling the closed event loop of a failed save."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def keep_compiled(folder: Path) -> None:
    """Caches compiled programs in a folder, so that a resumed run compiles nothing.

    JAX_COMPILATION_CACHE_DIR takes precedence. Without it nothing is cached on CPUs, as a program
    compiled for one may not run on another, and a run's folder may move. Small programs are cached
    too: most are below JAX's default threshold.
    """
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        if jax.default_backend() == "cpu":
            return
        jax.config.update("jax_compilation_cache_dir", str(folder.resolve()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
