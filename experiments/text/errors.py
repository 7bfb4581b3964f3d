"""User errors, as opposed to errors of the program."""

import contextlib
import sys
from collections.abc import Iterator

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


@contextlib.contextmanager
def ended_in_one_line(*others: type[Exception]) -> Iterator[None]:
    """Exits with one line if the body raises an error that the user can fix; 130 on Ctrl-C.

    Args:
      others: such errors besides `UserError` and `OSError`.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    except Exception as error:
        if not isinstance(error, (UserError, OSError, *others)):
            raise
        sys.exit(f"error: {checks.one_line(error)}")
