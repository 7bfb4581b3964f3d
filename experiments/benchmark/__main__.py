"""How well models plan: the benchmark of 3,150 instances, or any file of instances.

    python -m experiments.benchmark --model=runs/tiny --model=exact --out=benchmarks/tiny

`--model` is a run's folder (its latest checkpoint, RUN:STEP or RUN@ROUND), a checkpoint's folder,
"tiny", "endpoint:URL#MODEL" or an oracle; it may be given several times. The folder keeps every
answer with its verdict as soon as there is one; the same command goes on where it was stopped, and
other models add rows. Without a model it only makes the tables anew.

    set.json, instances.jsonl        what is asked
    models/NAME/options.json         what the answers of a model depend on, and versions
    models/NAME/answers.jsonl        its answers and verdicts, one a line
    models/NAME/failures.jsonl       requests that brought no answer; the next start asks again
    results.md .json                 the tables
"""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mapf_jax
from experiments import process, records
from experiments import store as files
from experiments.benchmark.oracles import ORACLES
from experiments.benchmark.questions import BUILTIN, BenchmarkQuestions, open_set, read_set
from experiments.benchmark.solvers import ENDPOINT, Given, Options, Solver, make_solver
from experiments.benchmark.table import Outcomes, Results
from experiments.errors import UserError, user_errors
from experiments.progress import Reporter
from experiments.settings import MeshSettings
from learner import checks
from learner.devices import preemption, sharding
from learner.qwen3.config import DTYPES
from mapf_jax import formats

