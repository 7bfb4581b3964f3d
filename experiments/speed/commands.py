"""Shared parts of the commands that measure speed: options, tables of engines and pages."""

import argparse
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from experiments import measurements
from experiments.measurements import Table
from experiments.speed.engines import Outcome


def comparison(title: str, outcomes: Mapping[str, Outcome], unit: str, note: str) -> Table:
    """A table of engines on the same task; the first one is this project's.

    Args:
      title, note: of the table.
      outcomes: by label. Each measurement has `tokens`, their number, and `seconds`, which are
        removed from it; every other field becomes a column with the lowest value.
      unit: of a speed, such as "tokens/s".

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
    tables: Callable[[argparse.Namespace], Iterable[Table]],
    argv: Sequence[str] | None = None,
    on_cpu: bool = False,
    **more: Mapping[str, Any],
) -> None:
    """Runs a command: prints each table and, with `--out`, rewrites `<out>/<name>.json` and `.md`.

    An interrupted command keeps its finished tables.

    Args:
      name: of the command and the page.
      description: its first line describes the command.
      tables: function of the options; yields each table when its measurements are done. This
        function queries JAX's devices only after the first table.
      argv: the arguments; None for those of this process.
      on_cpu: this process and its engines use no accelerator.
      **more: further options by name, as keyword arguments of `add_argument`.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.speed.{name}", description=description.partition("\n")[0]
    )
    flag, text = "store_true", "a few short measurements instead of all of them"
    parser.add_argument("--quick", action=flag, help=text)
    parser.add_argument("--out", type=Path, help=f"folder for {name}.json and {name}.md")
    for option, properties in more.items():
        parser.add_argument(f"--{option}", **properties)
    options = parser.parse_args(argv)
    if on_cpu:
        os.environ["JAX_PLATFORMS"] = "cpu"
        jax.config.update("jax_platforms", "cpu")
    notes = ["A quick run: a few short measurements."] if options.quick else []
    load = round(os.getloadavg()[0], 2)
    about: dict[str, Any] = {}
    finished: list[Table] = []
    for table in tables(options):
        about = about or measurements.facts() | {"load_before": load}
        finished.append(table)
        print(table.to_markdown(), flush=True)
        if options.out is not None:
            content = {"tables": [each.to_dict() for each in finished]}
            path = options.out / name
            measurements.write(path, name.capitalize(), finished, notes, about, content)
