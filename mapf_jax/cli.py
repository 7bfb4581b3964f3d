"""The command line: `python -m mapf_jax generate|solve|verify|render|export`.

Instances go in and out as JSON lines (see `formats`), in files or standard input and output, and
are written as they are computed. Invalid input ends the command with exit status 2 and one line
that names file, line and field; everything computed before it has been written.
"""

import argparse
import collections
import dataclasses
import json
import math
import os
import reprlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from mapf_jax import __version__, formats
from mapf_jax.bridges import hub_records as published
from mapf_jax.bridges import movingai
from mapf_jax.draw import render
from mapf_jax.environment_config import MAX_SIZE, MIN_SIZE, EnvironmentConfig
from mapf_jax.generator import GenerationReport, generate
from mapf_jax.padding import stack_padded, stack_plans
from mapf_jax.solver.batch import MAX_STATES, solve
from mapf_jax.text import parse_answer
from mapf_jax.types import Instance, Status

_CHUNK = 4096  # Records that are computed, and written, together.
_LONGEST = 2000  # Characters of an error, which may quote its input.
_PICTURES = (*render.SUFFIXES, ".scen")
_FORMATS = """\
INPUT is a file, or - for standard input:
  *.scen            a MovingAI scenario; its .map lies beside it or is named by --map
  anything else     JSON lines, one instance per line: {"id": "a", "map": ["F H F", ...],
                    "starts": [[row, column], ...], "goals": [[row, column], ...]} with F frozen
                    and H hole, or records of the published benchmark (sample_id, num_agents, text)
"""


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One instance of the input: its place, its record, its instance and a plan if read."""

    where: str
    record: dict[str, Any]
    instance: Instance
    plan: np.ndarray | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    # The same seed draws the same, whatever is set outside.
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_default_prng_impl", "threefry2x32")
    jax.config.update("jax_threefry_partitionable", True)
    args = _parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. Python would report that again when it closes its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, ImportError, RecursionError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        sys.stdout.flush()
        print(f"error: {' '.join(message.split())[:_LONGEST]}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mapf-jax",
        description="Several agents on a frozen lake: make, solve, check and draw instances.",
    )
    parser.add_argument("--version", action="version", version=f"mapf_jax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    reads, writes = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    reads.add_argument("input", metavar="INPUT", help="what to read, see below")
    reads.add_argument("--map", type=Path, metavar="FILE", help="the .map of a .scen")
    reads.add_argument("--agents", type=_count, metavar="N", help="take the first N of a .scen")
    writes.add_argument("--out", default="-", metavar="FILE", help="default: standard output")

    def command(
        run: Callable[[argparse.Namespace], None],
        help: str,
        *parents: argparse.ArgumentParser,
        epilog: str | None = _FORMATS,
    ) -> Callable[..., argparse.Action]:
        added = commands.add_parser(
            run.__name__.removeprefix("_"),
            help=help,
            description=help,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=parents,
        )
        added.set_defaults(run=run)
        return added.add_argument

    making = "Make distinct solvable instances with their optimal plans."
    option = command(_generate, making, writes, epilog=None)
    option("--num-instances", type=_count, help="default: 100")
    option("--num-agents", type=_count, help="2 to 5 (default: 2)")
    option("--sizes", type=_sizes, help="lake sizes such as 3-10 or 4,6,8 (default: 3-10)")
    option("--hole-ratio", type=float, help="fraction of holes, 0 to 1 (default: 0.2)")
    option("--wait-ratio", type=float, help="fraction that needs a wait (default: 0.5)")
    shared = "agents may start on goals of others"
    option("--shared-cells", action="store_const", const=True, help=shared)
    option("--config", type=Path, help="a configuration by lake size, YAML or JSON, instead")
    option("--benchmark", action="store_true", help="make the benchmark of 3,150 instances instead")
    option("--seed", type=_seed, default=0, help="default: %(default)s")
    option("--report", type=Path, help="write asked and achieved ratios here as JSON")

    solving = "Add status, cost, makespan, needs_wait and paths: the optimum, or else a plan."
    option = command(_solve, solving, reads, writes)
    option("--seconds", type=float, default=math.inf, help="then no further optimum is searched")
    option(
        "--max-states",
        type=int,
        default=MAX_STATES,
        help="joint states that a search for an optimum may keep; 0: any plan (default: 2**20)",
    )

    verifying = "Add checks, valid, plan_cost, gap, violation: what paths are worth."
    option = command(_verify, verifying, reads, writes)
    option("--text", metavar="FIELD", help="verify the answer in this field, not `paths`")

    option = command(_render, "Draw instances, with their paths if they have some.", reads)
    option(
        "--out",
        default="-",
        metavar="FILE",
        help=f"{', '.join(_PICTURES)}; with {{id}} in its name every instance is drawn, else one; "
        "default: text for every instance on standard output",
    )
    option("--id", help="draw this instance only")
    option("--no-paths", action="store_true", help="do not draw paths")
    option("--cell", type=_count, default=48, help="pixels (default: %(default)s)")

    exporting = "Write solved instances as a data set for `datasets.load_dataset`."
    option = command(_export, exporting)
    option("input", nargs="+", metavar="INPUT", help="what to read, see below")
    option("--out", required=True, type=Path, metavar="FOLDER")
    option("--list-holes", action="store_true", help="also list the holes' cells in the prompts")
    return parser


# The commands


def _generate(args: argparse.Namespace) -> None:
    config = _read_config(args.config) if args.config else None
    shape = ["sizes", "hole_ratio", "wait_ratio"]
    for beside, options in (
        ("config", shape),
        ("benchmark", [*shape, "config", "num_agents", "num_instances", "shared_cells"]),
    ):
        for name in options:
            if getattr(args, beside) and getattr(args, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} cannot go with --{beside}")
    if config is None:
        hole_ratio = 0.2 if args.hole_ratio is None else args.hole_ratio
        wait_ratio = 0.5 if args.wait_ratio is None else args.wait_ratio
        config = EnvironmentConfig.uniform(args.sizes or range(3, 11), hole_ratio, wait_ratio)
    if args.report is not None:  # A folder that cannot be made fails before the work.
        args.report.parent.mkdir(parents=True, exist_ok=True)
    with _output(args.out) as out:
        if args.benchmark:
            from mapf_jax import benchmark

            made = benchmark.benchmark_instances(args.seed)
            named = enumerate(made.ids)
            records = [formats.to_record(made.instances[i], name) for i, name in named]
            report = GenerationReport(len(records), len(records), made.reports)
        else:
            key, count = jax.random.key(args.seed), args.num_instances or 100
            instances, report = generate(
                key, config, count, args.num_agents or 2, distinct=not args.shared_cells
            )
            records = formats.to_records(instances)
        for record in records:
            print(json.dumps(record), file=out)
    _print_report(report, args.report)
    if args.benchmark:
        checksum = benchmark.checksum(made)
        print(f"version {benchmark.VERSION}, checksum {checksum}", file=sys.stderr)


def _solve(args: argparse.Namespace) -> None:
    if not args.seconds >= 0:
        raise ValueError(f"--seconds={args.seconds}: allowed are numbers from 0 up")
    begin = time.monotonic()
    end = begin + args.seconds

    def solved(chunk: list[_Entry]) -> Iterator[dict[str, Any]]:
        instances = stack_padded([entry.instance for entry in chunk])
        solution = solve(instances, args.max_states, end - time.monotonic())
        for i, entry in enumerate(chunk):
            yield formats.solution_fields(solution[i], np.arange(len(entry.instance.active)))
        if sys.stderr.isatty():
            print(f"{time.monotonic() - begin:.0f} s, up to {chunk[-1].where}", file=sys.stderr)

    written = _write_with(args, _entries(args), solved)
    counts = collections.Counter(record["status"] for record in written)
    print(", ".join(f"{counts[s.name.lower()]} {s.name.lower()}" for s in Status), file=sys.stderr)


def _verify(args: argparse.Namespace) -> None:
    def verified(chunk: list[_Entry]) -> Iterator[dict[str, Any]]:
        instances = stack_padded([entry.instance for entry in chunk])
        plans = stack_plans([entry.plan for entry in chunk], instances.starts.shape[-2])
        verdicts = formats.verify_in_blocks(instances, plans)
        for i, entry in enumerate(chunk):
            fields = formats.verdict_fields(verdicts[i])
            yield fields | {"gap": _gap(entry, fields["plan_cost"])}

    entries = (dataclasses.replace(e, plan=_plan(e, args.text)) for e in _entries(args))
    # Without the zeros the first update would store truth values.
    counts = collections.Counter(plans=0, valid=0, known=0, optimal=0)
    for record in _write_with(args, entries, verified):
        known = formats.optimum_from_record(record, args.input) is not None
        counts.update(plans=1, valid=record["valid"], known=known, optimal=record["gap"] == 0)
    print(
        f"{counts['plans']} plans, {counts['valid']} valid, {counts['optimal']} of "
        f"{counts['known']} with a known optimum optimal",
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
    if args.out != "-" and suffix not in _PICTURES:
        allowed = ", ".join(_PICTURES)
        raise ValueError(f"--out={args.out}: suffix {suffix!r} is not allowed, only {allowed}")
    every = args.out == "-" or "{id}" in args.out
    drawn, owners = 0, dict[Path, str]()
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
            plan = stack_plans([positions], len(entry.instance.active))[0]
        if args.out == "-":
            print(f"{name}\n{render.as_text(entry.instance, plan)}\n", flush=True)
            continue
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        path = Path(args.out.replace("{id}", safe))
        if path in owners:
            raise ValueError(f"{entry.where}: id: {path} is of {owners[path]!r} already")
        owners[path] = name
        path.parent.mkdir(parents=True, exist_ok=True)
        if suffix == ".scen":
            movingai.write_movingai(entry.instance, path)
        else:
            try:
                render.save(path, entry.instance, plan, args.cell)
            except ValueError as error:
                raise ValueError(f"{entry.where}: {error}") from error
    if not drawn:
        which = "" if args.id is None else f" with the id {args.id!r}"
        raise ValueError(f"{args.input}: no instance{which}")


def _export(args: argparse.Namespace) -> None:
    """Writes each input as a split named after its file."""
    from mapf_jax.bridges.dataset import write_dataset  # Only this needs Jinja.

    splits: dict[str, list[dict[str, Any]]] = {}
    for name in args.input:
        split = Path(name).stem
        if split in splits:
            raise ValueError(f"{name}: there is a split {split!r} already")
        single = argparse.Namespace(input=name, map=None, agents=None)
        splits[split] = [entry.record for entry in _entries(single)]
        if not splits[split]:
            raise ValueError(f"{name}: no instance")
    write_dataset(args.out.expanduser(), splits, args.list_holes)
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
                record |= published.read_published(record, where)
            yield _Entry(where, record, formats.instance_from_record(record, where))


def _plan(entry: _Entry, field: str | None) -> np.ndarray | None:
    """The plan of an entry as int[T, agents, 2]; None where there is none to be read."""
    if field is None:
        if "paths" in entry.record and entry.record["paths"] is None:
            return None
        return formats.paths_from_record(entry.record, entry.where)
    text = entry.record.get(field)
    if not isinstance(text, str):
        raise ValueError(f"{entry.where}: {field}: {reprlib.repr(text)} is not a text")
    return parse_answer(text)


def _write_with(
    args: argparse.Namespace,
    entries: Iterable[_Entry],
    add: Callable[[list[_Entry]], Iterable[dict[str, Any]]],
) -> Iterator[dict[str, Any]]:
    """Writes the records with the fields that `add` gives for a chunk of them, and yields them."""
    with _output(args.out, args.input) as out:
        for chunk in filter(None, _chunks(entries)):
            for entry, fields in zip(chunk, add(chunk), strict=True):
                record = entry.record | fields
                print(json.dumps(record), file=out)
                yield record
            out.flush()


def _chunks(entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
    """Lists of up to `_CHUNK` entries, the last perhaps empty; errors come after what was read."""
    chunk: list[_Entry] = []
    try:
        for entry in entries:
            chunk.append(entry)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
    except ValueError:
        yield chunk
        raise
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
    with path.open("w", encoding="utf-8") as file:
        yield file


def _read_config(path: Path) -> EnvironmentConfig:
    """A configuration as `EnvironmentConfig.to_dict` gives it."""
    import yaml  # Only this needs it.

    try:
        return EnvironmentConfig.from_dict(
            yaml.safe_load(path.read_text(encoding="utf-8"))
        )  # Reads JSON, too.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def _print_report(report: GenerationReport, path: Path | None) -> None:
    """Prints the report as a table, and writes it as JSON on demand."""
    if path is not None:
        path.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    print(f"{report.made} of {report.asked} instances", file=sys.stderr)
    sizes = [dataclasses.asdict(size) for size in report.sizes]
    rows = [list(sizes[0]), *(list(row.values()) for row in sizes)]
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell!s:>{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells), file=sys.stderr)


# Options


def _integer(text: str, allowed: str) -> int:
    try:
        return int(text)
    except ValueError:
        told = f"{reprlib.repr(text)} is not an integer {allowed}"
        raise argparse.ArgumentTypeError(told) from None


def _count(text: str) -> int:
    if (count := _integer(text, "from 1 up")) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return count


def _seed(text: str) -> int:
    allowed = "from 0 to 2**32 - 1"  # JAX reads the last 32 bits alone.
    if not 0 <= (seed := _integer(text, allowed)) < 1 << 32:
        raise argparse.ArgumentTypeError(f"allowed are integers {allowed}")
    return seed


def _sizes(text: str) -> tuple[int, ...]:
    sizes: set[int] = set()
    allowed = f"{MIN_SIZE} to {MAX_SIZE}"
    for part in text.split(","):
        begin, _, end = part.partition("-")
        first, last = (_integer(size, f"from {allowed}") for size in (begin, end or begin))
        if last > MAX_SIZE:  # Before all sizes of the range are made.
            raise argparse.ArgumentTypeError(f"sizes: {last} is not allowed, only {allowed}")
        if last < first:
            raise argparse.ArgumentTypeError(f"sizes: {part} is empty; ranges ascend, as 3-8")
        sizes.update(range(first, last + 1))
    return tuple(sorted(sizes))
