"""SIGTERM: put off while held, at once elsewhere, and nothing left behind."""

import os
import signal

import pytest

from learner.devices.preemption import Preempted, Preemption


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def not_held(preemption, reached):
    with preemption.watch():
        terminate()
        reached.append("behind the signal")


def held(preemption, reached):
    with preemption.watch():
        with preemption.hold():
            with preemption.hold():
                terminate()
            reached.append("end of the step")
        reached.append("behind the step")


def failing(preemption, reached):
    with preemption.watch(), preemption.hold():
        terminate()
        reached.append("before the error")
        raise KeyError


@pytest.mark.parametrize(
    ("body", "error", "want"),
    [
        (not_held, Preempted, []),
        (held, Preempted, ["end of the step"]),
        (failing, KeyError, ["before the error"]),
    ],
)
def test_signal(body, error, want):
    before = signal.getsignal(signal.SIGTERM)
    preemption, reached = Preemption(), []
    with pytest.raises(error):
        body(preemption, reached)
    assert reached == want
    assert preemption.requested
    assert signal.getsignal(signal.SIGTERM) is before
