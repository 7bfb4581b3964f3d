"""Runs functions in processes of their own, where hangs, crashes and writes do no harm.

Third-party verifiers evaluate what a model wrote, some of them literally. `Sandbox` limits time and
memory and hides the environment; where Linux lets a process have a user namespace, other processes'
environments too. On Linux with libseccomp the kernel also refuses what reaches out: writing files,
starting processes, opening sockets, signals. It guards against accidents: code that a function
evaluates can change what the function returns, then and later.

A reply counts only with the random id of its request, and is JSON. (The pools pebble and loky
unpickle replies, so what they run could run code here.) The processes run this file too, so it
imports nothing heavy.
"""

import contextlib
import ctypes
import errno
import functools
import json
import logging
import os
import queue
import resource
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

WORKERS = min(4, os.cpu_count() or 1)
"""Processes of a sandbox, and so calls at once."""

MEMORY = 4 << 30  #: Bytes of address space, in addition to a file's imports.
_WAIT = 10  # Limit on wall time, as a multiple of that on processor time.
_LONGEST_POLL = 3600.0  # Seconds; it holds milliseconds in 32 bits.
_START = 60.0  # Seconds of processor time for a file's imports.
_MOST = 1 << 28  # Bytes of a reply.
_REFUSED = """
    fork vfork execve execveat kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open
    pidfd_getfd pidfd_send_signal ptrace process_vm_readv process_vm_writev setrlimit setpriority
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler ioprio_set migrate_pages
    socket connect bind listen io_uring_setup mq_open msgget semget shmget creat openat2
    open_by_handle_at mkdir mkdirat mknod mknodat rmdir unlink unlinkat rename renameat renameat2
    link linkat symlink symlinkat truncate ftruncate fallocate chmod fchmod fchmodat 452 chown
    fchown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr fsetxattr removexattr
    lremovexattr fremovexattr 463 466 469 mount umount2 pivot_root chroot setns unshare move_mount
    fsopen open_tree bpf keyctl add_key request_key perf_event_open userfaultfd sethostname
    setdomainname reboot settimeofday clock_settime adjtimex clock_adjtime init_module finit_module
    delete_module kexec_load acct swapon swapoff quotactl
"""  # By number, as few versions know their names: fchmodat2, {set,remove}xattrat, file_setattr.


class SandboxError(RuntimeError):
    """A function raised, took too long, or ended its process."""


class OutOfTimeError(SandboxError):
    """A function took too long."""


class Sandbox:
    """Runs functions of one file, in several threads if they call at once.

    Args:
      path: a Python file; its imports see the environment and have limits on time alone.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()  # None may be started.
        for _ in range(WORKERS):
            self._idle.put(None)
        self._late: set[str] = set()

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """Calls a function and returns its value; a call that ran out of time is not made again.

        Args:
          name: of the function, or OBJECT.METHOD.
          arguments: JSON-able, like the value.
          seconds: limit on processor time; the limit on wall time is ten times as high.

        Raises:
          OutOfTimeError: it took longer.
          SandboxError: it raised, or its process ended or broke the protocol.
        """
        request = json.dumps([name, arguments, seconds])
        if request in self._late:
            raise OutOfTimeError(f"{name}: more than {seconds:g} s of processor time")
        process = self._idle.get()
        try:
            process = process or _Process(self._path)
            value, error = process.exchange(request, seconds)
        except BaseException as raised:  # Ctrl-C too: the reply may still come.
            if process:
                process.end()
            process = None
            if isinstance(raised, OutOfTimeError):
                self._late.add(request)
            if isinstance(raised, SandboxError):
                raise type(raised)(f"{name}: {raised}") from None
            raise
        finally:
            self._idle.put(process)
        if error:
            raise SandboxError(f"{name}: {error}")
        return value

    def close(self) -> None:
        """Ends the processes; later calls start new ones."""
        for process in [self._idle.get() for _ in range(WORKERS)]:
            if process:
                process.end()
            self._idle.put(None)


class _Process:
    """A process that has imported a file and answers one request after the other.

    Raises:
      SandboxError: the import failed, or took too long.
    """

    def __init__(self, path: str) -> None:
        # Accelerators belong to the run; a file may import whatever the run can.
        kept = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
        kept |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-B", __file__, path],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=kept,
                start_new_session=True,
            )
        try:
            imports = json.dumps(["", [dict(os.environ)], _START])
            confined, error = self.exchange(imports, _START)
            if error:
                raise SandboxError(error)
        except BaseException:
            self.end()
            raise
        if not confined:
            _warn()

    def exchange(self, request: str, seconds: float) -> tuple[Any, str]:
        """Sends a request and returns the value and the error of its reply.

        Raises:
          OutOfTimeError: it took longer than `seconds`.
          SandboxError: the process ended, or something else came than the reply.
        """
        identity, reply = secrets.token_hex(16), bytearray()
        left = memoryview(f"{identity} {request}\n".encode())
        wall, processor = time.monotonic() + _WAIT * seconds, self._processor_time() + seconds
        poll = select.poll()
        while not reply.endswith(b"\n"):
            patience = min(wall - time.monotonic(), processor - self._processor_time())
            if patience <= 0:
                raise OutOfTimeError(f"more than {seconds:g} s of processor time")
            poll.register(self._channel, select.POLLOUT if left else select.POLLIN)
            if not poll.poll(1000 * min(patience, _LONGEST_POLL)):
                continue
            try:
                if left:
                    left = left[self._channel.send(left) :]
                    continue
                part = self._channel.recv(1 << 20)
            except ConnectionError:
                part = b""
            reply += part
            if not part:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._popen.wait(1)
                raise SandboxError(f"its process ended with {self._popen.returncode}")
            if len(reply) > _MOST:
                raise SandboxError(f"it returned more than {_MOST} bytes")
        with contextlib.suppress(ValueError, RecursionError):
            said, _, value = reply.decode().partition(" ")
            if said == identity:
                return json.loads(value)
        raise SandboxError("something else was written where its reply goes")

    def end(self) -> None:
        """Ends the process and those that its imports started."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def _processor_time(self) -> float:
        """Seconds of the process so far; 0 where others may not read its clock, as on macOS."""
        with contextlib.suppress(OSError):
            return time.clock_gettime(~self._popen.pid << 3 | 2)  # See clock_getcpuclockid(3).
        return 0.0


