"""Runs functions in a process of their own, where hangs, crashes and writes do no harm.

Third-party verifiers evaluate what a model wrote, some of them literally. `Sandbox` runs the
functions of a file with limits on time and memory, and lets them neither write files nor start
processes nor open sockets. It guards against accidents, not against an attacker. The sandboxed
process runs this file too, so it imports nothing heavy.
"""

import functools
import json
import math
import os
import resource
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

MEMORY = 4 << 30  # Bytes of address space, in addition to a file's imports.
_WAIT = 10  # Limit on wall time, as a multiple of that on processor time.
_REFUSED = (
    "ctypes.", "os.chmod", "os.chown", "os.exec", "os.fork", "os.kill", "os.link", "os.mkdir",
    "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system",
    "os.truncate", "os.utime", "pty.spawn", "shutil.", "socket.", "subprocess.",
)  # fmt: skip


class SandboxError(RuntimeError):
    """A function raised, took too long, or ended its process."""


class OutOfTimeError(SandboxError):
    """A function took too long."""


class Sandbox:
    """Runs functions of one file; the process starts at the first call and after each failure.

    Args:
      path: a Python file, whose imports are neither limited nor timed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[str] | None = None

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Calls a function and returns its value.

        Args:
          name: of the function, or OBJECT.METHOD.
          arguments: JSON-able, like the value.
          seconds: limit on processor time; the limit on wall time is ten times as high.

        Raises:
          OutOfTimeError: it took longer.
          SandboxError: it raised, or its process ended.
        """
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([name, arguments, seconds]) + "\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            code = self.close()
            if code in (-signal.SIGPROF, -signal.SIGALRM):
                raise OutOfTimeError(f"{name}: more than {seconds:g} s of processor time")
            raise SandboxError(f"{name}: its process ended with {code}")
        value, error = json.loads(reply)
        if error:
            raise SandboxError(f"{name}: {error}")
        return value

    def close(self) -> int | None:
        """Ends the process, if any, and returns its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.communicate()
        return process.returncode

    def _start(self) -> subprocess.Popen[str]:
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        # Accelerators belong to the run; a file may import whatever the run can.
        run = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [sys.executable, "-P", "-B", __file__, str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **one_thread, **run, "PYTHONHASHSEED": "0"},
            text=True,
        )


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    if event.startswith(_REFUSED) or (event == "open" and (arguments[2] or 0) & writes):
        raise PermissionError(f"{event} is not allowed here")


def _serve(path: str) -> None:
    """Answers calls, one per line, until the other side closes its end."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):  # Keeps the functions' own input and output out of the protocol.
        os.dup2(nothing, standard)
    for signum in (signal.SIGTERM, signal.SIGINT):  # The other side may finish its step.
        signal.signal(signum, signal.SIG_IGN)
    functions = runpy.run_path(path, run_name="family")
    if jax := sys.modules.get("jax"):
        jax.devices()  # Its threads, one for each core, reserve address space too.
    statm = Path("/proc/self/statm")  # Only Linux has it; its first number is of pages.
    taken = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY + taken, MEMORY + taken))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sys.addaudithook(_refuse)
    for line in requests:
        name, arguments, seconds = json.loads(line)
        # The signals end the process, even within C code.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(math.ceil(_WAIT * seconds))
        try:
            first, *rest = name.split(".")
            value = functools.reduce(getattr, rest, functions[first])(*arguments)
            # Numbers and arrays of NumPy become those of Python.
            reply = json.dumps([value, ""], default=lambda one: one.tolist())
        except BaseException as error:
            reply = json.dumps([None, f"{type(error).__name__}: {error}"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        replies.write(reply + "\n")
        replies.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
