"""User errors, as opposed to errors of the program."""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator

import jax

from learner import checks
from learner.devices.preemption import INTERRUPTED_EXIT_CODE


class UserError(ValueError):
    """A request cannot be met; the message names the option, its value and what is allowed.

    Commands print only the message. Any other error is a bug and keeps its traceback.
    """


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turns a `ValueError` of the body into a `UserError`.

    For code that only checks the user's request, whose `ValueError`s are about that request.
    """
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


class OutOfMemoryError(RuntimeError):
    """The memory of a device or of the process ran out; commands print only the message."""


@contextlib.contextmanager
def memory_errors(advice: str) -> Iterator[None]:
    """Turns the errors of JAX, NumPy and Python about memory into an `OutOfMemoryError`.

    Args:
      advice: what needs the memory, and which options need less.
    """
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        on_host = isinstance(error, MemoryError)
        if not (on_host or "RESOURCE_EXHAUSTED" in str(error)):
            raise
        asked = checks.first_line(error).removeprefix("RESOURCE_EXHAUSTED: ").rstrip(".")
        if on_host or jax.default_backend() == "cpu":
            limit, _ = resource.getrlimit(resource.RLIMIT_AS)
            there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            there = there if limit == resource.RLIM_INFINITY else min(limit, there)
            asked += f" (this process may have {there / 2**30:.1f} GiB)"
        raise OutOfMemoryError(f"out of memory: {asked}; {advice}") from error


@contextlib.contextmanager
def ended_in_one_line(*others: type[Exception]) -> Iterator[None]:
    """Exits with one line if the body raises an error that the user can fix; 130 on Ctrl-C.

    Args:
      others: such errors besides `UserError`, `OSError` and `OutOfMemoryError`.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    except Exception as error:
        if not isinstance(error, (UserError, OSError, OutOfMemoryError, *others)):
            raise
        sys.exit(f"error: {checks.one_line(error)}")
