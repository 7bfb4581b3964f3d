"""Functions compiled for the host by Numba, for searches that XLA's fixed shapes do not fit."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from mapf_jax import dynamics, types

try:
    import numba
except ModuleNotFoundError as error:
    text = "solving needs Numba; in a clone of the project: pip install -e '.[solver]'"
    raise ImportError(text) from error

_settings: Any = numba.config


def _cache() -> Path:
    """The cache folder for code compiled from these sources.

    Numba's own cache drops a function when its file changes, not when a function that it calls or a
    constant that it reads changes.
    """
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), Path(dynamics.__file__), Path(types.__file__)]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    user = Path(os.path.expanduser("~"), ".cache", "mapf_jax")
    default = here / "__pycache__" if os.access(here, os.W_OK) else user
    return Path(_settings.CACHE_DIR or default) / digest[:16]


_CACHE = _cache()
F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compiles a function at its first call, and keeps the result on disk where that is possible.

    It releases Python's lock, so that threads run it side by side.
    """
    made: Any
    before = _settings.CACHE_DIR
    _settings.CACHE_DIR = str(_CACHE)
    try:
        made = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # No folder that may be written.
        made = numba.njit(nogil=True)(function)
    finally:
        _settings.CACHE_DIR = before
    return cast(F, made)


def inlined(function: F) -> F:
    """Makes a function part of the compiled ones that call it.

    Each function that is compiled is optimised again with every one that it calls: a chain of
    calls that are not inlined takes long to compile.
    """
    return cast(F, numba.njit(inline="always")(function))


@compiled
def zeros(length: int) -> np.ndarray:
    """int64[length]. Rows of an array would do too, but code that uses them is slower."""
    return np.zeros(length, np.int64)
