"""Runs of a study as jobs of a cluster, through submitit (extra `submitit`).

A job runs the same worker as a local process does, on whatever the cluster gives it. submitit puts
a job that is preempted, or at the end of its time, into the queue again; before that the worker
saves. A job belongs to the process that submitted it: `MARK` in the run's folder names it, and
once it names another one, or is gone, the job saves and ends.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.run.store import write_file
from experiments.text.errors import UserError
from learner.devices import preemption

MARK = "submission.txt"
_SECONDS = 1.0  # Between looks at `MARK`.
_DEFAULTS = {"name": "study", "timeout_min": 24 * 60}


@dataclasses.dataclass
class Work:
    """A worker within a job: submitit calls it, and `checkpoint` before it queues the job again.

    It is pickled by value, so that a job needs nothing but submitit to read it.

    Attributes:
      command: of the worker.
      line: for its standard input.
      environment: variables in addition to those of the job.
      log: what it prints is appended here.
      mark, token: the job is wanted while this file has this content.
      left: exit code of a worker that was asked to leave and has saved.
    """

    command: Sequence[str]
    line: str
    environment: Mapping[str, str]
    log: Path
    mark: Path
    token: str
    left: int
    _process: subprocess.Popen[str] | None = dataclasses.field(default=None, init=False)

    def __call__(self) -> int:
        """The exit code of the worker."""
        if not self._wanted():  # It waited in the queue for a study that has ended.
            return self.left
        with self.log.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                encoding="utf-8",
                start_new_session=True,
                # Slurm sends submitit's signal to all processes of a job.
                preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
            )
        self._process = process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self.line)
            process.stdin.flush()  # It stays open: its end asks the worker to leave.
        while process.poll() is None:
            if not self._wanted():
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS)
        return process.returncode

    def _wanted(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self.mark.read_text(encoding="utf-8") == self.token
        return False

    def checkpoint(self) -> Any:
        """Has the worker save and end; returns what goes on in the job when it runs again."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.terminate()
            # `Popen.wait` may have been interrupted for this.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(dataclasses.replace(self))


class Submitted:
    """A submitted run, with what `experiments.study.runs.Runner` uses of `subprocess.Popen`.

    Attributes:
      returncode: exit code of the worker; None while it may go on. A worker that was asked to leave
        by others than `terminate` is submitted again.
    """

    def __init__(self, executor: Any, work: Work) -> None:
        self._executor, self._work, self._leaving = executor, work, False
        self.returncode: int | None = None
        self._job = executor.submit(work)

    def poll(self) -> int | None:
        """Updates and returns `returncode`."""
        if self.returncode is None and self._job.done():
            try:
                self.returncode = int(self._job.result())
            except Exception as error:  # The job ended without an exit code of its worker.
                with self._work.log.open("a", encoding="utf-8") as log:
                    log.write(f"error: job {self._job.job_id}: {' '.join(str(error).split())}\n")
                self.returncode = 1
            if self.returncode == preemption.EXIT_CODE and not self._leaving:
                self._job, self.returncode = self._executor.submit(self._work), None
        return self.returncode

    def terminate(self) -> None:
        """Asks the worker to save and leave; a job that still waits is cancelled."""
        self._leaving = True
        self._work.mark.unlink(missing_ok=True)
        if self.returncode is None and self._job.state.upper() == "PENDING":
            self._job.cancel(check=False)
            self.returncode = preemption.EXIT_CODE


class Submitter:
    """Submits workers to Slurm, or runs them on this machine where there is no Slurm.

    Args:
      folder: for the files of jobs, on storage that all nodes reach.
      parameters: of `submitit.AutoExecutor.update_parameters`, as NAME=VALUE.

    Raises:
      UserError: submitit is not installed, or a parameter is none.
    """

    def __init__(self, folder: Path, parameters: Sequence[str]) -> None:
        # Else its import resets the logging of this process, and closes the stream of absl.
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
        try:
            import cloudpickle
            import submitit
        except ModuleNotFoundError as error:
            raise UserError(
                "launcher=submitit: needs submitit; "
                "in a clone of the project: pip install -e '.[submitit]'"
            ) from error
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        values = {name: int(v) if v.isdecimal() else v for name, v in given.items()}
        self._executor = submitit.AutoExecutor(folder=folder.resolve())
        #: Whether jobs run on this machine, which then divides its devices among them.
        self.local = self._executor.cluster == "local"
        try:
            self._executor.update_parameters(**{**_DEFAULTS, **values})
        except (AssertionError, NameError, TypeError, ValueError) as error:
            line = " ".join(str(error).split())
            raise UserError(f"submitit={','.join(parameters)}: {line}") from error

    def start(
        self,
        command: Sequence[str],
        line: str,
        environment: Mapping[str, str],
        log: Path,
    ) -> Submitted:
        """Submits a worker for one run.

        Args:
          command: of the worker.
          line: for its standard input.
          environment: variables in addition to those of the job.
          log: in the run's folder.
        """
        token = uuid.uuid4().hex
        mark = log.with_name(MARK)
        write_file(mark, token)
        work = Work(command, line, environment, log, mark, token, preemption.EXIT_CODE)
        return Submitted(self._executor, work)
