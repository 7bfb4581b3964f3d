"""Measures how well models plan, on the benchmark of 3,150 instances or on files of instances.

    python -m experiments.benchmark --model=runs/tiny --model=exact --out=benchmarks/tiny

`--model` is a run's folder (its latest checkpoint, RUN:STEP, RUN@ROUND or RUN@start), the folder of
a checkpoint, "tiny", "endpoint:URL#MODEL" or an oracle; it is repeatable. `--study` is the folder
of a study, whose checkpoints are compared over seeds. Each answer is written with its verdict as
soon as it arrives; the same command resumes after an interruption, and other models add lines.
Without a model the command only rewrites the tables.

    set.json, instances.jsonl        the questions
    models/NAME/options.json         options that the answers of a model depend on, and versions
    models/NAME/answers.jsonl        its answers and verdicts, one per line
    models/NAME/failures.jsonl       requests without an answer; the next start repeats them
    results.md .json                 the tables
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from experiments import measurements, name_of
from experiments.benchmark.asking import ask, file_name, read_outcomes
from experiments.benchmark.oracles import ORACLES
from experiments.benchmark.questions import BUILTIN, BenchmarkQuestions, read_set
from experiments.benchmark.solvers import ENDPOINT, Options
from experiments.benchmark.study import MeasuredStudy
from experiments.benchmark.table import Outcomes
from experiments.measurements import Table
from experiments.run import process
from experiments.run.status import Reporter
from experiments.settings import MeshSettings
from experiments.text.errors import (
    OutOfMemoryError,
    UserError,
    memory_errors,
    user_errors,
)
from learner import checks
from learner.decoder.config import DTYPES
from learner.devices import preemption, sharding


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, 1 for a user error, 75 after SIGTERM or 130 after Ctrl-C."""
    process.quieten()
    reporter = Reporter()
    try:
        arguments = parser().parse_args(argv)
        less = "fewer --slots, a smaller --max_new_tokens and --dtype=bfloat16 need less"
        with preemption.Preemption().watch(), memory_errors(less):
            run(arguments, reporter)
    except (UserError, OSError, OutOfMemoryError) as error:
        print(f"error: {checks.one_line(error)}", file=sys.stderr)
        return 1
    except preemption.Preempted as asked:
        reporter.line("asked to leave: what was answered is kept; the same command goes on")
        return asked.exit_code
    return 0


def run(arguments: argparse.Namespace, reporter: Reporter) -> None:
    """Asks every model its unanswered questions, then prints and writes the tables.

    Raises:
      UserError: an option is not allowed or differs from that of the folder's first start.
    """
    about, root = measurements.facts(), Path(arguments.out).expanduser()
    with user_errors():
        options = checked(arguments)
        models = dict(zip(_names(arguments.model, arguments.name), arguments.model, strict=True))
    study = MeasuredStudy.read(arguments.study)
    if models or study.models:
        ask(root, models | study.models, options, reporter, whole=study.models)
    questions = read_set(root)
    if outcomes := read_outcomes(root, questions):
        tables, notes = write(root, study, questions, outcomes, about)
        for table in tables:
            reporter.line(table.to_markdown())
        for note in notes:
            reporter.line(note)
        reporter.line(f"written: {root / 'results.md'}, results.json")


def write(
    root: Path,
    study: MeasuredStudy,
    questions: BenchmarkQuestions,
    outcomes: Mapping[str, Outcomes],
    about: Mapping[str, Any],
) -> tuple[list[Table], list[str]]:
    """Writes the page of a benchmark.

    Returns:
      Its tables and the notes on them.
    """
    results = study.results(questions, outcomes)
    tables, notes = study.tables(results, outcomes), results.notes()
    asked = [_described(one) for name, one in outcomes.items() if name not in study.models]
    title = "MAPF-FrozenLake benchmark" + (" (PARTIAL)" if questions.partial else "")
    content = {**results.to_json(), "tables": [table.to_dict() for table in tables]}
    measurements.write(root / "results", title, tables, [*notes, *asked], about, content)
    return tables, notes


