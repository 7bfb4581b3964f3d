"""Makes the publication's tables: runs or resumes what they need, asks the benchmark, compares.

python -m experiments.reproduce --model=tiny --out=reproduction

A study (`experiments/configs/studies/published.py`) trains every variant over seeds; the benchmark
(`python -m experiments.benchmark`) tests the checkpoint after each round; `tables.md` and
`tables.json` show the results beside the published numbers, and list what is missing. The folder is
a study's, so `python -m experiments.report` makes its page; the benchmark's is in `benchmark/`. The
same command resumes wherever it was stopped.

`--config.NAME=VALUE` sets options of all runs. Exit codes are those of `python -m
experiments.study`.
"""

import dataclasses
import multiprocessing
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections
from absl import app, flags

from experiments import measurements
from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import reproduction
from experiments.benchmark.asking import ask, file_name, read_outcomes
from experiments.benchmark.oracles import ORACLES
from experiments.benchmark.questions import open_set, read_set
from experiments.benchmark.solvers import ENDPOINT, Options, make_solver
from experiments.benchmark.study import MeasuredStudy
from experiments.configs.studies import published
from experiments.run import process
from experiments.run import store as files
from experiments.run.status import Reporter
from experiments.settings import EngineerSettings, command_line
from experiments.study import __main__ as command
from experiments.study.results import times
from experiments.study.runs import Job, Work, hours
from experiments.study.variants import Study, Variant
from experiments.text.errors import UserError, ended_in_one_line, user_errors
from learner import checks

#: The base of the study and the set of the benchmark, by `--scale`.
SCALES = {"tiny": ("tiny", "small"), "full": ("qwen3_4b", "builtin")}

flags.adopt_module_key_flags(command)
flags.DEFINE_alias("out", "workdir")
_MODEL = flags.DEFINE_string(
    "model", None, "A checkpoint's folder, or an embedded model such as tiny.", required=True
)
_SCALE = flags.DEFINE_enum(
    "scale", "tiny", list(SCALES), "How much: hours on two cores, or as published."
)
_VARIANTS = flags.DEFINE_list("variants", None, "Only these variants of the study, such as v6.")
_PER_CELL = flags.DEFINE_integer(
    "per_cell", None, "Instances of each cell of the benchmark; all ten if not given."
)
_ENDPOINTS = flags.DEFINE_multi_string(
    "endpoint", [], "URL#MODEL of a server that is asked the benchmark, and designs; repeatable."
)
_JUDGE = flags.DEFINE_string(
    "judge", None, "Who judges the designs: what --model of experiments.benchmark may be."
)
_ASKED = flags.DEFINE_string(
    "ask",
    "",
    "Options of experiments.benchmark for servers and judge, such as '--max_new_tokens=16384'.",
)


def main(argv: Sequence[str]) -> None:
    """Computes what is missing and writes the tables, or forecasts the work."""
    process.quieten()
    command.run(argv, _load, _conclude, _benchmark)


def _load(root: Path) -> tuple[Study, ml_collections.ConfigDict]:
    base, study = command.CONFIG.value, published.STUDY
    if base.family != (own := published.get_config().family):
        raise UserError(f"config.family={base.family}: allowed is {own}, which the benchmark asks")
    base.model.path = _MODEL.value
    folder, others = root / "benchmark", _options(_ASKED.value)
    # Reject what is first needed after all training.
    asked = [f"{ENDPOINT}{one}" for one in _ENDPOINTS.value]
    if _JUDGE.value in ORACLES:
        raise UserError(f"judge={_JUDGE.value}: allowed are models")
    trained = _JUDGE.value and Path(_JUDGE.value).resolve().is_relative_to(root.resolve())
    if _JUDGE.value and not trained:  # What this command trains is not there yet.
        asked.append(_JUDGE.value)
    for one in () if command.TABLES_ONLY.value else asked:
        make_solver(one, others)
    variants = [*study.variants, *(_designer(one, others) for one in _ENDPOINTS.value)]
    if _VARIANTS.value:
        chosen = [one for one in variants if one.name in _VARIANTS.value]
        if len(chosen) < max(2, len(_VARIANTS.value)):
            raise UserError(
                f"variants={','.join(_VARIANTS.value)}: allowed are at least two of "
                f"{', '.join(one.name for one in variants)}"
            )
        variants = chosen
    names = [one.name for one in variants]
    reference = study.reference if study.reference in names else names[0]
    with user_errors():
        study = dataclasses.replace(study, variants=tuple(variants), reference=reference)
    if not command.DRY_RUN.value:
        # In a process that releases its devices, which the runs need.
        made = multiprocessing.get_context("spawn").Process(
            target=_open_set, args=(folder, _options(), others)
        )
        made.start()
        made.join()
        if made.exitcode:  # It has said why, unless it was killed.
            sys.exit(made.exitcode)
    if (folder / "instances.jsonl").exists():
        # Keep benchmark instances out of training.
        base[own].exclude = str(folder / "instances.jsonl")
    return study, base


