"""The published results (arXiv 2606.17682), shown apart from measured ones for comparison.

`published.json` contains the tables as printed, in percent: single runs without error bars, on
other random instances and with another prompt.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = "arXiv 2606.17682"
_FILE = Path(__file__).with_suffix(".json")


class Group(NamedTuple):
    """A group of instances of a benchmark; None in a field means all values."""

    num_agents: int | None = None
    size: int | None = None
    wait_ratio: float | None = None
    hole_ratio: float | None = None


Rates = Mapping[Group, Mapping[str, float]]


@functools.cache
def tables() -> Mapping[str, Any]:
    """The content of the file, with its notes; do not modify it."""
    return json.loads(_FILE.read_text(encoding="utf-8"))


@functools.cache
def models() -> Mapping[str, Rates]:
    """Percent "valid" and "optimal" by model and group: a number of agents, with or without a size.

    Models with numbers by size come first. A group without a size has the printed mean over sizes.
    """
    found: dict[str, dict[Group, Mapping[str, float]]] = {}
    for line in tables()["main"]:
        agents, of_model = line["num_agents"], found.setdefault(line["model"], {})
        of_model[Group(agents)] = line["mean"]
        of_model |= {Group(agents, int(size)): cell for size, cell in line["by_size"].items()}
    for name, means in tables()["means_by_agents"].items():
        found[name] = {Group(int(agents)): cell for agents, cell in means.items()}
    return found


@functools.cache
def contexts() -> Mapping[str, Rates]:
    """Percent "valid" by context variant and wait-ratio subset, of the model after training.

    The publication does not say what these means are over. For V6, whose other numbers are printed
    too, the mean of the three subsets equals the mean of the 21 cells of a number of agents and a
    lake size, not that of the three numbers of agents.
    """
    table = tables()["valid_by_wait_subset"]
    return {
        f"Qwen3-4B + GRPO, redesigned by the current checkpoint from context {context}": {
            Group(wait_ratio=wait): {"valid": percent}
            for wait, percent in zip(table["wait_ratios"], values, strict=True)
        }
        for context, values in table["contexts"].items()
    }