@functools.cache
def _warn() -> None:
    logging.warning(
        "functions of families can write files and open connections here; to keep them from it on "
        "Linux needs libseccomp and pyseccomp; "
        "in a clone of the project: pip install -e '.[train]'"
    )


def _serve(path: str) -> None:
    """Answers requests, one per line, until the other side closes its end."""
    _leave_others()
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(0), "wb")
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    functions: dict[str, Any] = {"": lambda environment: _import(path, environment, functions)}
    for line in requests:
        identity, _, request = line.decode().partition(" ")
        name, arguments, seconds = json.loads(request)
        # Ends the process if nobody else is left to.
        signal.alarm(int(min(2 * _WAIT * seconds, 2**31 - 2)) + 1)
        try:
            first, *rest = name.split(".")
            value = functools.reduce(getattr, rest, functions[first])(*arguments)
            reply = json.dumps([value, ""], default=_plain)
        except BaseException as error:
            reply = json.dumps([None, told(error, path)])
        signal.alarm(0)
        replies.write(f"{identity} {reply}\n".encode())
        replies.flush()


def _plain(value: Any) -> Any:
    """Numbers and arrays of NumPy as those of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it returned {value!r:.80}, and JSON has no {type(value).__name__}")


def _leave_others() -> None:
    """Enters a user namespace, to which the kernel shows no environment or memory outside of it.

    Before any import: the kernel has none for a process with threads.
    """
    user = os.geteuid()
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: this is not Linux.
        if not ctypes.CDLL(None).unshare(1 << 28):  # CLONE_NEWUSER
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")


def told(error: BaseException, path: str) -> str:
    """An error with the last of its lines in a file, or the very last one."""
    if isinstance(error, SyntaxError):  # Its text has the line.
        return f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    at = ([frame for frame in frames if frame.filename == path] or frames)[-1]
    place = f"{os.path.basename(at.filename)}:{at.lineno}, in {at.name}"
    return f"{type(error).__name__}: {str(error)[:2000]} ({place})"


def _import(path: str, environment: dict[str, str], functions: dict[str, Any]) -> bool:
    """Imports a file, then confines the process; whether the kernel refuses what reaches out."""
    kept = dict(os.environ)
    os.environ.update({k: v for k, v in environment.items() if not k.startswith(("JAX_", "XLA_"))})
    os.environ.update(kept)
    functions.update(runpy.run_path(path, run_name="family"))
    os.environ.clear()
    os.environ.update(kept)
    if jax := sys.modules.get("jax"):
        jax.devices()  # Its threads, one for each core, reserve address space too.
    most = MEMORY
    with contextlib.suppress(FileNotFoundError):  # Only Linux has it; its first number is of pages.
        statm = Path("/proc/self/statm").read_text(encoding="utf-8")
        most += int(statm.split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        from pyseccomp import ALLOW, ERRNO, MASKED_EQ, NE, Arg, Attr, SyscallFilter
    except (ImportError, RuntimeError):  # RuntimeError: there is no libseccomp.
        return False
    rules, refuse = SyscallFilter(ALLOW), ERRNO(errno.EPERM)
    rules.set_attr(Attr.CTL_TSYNC, 1)
    for name in _REFUSED.split():
        rules.add_rule(refuse, int(name) if name.isdecimal() else name)
    for name, argument in (("open", 1), ("openat", 2)):
        for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
            rules.add_rule(refuse, name, Arg(argument, MASKED_EQ, flag, flag))
    rules.add_rule(refuse, "clone", Arg(0, MASKED_EQ, 1 << 16, 0))  # CLONE_THREAD: not a thread.
    rules.add_rule(ERRNO(errno.ENOSYS), "clone3")
    rules.add_rule(refuse, "prlimit64", Arg(2, NE, 0))
    rules.load()
    return True


if __name__ == "__main__":
    _serve(sys.argv[1])
