"""Measures engines in separate processes, which can take turns.

An engine is a function from a task (a JSON object) to an iterable of measurements (JSON objects).
`compare` runs it as `python engines.py MODULE:ENGINE`, with another interpreter if its library
needs other versions. Modules of engines therefore import only the standard library and this module
at their top. The process reads the task from standard input and writes one measurement per line.
"""

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
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Task = Mapping[str, Any]
Measurements = Iterable[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """One engine to measure.

    Attributes:
      engine: `module:function`, with a module of this package.
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
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONWARNINGS": "ignore",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    done = subprocess.run(
        [case.python, __file__, f"experiments.speed.{case.engine}"],
        input=json.dumps(case.task),
        capture_output=True,
        text=True,
        env=os.environ | variables,
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


def main() -> None:
    """Runs one engine: reads the task from standard input, prints one line per measurement."""
    module, _, name = sys.argv[1].partition(":")
    del sys.path[0]  # The folder of this file.
    # Importing the package itself needs modules that another interpreter may lack.
    sys.modules["experiments"] = package = types.ModuleType("experiments")
    package.__path__ = [str(Path(__file__).parents[1])]
    with contextlib.redirect_stdout(sys.stderr):  # Keeps the libraries' output apart.
        for measurement in getattr(importlib.import_module(module), name)(json.load(sys.stdin)):
            print(json.dumps(measurement), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
