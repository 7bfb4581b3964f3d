"""What a measurement leaves behind: a JSON file and a Markdown page that say how it came about.

`records.publish(name, tables, options, records.facts())` writes both.
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import jax
import numpy as np

from experiments.speed.engines import Outcome

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Table:
    """Metrics under named columns.

    Attributes:
      title: heading, unique on its page.
      columns: names, with units where a column has one.
      rows: one value for each column: text, a number, a bool, or None where nothing was measured.
      note: a sentence or more about how to read the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> Self:
        """A table of rows that name their values; None where a row lacks a column."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return cls(title, columns, [[row.get(name) for name in columns] for row in rows], note)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; rows as mappings from column names."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}

    def to_markdown(self) -> str:
        """A Markdown table with heading and note."""
        lines = [f"## {self.title}", ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + " --- |" * len(self.columns))
        lines += ["| " + " | ".join(_text(value) for value in row) + " |" for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])


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


def parser(name: str, description: str, out: str | None = None) -> argparse.ArgumentParser:
    """The options that all commands of this package have: `--quick` and `--out`."""
    result = argparse.ArgumentParser(
        prog=f"python -m experiments.speed.{name}", description=description.splitlines()[0]
    )
    result.add_argument(
        "--quick", action="store_true", help="a few short measurements instead of all of them"
    )
    result.add_argument("--out", default=out, help=f"folder for {name}.json and {name}.md")
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
    command = parser(name, description, out="docs/benchmarks")
    command.add_argument(
        f"--{peer}_python", default=sys.executable, help=f"interpreter that has {peer}"
    )
    options = command.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"  # For the engines.
    jax.config.update("jax_platforms", "cpu")
    about = facts()
    del about["devices"]  # Each engine has its own number of them; the tables say it.
    with tempfile.TemporaryDirectory() as folder:
        made = tables(scales[options.quick], folder, getattr(options, f"{peer}_python"))
        publish(name, made, options, about)


def integers(text: str) -> list[int]:
    """The type of an option that lists numbers of at least 1."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: allowed are integers of at least 1")
    return numbers


def cores() -> list[int]:
    """Numbers of the CPU's cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def facts() -> dict[str, Any]:
    """The machine, the versions, the device, the date and the command of this process."""
    devices = jax.devices()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "revision": _revision(),
        "processor": _processor(),
        "cores": len(cores()),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


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
      about: `facts()`, taken before the measurements.
      notes: paragraphs between the facts and the tables: protocol, caveats.
    """
    title, folder = name.capitalize(), options.out
    notes = [*notes, *(["A quick run: a few short measurements."] if options.quick else [])]
    print(f"{about['processor']}, {about['cores']} cores; ran on {about['device']}")
    finished: list[Table] = []
    for table in tables:
        finished.append(table)
        print(table.to_markdown(), flush=True)
        if folder is None:
            continue
        Path(folder).mkdir(parents=True, exist_ok=True)
        content = {
            "title": title,
            "facts": about,
            "notes": notes,
            "tables": [table.to_dict() for table in finished],
        }
        text = json.dumps(content, indent=1, default=lambda scalar: scalar.item(), allow_nan=False)
        Path(folder, f"{name}.json").write_text(text + "\n")
        Path(folder, f"{name}.md").write_text(page(title, finished, notes, about))


def page(title: str, tables: Sequence[Table], notes: Sequence[str], about: dict[str, Any]) -> str:
    """The Markdown page; arguments as of `publish`."""
    lines = [f"# {title}", "", f"`{about['command']}`", ""]
    lines += [f"- {key.replace('_', ' ')}: {_text(value)}" for key, value in about.items()]
    lines += ["", *(f"{note}\n" for note in notes)]
    lines += [table.to_markdown() for table in tables]
    return "\n".join(lines)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return f"{number:,.0f}" if 1000 <= abs(number) < math.inf else f"{number:.3g}"
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    return str(value).replace("|", "\\|")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", info.read_text(), re.M) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _revision() -> str | None:
    """The commit of this checkout, marked where tracked files differ from it."""
    git = ["git", "-C", str(Path(__file__).parents[2])]
    try:
        done = subprocess.run(
            [*git, "describe", "--always", "--dirty= with changes", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
