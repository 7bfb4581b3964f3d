"""Starts or resumes one run: `python -m experiments.main --config=tiny`.

Exit codes: 0 when the run is complete; 1, with one line, for a user error, a non-finite number or
too little memory; 75 (EX_TEMPFAIL) after SIGTERM and 130 after Ctrl-C, when everything is saved and
the same command resumes. With several processes (docs/hosts.md), 69 (EX_UNAVAILABLE) if another one
is gone, or 134 (SIGABRT) if JAX noticed that first: start all of them again to resume from the last
checkpoint.
"""

import contextlib
import logging
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import jax
from absl import app, flags
from absl import logging as absl_logging

from experiments import settings as settings_lib
from experiments.families import FamilyError
from experiments.run import agreement, process
from experiments.run.status import Reporter
from experiments.run.store import RunStore
from experiments.settings import Settings, command_line, page
from experiments.text.errors import OutOfMemoryError, UserError, user_errors
from learner import checks
from learner.devices import distributed, preemption
from learner.training.update import NonFiniteError

_CONFIG = command_line.define_config()
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "Folder of the run; started again with the same one, it resumes. runs/CONFIG if not given.",
)
_LIST_OPTIONS = flags.DEFINE_bool(
    "list_options", False, "Print every option with its default and meaning, and do nothing else."
)
_RESUME_FROM = flags.DEFINE_integer(
    "resume_from",
    None,
    "Go on from this checkpoint, named by its training steps, and remove what came after it. Give "
    "it once: started again without it, the run goes on from the last one.",
)
_BRANCH = flags.DEFINE_string(
    "branch",
    None,
    "RUN@ROUND: begin with the rounds of another run up to this one, and go on with the engineer, "
    "seed, number of rounds and size of the training sets given here.",
)
_ACCEPT_FAMILY_CHANGE = flags.DEFINE_bool(
    "accept_family_change",
    False,
    "Go on although the family's own file has changed since the last start; changes.jsonl says so.",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, for several processes."
)
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes",
    None,
    "How many processes there are; 1 for one alone in a cluster. Not needed where Slurm, Open MPI "
    "or a TPU pod tells, nor for one process elsewhere.",
)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")


def main(argv: Sequence[str]) -> None:
    """Runs the closed loop and writes the report."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}; options look like --name=value")
    if _LIST_OPTIONS.value:
        print(page.options_page(), end="")
        return
    process.keep_freed_memory()
    process.quieten(absl_logging.WARNING)
    try:
        distributed.start(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    except ValueError as error:
        sys.exit(f"error: {checks.one_line(error)}")
    reporter = Reporter(quiet=not distributed.is_first())
    try:
        _run(reporter)
    except (UserError, FamilyError, NonFiniteError) as error:
        logging.debug("where the error was raised", exc_info=True)
        sys.exit(f"error: {checks.one_line(error)}")
    except preemption.Preempted as asked:
        reporter.line("asked to leave: saved; the same command goes on from here")
        sys.exit(asked.exit_code)
    except KeyboardInterrupt:  # A second one, or nothing to save yet.
        reporter.line("stopped; the same command goes on from what was saved last")
        sys.exit(preemption.INTERRUPTED_EXIT_CODE)
    except Exception as error:
        if not distributed.together() and not isinstance(error, OSError | OutOfMemoryError):
            raise
        _leave(error)


def _run(reporter: Reporter) -> None:
    """The whole run, with its first line and its last."""
    begin = time.monotonic()
    with user_errors():
        settings, directory = distributed.on_all(_read_options)
    agreement.check_alike(settings)
    with contextlib.ExitStack() as stack:

        def enter() -> tuple[list[str], int | None, Path | None, str]:
            notes = _branch(directory, settings)
            stack.enter_context(directory.locked())
            notes += directory.check_start(settings)
            resume_from = _RESUME_FROM.value
            finished = directory.finished(settings)
            return notes, resume_from, finished, directory.opening(resume_from)

        # Only the first process touches the folder, except for checkpoints.
        notes, resume_from, page, opening = distributed.on_first(enter)
        if page and resume_from is None:
            reporter.line(f"{directory.root}: the run is finished; report: {page}")
            return
        reporter.line(f"{directory.root}: {opening}")
        reporter.notes(notes)
        agreement.check_shared(directory.root)
        process.keep_compiled(directory.root / "compilation_cache")
        with contextlib.ExitStack() as timing:
            distributed.on_first(lambda: timing.enter_context(directory.timed()))
            from experiments.ring.loop import Loop  # Slow to import: the first line is out by now.

            Loop(settings, directory, reporter, resume_from).run()
        from experiments import report  # Slow to import, too.

        path = distributed.on_first(lambda: report.write(directory.root))
        reporter.line(f"done in {time.monotonic() - begin:.0f} s; report: {path}")


def _branch(directory: RunStore, settings: Settings) -> list[str]:
    if _BRANCH.value is None:
        return []
    from experiments.run import branching  # As slow to import as the loop.

    with directory.locked():
        return branching.branch(_BRANCH.value, directory, settings)


def _read_options() -> tuple[Settings, RunStore]:
    if _WORKDIR.value == "":
        raise UserError("workdir='': the folder of the run is needed")
    workdir = Path(_WORKDIR.value or command_line.default_workdir())
    try:
        return settings_lib.from_config(_CONFIG.value), RunStore(
            workdir, _ACCEPT_FAMILY_CHANGE.value
        )
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"workdir={workdir}: a file is there; allowed are folders") from error
    except OSError as error:
        raise UserError(checks.one_line(error)) from error


def _leave(error: Exception) -> NoReturn:
    """Exits at once, as other processes or saving threads may never finish."""
    if distributed.lost_process(error):
        logging.debug("where the error was raised", exc_info=True)
        saved = RunStore(Path(_WORKDIR.value or command_line.default_workdir())).saved_steps()
        begin = f"from checkpoint {saved}" if saved else "from the start, as none is saved"
        print(
            f"error: process {jax.process_index()}: another process is gone; stopped. Started "
            f"again, all go on {begin} ({error})",
            file=sys.stderr,
        )
        distributed.leave(distributed.LOST_PROCESS_EXIT_CODE)
    if isinstance(error, OSError | OutOfMemoryError):
        print(f"error: {checks.one_line(error)}", file=sys.stderr)
    else:
        traceback.print_exception(error)
    distributed.leave(1)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
