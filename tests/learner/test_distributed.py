"""What one process sees of it; `tests/experiments/test_processes.py` has several."""

import signal
import threading
import time

import jax
import pytest
from whole_runs import python

from learner.devices import distributed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 0, None), "num_processes=0: allowed are integers from 1 up"),
        (("host:1", 2, 2), "process_id=2: allowed are 0 to num_processes - 1 = 1"),
        (("host:1", 2, -1), "process_id=-1: allowed are 0 to num_processes - 1 = 1"),
        (("host", 2, 0), "coordinator='host': HOST:PORT is needed"),
    ],
)
def test_start_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        distributed.start(*arguments)


def test_a_signal_is_heeded_though_it_does_not_wake_the_main_thread(monkeypatch):
    """The operating system gives it to the thread that waits for the other processes."""
    heeded = threading.Event()

    def initialize(*_, **__):
        time.sleep(0.5)  # The main thread waits by now.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        assert heeded.wait(10)

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    before = signal.signal(signal.SIGUSR1, lambda *_: heeded.set())
    try:
        distributed.start("host:1", 2, 1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_abort_does_not_look_into_threads_that_run():
    """JAX aborts where another process is gone, and the exit code has to say so."""
    lines = (
        "import faulthandler, os, threading, jax",
        "from learner.devices import distributed",
        "faulthandler.enable()",
        "jax.distributed.initialize = lambda *_, **__: None",
        "distributed.start('host:1', 2, 1)",
        "threading.Thread(target=os.abort).start()",
    )
    done = python("-c", "\n".join(lines), fails=True)
    assert done.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in done.stderr
    assert "Thread 0x" not in done.stderr


def test_one_process_alone_is_not_started():
    distributed.start(num_processes=1)
    assert not jax.distributed.is_initialized()
    assert not distributed.together()


def test_one_process_does_everything():
    assert distributed.sharded_map(lambda rows: [int(i) ** 2 for i in rows], 4) == [0, 1, 4, 9]
    assert distributed.gather("x") == ["x"]
    with pytest.raises(KeyError):
        distributed.on_first(lambda: {}["absent"])
    # An error that only sounds like a lost process: there was none to lose.
    assert not distributed.lost_process(ValueError("Gloo AllGather failed: Connection closed"))
