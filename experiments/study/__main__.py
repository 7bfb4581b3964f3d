"""Runs or resumes a study: variants that differ in a few options, each with several seeds.

python -m experiments.study --config=experiments/configs/studies/designers.py \\
    --workdir=studies/designers_tiny

Options of all variants change with `--config.NAME=VALUE`, as for a run. Started again with the same
folder it computes what is missing; runs that are finished stay, runs that failed are tried again.
Results are in `study.json` (its form: `experiments.study.results`), `comparison.csv` and
`comparison.md` of the folder, which are also written when it is asked to leave.

Exit codes: 0 when all runs are finished; 1 for what the user can mend and if a run failed; 75
(EX_TEMPFAIL) after SIGTERM or Ctrl-C, when everything is saved and the same command goes on.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from experiments import command_line
from experiments.errors import UserError, user_errors
from experiments.progress import Reporter
from experiments.store import RunStore
from experiments.study import results as study_results
from experiments.study import runs as study_runs
from experiments.study import variants
from learner import checks
from learner.devices import preemption

_CONFIG = command_line.define_config()
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the study.", required=True)
_WORKERS = flags.DEFINE_integer(
    "workers",
    0,
    "Processes at a time; 0 is one for each processor core, or for each mesh of GPUs.",
    lower_bound=0,
)
_SEEDS = flags.DEFINE_list("seeds", None, "Seeds in place of the study's own, such as 0,1.")
_TABLES_ONLY = flags.DEFINE_bool(
    "tables_only", False, "Compute nothing: write the tables of the runs that there are."
)


def main(argv: Sequence[str]) -> None:
    """Computes what is missing and writes the tables."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}; options look like --name=value")
    begin = time.monotonic()
    reporter = Reporter()
    root = Path(_WORKDIR.value)
    try:
        if _TABLES_ONLY.value and not (root / "runs").is_dir():
            raise UserError(f"workdir={root}: no study is there to write tables of")
        study = variants.load(config_flags.get_config_filename(flags.FLAGS["config"]))
        if _SEEDS.value is not None:
            if not all(seed.strip().isdecimal() for seed in _SEEDS.value):
                raise UserError(f"seeds={','.join(_SEEDS.value)}: whole numbers are needed, as 0,1")
            with user_errors():
                seeds = tuple(int(seed) for seed in _SEEDS.value)
                study = dataclasses.replace(study, seeds=seeds)
        settings = study.settings(_CONFIG.value)
        jobs = study_runs.jobs(study, settings)
        with RunStore(root).locked():
            for job in jobs:  # None may have been begun with other options.
                if (root / job.folder / "config.json").exists():
                    RunStore(root / job.folder).claim(job.settings)
            whole = True
            if not _TABLES_ONLY.value:
                first = settings[study.reference][study.seeds[0]]
                slots = study_runs.slots(root, _WORKERS.value, first)
                whole = study_runs.Runner(root, jobs, slots, reporter).run()
            shared = {
                (job.variant, job.settings.seed): job.shared
                for job in jobs
                if job.variant is not None and job.shared is not None
            }
            found = study_results.write(root, study, settings, shared)
    except (UserError, OSError) as error:
        sys.exit(f"error: {checks.one_line(error)}")
    _summarize(found, reporter)
    if not whole:
        reporter.line("asked to leave: saved; the same command goes on from here")
        sys.exit(preemption.EXIT_CODE)
    reporter.line(f"done in {time.monotonic() - begin:.0f} s; tables: {root / 'comparison.md'}")
    if found["state"]["failed"]:
        sys.exit(1)


def _summarize(found: dict[str, Any], reporter: Reporter) -> None:
    """Prints the first metric of every variant, and the runs that failed."""
    labels = {variant["name"]: variant["label"] for variant in found["variants"]}
    metric = found["metrics"][0]
    state = found["state"]
    reporter.line(
        f"{state['finished']} of {state['planned']} runs finished, {state['failed']} failed; "
        f"{metric['label']}:"
    )
    for row in found["comparison"]:
        if row["metric"] == metric["name"] and row["mean"] is not None:
            reporter.line(
                f"  {labels[row['variant']]}: {row['mean']:.1%} over {len(row['values'])} seeds"
            )
    for run in found["runs"]:
        if run["status"] == "failed":
            reporter.line(f"  {labels[run['variant']]}, seed {run['seed']} failed: {run['error']}")


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
