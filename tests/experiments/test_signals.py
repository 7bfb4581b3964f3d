"""A command that is asked to leave exits with 75, wherever that finds it."""

import os
import signal
import subprocess
import sys

import pytest

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
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + lines],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == os.EX_TEMPFAIL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # Of the tests themselves.
