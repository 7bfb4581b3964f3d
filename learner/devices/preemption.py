"""Leaving in good order when the machine is taken away (SIGTERM).

A cluster that needs a machine back sends SIGTERM and, some seconds later, SIGKILL. Inside `watch`
the signal raises `Preempted` at once, except inside `hold`, which lets the body end first. So
training holds it for the length of a step and saves, while anything that leaves complete files
only may be stopped anywhere.

Of several processes none may leave alone, as the others would wait for it: there the signal is
only noted, and acted on where all of them call `agree`.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from learner.devices import distributed

#: What a process that was preempted exits with: the EX_TEMPFAIL ("try again") of sysexits.h.
EXIT_CODE = 75


class Preempted(BaseException):
    """The process was asked to leave. No `Exception`: a general handler must not swallow it."""


class Preemption:
    """Turns SIGTERM into `Preempted` while `watch` is entered; for the main thread.

    Attributes:
      requested: whether the signal has come; of several processes, whether they have agreed that
        it has, and so the same on all.
    """

    def __init__(self) -> None:
        self.requested = False
        self._noted = False
        self._held = 0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Handles the signal inside; puts the handler from before back at the end."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._noted = True
            if distributed.together():
                return
            self.requested = True
            if not self._held:
                raise Preempted

        before = signal.signal(signal.SIGTERM, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def agree(self) -> None:
        """A point that all processes reach: one of them has the signal, so all leave here.

        Inside `hold` they leave at its end. A single process need not wait for such a point.
        """
        if distributed.together():
            self.requested = distributed.any_process(self._noted)
            if self.requested and not self._held:
                raise Preempted

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Puts the signal off to the end of the body, which asks `requested` where it can stop."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self.requested and not self._held:
            raise Preempted