def _open_set(folder: Path, own: Options, others: Options) -> None:
    """Creates the questions; `--ask` must not choose others."""
    with ended_in_one_line():
        for options in (own, others):
            open_set(folder, options, Reporter())


def _designer(endpoint: str, options: Options) -> Variant:
    """The variant with a server's model as designer."""
    url, _, model = endpoint.partition("#")
    name = "".join(c if c.isalnum() else "-" for c in model.lower()).strip("-")
    changes = {
        "engineer.designer": "endpoint",
        "engineer.decoding": "parsed",
        "engineer.endpoint.url": url,
        "engineer.endpoint.model": model,
        # Servers' models may reason first, which the budget of the tiny model is too small for.
        "engineer.max_new_tokens": options.max_new_tokens or EngineerSettings.max_new_tokens,
    }
    return Variant(f"{reproduction.BY}{name}", f"designed by {model}", changes)


def _options(asked: str = "") -> Options:
    """Options of the benchmark's command, with those of `--ask`.

    Raises:
      UserError: one is not allowed.
    """
    own = [f"--set={SCALES[_SCALE.value][1]}", "--out=benchmark"]
    own += [] if _PER_CELL.value is None else [f"--per_cell={_PER_CELL.value}"]
    try:
        return benchmark.checked(benchmark.parser().parse_args([*own, *shlex.split(asked)]))
    except ValueError as error:
        raise UserError(f"ask={asked!r}: {error}" if asked else str(error)) from error


def _conclude(root: Path, found: Mapping[str, Any]) -> str:
    folder, reporter = root / "benchmark", Reporter()
    study = MeasuredStudy(root, found)
    judgements, about, failed = root / "judgements.jsonl", measurements.facts(), []
    judge = None
    if not command.TABLES_ONLY.value:
        ask(folder, study.models, _options(), reporter, whole=study.models)
        others = _options(_ASKED.value)
        try:  # The tables are made even if a server fails.
            for one in _ENDPOINTS.value:
                ask(folder, {one.rpartition("#")[2]: f"{ENDPOINT}{one}"}, others, reporter)
            if _JUDGE.value:
                judge = make_solver(_JUDGE.value, others)
                reproduction.judge(study, judge, judgements)
        except UserError as error:
            failed.append(checks.one_line(error))
    judged = reproduction.judgements(judgements, judge.options if judge else None)
    questions = read_set(folder)
    outcomes = read_outcomes(folder, questions)
    benchmark.write(folder, study, questions, outcomes, about)
    tables = reproduction.tables(study, questions, outcomes, judged)
    lacking = [*failed, *reproduction.missing(study, questions, outcomes, judged, tables)]
    notes = dataclasses.replace(study.results(questions, outcomes), beside=True).notes()
    notes += [f"Missing: {sentence}" for sentence in lacking]
    content = {"tables": [table.to_dict() for table in tables], "missing": lacking}
    measurements.write(root / "tables", "The publication's tables", tables, notes, about, content)
    for table in tables:
        reporter.line(table.to_markdown())
    for sentence in lacking:
        reporter.line(f"missing: {sentence}")
    return f"written: {root / 'tables.md'}, tables.json"


def _benchmark(root: Path, all_jobs: Sequence[Job]) -> Work:
    """The work of the benchmark: the weights before training, and those after each round."""
    folder = root / "benchmark"
    each = reproduction.count(SCALES[_SCALE.value][1], _PER_CELL.value)
    runs = [
        {
            "variant": job.variant,
            "seed": job.settings.seed,
            "folder": str(job.folder),
            "status": "finished",
            "points": range(1 + job.settings.loop.rounds),
            "shared": job.shared and {"folder": str(job.shared)},
        }
        for job in all_jobs
        if job.variant
    ]
    names = {*MeasuredStudy(root, {"runs": runs}).models}
    names |= {one.rpartition("#")[2] for one in _ENDPOINTS.value}
    answered = {
        path.parent.name: len(files.read_log(path))
        for path in folder.glob("models/*/answers.jsonl")
    }
    asked = [answered.get(file_name(name), 0) for name in names]
    left, finished = len(names) * each - sum(asked), sum(number == each for number in asked)
    took = hours(left, times(folder)["seconds"], sum(answered.values()))
    return Work("benchmark", finished, len(names), left, took)


def _parse(argv: list[str]) -> list[str]:
    """Sets `--config` to the study of the scale."""
    words = iter(argv[1:])
    scale = "tiny"
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if name == "scale":
            scale = value if equals else next(words, "")
    base = SCALES.get(scale, SCALES["tiny"])[0]
    return command_line.parse_flags([argv[0], f"--config={published.__file__}:{base}", *argv[1:]])


if __name__ == "__main__":
    app.run(main, flags_parser=_parse)
