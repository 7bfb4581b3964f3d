"""What the scripts of this folder share: engines in processes of their own, options, pages.

An engine is a function from a task (a JSON object) to an iterable of measurements (JSON objects).
`compare` runs it as `python runner.py MODULE:ENGINE`, with another interpreter if its library needs
other versions. This file and modules of engines therefore import only the standard library and each
other at their top. The process reads the task from standard input and writes one measurement per
line.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.measurements import Table

Task = Mapping[str, Any]
Measurements = Iterable[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """One engine to measure.

    Attributes:
      engine: `module:function`, with a module of this folder.
      task: argument of the function.
      python: the interpreter that runs it.
    """

    engine: str
    task: Task
    python: str = sys.executable


@dataclasses.dataclass
class Outcome:
    """Measurements of one engine, and the error that ended them; empty if it did not fail."""

    measurements: list[dict[str, Any]]
    obstacle: str = ""


def compare(cases: Mapping[str, Case], turns: int = 1) -> dict[str, Outcome]:
    """Runs engines and returns their outcomes by label; a failed engine gets no further turn.

    Args:
      cases: the engines by label.
      turns: processes of each engine; in every turn each engine runs once.
    """
    outcomes = {label: Outcome([]) for label in cases}
    for _ in range(turns):
        for label, case in cases.items():
            if not outcomes[label].obstacle:
                print(f"measuring {label}", file=sys.stderr, flush=True)
                _measure(case, outcomes[label])
    return outcomes


def _measure(case: Case, outcome: Outcome) -> None:
    done = subprocess.run(
        [case.python, __file__, case.engine],
        input=json.dumps(case.task),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "ignore", "TRANSFORMERS_VERBOSITY": "error"},
        check=False,
    )
    outcome.measurements += map(json.loads, done.stdout.splitlines())
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        lines = lines or ["no message"]
        last = next((line for line in reversed(lines) if "Error" in line), lines[-1])
        outcome.obstacle = f"failed: {last[:300]}"


def timed(work: Callable[[], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the result of a function's second call with its `seconds`; the first call compiles."""
    work()
    begin = time.perf_counter()
    result = work()
    yield {"seconds": time.perf_counter() - begin, **result}


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median wall-clock seconds of a call after a warm-up; a call must wait for its results.

    Each measurement repeats the call until it lasts 0.2 s.
    """
    timer = timeit.Timer(function)
    timer.timeit(1)  # Compiles.
    calls, _ = timer.autorange()
    return statistics.median(timer.repeat(repeats, calls)) / calls


def compare_tokens(outcomes: Mapping[str, Outcome]) -> None:
    """Replaces the `ids` of each measurement by the fraction that equals those of the first."""
    import numpy as np

    measurements = [m for outcome in outcomes.values() for m in outcome.measurements]
    ids = [np.array(measurement.pop("ids")) for measurement in measurements]
    for measurement, found in zip(measurements, ids, strict=True):
        same = found.shape == ids[0].shape
        measurement["same tokens"] = float((found == ids[0]).mean()) if same else 0.0


def comparison(title: str, outcomes: Mapping[str, Outcome], unit: str, note: str) -> "Table":
    """A table of engines on the same task; the first one is this project's.

    Args:
      title, note: of the table.
      outcomes: by label. Each measurement has `tokens`, their number, and `seconds`, which are
        removed from it; every other field becomes a column with the lowest value.
      unit: of a speed, such as "tokens/s".

    Raises:
      RuntimeError: the first engine did not run.
    """
    from experiments.measurements import Table

    own, *_ = outcomes
    if not outcomes[own].measurements:
        raise RuntimeError(f"{own} could not run: {outcomes[own].obstacle}")
    fastest = 0.0
    rows: list[dict[str, Any]] = []
    for label, outcome in outcomes.items():
        row: dict[str, Any] = {"engine": label}
        if speeds := [m.pop("tokens") / m.pop("seconds") for m in outcome.measurements]:
            best = max(speeds)
            fastest = fastest or best
            row |= {
                f"{unit}, best": best,
                "median": statistics.median(speeds),
                f"{own} is faster by": fastest / best,
            }
            first, *others = outcome.measurements
            row |= {name: min([value, *(m[name] for m in others)]) for name, value in first.items()}
        rows.append(row | {"note": outcome.obstacle})
    return Table.of(title, rows, note)


def run(
    name: str,
    description: str,
    tables: Callable[[argparse.Namespace], Iterable["Table"]],
    argv: Sequence[str] | None = None,
    peers: Collection[str] = (),
    on_cpu: bool = False,
    **more: Mapping[str, Any],
) -> None:
    """Runs a script: prints each table and, with `--out`, rewrites `<out>/<name>.json` and `.md`.

    An interrupted script keeps its finished tables, and its page says that others are missing.

    Args:
      name: of the script and the page.
      description: its first line describes the script.
      tables: function of the options; yields each table when its measurements are done. This
        function queries JAX's devices only after the first table.
      argv: the arguments; None for those of this process.
      peers: libraries measured beside this project; the option `python` is the interpreter of each.
      on_cpu: this process and its engines use no accelerator.
      **more: further options by name, as keyword arguments of `add_argument`.
    """
    from experiments import measurements

    def interpreter(text: str) -> tuple[str, str]:
        peer, _, path = text.partition("=")
        if peer not in peers or not Path(path).is_file():
            raise argparse.ArgumentTypeError(
                f"{text!r}: NAME=INTERPRETER is needed, NAME one of {', '.join(peers)} and "
                "INTERPRETER a file"
            )
        return peer, path

    about, _, _ = description.partition("\n")
    parser = argparse.ArgumentParser(prog=f"python docs/benchmarks/{name}.py", description=about)
    flag, text = "store_true", "a few short measurements instead of all of them"
    parser.add_argument("--quick", action=flag, help=text)
    parser.add_argument("--out", type=Path, help=f"folder for {name}.json and {name}.md")
    if peers:
        parser.add_argument(
            "--python",
            type=interpreter,
            action="append",
            default=[],
            metavar="NAME=INTERPRETER",
            help=f"an interpreter that has the library NAME ({', '.join(peers)}), if not this one",
        )
    for option, properties in more.items():
        parser.add_argument(f"--{option}", **properties)
    options = parser.parse_args(argv)
    if peers:
        options.python = dict.fromkeys(peers, sys.executable) | dict(options.python)
    if on_cpu:
        import jax

        os.environ["JAX_PLATFORMS"] = "cpu"
        jax.config.update("jax_platforms", "cpu")
    notes = ["A quick run: a few short measurements."] if options.quick else []
    load = round(os.getloadavg()[0], 2)
    facts: dict[str, Any] = {}
    finished: list[Table] = []

    def write(notes: Sequence[str]) -> None:
        if options.out is not None and finished:
            content = {"tables": [each.to_dict() for each in finished]}
            path = options.out / name
            measurements.write(path, name.capitalize(), finished, notes, facts, content)

    for table in tables(options):
        facts = facts or measurements.facts() | {"load_before": load}
        finished.append(table)
        print(table.to_markdown(), flush=True)
        write([*notes, "Not finished: further tables are missing."])
    write(notes)


def main() -> None:
    """Runs one engine: reads the task from standard input, prints one line per measurement."""
    module, _, name = sys.argv[1].partition(":")
    with contextlib.redirect_stdout(sys.stderr):  # Keeps the libraries' output apart.
        for measurement in getattr(importlib.import_module(module), name)(json.load(sys.stdin)):
            print(json.dumps(measurement), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
