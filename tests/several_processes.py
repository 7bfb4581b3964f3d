"""A few lines of Python in several processes that find each other over the loopback."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BEGIN = """
import sys
from learner.devices import distributed

port, index, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
distributed.HEARTBEAT_SECONDS = 10
distributed.start(f"127.0.0.1:{port}", 2, index)
"""


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def two_processes(lines, folder):
    """Runs `lines` in two, which know `index` and `folder`; their exit codes and what they print.

    Each has one device. They come to their ends within 100 seconds.
    """
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _BEGIN + lines, str(port), str(index), str(folder)],
            cwd=ROOT,
            env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", "JAX_ENABLE_COMPILATION_CACHE": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        texts = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], texts