def _described(one: Outcomes) -> str:
    """A model and its options, for the page."""
    options = one.noted["options"]
    line = f"`{one.noted['name']}`: " + ", ".join(
        f"{key} {value}" for key, value in options.items()
    )
    if options["kind"] == "oracle":
        line += f" ({ORACLES[options['model']].description})"
    return line + "."


# Options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def parser() -> argparse.ArgumentParser:
    """The options of the command; wrong ones raise a `UserError`."""
    parser = _Parser(
        prog=name_of("benchmark"),
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
        help=f"{' or '.join(BUILTIN)} (default: builtin), or a file of JSON lines, ours or "
        "published; repeatable",
    )
    add("--study", help="folder of a study: all checkpoints of its finished runs, by variant")
    add("--set_seed", type=int, default=0, help="of the built-in set (default: %(default)s)")
    add("--per_cell", type=int, help="a quick look: this many per agents, size, subset and holes")
    add("--limit", type=int, help="a quick look: this many in all, evenly spread")
    add("--seed", type=int, default=0, help="of the answers (default: %(default)s)")
    add("--max_new_tokens", type=int, help="budget of an answer")
    add("--temperature", type=float, help="0 takes the most likely token")
    add("--list_holes", action=argparse.BooleanOptionalAction, help="list the holes in the prompt")
    here = parser.add_argument_group("models on this machine", "default: the settings of their run")
    add = here.add_argument
    add("--thinking_tokens", type=int, help="most tokens of thinking; 0 is no thinking")
    add("--top_p", type=float, help="nucleus; 1 is off")
    add("--top_k", type=int, help="candidates; 0 is off")
    add("--dtype", choices=DTYPES, help="of activations")
    add("--mesh", help="devices DATAxFSDPxTENSOR, such as 1x8x1")
    add("--slots", type=int, help="answers sampled at a time")
    add = parser.add_argument_group("models behind a server").add_argument
    add("--concurrency", type=int, default=8, help="requests at a time")
    add("--timeout", type=float, default=300.0, help="seconds for one request")
    # Eight tries take two minutes with their pauses: many servers limit requests per minute.
    add("--tries", type=int, default=8, help="requests for one answer, at most, per start")
    add("--key_variable", default="OPENAI_API_KEY", help="environment variable with the key")
    add("--extra", default="{}", help="further fields of a request, as JSON")
    add("--price_in", type=float, help="price of a million prompt tokens")
    add("--price_out", type=float, help="price of a million answer tokens")
    add("--max_cost", type=float, help="refuse to start if a model's answers may cost more")
    return parser


def checked(arguments: argparse.Namespace) -> Options:
    """The validated options, with the mesh parsed.

    Raises:
      ValueError: a number is out of range, a built-in set is combined with other sets, or prices
        for a limit on the cost are missing.
    """
    options = Options(**vars(arguments))
    options.set = options.set or [next(iter(BUILTIN))]
    if not BUILTIN.keys().isdisjoint(options.set) and len(options.set) > 1:
        raise ValueError(f"set={options.set}: {', '.join(BUILTIN)} do not go with others")
    if BUILTIN.keys().isdisjoint(options.set) and options.set_seed:
        raise ValueError(f"set_seed={options.set_seed}: only for --set={', '.join(BUILTIN)}")
    counts = ("per_cell", "limit", "max_new_tokens", "slots", "concurrency")
    least = dict.fromkeys(counts, 1)
    least |= dict.fromkeys(("price_in", "price_out", "max_cost"), 0)
    for name, low in least.items():
        value = getattr(options, name)
        if value is not None and not value >= low:
            raise ValueError(f"{name}={value}: allowed are numbers from {low} up")
    checks.seeds(options, "seed", "set_seed")
    if options.temperature is not None:
        checks.not_negative(options, "temperature")
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
    kept = {file_name(name) for name in chosen}
    if len(kept) != len(chosen):
        raise ValueError(f"name: {chosen} are not distinct as names of folders")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
