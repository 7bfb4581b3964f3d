"""What the commands that measure speed have in common: options, tables of engines, their pages."""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from experiments import records
from experiments.records import Table
from experiments.speed.engines import Outcome

T = TypeVar("T")


def comparison(
    title: str,
    outcomes: Mapping[str, Outcome],
    unit: str,
    note: str,
    extra: Mapping[str, Callable[[Outcome], Any]],
) -> Table:
    """A table of engines that did the same; the first one is this project's.

    Args:
      title, note: of the table.
      outcomes: by label; measurements with `tokens`, how many, and `seconds`.
      unit: what was counted a second.
      extra: further columns, from the measurements of an engine.

    Raises:
      RuntimeError: the first engine did not run.
    """
    own, *_ = outcomes
    if not outcomes[own].measurements:
        raise RuntimeError(f"{own} could not run: {outcomes[own].obstacle}")
    fastest = 0.0
    rows: list[dict[str, Any]] = []
    for label, outcome in outcomes.items():
        row: dict[str, Any] = {"engine": label}
        if speeds := [m["tokens"] / m["seconds"] for m in outcome.measurements]:
            best = max(speeds)
            fastest = fastest or best
            row |= {
                f"{unit}, best": best,
                "median": statistics.median(speeds),
                f"{own} is faster by": fastest / best,
            }
            row |= {name: column(outcome) for name, column in extra.items()}
        rows.append(row | {"note": outcome.obstacle})
    return Table.of(title, rows, note)


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that all commands of this package have: `--quick` and `--out`."""
    result = argparse.ArgumentParser(
        prog=f"python -m experiments.speed.{name}", description=description.splitlines()[0]
    )
    result.add_argument(
        "--quick", action="store_true", help="a few short measurements instead of all of them"
    )
    result.add_argument("--out", help=f"folder for {name}.json and {name}.md")
    return result


def run(
    name: str,
    description: str,
    peer: str,
    scales: tuple[T, T],
    tables: Callable[[T, str, str], Iterable[Table]],
) -> None:
    """A command that measures in processes of engines alone, on the CPU.

    Args:
      name, description: of the command.
      peer: a library that may need an interpreter of its own, the option `--<peer>_python`.
      scales: how much is measured, and how much with `--quick`.
      tables: from a scale, a temporary folder and that interpreter to the tables of the page.
    """
    command = parser(name, description)
    command.add_argument(
        f"--{peer}_python", default=sys.executable, help=f"interpreter that has {peer}"
    )
    options = command.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"  # For the engines.
    jax.config.update("jax_platforms", "cpu")
    about = records.facts()
    del about["devices"]  # Each engine has its own number of them; the tables say it.
    with tempfile.TemporaryDirectory() as folder:
        made = tables(scales[options.quick], folder, getattr(options, f"{peer}_python"))
        publish(name, made, options, about)


def publish(
    name: str,
    tables: Iterable[Table],
    options: argparse.Namespace,
    about: dict[str, Any],
    notes: Sequence[str] = (),
) -> None:
    """Prints each table and writes `<out>/<name>.json` and `.md` anew, if a folder is given.

    A run that is cut short leaves the tables that it has finished.

    Args:
      name: file name without ending, and title.
      tables: may take as long to come as the measurements do.
      options: as `parser` has read them.
      about: `records.facts()`, taken before the measurements.
      notes: as of `records.write`.
    """
    notes = [*notes, *(["A quick run: a few short measurements."] if options.quick else [])]
    print(f"{about['processor']}, {about['cores']} cores; ran on {about['device']}")
    finished: list[Table] = []
    for table in tables:
        finished.append(table)
        print(table.to_markdown(), flush=True)
        if options.out is not None:
            content = {"tables": [table.to_dict() for table in finished]}
            path = Path(options.out, name)
            records.write(path, name.capitalize(), finished, notes, about, content)
