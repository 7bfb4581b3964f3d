"""Tables of measurements, and pages that record how they were made."""

import csv
import dataclasses
import datetime
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax

from experiments.run import store as files
from experiments.run import versions
from experiments.text.templates import estimate, p_value, render


@dataclasses.dataclass(frozen=True)
class Table:
    """Metrics under named columns.

    Attributes:
      title: heading, unique on its page.
      columns: names, with units if any.
      lines: a value for each column: text, a number, a bool, or None if not measured.
      note: how to read the table.
    """

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[Any]]
    note: str = ""

    @classmethod
    def of(cls, title: str, lines: Sequence[Mapping[str, Any]], note: str = "") -> Self:
        """A table of lines given as mappings; None where a line lacks a column."""
        columns = list(dict.fromkeys(name for line in lines for name in line))
        return cls(title, columns, [[line.get(name) for name in columns] for line in lines], note)

    @classmethod
    def compared(
        cls, title: str, found: Mapping[str, Mapping[str, Any]], reference: str, scale: int = 100
    ) -> Self:
        """A table of `statistics.compare`: rates in percent and points; others need `scale` 1.

        Values are in the order of the seeds, which are named where some variant lacks one.
        """
        lines = []
        some_lack = len({tuple(one["values"]) for one in found.values() if one["values"]}) > 1
        for name, one in found.items():
            difference = one["difference"]
            tested = [difference and p_value(difference[key]) for key in ("p", "p_holm")]
            digits, unit = (1, " %") if scale == 100 else (2, "")
            shown = [
                (f"{seed}: " if some_lack else "") + f"{scale * value:.{digits}f}"
                for seed, value in one["values"].items()
            ]
            minus = difference and estimate(difference, "+", "", scale)
            mean = estimate(one, "", unit, scale)
            lines.append((name, mean, minus, *tested, ", ".join(shown)))
        columns = ("mean (95 %)", f"minus {reference} (95 %)", "p", "p (Holm)", "by seed")
        return cls(title, ("variant", *columns), lines)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `rows` are the lines as mappings from column names."""
        lines = [dict(zip(self.columns, line, strict=True)) for line in self.lines]
        return {"title": self.title, "note": self.note, "rows": lines}

    def to_csv(self) -> str:
        """The columns and lines as CSV; None is an empty field."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.lines])
        return text.getvalue()

    def to_markdown(self) -> str:
        """A Markdown table with heading and note."""
        return render("table.md", table=self)


def cores() -> list[int]:
    """Indices of the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def facts() -> dict[str, Any]:
    """Machine, versions, device, date and command of this process."""
    devices, checkout = jax.devices(), revision()
    commit = checkout["revision"]
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "revision": commit and commit[:9] + ("" if checkout["clean"] else " with changes"),
        "processor": ", ".join(filter(None, (versions.processor(), versions.generation()))),
        "cores": len(cores()),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        **versions.packages(),
    }


def write(
    path: Path,
    title: str,
    tables: Sequence[Table],
    notes: Sequence[str],
    about: Mapping[str, Any],
    content: Mapping[str, Any],
) -> None:
    """Writes a page in Markdown, and the same as JSON.

    Args:
      path: of the files, without a suffix.
      notes: paragraphs between the facts and the tables, such as protocol and caveats.
      about: `facts()`, taken before the measurements.
      content: further fields of the JSON file.
    """
    page = render("measurements.md", title=title, about=about, notes=notes, tables=tables)
    files.write_file(path.with_suffix(".md"), page)
    head = {"title": title, "facts": about, "notes": notes}
    files.write_file(path.with_suffix(".json"), {**head, **content})


def revision() -> dict[str, Any]:
    """`revision`, the commit of this checkout, and `clean`, whether its tracked files are as in it.

    Both are None outside a checkout.
    """
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        commit, changed = (
            subprocess.run(
                [*git, *command.split()],
                capture_output=True,
                encoding="utf-8",
                timeout=10,
                check=True,
            ).stdout.strip()
            for command in ("rev-parse HEAD", "status --porcelain --untracked-files=no")
        )
    except (OSError, subprocess.SubprocessError):
        return {"revision": None, "clean": None}
    return {"revision": commit, "clean": not changed}
