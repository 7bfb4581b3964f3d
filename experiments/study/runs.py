"""Computes the runs of a study: several at a time, common beginnings once, failures on their own.

runs/ARM/seed-N/       the folder of a run, as `run_directory` describes, with log.txt,
                       times.jsonl, and finished.json or error.txt
shared/KEY-seed-N/     the common beginning of several runs: validation before training and
                       round 0; their folders begin as copies of it
compilation_cache/     compiled programs, shared by all processes
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.progress import Reporter
from experiments.settings import EngineerSettings, LogSettings, LoopSettings, Settings
from experiments.speed import records
from experiments.store import RunDirectory
from experiments.study.plan import Study
from experiments.study.results import ERROR, FINISHED, run_folder, write_error

_BEGINNING = ("validation", "initial", "rounds/0", "checkpoints")
_MEMORY = 0.9


@dataclasses.dataclass(frozen=True)
class Job:
    """One run to be computed.

    Attributes:
      title: what people read.
      folder: where, relative to the study's folder.
      settings: its options.
      variant: its name; None for a beginning that variants have in common.
      shared: folder of the run that it begins as a copy of, if any, relative likewise.
    """

    title: str
    folder: Path
    settings: Settings
    variant: str | None = None
    shared: Path | None = None


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one process computes: its arguments and its environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def beginning(settings: Settings) -> Settings:
    """The run of one round that every run of `settings` begins with, whoever designs later."""
    return dataclasses.replace(
        settings,
        loop=LoopSettings(rounds=1),
        engineer=EngineerSettings(designer="fixed", start=settings.engineer.start),
        log=LogSettings(),
    )


def jobs(study: Study, settings: Mapping[str, Mapping[int, Settings]]) -> list[Job]:
    """All runs of a study, seed by seed, each common beginning before the runs that need it.

    Args:
      study: what is compared.
      settings: of `Study.settings`.
    """
    result: list[Job] = []
    for seed in study.seeds:
        starts = {
            variant.name: beginning(settings[variant.name][seed]) for variant in study.variants
        }
        keys = {name: _key(start) for name, start in starts.items()}
        users = collections.Counter(keys.values())
        shared = {
            name: Path("shared") / f"{key}-seed-{seed}" if users[key] > 1 else None
            for name, key in keys.items()
        }
        begun = {folder: starts[name] for name, folder in shared.items() if folder is not None}
        result += [
            Job(f"common beginning, seed {seed}", folder, start) for folder, start in begun.items()
        ]
        result += [
            Job(
                f"{variant.label}, seed {seed}",
                run_folder(variant.name, seed),
                settings[variant.name][seed],
                variant.name,
                shared[variant.name],
            )
            for variant in study.variants
        ]
    return result


def _key(settings: Settings) -> str:
    """A name for the options but for the seed."""
    options = {**settings.to_dict(), "seed": None}
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]


def check_unchanged(root: Path, all_jobs: Sequence[Job]) -> None:
    """Checks that what is there was computed with the same options.

    Raises:
      UserError: it was not; the message names the options.
    """
    for job in all_jobs:
        if (root / job.folder / "config.json").exists():
            RunDirectory(root / job.folder).claim(job.settings)


def slots(root: Path, workers: int, settings: Settings) -> list[Slot]:
    """Where the processes of a study compute.

    On CPUs the cores are divided equally between them. On GPUs each has as many devices of its own
    as the mesh takes; more workers than that share devices and divide their memory. On anything
    else one process has all devices.

    Args:
      root: the study's folder.
      workers: how many processes; 0 is one a core, or one for each mesh of GPUs.
      settings: of any run, for its mesh.

    Raises:
      UserError: so many processes cannot share the devices.
    """
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str((root / "compilation_cache").resolve()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONUNBUFFERED": "1",
    }
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache.pop("JAX_COMPILATION_CACHE_DIR")
    backend, count = _devices()
    if backend == "cpu":
        cores = records.cores()
        workers = workers or len(cores)
        return [
            Slot(("--cores=" + ",".join(map(str, part)),), cache)
            for part in _divided(cores, workers)
        ]
    if backend == "gpu":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = visible.split(",") if visible else [str(i) for i in range(count)]
        mesh = settings.mesh
        size = mesh.data * mesh.fsdp * mesh.tensor
        groups = [names[i * size : (i + 1) * size] for i in range(max(1, len(names) // size))]
        workers = workers or len(groups)
        share = _MEMORY / -(-workers // len(groups))
        return [
            Slot(
                (),
                {
                    **cache,
                    "CUDA_VISIBLE_DEVICES": ",".join(groups[i % len(groups)]),
                    "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{share:.3f}",
                },
            )
            for i in range(workers)
        ]
    if workers > 1:
        raise UserError(f"workers={workers}: processes cannot share {backend} devices, allowed: 1")
    return [Slot((), cache)]


def _devices() -> tuple[str, int]:
    """JAX's default backend and its devices, asked in a process that lets go of them again."""
    program = "import jax; print(jax.default_backend(), jax.device_count())"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise UserError(f"JAX finds no device: {told.stderr.strip().splitlines()[-1]}")
    backend, count = told.stdout.split()[-2:]
    return backend, int(count)


def _divided(cores: Sequence[int], workers: int) -> list[list[int]]:
    """The cores of each worker, equally many: the number of threads decides how sums are rounded.

    If there are fewer cores than workers, one each, some of them shared.
    """
    each = len(cores) // workers
    if not each:
        return [[cores[i % len(cores)]] for i in range(workers)]
    return [list(cores[i * each : (i + 1) * each]) for i in range(workers)]


