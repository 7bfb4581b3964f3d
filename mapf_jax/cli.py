"""The command line: `python -m mapf_jax generate|solve|verify|render|export`.

Instances go in and out as JSON lines (see `formats`), by files or by standard input and output,
written as they are computed. Input that cannot be used ends the command with one line that names
file, line and field, and exit status 2; what was computed before it has been written.
"""

import argparse
import collections
import dataclasses
import json
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, TypeVar

import jax
import numpy as np

from mapf_jax import formats
from mapf_jax.bridges import hub_records as published
from mapf_jax.bridges import movingai
from mapf_jax.bridges.dataset import write_dataset
from mapf_jax.draw import render
from mapf_jax.environment_config import EnvironmentConfig
from mapf_jax.generator import GenerationReport, generate
from mapf_jax.padding import pad_instance, stack_padded, stack_plans
from mapf_jax.solver.batch import WIDTHS, solve
from mapf_jax.solver.blocks import BLOCK
from mapf_jax.text import parse_answer
from mapf_jax.types import Instance, Plan, Status

T = TypeVar("T")

_CHUNK = BLOCK  # Records that are computed, and written, together.
_FORMATS = """\
INPUT is a file, or - for standard input:
  *.scen            a MovingAI scenario; its .map lies beside it or is named by --map
  anything else     JSON lines, one instance a line: {"id": "a", "map": ["F H F", ...],
                    "starts": [[row, column], ...], "goals": [[row, column], ...]} with F frozen
                    and H hole, or records of the published benchmark (sample_id, num_agents, text)
"""


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One instance of the input: where it stands, its record and its instance."""

    where: str
    record: dict[str, Any]
    instance: Instance


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has had enough. Python would complain once more when it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        named = error.filename is not None
        return _fail(f"{error.filename}: {error.strerror}" if named else str(error))
    except (ValueError, ImportError) as error:
        return _fail(str(error))
    return 0


def _fail(message: str) -> int:
    sys.stdout.flush()
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mapf_jax",
        description="Several agents on a frozen lake: make, solve, check and draw instances.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], None], help: str) -> argparse.ArgumentParser:
        name = run.__name__.removeprefix("_")
        added = commands.add_parser(
            name,
            help=help,
            description=help,
            epilog=None if name == "generate" else _FORMATS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        if name == "export":
            added.add_argument("input", nargs="+", metavar="INPUT", help="what to read, see below")
            added.add_argument("--out", required=True, type=Path, metavar="FOLDER")
        elif name != "generate":
            added.add_argument("input", metavar="INPUT", help="what to read, see below")
            added.add_argument("--map", type=Path, metavar="FILE", help="the .map of a .scen")
            added.add_argument(
                "--agents", type=_count, metavar="N", help="take the first N agents of a .scen"
            )
        if name not in ("render", "export"):
            added.add_argument(
                "--out", default="-", metavar="FILE", help="default: standard output"
            )
        return added

    making = command(_generate, "Make distinct solvable instances with their optimal plans.")
    making.add_argument("--num-instances", type=_count, help="default: 100")
    making.add_argument("--num-agents", type=_count, help="2 to 5 (default: 2)")
    making.add_argument(
        "--sizes", type=_sizes, help="lake sizes such as 3-10 or 4,6,8 (default: 3-10)"
    )
    making.add_argument("--hole-ratio", type=float, help="share of holes, 0 to 1 (default: 0.2)")
    making.add_argument(
        "--wait-ratio", type=float, help="share of instances that need a wait (default: 0.5)"
    )
    making.add_argument(
        "--config", type=Path, help="a configuration by lake size, YAML or JSON, instead of these"
    )
    making.add_argument(
        "--benchmark", action="store_true", help="make the benchmark of 3,150 instances instead"
    )
    making.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    making.add_argument("--report", type=Path, help="write asked and achieved ratios here as JSON")

    command(_solve, "Add status, cost, makespan, needs_wait and paths: the exact optimum.")

    judging = command(
        _verify, "Add checks, valid, plan_cost, gap, violation: what paths are worth."
    )
    judging.add_argument(
        "--text", metavar="FIELD", help="judge the answer in the text of this field, not `paths`"
    )

    drawing = command(_render, "Draw instances, with their paths if they have some.")
    drawing.add_argument(
        "--out",
        default="-",
        metavar="FILE",
        help=f"{', '.join(render.SUFFIXES)} or .scen; with {{id}} in its name every instance is "
        "drawn, else one; default: text for every instance on standard output",
    )
    drawing.add_argument("--id", help="draw this instance only")
    drawing.add_argument("--no-paths", action="store_true", help="do not draw paths")
    drawing.add_argument("--cell", type=_count, default=48, help="pixels (default: %(default)s)")

    exporting = command(
        _export, "Write solved instances as a data set for `datasets.load_dataset`."
    )
    exporting.add_argument(
        "--format", choices=("parquet", "jsonl"), default="parquet", help="default: %(default)s"
    )
    exporting.add_argument(
        "--list-holes", action="store_true", help="also list the holes' cells in the prompts"
    )
    return parser


# The commands


def _generate(args: argparse.Namespace) -> None:
    shape = ("sizes", "hole_ratio", "wait_ratio")
    _refuse(args, shape, "config")
    _refuse(args, (*shape, "config", "num_agents", "num_instances"), "benchmark")
    if args.config:
        config = _read_config(args.config)
        if config.agents:
            _refuse(args, ("num_agents",), "config")
    else:
        hole_ratio = 0.2 if args.hole_ratio is None else args.hole_ratio
        wait_ratio = 0.5 if args.wait_ratio is None else args.wait_ratio
        config = EnvironmentConfig.uniform(args.sizes or range(3, 11), hole_ratio, wait_ratio)
    with _output(args.out) as out:
        if args.benchmark:
            from mapf_jax.benchmark import benchmark_instances

            made = benchmark_instances(args.seed)
            named = enumerate(made.ids)
            records = [formats.to_record(made.instances[i], name) for i, name in named]
            report = GenerationReport(len(records), len(records), made.reports)
        else:
            key, count = jax.random.key(args.seed), args.num_instances or 100
            instances, report = generate(key, config, count, args.num_agents or 2)
            records = formats.to_records(instances)
        for record in records:
            _write(out, record)
    _tell_report(report, args.report)


def _refuse(args: argparse.Namespace, options: Sequence[str], beside: str) -> None:
    """Raises ValueError if one of these options was given together with another."""
    for name in options:
        if getattr(args, beside) and getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} cannot go with --{beside}")


def _solve(args: argparse.Namespace) -> None:
    counts: collections.Counter[str] = collections.Counter()
    with _output(args.out, args.input) as out:
        for chunk in _chunks(_entries(args)):
            batch = stack_padded([entry.instance for entry in chunk])
            width, agents = batch.blocked.shape[-1], batch.starts.shape[-2]
            # Widths that the solver works in anyway, so that chunks share compiled programs.
            width = next((w for w in WIDTHS if w >= width), width)
            solution = solve(pad_instance(batch, width, agents))
            for i, entry in enumerate(chunk):
                single = jax.tree.map(lambda leaf, i=i: leaf[i], solution)
                active = np.arange(len(entry.instance.active))
                fields = formats.solution_fields(single, active)
                counts[fields["status"]] += 1
                _write(out, entry.record | fields)
            out.flush()
    print(", ".join(f"{counts[s.name.lower()]} {s.name.lower()}" for s in Status), file=sys.stderr)


def _verify(args: argparse.Namespace) -> None:
    total = valid = known = optimal = 0
    with _output(args.out, args.input) as out:
        for chunk in _chunks((entry, _paths(entry, args.text)) for entry in _entries(args)):
            instances = stack_padded([entry.instance for entry, _ in chunk])
            plans = stack_plans([plan for _, plan in chunk], instances.starts.shape[-2])
            verdicts = formats.judge(instances, plans)
            for i, (entry, _) in enumerate(chunk):
                verdict = jax.tree.map(lambda leaf, i=i: leaf[i], verdicts)
                fields = formats.verdict_fields(verdict)
                fields["gap"] = _gap(entry, fields["plan_cost"])
                _write(out, entry.record | fields)
                total += 1
                valid += fields["valid"]
                known += entry.record.get("cost") is not None
                optimal += fields["gap"] == 0
            out.flush()
    print(
        f"{total} plans, {valid} valid, {optimal} of {known} with a known optimum optimal",
        file=sys.stderr,
    )


def _gap(entry: _Entry, plan_cost: int | None) -> int | None:
    """Cost above the stored optimum; a valid plan below it proves the stored label wrong."""
    optimum = formats.optimum_from_record(entry.record, entry.where)
    if plan_cost is None:
        return None
    if entry.record.get("status") == "unsolvable":
        raise ValueError(f"{entry.where}: status: unsolvable is stored, but the paths are valid")
    if optimum is None:
        return None
    if plan_cost < optimum:
        raise ValueError(
            f"{entry.where}: cost: {optimum} is stored as the optimum, "
            f"but the paths are valid and cost {plan_cost}"
        )
    return plan_cost - optimum


def _render(args: argparse.Namespace) -> None:
    suffix = Path(args.out).suffix.lower()
    if args.out != "-" and suffix not in (*render.SUFFIXES, ".scen"):
        allowed = ", ".join((*render.SUFFIXES, ".scen"))
        raise ValueError(f"--out={args.out}: suffix {suffix!r} is not allowed, only {allowed}")
    every = args.out == "-" or "{id}" in args.out
    drawn = 0
    for entry in _entries(args):
        name = entry.record["id"]
        if args.id is not None and name != args.id:
            continue
        drawn += 1
        if drawn == 2 and not every:
            print("only the first instance was drawn; put {id} into --out for all", file=sys.stderr)
            break
        plan = None
        if not args.no_paths and entry.record.get("paths") is not None:
            positions = formats.paths_from_record(entry.record, entry.where)
            stacked = stack_plans([positions], len(entry.instance.active))
            plan = jax.tree.map(lambda leaf: leaf[0], stacked)
        if args.out == "-":
            print(f"{name}\n{render.as_text(entry.instance, plan)}\n", flush=True)
            continue
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        path = Path(args.out.replace("{id}", safe))
        path.parent.mkdir(parents=True, exist_ok=True)
        if suffix == ".scen":
            movingai.write_movingai(entry.instance, path)
        else:
            _save(path, entry, plan, args.cell)
    if not drawn:
        which = "" if args.id is None else f" with the id {args.id!r}"
        raise ValueError(f"{args.input}: no instance{which}")


def _save(path: Path, entry: _Entry, plan: Plan | None, cell: int) -> None:
    try:
        render.save(path, entry.instance, plan, cell)
    except ValueError as error:
        raise ValueError(f"{entry.where}: {error}") from error


def _export(args: argparse.Namespace) -> None:
    """Each input is a split that is called as its file is."""
    splits: dict[str, list[dict[str, Any]]] = {}
    for name in args.input:
        split = Path(name).stem
        if split in splits:
            raise ValueError(f"{name}: there is a split {split!r} already")
        single = argparse.Namespace(input=name, map=None, agents=None)
        splits[split] = [entry.record for entry in _entries(single)]
        if not splits[split]:
            raise ValueError(f"{name}: no instance")
    write_dataset(args.out, splits, args.format, args.list_holes)
    for split, records in splits.items():
        print(f"{split}: {len(records)} instances", file=sys.stderr)


# Input and output


def _entries(args: argparse.Namespace) -> Iterator[_Entry]:
    """Every instance of the input, in order."""
    if args.input.lower().endswith(".scen"):
        path = Path(args.input)
        instance = movingai.read_movingai(path, args.agents, args.map)
        yield _Entry(args.input, formats.to_record(instance, path.stem), instance)
        return
    for option in ("map", "agents"):
        if getattr(args, option) is not None:
            raise ValueError(f"--{option} is for a .scen, not for {args.input}")
    name = "standard input" if args.input == "-" else args.input
    with nullcontext(sys.stdin.buffer) if args.input == "-" else open(args.input, "rb") as lines:
        for where, record in formats.numbered_records(lines, name):
            if published.is_published(record):
                question = published.read_published(record, where)
                ours = formats.to_record(question.instance, question.sample_id)
                if question.answer is not None:
                    ours["answer"] = question.answer
                yield _Entry(where, ours, question.instance)
            else:
                yield _Entry(where, record, formats.instance_from_record(record, where))


def _paths(entry: _Entry, field: str | None) -> np.ndarray | None:
    """The plan of an entry as int[T, agents, 2]; None where there is none to be read."""
    if field is None:
        if "paths" in entry.record and entry.record["paths"] is None:
            return None
        return formats.paths_from_record(entry.record, entry.where)
    text = entry.record.get(field)
    if not isinstance(text, str):
        raise ValueError(f"{entry.where}: {field}: {reprlib.repr(text)} is not a text")
    return parse_answer(text)


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Lists of up to `_CHUNK` items; what came before an error is still given out."""
    chunk: list[T] = []
    try:
        for item in items:
            chunk.append(item)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
    except ValueError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


