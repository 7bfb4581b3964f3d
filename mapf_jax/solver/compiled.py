"""Functions compiled for the host by Numba, for searches that XLA's fixed shapes do not fit."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compiles a function at its first call, and keeps the result on disk where that is possible.

    It releases Python's lock, so that threads run it side by side.
    """
    made: Any
    try:
        made = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # No folder that may be written, next to the file or in the user's home.
        made = numba.njit(nogil=True)(function)
    return cast(F, made)


def inlined(function: F) -> F:
    """Makes a function part of the compiled ones that call it.

    Each function that is compiled is optimised again with every one that it calls: a chain of
    calls that are not inlined takes long to compile.
    """
    return cast(F, numba.njit(inline="always")(function))
