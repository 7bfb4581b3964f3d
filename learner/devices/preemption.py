"""Leaving in good order when the machine is taken away (SIGTERM) or on Ctrl-C (SIGINT).

A cluster that needs a machine back sends SIGTERM and, some seconds later, SIGKILL. Inside `watch`
either signal raises `Preempted` at once, except inside `hold`, which lets the body end first. So
training holds it for the length of an update, while anything that leaves complete files only may
be stopped anywhere.

Of several processes none may leave alone, as the others would wait for it: there the signal is
only noted, and acted on where all of them call `agree`.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from learner.devices import distributed

#: What a process that was preempted exits with: the EX_TEMPFAIL ("try again") of sysexits.h.
EXIT_CODE = 75
#: What a process exits with after Ctrl-C: what shells expect.
INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT


class Preempted(BaseException):
    """The process was asked to leave. No `Exception`: a general handler must not swallow it.

    Attributes:
      exit_code: what the process should exit with.
    """

    def __init__(self, exit_code: int = EXIT_CODE) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Preemption:
    """Turns SIGTERM and SIGINT into `Preempted` while `watch` is entered; for the main thread.

    Attributes:
      requested: whether the signal has come; of several processes, whether they have agreed that
        it has, and so the same on all.
    """

    def __init__(self) -> None:
        self.requested = False
        self._noted = False
        self._exit_code = EXIT_CODE
        self._held = 0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Handles the signals inside; puts the handlers from before back at the end.

        Whoever is impatient presses Ctrl-C again, which then does what it did before.
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

        numbers = [signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # As it is in the background.
            numbers.append(signal.SIGINT)
        before: dict[int, Any] = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def agree(self) -> None:
        """A point that all processes reach: one of them has the signal, so all leave here.

        Inside `hold` they leave at its end. A single process need not wait for such a point.
        """
        if distributed.together():
            self.requested = any(distributed.gather(self._noted))
            if self.requested and not self._held:
                raise Preempted(self._exit_code)

    @contextlib.contextmanager
    def release(self) -> Iterator[None]:
        """Inside `hold`, a part that the signal may stop at once, where one process is alone."""
        held, self._held = self._held, 0
        try:
            if self.requested and not distributed.together():
                raise Preempted(self._exit_code)
            yield
        finally:
            self._held = held

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Puts the signal off to the end of the body, which asks `requested` where it can stop."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self.requested and not self._held:
            raise Preempted(self._exit_code)
