"""Errors of the user, told apart from errors of the program."""

import contextlib
import sys
from collections.abc import Iterator

from learner import checks
from learner.devices.preemption import INTERRUPTED_EXIT_CODE


class UserError(ValueError):
    """What was asked for cannot be done; the message names the option, its value, what is allowed.

    Commands print the message alone. Any other error is one of the program and keeps its
    traceback.
    """


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turns a `ValueError` of the body into a `UserError`.

    For code that does nothing but check what the user asked for against itself, a model or a
    machine: its `ValueError`s are about that.
    """
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


@contextlib.contextmanager
def ended_in_one_line(*others: type[Exception]) -> Iterator[None]:
    """Ends the program with one line where the body raises what the user can mend; 130 on Ctrl-C.

    Args:
      others: errors of this kind besides `UserError` and `OSError`.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    except Exception as error:
        if not isinstance(error, (UserError, OSError, *others)):
            raise
        sys.exit(f"error: {checks.one_line(error)}")
