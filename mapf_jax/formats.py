"""Instances on disk: JSON lines, one instance a line."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mapf_jax.text import FROZEN, HOLE
from mapf_jax.types import Instance, Solution, Status, make_instance, stack

_FIELDS = ("map", "starts", "goals", "cost", "makespan", "needs_wait", "paths")


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


def from_records(records: Sequence[Mapping[str, Any]]) -> Instance:
    """A batch from records of `to_record` that hold their solutions, equal to what was written.

    Maps are padded to the widest lake and plans to the longest one.

    Raises:
      ValueError: a record lacks a field or is not a legal instance; the message names its id.
    """
    if not records:
        raise ValueError("records=[]: at least one is needed")
    names = [record.get("id", f"record {i}") for i, record in enumerate(records)]
    for name, record in zip(names, records, strict=True):
        missing = [field for field in _FIELDS if field not in record]
        if missing:
            raise ValueError(f"{name}: fields {missing} are missing")
    width = max(len(record["map"]) for record in records)
    steps = max(len(record["paths"][0]) for record in records)
    instances = []
    for name, record in zip(names, records, strict=True):
        try:
            instance = make_instance(
                record["map"],
                [(int(r), int(c)) for r, c in record["starts"]],
                [(int(r), int(c)) for r, c in record["goals"]],
            )
            paths = np.array(record["paths"], np.int8).transpose(1, 0, 2)
            solution = Solution(
                status=np.asarray(Status.OPTIMAL, np.int8),
                cost=np.asarray(record["cost"], np.int32),
                makespan=np.asarray(record["makespan"], np.int32),
                needs_wait=np.asarray(record["needs_wait"], bool),
                paths=np.pad(paths, ((0, steps - len(paths)), (0, 0), (0, 0)), mode="edge"),
                num_steps=np.asarray(len(paths) - 1, np.int32),
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
        extra = (0, width - int(instance.size))
        blocked = np.pad(instance.blocked, (extra, extra), constant_values=True)
        instances.append(dataclasses.replace(instance, blocked=blocked, solution=solution))
    return stack(instances)


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
