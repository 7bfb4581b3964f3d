"""What a benchmark leaves behind: a JSON file and a Markdown page that say how they came about.

A benchmark builds `Table`s, calls `write`, and is done:

    table = records.Table("Speed", ("batch", "instances/s"), [(64, 1.2e6), (1024, 9.8e6)])
    records.write("generator", "Generator", [table], folder=out, notes=["one run"])
"""

import dataclasses
import datetime
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of figures under named columns.

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

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"rows: {row!r} has {len(row)} values for the {len(self.columns)} columns of "
                    f"table {self.title!r}"
                )

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
        "command": command(),
        "revision": _revision(),
        "processor": _processor(),
        "cores": len(cores()),
        "memory_gib": _memory_gib(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def command() -> str:
    """The command line of this process as a user would type it."""
    arguments = list(sys.orig_argv[1:]) if sys.orig_argv else list(sys.argv)
    return shlex.join(["python", *arguments])


def write(
    name: str,
    title: str,
    tables: Sequence[Table],
    folder: str | Path,
    notes: Sequence[str] = (),
    about: dict[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Writes `<folder>/<name>.json` and `<folder>/<name>.md`; makes the folder if needed.

    Args:
      name: file name without ending.
      title: heading of the page.
      tables: the figures.
      folder: where to.
      notes: paragraphs between the facts and the tables: protocol, caveats.
      about: `facts()` taken before the measurements; taken now if None.

    Returns:
      The two paths.
    """
    about = facts() if about is None else about
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    json_path, page_path = folder / f"{name}.json", folder / f"{name}.md"
    content = {
        "title": title,
        "facts": about,
        "notes": list(notes),
        "tables": [table.to_dict() for table in tables],
    }
    json_path.write_text(json.dumps(content, indent=1, default=_plain, allow_nan=False) + "\n")
    page_path.write_text(page(title, tables, notes, about))
    return json_path, page_path


def page(title: str, tables: Sequence[Table], notes: Sequence[str], about: dict[str, Any]) -> str:
    """The Markdown page; arguments as of `write`."""
    lines = [f"# {title}", "", f"`{about['command']}`", ""]
    lines += [f"- {key.replace('_', ' ')}: {_text(value)}" for key, value in about.items()]
    lines += ["", *(f"{note}\n" for note in notes)]
    lines += [table.to_markdown() for table in tables]
    return "\n".join(lines)


def seconds(
    function: Callable[[], Any], repeats: int = 3, least: float = 0.2, warm_up: int = 1
) -> float:
    """Median wall-clock seconds of one call; waits for the arrays that the call returns.

    Args:
      function: what to time; compilation belongs to its first, untimed calls.
      repeats: timed measurements, of which the median is taken.
      least: a measurement repeats the call until it has lasted this many seconds.
      warm_up: untimed calls before.
    """
    for _ in range(max(warm_up, 1)):
        jax.block_until_ready(function())
    measured = []
    for _ in range(repeats):
        calls, begin = 0, time.perf_counter()
        while True:
            jax.block_until_ready(function())
            calls += 1
            elapsed = time.perf_counter() - begin
            if elapsed >= least:
                break
        measured.append(elapsed / calls)
    return statistics.median(measured)


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


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written as JSON")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _revision() -> str | None:
    """The commit of this checkout, marked where tracked files differ from it."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--short", "HEAD")
    if commit is None:
        return None
    return commit + (" with changes" if git("status", "--porcelain", "-uno") else "")