_ANSWERS, _FAILURES, _OPTIONS = "answers.jsonl", "failures.jsonl", "options.json"
_NOTED = ("tokens", "prompt_tokens", "truncated", "note", "text")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, 1 for what the user can mend, 75, 130."""
    arguments = _parser().parse_args(argv)
    process.quieten()
    reporter = Reporter()
    try:
        with preemption.Preemption().watch():
            run(arguments, reporter)
    except (UserError, OSError) as error:
        print(f"error: {checks.one_line(error)}", file=sys.stderr)
        return 1
    except preemption.Preempted as asked:
        reporter.line("asked to leave: what was answered is kept; the same command goes on")
        return asked.exit_code
    return 0


def run(arguments: argparse.Namespace, reporter: Reporter) -> None:
    """Asks every model what it has not been asked yet, then prints and writes the tables.

    Raises:
      UserError: an option is not allowed, or not the one that the folder was begun with.
    """
    about = records.facts()
    with user_errors():
        options = _checked(arguments)
        names = _names(arguments.model, arguments.name)
    # Everything that can refuse its options comes before anything that takes long.
    solvers = [make_solver(spec, options) for spec in arguments.model]
    directory = files.RunStore(Path(arguments.out))
    root = directory.root
    with directory.locked():
        folders = [root / "models" / _file_name(name) for name in names]
        for name, folder, solver in zip(names, folders, solvers, strict=True):
            _check_options(name, folder, solver)
        questions = open_set(root, options, reporter) if solvers else read_set(root)
        for folder, solver in zip(folders, solvers, strict=True):
            rows = _unanswered(files.read_log(folder / _ANSWERS), questions)
            for line in solver.forecast(questions, rows) if len(rows) else ():
                reporter.line(line)
        for name, folder, solver in zip(names, folders, solvers, strict=True):
            if not (folder / _OPTIONS).exists():
                noted = {"name": name, "options": solver.options, "versions": files.versions()}
                files.write_file(folder / _OPTIONS, noted)
            _ask(name, folder, solver, questions, reporter)
        outcomes = _outcomes(root, questions)
        if outcomes:
            _write(root, Results(questions, outcomes), about, reporter)


def verdicts(questions: BenchmarkQuestions, given: Sequence[Given]) -> list[dict[str, Any]]:
    """The records of answers: what was given, and its verdict.

    Raises:
      RuntimeError: a valid plan costs less than the optimum that its instance carries.
    """
    rows = np.array([one.row for one in given])
    instances = questions.instances[rows]
    texts = [one.text or "" for one in given]
    plans = mapf_jax.plans_from_texts(texts, instances.starts.shape[-2])
    checked = formats.verify_in_blocks(instances, plans)
    solved = questions.solved[rows]
    made = []
    for i, one in enumerate(given):
        fields = formats.verdict_fields(checked[i])
        gap = fields["gap"]
        if gap is not None and gap < 0:
            raise RuntimeError(
                f"{questions.names[one.row]}: a valid plan costs {-gap} less than the optimum there"
            )
        optimal = gap == 0 if solved[i] else None
        noted = {name: getattr(one, name) for name in _NOTED}
        made.append({"id": questions.names[one.row], "optimal": optimal, **fields, **noted})
    return made


def _ask(
    name: str, folder: Path, solver: Solver, questions: BenchmarkQuestions, reporter: Reporter
) -> None:
    """Asks one model what it has not answered yet, and keeps what comes as it comes."""
    records = files.open_log(folder / _ANSWERS)
    files.open_log(folder / _FAILURES)
    rows = _unanswered(records, questions)
    done, valid, failed = len(records), sum(record["valid"] for record in records), 0
    if not len(rows):
        return
    with reporter.bar(name, total=len(questions), done=done) as advance:
        for given in solver.answer(questions, rows):
            fresh = [one for one in given if one.text is not None]
            if fresh:
                made = verdicts(questions, fresh)
                files.append_log(folder / _ANSWERS, made)
                done, valid = done + len(made), valid + sum(row["valid"] for row in made)
            without = [
                {"id": questions.names[one.row], "time": round(time.time()), "why": one.note}
                for one in given
                if one.text is None
            ]
            files.append_log(folder / _FAILURES, without)
            failed += len(without)
            advance(done, f"valid {valid / max(done, 1):.1%}, {failed} without an answer")
    if failed:
        reporter.line(f"{name}: {failed} questions without an answer; see {folder / _FAILURES}")


def _unanswered(known: Sequence[dict[str, Any]], questions: BenchmarkQuestions) -> np.ndarray:
    """int[n], the rows of the questions that no record answers."""
    answered = {record["id"] for record in known}
    return np.array([i for i, name in enumerate(questions.names) if name not in answered], int)


def _check_options(name: str, folder: Path, solver: Solver) -> None:
    """Refuses to go on with other options than a model was asked with before."""
    path = folder / _OPTIONS
    if path.exists():
        before = files.read_file(path)
        now = {"name": name, "options": solver.options}
        if changed := files.changes({key: before[key] for key in now}, now):
            raise UserError(
                f"model={name}: its answers in {folder} were asked for with other options "
                f"({'; '.join(changed)}); use those, or another --name or --out"
            )


def _outcomes(root: Path, questions: BenchmarkQuestions) -> list[Outcomes]:
    """What all models of the folder have answered, in the order of their names, oracles last."""
    found = []
    for path in sorted((root / "models").glob(f"*/{_OPTIONS}")):
        log = files.read_log(path.parent / _ANSWERS)
        if log:
            found.append(Outcomes(files.read_file(path), log, questions))
    return sorted(found, key=lambda one: one.options["kind"] == "oracle")


def _write(root: Path, results: Results, about: dict[str, Any], reporter: Reporter) -> None:
    tables, notes = results.tables(), results.notes()
    title = "MAPF-FrozenLake benchmark" + (" (PARTIAL)" if results.questions.partial else "")
    models = []
    for one in results.outcomes:
        line = f"`{one.name}`: " + ", ".join(f"{key} {value}" for key, value in one.options.items())
        if one.options["kind"] == "oracle":
            line += f" ({ORACLES[one.options['model']].description})"
        models.append(line + ".")
    content = results.to_json()
    records.write(root / "results", title, tables, [*notes, *models], about, content)
    for table in tables:
        reporter.line(table.to_markdown())
    for note in notes:
        reporter.line(note)
    reporter.line(f"written: {root / 'results.md'}, results.json")


# Options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmark",
        description="Valid and optimal answers of models on the benchmark, beside published ones.",
    )
    add = parser.add_argument
    add(
        "--model",
        action="append",
        default=[],
        help="a run's folder, RUN:STEP, RUN@ROUND, a checkpoint's folder, tiny, "
        f"{ENDPOINT}URL#MODEL, or {', '.join(ORACLES)}; repeatable",
    )
    add("--name", action="append", default=[], help="its name in the tables; one for each --model")
    add("--out", required=True, help="folder of answers and tables; started again it resumes")
    add(
        "--set",
        action="append",
        default=[],
        help=f"{BUILTIN} (default), or a file of JSON lines, ours or published; repeatable",
    )
    add("--set_seed", type=int, default=0, help="of the built-in set (default: %(default)s)")
    add("--per_cell", type=int, help="a quick look: so many for each agents, size, subset, holes")
    add("--limit", type=int, help="a quick look: so many in all, evenly spread")
    add("--seed", type=int, default=0, help="of the answers (default: %(default)s)")
    add("--max_new_tokens", type=int, help="budget of an answer")
    add("--temperature", type=float, help="0 takes the most likely token")
    add("--list_holes", action=argparse.BooleanOptionalAction, help="list the holes in the prompt")
    here = parser.add_argument_group("models on this machine", "default: as their run has it")
    add = here.add_argument
    add("--thinking", action=argparse.BooleanOptionalAction, help="let the model think first")
    add("--thinking_tokens", type=int, help="the most tokens of it; 0 is no limit")
    add("--top_p", type=float, help="nucleus; 1 is off")
    add("--top_k", type=int, help="candidates; 0 is off")
    add("--dtype", choices=DTYPES, help="of activations")
    add("--mesh", help="devices DATAxFSDPxTENSOR, such as 1x8x1")
    add("--rows", type=int, help="answers sampled at a time")
    add = parser.add_argument_group("models behind a server").add_argument
    add("--concurrency", type=int, default=8, help="requests at a time")
    add("--timeout", type=float, default=300.0, help="seconds for one request")
    # With their pauses two minutes: limits are often so many requests a minute.
    add("--tries", type=int, default=8, help="requests for one answer in one start")
    add("--key_variable", default="OPENAI_API_KEY", help="environment variable with the key")
    add("--budget_field", default="max_tokens", help="field that holds the budget")
    add("--extra", default="{}", help="further fields of a request, as JSON")
    add("--price_in", type=float, help="price of a million prompt tokens")
    add("--price_out", type=float, help="price of a million answer tokens")
    add("--max_cost", type=float, help="refuse to begin where a model's answers may cost more")
    return parser


def _checked(arguments: argparse.Namespace) -> Options:
    """The options with the mesh read.

    Raises:
      ValueError: a number is out of its range, the built-in set is not alone, or a limit on the
        cost has no prices.
    """
    options = Options(**vars(arguments))
    options.set = options.set or [BUILTIN]
    if BUILTIN in options.set and len(options.set) > 1:
        raise ValueError(f"set={options.set}: {BUILTIN!r} does not go with others")
    if BUILTIN not in options.set and options.set_seed:
        raise ValueError(f"set_seed={options.set_seed}: only for --set={BUILTIN}")
    counts = ("per_cell", "limit", "max_new_tokens", "rows", "concurrency")
    least = dict.fromkeys(counts, 1)
    least |= dict.fromkeys(("price_in", "price_out", "max_cost"), 0)
    for name, low in least.items():
        value = getattr(options, name)
        if value is not None and not value >= low:
            raise ValueError(f"{name}={value}: allowed are numbers from {low} up")
    if not 0 <= options.seed < 1 << 32:
        raise ValueError(f"seed={options.seed}: allowed are integers from 0 to 2**32 - 1")
    prices = options.price_in, options.price_out
    if (prices[0] is None) != (prices[1] is None):
        raise ValueError("price_in={}, price_out={}: either both or neither".format(*prices))
    if options.max_cost is not None and options.price_in is None:
        raise ValueError(f"max_cost={options.max_cost}: needs price_in and price_out")
    if options.mesh is not None:
        options.mesh = MeshSettings(*sharding.mesh_size(options.mesh))
    return options


def _names(models: Sequence[str], names: Sequence[str]) -> list[str]:
    chosen = list(names) or list(models)
    if len(chosen) != len(models):
        raise ValueError(f"name: given {len(names)} times for {len(models)} models")
    kept = {_file_name(name) for name in chosen}
    if len(kept) != len(chosen):
        raise ValueError(f"name: {chosen} are not distinct as names of folders")
    return chosen


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "model"


if __name__ == "__main__":
    sys.exit(main())
