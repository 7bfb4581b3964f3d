"""Engines that are measured in processes of their own, several of them in turns.

An engine is a generator function from a task (a JSON object) to measurements (JSON objects). What
comes before its first measurement is not timed: loading, compiling. `compare` starts it as
`python -m experiments.speed.engines MODULE:ENGINE`, with an interpreter of its own if its library
wants other versions. So modules of engines import the standard library alone at their top. The
process reads the task as its first line of input and answers every further line with a measurement.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import timeit
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Task = Mapping[str, Any]
Measurements = Iterator[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """One engine to measure.

    Attributes:
      engine: `module:function`, the module one of this package.
      task: what the function is given.
      python: the interpreter that runs it.
    """

    engine: str
    task: Task
    python: str = sys.executable


@dataclasses.dataclass
class Outcome:
    """Measurements of one engine, and why there are none or no more; empty if it did not fail."""

    measurements: list[dict[str, Any]]
    obstacle: str = ""


class _Process:
    def __init__(self, case: Case) -> None:
        root = str(Path(__file__).parents[2])
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
            "PYTHONWARNINGS": "ignore",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        self._outcome = Outcome([])
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (`close` closes it)
        self._process = subprocess.Popen(
            [case.python, "-m", "experiments.speed.engines", f"experiments.speed.{case.engine}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | variables,
        )
        self._send(json.dumps(case.task))

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It ended; `measure` finds out why.
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def measure(self, counts: bool = True) -> bool:
        """Takes a measurement; False after the last one, or if the engine failed."""
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._send("")
        if line := self._process.stdout.readline():
            answer = json.loads(line)
            if "missing" not in answer:
                self._outcome.measurements += [answer] if counts else []
                return True
            self._outcome.obstacle = f"not installed ({answer['missing']})"
        elif self._process.wait() and not self._outcome.obstacle:
            self._errors.seek(0)
            lines = [line.strip() for line in self._errors if line.strip()] or ["no message"]
            last = next((line for line in reversed(lines) if "Error" in line), lines[-1])
            self._outcome.obstacle = f"failed: {last[:300]}"
        return False

    def kill(self, why: str) -> None:
        """Ends at once."""
        self._outcome.obstacle = why
        self._process.kill()

    def close(self) -> Outcome:
        """Ends after the last measurement; what has been measured."""
        self._process.communicate()
        self._errors.close()
        return self._outcome


def compare(cases: Mapping[str, Case], rounds: int) -> dict[str, Outcome]:
    """One measurement of each engine that does not count, then `rounds` of each in turns."""
    processes = {label: _Process(case) for label, case in cases.items()}
    for number in range(rounds + 1):
        for process in processes.values():
            process.measure(counts=number > 0)
    return {label: process.close() for label, process in processes.items()}


def collect(case: Case, seconds: float) -> Outcome:
    """All measurements of an engine that ends by itself, or those that it makes in `seconds`."""
    process = _Process(case)
    timer = threading.Timer(seconds, process.kill, [f"stopped after {seconds:g} s"])
    timer.start()
    while process.measure():
        pass
    timer.cancel()
    return process.close()


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median wall-clock seconds of a call, which waits for what it computes, after a warm-up.

    Each measurement repeats the call until it lasts 0.2 s.
    """
    timer = timeit.Timer(function)
    timer.timeit(1)  # Compiles.
    calls, _ = timer.autorange()
    return statistics.median(timer.repeat(repeats, calls)) / calls


def main() -> None:
    """Runs one engine: a measurement, as a line of JSON, for every line of input but the first."""
    out, sys.stdout = sys.stdout, sys.stderr  # What libraries print must not mix in.
    module, _, name = sys.argv[1].partition(":")
    try:
        measurements = getattr(importlib.import_module(module), name)(json.loads(input()))
        for _, measurement in zip(sys.stdin, measurements, strict=False):
            print(json.dumps(measurement), file=out, flush=True)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=out, flush=True)


if __name__ == "__main__":
    main()