class Runner:
    """Computes jobs on slots.

    Args:
      root: the study's folder.
      all_jobs: of `jobs`; those that are finished are left as they are.
      places: of `slots`.
      reporter: where progress is shown.
    """

    def __init__(
        self, root: Path, all_jobs: Sequence[Job], places: Sequence[Slot], reporter: Reporter
    ) -> None:
        self._root = root
        self._places = places
        self._reporter = reporter
        self._finished = {job.folder for job in all_jobs if (root / job.folder / FINISHED).exists()}
        self._failed: set[Path] = set()
        # A beginning is of use only to runs that are still to come.
        needed = {job.shared for job in all_jobs if job.folder not in self._finished}
        self._waiting = [
            job
            for job in all_jobs
            if job.folder not in self._finished
            and (job.variant is not None or job.folder in needed)
        ]
        self._total = len(self._waiting)
        self._done = 0
        self._seconds = 0.0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._workers: set[subprocess.Popen[str]] = set()

    def run(self) -> bool:
        """Computes all jobs that are not finished; returns False if it was asked to leave.

        SIGTERM and SIGINT let every run save and leave. A run that fails has its error in its
        folder and stops no other, but those that begin as a copy of it.
        """
        if len(self._finished):
            self._reporter.line(f"{len(self._finished)} runs are finished already")
        threads = [
            threading.Thread(target=self._work, args=(slot,), daemon=True)
            for slot in self._places[: self._total]
        ]
        handlers = {
            number: signal.signal(number, lambda *_: self._stop())
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return not self._stopping.is_set()

    def _stop(self) -> None:
        self._stopping.set()
        for process in list(self._workers):
            process.terminate()

    def _work(self, slot: Slot) -> None:
        """One slot: takes jobs until there are none; its process is renewed if it dies."""
        process: subprocess.Popen[str] | None = None
        while (job := self._take()) is not None:
            begin = time.monotonic()
            try:
                self._copy_beginning(job)
                if process is None or process.poll() is not None:
                    process = self._start(slot)
                reply = self._ask(process, job)
            except Exception as error:  # Others may wait for this job: it must come to an end.
                reply = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
                with contextlib.suppress(OSError):  # No room on the disk, maybe.
                    write_error(self._root / job.folder, reply["error"])
            self._finish(job, reply, time.monotonic() - begin)
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
            self._workers.discard(process)

    def _start(self, slot: Slot) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "experiments.study.worker", *slot.arguments],
            env={**os.environ, **slot.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which tells the others.
        )
        self._workers.add(process)
        if self._stopping.is_set():
            process.terminate()
        return process

    def _ask(self, process: "subprocess.Popen[str]", job: Job) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        folder = self._root / job.folder
        request = {"folder": str(folder.resolve()), "settings": job.settings.to_dict()}
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        code = process.wait()
        self._workers.discard(process)
        if self._stopping.is_set():
            return {"status": "preempted", "error": None}
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        error = f"its process died ({reason}); what it printed is in log.txt"
        write_error(folder, error)
        return {"status": "failed", "error": error}

    def _take(self) -> Job | None:
        """The next job that can begin; waits for the beginnings that others need."""
        with self._changed:
            while True:
                if self._stopping.is_set():
                    return None
                for job in self._waiting:
                    if job.shared in self._failed:
                        self._waiting.remove(job)
                        self._give_up(job)
                        break
                    if job.shared is None or job.shared in self._finished:
                        self._waiting.remove(job)
                        return job
                else:
                    if not self._waiting:
                        return None
                    self._changed.wait(0.2)

    def _give_up(self, job: Job) -> None:
        assert job.shared is not None
        note = self._root / job.shared / ERROR
        reason = note.read_text().strip() if note.exists() else "its error could not be noted"
        error = f"its common beginning with other runs ({job.shared}) failed: {reason}"
        with contextlib.suppress(OSError):
            write_error(self._root / job.folder, error)
        self._failed.add(job.folder)
        self._done += 1
        self._reporter.line(f"{self._done}/{self._total} {job.title}: failed: {error}")

    def _copy_beginning(self, job: Job) -> None:
        """Makes the folder of a run that has not begun from what it has in common with others."""
        folder = self._root / job.folder
        if job.shared is None or (folder / "config.json").exists():
            return
        if not (folder / "checkpoints").exists():
            copy_beginning(self._root / job.shared, folder)

    def _finish(self, job: Job, reply: Mapping[str, Any], seconds: float) -> None:
        status = reply["status"]
        if status == "preempted":
            return
        with self._changed:
            (self._finished if status == "finished" else self._failed).add(job.folder)
            self._done += 1
            self._seconds += seconds
            left = self._seconds / self._done * (self._total - self._done) / len(self._places)
            told = f"failed: {reply['error']}" if status == "failed" else f"{seconds:.0f} s"
            more = f", about {left / 60:.0f} min left" if self._done < self._total else ""
            self._reporter.line(f"{self._done}/{self._total} {job.title}: {told}{more}")
            self._changed.notify_all()


def copy_beginning(source: Path, target: Path) -> None:
    """Copies what a run of one round left, for a longer run to go on from there.

    The copy appears as a whole or not at all. The files of checkpoints, which are never written
    again, are linked where the file system can.
    """
    temporary = target.with_name(target.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    for name in _BEGINNING:
        copy = _link if name == "checkpoints" else shutil.copy2
        shutil.copytree(source / name, temporary / name, copy_function=copy)
    shutil.rmtree(target, ignore_errors=True)  # Not begun: what it holds is the note of a failure.
    temporary.rename(target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
