"""Clean exit when a cluster takes the machine back (SIGTERM) or on Ctrl-C (SIGINT).

A cluster sends SIGTERM and, some seconds later, SIGKILL. Inside `watch` either signal raises
`Preempted` at once, except inside `hold`, which lets its body end first. Training holds the signal
during an update; code that never leaves an incomplete file may be stopped anywhere.

With several processes none may leave alone, as the others would wait for it: the signal is only
noted, and takes effect where all of them call `agree`.
"""

import _thread
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from learner.devices import distributed

#: Exit code of a preempted process: EX_TEMPFAIL ("try again") of sysexits.h.
EXIT_CODE = 75
#: Exit code after Ctrl-C, as shells expect it.
INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT


class Preempted(BaseException):
    """The process was asked to leave. Not an `Exception`, so that no general handler swallows it.

    Attributes:
      exit_code: what the process should exit with.
    """

    def __init__(self, exit_code: int = EXIT_CODE) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Preemption:
    """Turns SIGTERM and SIGINT into `Preempted` while `watch` is entered; for the main thread.

    Attributes:
      requested: whether the signal has come; with several processes, whether all have agreed that
        it has, so that it is the same on all.
    """

    def __init__(self) -> None:
        self.requested = False
        self._noted = False
        self._reminded = False
        self._exit_code = EXIT_CODE
        self._held = 0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Handles the signals inside; restores the previous handlers at the end.

        Python drops what is raised inside a finalizer or a callback of its garbage collector, and
        JAX has such a callback. Then SIGTERM is sent again until `Preempted` gets through.

        A second Ctrl-C does what it did before `watch`.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            self._noted = True
            if number == signal.SIGINT:
                self._exit_code = INTERRUPTED_EXIT_CODE
                signal.signal(number, before[number])
            if distributed.together():
                return
            self.requested = True
            if not self._held:
                raise Preempted(self._exit_code)

        def dropped(unraisable: Any) -> None:
            if not isinstance(unraisable.exc_value, Preempted):
                report(unraisable)
            elif not self._reminded:
                self._reminded = True
                # Not by `threading`: the garbage collector may run while its locks are held.
                _thread.start_new_thread(remind, ())

        def remind() -> None:
            time.sleep(0.01)
            self._reminded = False
            if sys.unraisablehook is dropped:
                os.kill(os.getpid(), signal.SIGTERM)

        numbers = [signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # Background jobs ignore it.
            numbers.append(signal.SIGINT)
        before: dict[int, Any] = {number: signal.signal(number, handle) for number in numbers}
        report, sys.unraisablehook = sys.unraisablehook, dropped
        try:
            yield
        finally:
            sys.unraisablehook = report
            for number, handler in before.items():
                signal.signal(number, handler)

    def agree(self) -> None:
        """Called by all processes at the same point: if one has the signal, all leave here.

        Inside `hold` they leave at its end. A single process does nothing here.
        """
        if distributed.together():
            self.requested = any(distributed.gather(self._noted))
            if self.requested and not self._held:
                raise Preempted(self._exit_code)

    @contextlib.contextmanager
    def release(self) -> Iterator[None]:
        """Inside `hold`, lets the signal stop the body at once if the process is alone."""
        held, self._held = self._held, 0
        try:
            if self.requested and not distributed.together():
                raise Preempted(self._exit_code)
            yield
        finally:
            self._held = held

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Delays the signal to the end of the body, which can check `requested` to stop earlier."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self.requested and not self._held:
            raise Preempted(self._exit_code)
