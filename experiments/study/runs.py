"""Computes the runs of a study in parallel processes; shared beginnings are computed once.

In the folder of a study:

    runs/VARIANT/seed-N/   the folder of a run (see `experiments.run.store`), with log.txt, and
                           finished.json or error.txt
    branches/VARIANT/seed-N/after-R/rounds-H/
                           the same of a run that branches after round R of the reference's run and
                           trains H further rounds (`variants.Branches`)
    shared/KEY-seed-N/     the shared beginning of several runs, validation before training and
                           round 0; their folders start as copies of it
    compilation_cache/     compiled programs, shared by all processes
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections

from experiments.run.branching import copy_rounds
from experiments.run.status import Reporter
from experiments.run.store import RunStore, differences, write_file
from experiments.settings import EngineerSettings, LogSettings, LoopSettings, Settings
from experiments.study import branches, processes, provenance, results
from experiments.study.branches import branch_folder
from experiments.study.processes import Slot, Worker
from experiments.study.results import ERROR, FINISHED, LOG, run_folder
from experiments.study.submission import Submitted, Submitter
from experiments.study.variants import Branches, Budget, Study
from experiments.text.errors import UserError
from learner.devices import preemption

_POLL_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
    """One run to be computed.

    Attributes:
      title: for people.
      folder: relative to the study's folder.
      settings: its options.
      variant: name of the variant; None for a shared beginning.
      shared: folder of the run that it starts as a copy of, its shared beginning or the run that it
        branches from, if any, relative to the study's folder.
      copied: rounds of that run to copy.
    """

    title: str
    folder: Path
    settings: Settings
    variant: str | None = None
    shared: Path | None = None
    copied: int = 0


def beginning(settings: Settings) -> Settings:
    """The rounds before the first design of a run with these settings, whoever designs later."""
    kept = min(settings.engineer.kept_rounds, settings.loop.rounds)
    return dataclasses.replace(
        settings,
        loop=LoopSettings(rounds=kept),
        engineer=EngineerSettings(
            designer="fixed", start=settings.engineer.start, kept_rounds=kept
        ),
        log=LogSettings(),
    )


def jobs(study: Study, settings: Mapping[str, Mapping[int, Settings]]) -> list[Job]:
    """All runs of a study, seed by seed, each shared beginning before the runs that need it.

    Args:
      settings: of `Study.settings`.
    """
    if study.branches is not None:
        return list(_branch_jobs(study, study.branches, settings))
    result: list[Job] = []
    for seed in study.seeds:
        starts = {name: beginning(of_seed[seed]) for name, of_seed in settings.items()}
        folders = {
            name: Path("shared") / f"{_key(start)}-seed-{seed}" for name, start in starts.items()
        }
        users = collections.Counter(folders.values())
        shared = {folder: starts[name] for name, folder in folders.items() if users[folder] > 1}
        result += [
            Job(f"shared beginning, seed {seed}", folder, start) for folder, start in shared.items()
        ]
        for variant in study.variants:
            title, own = f"{variant.label}, seed {seed}", settings[variant.name][seed]
            folder = folders[variant.name]
            begin = (folder, shared[folder].loop.rounds) if folder in shared else ()
            run = run_folder(variant.name, seed)
            result.append(Job(title, run, own, variant.name, *begin))
    return result


def _branch_jobs(
    study: Study, of: Branches, settings: Mapping[str, Mapping[int, Settings]]
) -> Iterator[Job]:
    """Yields every job after what it starts from, short horizons first.

    These are, seed by seed, the reference's run and its branches. A branch with a longer horizon
    starts from the one before it, at its end.
    """
    for horizon, seed in itertools.product(of.horizons, study.seeds):
        trunk = run_folder(study.reference, seed)
        if horizon == 1:
            of_trunk = settings[study.reference][seed]
            yield Job(f"trunk, seed {seed}", trunk, of_trunk, study.reference)
        for index, variant in itertools.product(of.rounds, study.variants):
            horizons = of.horizons_of(variant.name)
            if horizon not in horizons:
                continue
            rounds, of_variant = index + 1 + horizon, settings[variant.name][seed]
            run = dataclasses.replace(
                of_variant,
                loop=LoopSettings(rounds),
                # A longer branch needs its end alone, which is always kept.
                checkpoint=dataclasses.replace(of_variant.checkpoint, of_rounds="nothing"),
            )
            begin = trunk, index + 1
            if horizon > 1:
                returns = EngineerSettings("first", start=run.engineer.start)
                run = dataclasses.replace(run, engineer=returns)
                shorter = horizons[horizons.index(horizon) - 1]
                folder = branch_folder(variant.name, seed, index, shorter)
                begin = folder, index + 1 + shorter
            title = f"{variant.label}, seed {seed}, rounds/{index} + {horizon}"
            folder = branch_folder(variant.name, seed, index, horizon)
            yield Job(title, folder, run, variant.name, *begin)


class Work(NamedTuple):
    """Remaining work of one kind.

    Attributes:
      what: the kind, for people.
      finished, of: numbers of runs or checkpoints.
      completions: still to be sampled.
      hours: estimate for the rest, from the time per completion so far, training included; None if
        nothing has run.
    """

    what: str
    finished: int
    of: int
    completions: int
    hours: float | None


def forecast(root: Path, all_jobs: Sequence[Job], workers: int) -> list[Work]:
    """The remaining work of a study by variant, with `workers` processes at a time."""
    own: dict[Path, int] = {}
    kinds: dict[str, list[Path]] = {}
    for job in all_jobs:
        own[job.folder] = _completions(job.settings)
        if job.copied:
            copied = dataclasses.replace(job.settings, loop=LoopSettings(job.copied))
            own[job.folder] -= _completions(copied)
        kinds.setdefault(job.variant or "shared beginnings", []).append(job.folder)
    done = {folder for folder in own if (root / folder / FINISHED).exists()}
    seconds = sum(results.times(root / folder)["seconds"] for folder in done) / workers
    sampled, work = sum(own[folder] for folder in done), []
    for kind, folders in kinds.items():
        left = sum(own[folder] for folder in folders if folder not in done)
        finished = sum(folder in done for folder in folders)
        work.append(Work(kind, finished, len(folders), left, hours(left, seconds, sampled)))
    return work


def _completions(settings: Settings) -> int:
    """The completions of a run, without those of a test set."""
    budget, greedy = Budget.of(settings), settings.validation.temperature > 0
    return budget.answers + budget.validated * (1 + greedy)


def together(work: Sequence[Work]) -> Work:
    """The sum of all kinds."""
    known = [one.hours for one in work if one.hours is not None]
    finished, of, left = (sum(numbers) for numbers in list(zip(*work, strict=True))[1:4])
    return Work("all", finished, of, left, sum(known) if len(known) == len(work) else None)


def hours(left: int, seconds: float, done: int) -> float | None:
    """Estimated hours for `left` completions, from those done; None if none is done."""
    if not left:
        return 0.0
    return left * seconds / done / 3600 if done else None


def _key(settings: Settings) -> str:
    """A digest of the options without the seed.

    Only what differs from the defaults counts, so that a study outlives a new option.
    """
    options = {**settings.to_dict(), "seed": Settings.seed}
    changed = [(path, now) for path, _, now in differences(Settings().to_dict(), options)]
    return hashlib.sha256(json.dumps(sorted(changed)).encode()).hexdigest()[:8]


def places(
    root: Path, workers: int, all_jobs: Sequence[Job], submitter: Submitter | None = None
) -> list[Slot]:
    """The slots of a study: those of `slots`, or as many jobs of a cluster as are wanted.

    Args:
      workers: processes or jobs at a time; 0 is as in `slots`, or all jobs at once.
    """
    if submitter is None or submitter.local:
        return processes.slots(root, workers, all_jobs[0].settings)
    return [Slot((), processes.variables(root))] * (workers or len(all_jobs))


def compute(
    root: Path,
    study: Study,
    base: ml_collections.ConfigDict,
    workers: int | None,
    reporter: Reporter,
    amendment: str | None = None,
    submitter: Submitter | None = None,
) -> tuple[dict[str, Any], bool]:
    """Computes what is missing of a study, and writes its files.

    Args:
      base: the common options of all variants.
      workers: as in `places`; None computes nothing.
      reporter: shows progress.
      amendment: see `provenance.register`.
      submitter: submits each run to a cluster; None starts processes on this machine.

    Returns:
      (content of `study.json`, False if interrupted).

    Raises:
      UserError: an option is not allowed, or the study was started with other options or another
        registration.
    """
    settings = study.settings(base)
    all_jobs = jobs(study, settings)
    # Tables can be written while the study runs.
    with RunStore(root).locked() if workers is not None else contextlib.nullcontext():
        begun = [job for job in all_jobs if (root / job.folder / "config.json").exists()]
        if workers is None:
            _check_tables(root, study.seeds)
        for job in begun:  # None may have other options than before.
            RunStore(root / job.folder).check_start(job.settings)
        whole = True
        if workers is not None or (root / provenance.FILE).exists():
            provenance.register(root, study.registration, bool(begun), amendment)
        if workers is not None:
            found = places(root, workers, all_jobs, submitter)
            runner = Runner(root, all_jobs, found, reporter, submitter)
            if runner.waiting:
                with provenance.session(root):
                    whole = runner.run()
        if study.branches is not None:
            return branches.write(root, study, study.branches, settings), whole
        shared = {
            (job.variant, job.settings.seed): job.shared
            for job in all_jobs
            if job.variant is not None and job.shared is not None
        }
        return results.write(root, study, settings, shared), whole


def _check_tables(root: Path, seeds: Sequence[int]) -> None:
    """Raises UserError if no run is there, or tables of these seeds would leave out some."""
    begun = root.glob("runs/*/seed-*/config.json")
    there = sorted({int(path.parent.name.removeprefix("seed-")) for path in begun})
    if not there:
        raise UserError(f"workdir={root}: no run is there to write tables of")
    if not {*there} <= {*seeds}:
        found, given = (", ".join(map(str, numbers)) for numbers in (there, seeds))
        raise UserError(f"workdir={root}: there are runs of seeds {found}, but seeds={given}")


class Runner:
    """Computes jobs on slots, one after another in each slot's process.

    Args:
      all_jobs: of `jobs`; finished ones are skipped.
      places: of `places`.
      reporter: shows progress.
      submitter: submits the processes to a cluster; None starts them on this machine.
    """

    def __init__(
        self,
        root: Path,
        all_jobs: Sequence[Job],
        places: Sequence[Slot],
        reporter: Reporter,
        submitter: Submitter | None = None,
    ) -> None:
        self._root, self._reporter, self._submitter = root, reporter, submitter
        self._idle, self._num_slots = [Worker(slot) for slot in reversed(places)], len(places)
        self._finished = {job.folder for job in all_jobs if (root / job.folder / FINISHED).exists()}
        # A shared beginning is only needed by unfinished runs.
        needed = {job.shared for job in all_jobs if job.folder not in self._finished}
        self._waiting = [
            job
            for job in all_jobs
            if job.folder not in self._finished and (job.variant or job.folder in needed)
        ]
        # Job, worker and start time of each process.
        self._running: dict[Worker | Submitted, tuple[Job, Worker, float]] = {}
        self._errors: dict[Path, str] = {}
        self._total, self._done, self._seconds = len(self._waiting), 0, 0.0

    @property
    def waiting(self) -> int:
        """Number of jobs that have not been started."""
        return len(self._waiting)

    def run(self) -> bool:
        """Computes all unfinished jobs; returns False if interrupted.

        On SIGTERM and SIGINT every run saves and exits. A failed run has its error in its folder
        and does not stop others, except those that start as a copy of it.
        """
        if self._finished:
            self._reporter.line(f"{len(self._finished)} runs are finished already")
        asked: list[int] = []
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, lambda n, _: asked.append(n)) for number in numbers]
        try:
            while not asked and (self._running or self._waiting):
                self._begin_some()
                time.sleep(_POLL_SECONDS)
                self._end_some()
            for process in self._running:
                process.terminate()
            while self._running:
                time.sleep(_POLL_SECONDS)
                self._end_some(leaving=True)
        finally:
            for worker in self._idle:
                worker.leave()
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
        return not asked

    def _begin_some(self) -> None:
        """Starts waiting jobs in order, as slots and shared beginnings allow."""
        for job in list(self._waiting):
            if job.shared in self._errors:
                error = f"its shared beginning ({job.shared}) failed: {self._errors[job.shared]}"
                self._waiting.remove(job)
                self._end(job, 0.0, error)
            elif self._idle and (job.shared is None or job.shared in self._finished):
                self._waiting.remove(job)
                try:
                    process = self._start(job, self._idle[-1])
                    self._running[process] = job, self._idle.pop(), time.monotonic()
                except OSError as error:  # For example a full disk.
                    self._end(job, 0.0, str(error))

    def _start(self, job: Job, worker: Worker) -> Worker | Submitted:
        folder = self._root / job.folder
        begun = any((folder / name).exists() for name in ("config.json", "checkpoints"))
        if job.shared is not None and not begun:
            source = (self._root / job.shared).resolve()
            note = {"run": str(source), "round": job.copied - 1, "changed": []}
            copy_rounds(source, folder, job.copied, note)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).unlink(missing_ok=True)
        log = (folder / LOG).resolve()
        log.touch()  # A process that dies at once has written none.
        last = self._submitter is not None
        request = {"folder": str(log.parent), "settings": job.settings.to_dict(), "last": last}
        line = json.dumps(request) + "\n"
        if self._submitter is not None:
            with processes.on_cores(worker.slot.cores):
                variables = processes.environment(worker.slot)
                return self._submitter.start(processes.WORKER, line, variables, log)
        worker.start(line, log)
        return worker

    def _end_some(self, leaving: bool = False) -> None:
        """Handles the processes that have ended."""
        for process in [one for one in self._running if one.poll() is not None]:
            job, worker, begin = self._running.pop(process)
            self._idle.append(worker)
            code, error = process.returncode, None
            assert code is not None
            if leaving and code in (preemption.EXIT_CODE, -signal.SIGTERM):
                continue
            if code < 0:
                error = f"its process died (signal {-code}); what it printed is in {LOG}"
            elif code == preemption.EXIT_CODE:
                error = "its process alone was asked to leave"
            elif code > 0:
                printed = (self._root / job.folder / LOG).read_text(
                    errors="replace", encoding="utf-8"
                )
                last = printed.strip().rpartition("\n")[2].removeprefix("error: ")
                error = last or f"its process ended with exit code {code}"
            self._end(job, time.monotonic() - begin, error)

    def _end(self, job: Job, seconds: float, error: str | None) -> None:
        if error is None:
            self._finished.add(job.folder)
        else:
            self._errors[job.folder] = error
            with contextlib.suppress(OSError):
                write_file(self._root / job.folder / ERROR, error + "\n")
        self._done += 1
        self._seconds += seconds
        left = self._seconds / self._done * (self._total - self._done) / self._num_slots
        outcome = f"{seconds:.0f} s" if error is None else f"failed: {error}"
        more = f", about {left / 60:.0f} min left" if self._done < self._total else ""
        self._reporter.line(f"{self._done}/{self._total} {job.title}: {outcome}{more}")
