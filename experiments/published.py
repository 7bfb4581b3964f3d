"""The published results (arXiv 2606.17682), to be shown beside measured ones and never among them.

`published/results.json` holds the tables as they are printed, in percent: single runs without
error bars, on instances of their own draw and with a prompt of their own wording.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCE = "arXiv 2606.17682"
_FILE = Path(__file__).parent / "published" / "results.json"


@dataclasses.dataclass(frozen=True)
class Rates:
    """Shares of valid and of optimal answers as printed, in percent."""

    valid: float
    optimal: float


@dataclasses.dataclass(frozen=True)
class PublishedModel:
    """A row of the published tables.

    Attributes:
      name: the model and how it was trained.
      means: by number of agents, over the lake sizes, as printed.
      by_size: by (number of agents, lake size); empty where only means are printed.
    """

    name: str
    means: Mapping[int, Rates]
    by_size: Mapping[tuple[int, int], Rates]


@functools.cache
def tables() -> Mapping[str, Any]:
    """Everything in the file, with its notes; not to be changed."""
    return json.loads(_FILE.read_text())


@functools.cache
def models() -> tuple[PublishedModel, ...]:
    """All rows by number of agents, those with figures by lake size first."""
    found: dict[str, tuple[dict[int, Rates], dict[tuple[int, int], Rates]]] = {}
    for row in tables()["main"]:
        means, by_size = found.setdefault(row["model"], ({}, {}))
        agents = row["num_agents"]
        means[agents] = Rates(**row["mean"])
        by_size |= {(agents, int(size)): Rates(**cell) for size, cell in row["by_size"].items()}
    for name, row in tables()["means_by_agents"].items():
        found[name] = ({int(agents): Rates(**cell) for agents, cell in row.items()}, {})
    return tuple(PublishedModel(name, means, sizes) for name, (means, sizes) in found.items())


def valid_by_wait_subset() -> dict[str, dict[float, float]]:
    """Valid share in percent by context variant and wait ratio.

    Of the model after training. What the mean is over is not said; for V6, whose other figures are
    printed too, the three subsets average to the mean of the 21 cells of a number of agents and a
    lake size, and not to that of the three numbers of agents.
    """
    table = tables()["valid_by_wait_subset"]
    return {
        context: dict(zip(table["wait_ratios"], values, strict=True))
        for context, values in table["contexts"].items()
    }
