"""Asks models their unanswered questions and stores every answer with its verdict."""

import argparse
import itertools
import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mapf_jax
from experiments.benchmark.questions import BenchmarkQuestions, open_set
from experiments.benchmark.solvers import Given, Solver, make_solver
from experiments.benchmark.table import Outcomes
from experiments.run import store as files
from experiments.run import versions
from experiments.run.status import Reporter
from experiments.text.errors import UserError
from mapf_jax import formats

_ANSWERS, _FAILURES, _OPTIONS = "answers.jsonl", "failures.jsonl", "options.json"
_BLOCK = 512  # Questions; fewer leave more of a device's slots idle at the end of each block.
_NOTED = ("tokens", "prompt_tokens", "truncated", "note", "text")


def ask(
    root: Path,
    models: Mapping[str, str],
    options: argparse.Namespace,
    reporter: Reporter,
    whole: Collection[str] = (),
) -> None:
    """Asks every model its unanswered questions; creates the questions if the folder has none.

    Args:
      root: folder of the benchmark.
      models: argument of `make_solver` by name.
      options: of the command.
      whole: models that are asked in the same blocks in every start, and of a block without all of
        its answers everything again, because what is computed together affects rounding.

    Raises:
      UserError: an option is not allowed or differs from that of the folder's first start.
    """
    # Reject wrong options before any long computation.
    solvers = {name: make_solver(spec, options) for name, spec in models.items()}
    directory = files.RunStore(root)
    with directory.locked():
        folders = {name: root / "models" / file_name(name) for name in models}
        for name, solver in solvers.items():
            _check_options(name, folders[name], solver)
        questions = open_set(root, options, reporter)
        for name, solver in solvers.items():
            indices = _unanswered(files.read_log(folders[name] / _ANSWERS), questions)
            for line in solver.forecast(questions, indices) if len(indices) else ():
                reporter.line(line)
        with directory.timed():
            for name, solver in solvers.items():
                noted = {"name": name, "options": solver.options, "versions": versions.machine()}
                if not (folders[name] / _OPTIONS).exists():
                    files.write_file(folders[name] / _OPTIONS, noted)
                _ask(name, folders[name], solver, questions, reporter, name in whole)


def read_outcomes(root: Path, questions: BenchmarkQuestions) -> dict[str, Outcomes]:
    """The outcomes of all models of a folder, sorted by name, oracles last."""
    found = []
    for path in sorted((root / "models").glob(f"*/{_OPTIONS}")):
        log = files.read_log(path.parent / _ANSWERS)
        if log:
            found.append(Outcomes(files.read_file(path), log, questions))
    found.sort(key=lambda one: one.noted["options"]["kind"] == "oracle")
    return {one.noted["name"]: one for one in found}


def verdicts(questions: BenchmarkQuestions, given: Sequence[Given]) -> list[dict[str, Any]]:
    """The records of answers with their verdicts.

    Raises:
      RuntimeError: a valid plan costs less than the optimum of its instance.
    """
    indices = np.array([one.question for one in given])
    instances = questions.instances[indices]
    texts = [one.text or "" for one in given]
    plans = mapf_jax.plans_from_texts(texts, instances.starts.shape[-2])
    checked = formats.verify_in_blocks(instances, plans)
    solved = questions.solved[indices]
    made = []
    for i, one in enumerate(given):
        fields = formats.verdict_fields(checked[i])
        gap = fields["gap"]
        if gap is not None and gap < 0:
            raise RuntimeError(
                f"{questions.names[one.question]}: a valid plan costs {-gap} less than the optimum "
                "there"
            )
        optimal = gap == 0 if solved[i] else None
        noted = {name: getattr(one, name) for name in _NOTED}
        made.append({"id": questions.names[one.question], "optimal": optimal, **fields, **noted})
    return made


def file_name(name: str) -> str:
    """The name of a model's folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "model"


def _ask(
    name: str,
    folder: Path,
    solver: Solver,
    questions: BenchmarkQuestions,
    reporter: Reporter,
    whole: bool,
) -> None:
    """Asks one model its unanswered questions and stores each answer as it arrives."""
    records = files.open_log(folder / _ANSWERS)
    files.open_log(folder / _FAILURES)
    indices = _unanswered(records, questions)
    if not len(indices):
        return
    blocks = [indices]
    if whole:
        every = np.arange(len(questions))
        blocks = [every[first : first + _BLOCK] for first in np.unique(indices // _BLOCK) * _BLOCK]
        again = {questions.names[index] for index in np.concatenate(blocks)}
        records = [record for record in records if record["id"] not in again]
        files.write_file(folder / _ANSWERS, records)
    done, valid, failed = len(records), sum(record["valid"] for record in records), 0
    with reporter.bar(name, total=len(questions), done=done) as advance:
        for given in itertools.chain.from_iterable(solver.answer(questions, b) for b in blocks):
            fresh = [one for one in given if one.text is not None]
            if fresh:
                made = verdicts(questions, fresh)
                files.append_log(folder / _ANSWERS, made)
                done, valid = done + len(made), valid + sum(answer["valid"] for answer in made)
            without = [
                {"id": questions.names[one.question], "time": round(time.time()), "why": one.note}
                for one in given
                if one.text is None
            ]
            files.append_log(folder / _FAILURES, without)
            failed += len(without)
            advance(done, f"valid {valid / max(done, 1):.1%}, {failed} without an answer")
    if failed:
        reporter.line(f"{name}: {failed} questions without an answer; see {folder / _FAILURES}")


def _unanswered(known: Sequence[dict[str, Any]], questions: BenchmarkQuestions) -> np.ndarray:
    """int[n], of the questions without a record."""
    answered = {record["id"] for record in known}
    return np.array([i for i, name in enumerate(questions.names) if name not in answered], int)


def _check_options(name: str, folder: Path, solver: Solver) -> None:
    """Raises `UserError` if a model's earlier answers were made with other options."""
    path = folder / _OPTIONS
    if path.exists():
        before = files.read_file(path)
        now = {"name": name, "options": solver.options}
        if changed := files.changes({key: before[key] for key in now}, now):
            raise UserError(
                f"model={name}: its answers in {folder} were asked for with other options "
                f"({'; '.join(changed)}); use those, or another --name or --out"
            )
