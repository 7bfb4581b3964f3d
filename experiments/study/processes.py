"""The processes that compute the runs of a study, and what each has of the machine."""

import contextlib
import dataclasses
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import experiments
from experiments import measurements
from experiments.settings import Settings
from experiments.text.errors import UserError

WORKER = (sys.executable, "-P", "-m", "experiments.study.worker")
"""Command that computes the runs that its standard input asks for."""
REPLY = b"finished\n"
"""What it writes to its standard output when a run is finished and it waits for the next."""
_MEMORY = 0.9


@dataclasses.dataclass(frozen=True)
class Slot:
    """Resources of one process: its cores (all if empty) and additional environment variables."""

    cores: tuple[int, ...]
    environment: Mapping[str, str]


def environment(slot: Slot) -> dict[str, str]:
    """The environment variables of a process on a slot, in addition to those of this one.

    It finds the package that this process runs, though the working folder may have another one of
    the same name.
    """
    package = str(Path(experiments.__file__).resolve().parents[1])
    paths = [package, os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **slot.environment}


class Worker:
    """A process on a slot that computes one run after another; the first one starts it.

    Later runs find the packages imported, and what is traced and compiled for samplers and trainers
    with the same options. The process ends with a run that fails, and the next run gets a new one.

    Attributes:
      slot: its resources.
      returncode: of the last run: 0 if it is finished, else the exit code of the process that ended
        with it; None while it may go on.
    """

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.returncode: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, request: str, log: Path) -> None:
        """Begins a run; `poll` says when it has ended.

        Args:
          request: a line of JSON, see `experiments.study.worker`.
          log: what the process prints until it writes to the run's own log is appended here.
        """
        self.returncode = None
        if self._process is None or self._process.poll() is not None:
            self._process = self._begin(log)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It died at once, which `poll` will tell.
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()  # It stays open: its end asks the process to leave.

    def _begin(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file, on_cores(self.slot.cores):
            process = subprocess.Popen(
                WORKER,
                env={**os.environ, **environment(self.slot)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends the others.
            )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def poll(self) -> int | None:
        """Updates and returns `returncode`."""
        if self.returncode is None and self._process is not None:
            assert self._process.stdout is not None
            ended = self._process.poll()  # Before reading: what was said before the end counts.
            said = self._process.stdout.read() or b""
            self.returncode = 0 if said.endswith(REPLY) else ended
        return self.returncode

    def terminate(self) -> None:
        """Asks the process to save its run and leave."""
        if self._process is not None:
            self._process.terminate()

    def leave(self) -> None:
        """Ends the process, which computes nothing now."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()


def slots(root: Path, workers: int, settings: Settings) -> list[Slot]:
    """The resources of a study's processes.

    CPU cores are divided equally, as the number of threads decides how sums are rounded; more
    workers than cores share them. On GPUs each process has the devices of its mesh; further workers
    share devices and divide their memory. On other backends one process has all devices.

    Args:
      workers: number of processes; 0 is one for each core, or for each mesh of GPUs.
      settings: of any run, for its mesh.

    Raises:
      UserError: so many processes cannot share the devices.
    """
    environment = variables(root)
    backend, count = _devices()
    if backend == "cpu":
        cores = measurements.cores()
        workers, turns = workers or len(cores), itertools.cycle(cores)
        each = max(1, len(cores) // workers)
        return [Slot(tuple(itertools.islice(turns, each)), environment) for _ in range(workers)]
    if backend == "gpu":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = visible.split(",") if visible else [str(i) for i in range(count)]
        mesh = settings.mesh
        size = mesh.data * mesh.fsdp * mesh.tensor
        groups = [names[i * size : (i + 1) * size] for i in range(max(1, len(names) // size))]
        workers = workers or len(groups)
        memory = f"{_MEMORY / -(-workers // len(groups)):.3f}"
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = memory
        return [
            Slot((), {**environment, "CUDA_VISIBLE_DEVICES": ",".join(group)})
            for group in itertools.islice(itertools.cycle(groups), workers)
        ]
    if workers > 1:
        raise UserError(f"workers={workers}: processes cannot share {backend} devices, allowed: 1")
    return [Slot((), environment)]


def variables(root: Path) -> dict[str, str]:
    """Environment variables of all processes of a study."""
    return {
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR")
        or str((root / "compilation_cache").resolve()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONUNBUFFERED": "1",
    }


def _devices() -> tuple[str, int]:
    """JAX's default backend and its number of devices, from a process that releases them."""
    program = "import jax; print(jax.default_backend(), jax.device_count())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode:
        raise UserError(f"JAX finds no device: {done.stderr.strip().splitlines()[-1]}")
    backend, count = done.stdout.split()[-2:]
    return backend, int(count)


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Pins processes that the body starts to these cores; JAX counts them at its start."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
