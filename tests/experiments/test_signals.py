"""A command that is asked to leave exits with 75, wherever that finds it."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from whole_runs import python

BEGIN = "import os, signal, sys; sys.argv[0] = '-m'; import experiments\n"
LEAVE = "os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(20)\n"


@pytest.mark.parametrize(
    "lines",
    [
        LEAVE,  # While importing.
        "from learner.devices.preemption import Preemption\n"
        "with Preemption().watch(): pass\n" + LEAVE,  # While the report is written.
    ],
)
def test_a_command_leaves_with_75_where_nothing_has_to_be_saved(lines):
    assert python("-c", BEGIN + lines, fails=True).returncode == os.EX_TEMPFAIL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # Of the tests themselves.


def test_a_command_leaves_with_75_while_processes_meet():
    """The second of two, which the first never answers."""
    with socket.create_server(("127.0.0.1", 0)) as first:
        first.settimeout(120)
        address = "{}:{}".format(*first.getsockname())
        meet = f"from learner.devices import distributed; distributed.start({address!r}, 2, 1)"
        command = [sys.executable, "-c", BEGIN + meet]
        process = subprocess.Popen(command, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        try:
            with first.accept()[0]:
                process.terminate()
                assert process.wait(20) == os.EX_TEMPFAIL
        finally:
            process.kill()
