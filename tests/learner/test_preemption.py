"""SIGTERM and Ctrl-C: put off while held, at once elsewhere, and nothing left behind."""

import contextlib
import gc
import os
import signal
import sys
import time

import pytest

from learner.devices.preemption import Preempted, Preemption


@pytest.fixture(autouse=True)
def in_the_foreground():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def not_held(preemption, number, reached):
    with preemption.watch():
        os.kill(os.getpid(), number)
        reached.append("behind the signal")


def collecting(preemption, number, reached):
    def send(phase, _):
        if len(sent) < 2:  # Python drops what is raised here.
            sent.append(phase)
            os.kill(os.getpid(), number if len(sent) == 1 else signal.SIGTERM)

    sent = []
    with preemption.watch(), contextlib.ExitStack() as stack:
        gc.callbacks.append(send)
        stack.callback(gc.callbacks.remove, send)
        gc.collect()
        reached.append("behind the signal")
        time.sleep(20)
        reached.append("behind what follows")


def held(preemption, number, reached):
    with preemption.watch():
        with preemption.hold():
            with preemption.hold():
                os.kill(os.getpid(), number)
            reached.append("end of the step")
        reached.append("behind the step")


def released(preemption, number, reached):
    with preemption.watch(), preemption.hold():
        with preemption.release():
            reached.append("before the signal")
            os.kill(os.getpid(), number)
            reached.append("behind the signal")
        reached.append("end of the step")


def released_too_late(preemption, number, reached):
    with preemption.watch(), preemption.hold():
        os.kill(os.getpid(), number)
        reached.append("behind the signal")
        with preemption.release():
            reached.append("in the released part")


def failing(preemption, number, reached):
    with preemption.watch(), preemption.hold():
        os.kill(os.getpid(), number)
        reached.append("before the error")
        raise KeyError


@pytest.mark.parametrize(
    ("body", "error", "want"),
    [
        (not_held, Preempted, []),
        (collecting, Preempted, ["behind the signal"]),
        (held, Preempted, ["end of the step"]),
        (released, Preempted, ["before the signal"]),
        (released_too_late, Preempted, ["behind the signal"]),
        (failing, KeyError, ["before the error"]),
    ],
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal(capfd, body, error, want, number, code):
    before, report = signal.getsignal(number), sys.unraisablehook
    preemption, reached = Preemption(), []
    with pytest.raises(error) as raised:
        body(preemption, number, reached)
    if error is Preempted:
        assert raised.value.exit_code == code
    assert reached == want
    assert preemption.requested
    assert signal.getsignal(number) is before
    assert sys.unraisablehook is report
    assert capfd.readouterr().err == ""


def test_a_second_interrupt_does_not_wait():
    preemption = Preemption()
    with preemption.watch(), contextlib.suppress(Preempted), preemption.hold():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_ignores_ctrl_c_goes_on_doing_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Preemption().watch():
        os.kill(os.getpid(), signal.SIGINT)
