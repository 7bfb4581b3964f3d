"""The closed loop of training, validation and design; files, flags and processes live here."""

import runpy
import sys
from types import TracebackType


def _without_interrupts(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


if sys.argv[0] == "-m" or sys.argv[0].endswith("-train"):  # A command starts.
    # Ctrl-C in the seconds of imports: no traceback, and the exit code that shells expect.
    sys.excepthook = _without_interrupts

import learner as learner  # noqa: E402 - Names the extra to install if it is missing.


def train() -> None:
    """Entry point of the console script: `python -m experiments.main`."""
    runpy.run_module("experiments.main", run_name="__main__", alter_sys=True)
