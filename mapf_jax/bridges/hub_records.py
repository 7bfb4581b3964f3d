"""Records of the published benchmark, `LARK-Lab/MAPF-FrozenLake-Benchmark` on the Hugging Face hub.

A line is a JSON object with `sample_id` (such as `3ag_3x3_hr0.1_000`: agents, size, hole ratio,
number), `num_agents` and `text`, the question with the map in it. The map alone determines the
instance, not the words around it. The format is taken from a description of the data set (arXiv
2606.17682 and its project page), not from the files themselves.
"""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

from mapf_jax.draw.render import ascii_instance, instance_from_ascii
from mapf_jax.formats import to_record
from mapf_jax.text import FROZEN, HOLE, START_CHARACTERS, letters_of
from mapf_jax.types import Instance

_SAMPLE_ID = re.compile(r"([1-9]\d?)ag_([1-9]\d?)x([1-9]\d?)_hr(\d*\.?\d+)_(\d+)", re.ASCII)
_DECORATION = str.maketrans(dict.fromkeys("[]'\",|`", " "))


def is_published(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a record of the published benchmark, not one of ours."""
    return "sample_id" in record and "map" not in record


def read_published(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Recovers the instance of a record from the map in its text.

    Args:
      record: a JSON object of the benchmark.
      name: its name in errors, such as its file and line.

    Returns:
      The instance as a record of `formats`, with the `sample_id` as its `id`, and with the
      `hole_ratio` that the `sample_id` states.

    Raises:
      ValueError: a field is missing or wrong, or the text holds no map, or several different ones,
        of the record's size and number of agents; names record and field.
    """
    sample_id, text = record.get("sample_id"), record.get("text")
    match = _SAMPLE_ID.fullmatch(sample_id) if isinstance(sample_id, str) else None
    if match is None or match[2] != match[3]:
        raise ValueError(
            f"{name}: sample_id: {reprlib.repr(sample_id)} is not like '3ag_3x3_hr0.1_000'"
        )
    num_agents, size = int(match[1]), int(match[2])
    if num_agents > len(START_CHARACTERS):
        raise ValueError(f"{name}: sample_id: {num_agents} agents, maps have letters for fewer")
    if record.get("num_agents", num_agents) != num_agents:
        raise ValueError(
            f"{name}: num_agents: {record['num_agents']!r} is not the {num_agents} of {sample_id!r}"
        )
    if not isinstance(text, str):
        raise ValueError(f"{name}: text: {reprlib.repr(text)} is not a string")
    found = {ascii_instance(instance): instance for instance in _maps(text, size, num_agents)}
    if len(found) != 1:
        raise ValueError(
            f"{name}: text: {len(found)} different maps of {size} x {size} cells with "
            f"{num_agents} agents were found, one is needed"
        )
    ours = to_record(next(iter(found.values())), match[0])
    return {**ours, "hole_ratio": float(match[4])}


def _maps(text: str, size: int, num_agents: int) -> list[Instance]:
    """Every square of cells in a text that has each letter of the agents exactly once.

    Other words may come before the first row on its line, and after the last row.
    """
    ends = sorted("".join("".join(letters_of(agent)) for agent in range(num_agents)))
    cells = {FROZEN, HOLE, *ends}
    lines = [line.translate(_DECORATION).split() for line in text.splitlines()]
    maps = []
    for first in range(len(lines) - size + 1):
        rows = lines[first : first + size]
        rows = [rows[0][-size:], *rows[1:-1], rows[-1][:size]]
        if any(len(row) != size or not cells.issuperset(row) for row in rows):
            continue
        if sorted(cell for row in rows for cell in row if cell in ends) == ends:
            maps.append(instance_from_ascii("\n".join(" ".join(row) for row in rows)))
    return maps
