"""The closed loop of training, validation and design; files, flags and processes live here."""

import io
import os
import signal
import sys
from importlib import metadata
from types import TracebackType


def _without_interrupts(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def begin_command() -> None:
    """Prepares a command, before its imports; ends it with one line if an extra is missing."""
    # What a model writes may have characters that a terminal's encoding lacks.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Ctrl-C in the seconds of imports: no traceback, and the exit code that shells expect.
    sys.excepthook = _without_interrupts
    # SIGTERM wherever nothing has to be saved, as while importing, processes meet or a report is
    # written: what the command has begun, the same command goes on with.
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(os.EX_TEMPFAIL))

    try:
        import learner.decoder  # noqa: F401 - Names the extra to install if it is missing.
    except ImportError as error:
        sys.exit(f"error: {error}")
    from learner.devices import draws

    draws.pin()


def name_of(module: str) -> str:
    """What starts a command: its console script if that is installed, else the module here.

    In a folder with another package `experiments` only the script starts it.
    """
    function = {"main": "train"}.get(module, module)
    for script in metadata.entry_points(group="console_scripts"):
        if script.value == f"experiments.commands:{function}":
            return script.name
    return f"python -m experiments.{module}"


if sys.argv[0] == "-m":
    begin_command()
