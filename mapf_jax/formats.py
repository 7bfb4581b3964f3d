"""Instances on disk: JSON lines, one instance a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mapf_jax.text import FROZEN, HOLE
from mapf_jax.types import Instance


def to_record(instance: Instance, name: str) -> dict[str, Any]:
    """A single instance as a JSON-able record.

    Keys: id, map (rows of `F` and `H`), starts and goals ([row, column] of each agent), and where
    the solution is known cost, makespan, needs_wait and paths ([agent][time][row, column]).
    """
    size = int(instance.size)
    blocked = np.asarray(instance.blocked)[:size, :size]
    agents = np.nonzero(instance.active)[0]
    record: dict[str, Any] = {
        "id": name,
        "map": [" ".join(HOLE if hole else FROZEN for hole in row) for row in blocked],
        "starts": np.asarray(instance.starts)[agents].tolist(),
        "goals": np.asarray(instance.goals)[agents].tolist(),
    }
    solution = instance.solution
    if solution is not None:
        paths = np.asarray(solution.paths)[: int(solution.num_steps) + 1, agents]
        record |= {
            "cost": int(solution.cost),
            "makespan": int(solution.makespan),
            "needs_wait": bool(solution.needs_wait),
            "paths": paths.transpose(1, 0, 2).tolist(),
        }
    return record


def write_jsonl(path: Path, instances: Instance, prefix: str) -> None:
    """Writes a batch as JSON lines with ids `prefix-0`, `prefix-1` ..."""
    with path.open("w") as file:
        for i in range(len(instances)):
            file.write(json.dumps(to_record(instances[i], f"{prefix}-{i}")) + "\n")


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON lines file.

    Raises:
      ValueError: a line is not a JSON object; the message names file and line.
    """
    with path.open() as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not JSON ({error})") from error
            if not isinstance(record, dict):
                raise ValueError(f"{path}:{number}: {record!r} is not an object")
            yield record