@contextmanager
def _output(name: str, input_name: str = "-") -> Iterator[IO[str]]:
    if name == "-":
        yield sys.stdout
        return
    path = Path(name)
    if input_name != "-" and path.exists() and path.samefile(input_name):
        raise ValueError(f"--out={name}: the input cannot be the output")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        yield file


def _write(out: IO[str], record: dict[str, Any]) -> None:
    out.write(json.dumps(record) + "\n")


def _read_config(path: Path) -> EnvironmentConfig:
    """A configuration as `EnvironmentConfig.to_dict` gives it."""
    text = path.read_text()
    try:
        if path.suffix.lower() in (".yaml", ".yml"):
            import yaml

            try:
                mapping = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise ValueError(f"not YAML ({error})") from error
        else:
            mapping = json.loads(text)
        return EnvironmentConfig.from_dict(mapping)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _tell_report(report: GenerationReport, path: Path | None) -> None:
    """What was asked and what was made, as a table for people and as JSON on demand."""
    if path is not None:
        path.write_text(json.dumps(report.to_dict(), indent=2) + "\n")
    print(f"{report.made} of {report.asked} instances", file=sys.stderr)
    sizes = [dataclasses.asdict(size) for size in report.sizes]
    rows = [list(sizes[0]), *(list(row.values()) for row in sizes)]
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (str(cell).rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells), file=sys.stderr)


# Options


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _sizes(text: str) -> tuple[int, ...]:
    sizes: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            sizes.update(range(int(first), int(last if dash else first) + 1))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{part!r} is neither N nor N-M") from error
    if not sizes:
        raise argparse.ArgumentTypeError(f"{text!r} names no size")
    return tuple(sorted(sizes))
