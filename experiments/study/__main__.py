"""Runs or resumes a study: variants that differ in a few options, each with several seeds.

python -m experiments.study --config=studies/designers --workdir=studies/designers_tiny

`--config.NAME=VALUE` sets options of all variants. Started again with the same folder, it computes
what is missing and retries failed runs. Results are in `study.json` (see
`experiments.study.results`) and `comparison.md` of the folder, which are also written when it is
interrupted; only the end prints them.

Exit codes: 0 when all runs are finished; 1 for user errors and if a run failed; 75 (EX_TEMPFAIL)
after SIGTERM or Ctrl-C, when everything is saved and the same command resumes.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_collections
from absl import app, flags
from ml_collections import config_flags

from experiments.measurements import Table
from experiments.run.status import Reporter
from experiments.settings import command_line
from experiments.study import runs, sensitivity, variants
from experiments.study.results import labels
from experiments.study.submission import Submitter
from experiments.study.variants import Study
from experiments.text.errors import UserError, ended_in_one_line
from experiments.text.templates import render
from learner.devices import preemption

CONFIG = command_line.define_config()
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the study.", required=True)
_WORKERS = flags.DEFINE_integer(
    "workers",
    0,
    "Processes at a time; 0 is one for each processor core, or for each mesh of GPUs.",
    lower_bound=0,
)
_LAUNCHER = flags.DEFINE_enum(
    "launcher",
    "local",
    ["local", "submitit"],
    "Where runs are computed: in processes on this machine, or as jobs of Slurm through submitit "
    "(the extra of this name; without Slurm its jobs run here too). Then --workers is the number "
    "of jobs at a time, all by default.",
)
_SUBMITIT = flags.DEFINE_list(
    "submitit",
    [],
    "Parameters of submitit's executor for each job, such as "
    "gpus_per_node=1,cpus_per_task=16,timeout_min=720,slurm_partition=gpu.",
)
_SEEDS = flags.DEFINE_list("seeds", None, "Seeds in place of the study's own, such as 0,1.")
TABLES_ONLY = flags.DEFINE_bool(
    "tables_only", False, "Compute nothing: write the tables of the runs that there are."
)
_SENSITIVITY = flags.DEFINE_string(
    "sensitivity",
    None,
    "Folder of `python -m experiments.sensitivity` in the same regime: a flat one is refused.",
)
_AMENDMENT = flags.DEFINE_string(
    "amendment",
    None,
    "Why the registration, the docstring of the study's file, has changed since the first run "
    "began; the study's pages list it.",
)
DRY_RUN = flags.DEFINE_bool(
    "dry_run",
    False,
    "Compute nothing: say what is to be computed and, once the first run has finished, how many "
    "hours that takes.",
)


def run(
    argv: Sequence[str],
    load: Callable[[Path], tuple[Study, ml_collections.ConfigDict]],
    conclude: Callable[[Path, dict[str, Any]], str] | None = None,
    further: Callable[[Path, Sequence[runs.Job]], runs.Work] | None = None,
) -> None:
    """Computes what is missing of a study and writes its tables; exits on errors.

    Args:
      argv: the rest of the command line.
      load: from the study's folder to the study and the common options of its variants.
      conclude: called after the tables, once all runs have ended, with the folder and the content
        of `study.json`; returns a line to print.
      further: for a dry run, from the folder and all runs to the work of `conclude`.
    """
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}; options look like --name=value")
    begin = time.monotonic()
    reporter = Reporter()
    root = Path(_WORKDIR.value)
    with ended_in_one_line():
        if TABLES_ONLY.value and not (root / "runs").is_dir():
            raise UserError(f"workdir={root}: no study is there to write tables of")
        if _SENSITIVITY.value:
            sensitivity.refuse_flat(Path(_SENSITIVITY.value))
        study, base = load(root)
        if _SEEDS.value is not None:
            study = study.with_seeds(_SEEDS.value)
        submitter = None
        if _LAUNCHER.value == "submitit" and not TABLES_ONLY.value:
            submitter = Submitter(root / "submitit", _SUBMITIT.value)
        if DRY_RUN.value:
            all_jobs = runs.jobs(study, study.settings(base))
            places = len(runs.places(root, _WORKERS.value, all_jobs, submitter))
            work = runs.forecast(root, all_jobs, places)
            work += [further(root, all_jobs)] if further else []
            lines = [
                (*one[:-1], "unknown" if one.hours is None else one.hours)
                for one in (*work, runs.together(work))
            ]
            reporter.line(Table("To be computed", runs.Work._fields, lines).to_markdown())
            return
        workers = None if TABLES_ONLY.value else _WORKERS.value
        found, whole = runs.compute(
            root, study, base, workers, reporter, _AMENDMENT.value, submitter
        )
        if whole:  # Who pauses a study does not compare before its end.
            for line in render("summary.md", found=found, labels=labels(found)).splitlines():
                reporter.line(line)
        if conclude is not None and whole:
            try:
                with preemption.Preemption().watch():
                    reporter.line(conclude(root, found))
            except preemption.Preempted:
                whole = False
    if not whole:
        state = found["state"]
        reporter.line(
            f"asked to leave: {state['finished']} of {state['planned']} runs are saved; the same "
            "command goes on from here"
        )
        sys.exit(preemption.EXIT_CODE)
    reporter.line(f"done in {time.monotonic() - begin:.0f} s; tables: {root / 'comparison.md'}")
    if found["state"]["failed"]:
        sys.exit(1)


def main(argv: Sequence[str]) -> None:
    """Computes what is missing and writes the tables."""

    def load(_: object) -> tuple[Study, ml_collections.ConfigDict]:
        file = config_flags.get_config_filename(flags.FLAGS["config"])
        return variants.load(file), CONFIG.value

    run(argv, load)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
