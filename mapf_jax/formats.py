"""Instances and plans as JSON lines, one instance per line.

    {"id": "a", "map": ["F F F", "F H F", "F F F"], "starts": [[0, 0], [2, 2]],
     "goals": [[2, 0], [0, 1]], "cost": 5, "makespan": 3, "needs_wait": false,
     "paths": [[[0, 0], [1, 0], [2, 0]], [[2, 2], [1, 2], [0, 2], [0, 1]]]}

(all on one line). `map` has rows of `F` (frozen) and `H` (hole), cells are [row, column], `paths`
is [agent][time]; an agent whose path is shorter than another's stays at its end. Only id, map,
starts and goals are required. The other four are the optimum, all or none of them; null counts as
missing. `status` is `optimal` where they are given. With `feasible`, cost, makespan and paths are
those of a plan that may not be optimal; `unsolvable` and `unknown` have none of the four.
"""

import dataclasses
import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chex
import numpy as np

from mapf_jax.padding import in_blocks, stack_padded, stack_plans
from mapf_jax.plans import arrivals, waiting
from mapf_jax.text import FROZEN, HOLE
from mapf_jax.types import (
    CHECKS,
    INFINITE_COST,
    Instance,
    Plan,
    Solution,
    Status,
    Verdict,
    ViolationKind,
    make_instance,
)
from mapf_jax.verify import verify

_JSON_TYPES = {str: "a string", list: "a list with items", bool: "true or false", int: "an integer"}
_LABELS = ("cost", "makespan", "needs_wait", "paths")
#: The labels that a record of each status has.
_KNOWN = {
    Status.OPTIMAL: _LABELS,
    Status.FEASIBLE: ("cost", "makespan", "paths"),
    Status.UNSOLVABLE: (),
    Status.UNKNOWN: (),
}
_BLOCK = 256  # Plans verified at once, so that one program serves any number of records.


def to_record(instance: Instance, name: str) -> dict[str, Any]:
    """A single instance as a JSON-able record.

    Keys: id, map, starts, goals, and where the optimum is known cost, makespan, needs_wait and
    paths. Where it is not, `status` says what a solver found, and what it did not find is null.

    Raises:
      ValueError: it is a batch.
    """
    instance.check_single()
    size = int(instance.size)
    blocked = np.asarray(instance.blocked)[:size, :size]
    agents = np.nonzero(instance.active)[0]
    record: dict[str, Any] = {
        "id": name,
        "map": [" ".join(HOLE if hole else FROZEN for hole in row) for row in blocked],
        "starts": np.asarray(instance.starts)[agents].tolist(),
        "goals": np.asarray(instance.goals)[agents].tolist(),
    }
    if instance.solution is not None:
        record |= solution_fields(instance.solution, agents)
        if record["status"] == "optimal":
            del record["status"]
    return record


def to_records(instances: Instance) -> list[dict[str, Any]]:
    """The records of a batch, each named by its agents, its size and its place."""
    counts, sizes = np.asarray(instances.active).sum(-1), np.asarray(instances.size)
    return [
        to_record(instances[i], f"{counts[i]}ag_{sizes[i]}x{sizes[i]}_{i:05d}")
        for i in range(len(instances))
    ]


def solution_fields(solution: Solution, agents: np.ndarray) -> dict[str, Any]:
    """Status, cost, makespan, needs_wait and paths of a single solution as in a record.

    Args:
      solution: a single solution.
      agents: indices of the active agents.
    """
    status = Status(int(solution.status))
    paths = np.asarray(solution.paths)[: int(solution.num_steps) + 1, agents]
    fields = {
        "cost": int(solution.cost),
        "makespan": int(solution.makespan),
        "needs_wait": bool(solution.needs_wait),
        "paths": paths.transpose(1, 0, 2).tolist(),
    }
    known = _KNOWN[status]
    return {"status": status.name.lower()} | {k: fields[k] if k in known else None for k in fields}


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """A single verdict as the fields that `verify` adds to a record.

    `checks` (each by name), `valid`, `plan_cost` and `plan_makespan` (null unless valid), `gap`
    (null unless valid and the optimum is known) and `violation` (null, or time, agent and kind of
    the first one).
    """

    def finite(value: Any) -> int | None:
        return int(value) if value < INFINITE_COST else None

    kind = ViolationKind(int(verdict.violation_kind))
    violation = {
        "time": int(verdict.violation_time),
        "agent": int(verdict.violation_agent),
        "kind": kind.name.lower(),
    }
    return {
        "checks": {check: bool(getattr(verdict, check)) for check in CHECKS},
        "valid": bool(verdict.valid),
        "plan_cost": finite(verdict.cost),
        "plan_makespan": finite(verdict.makespan),
        "gap": finite(verdict.gap),
        "violation": None if kind == ViolationKind.NONE else violation,
    }


def instance_from_record(record: Mapping[str, Any], name: str) -> Instance:
    """The instance of a record without its labels.

    Args:
      record: an object of the format above.
      name: its name in errors, such as its file and line.

    Raises:
      ValueError: a field is missing or wrong; the message names the record and the field.
    """
    _field(record, "id", name, str)
    rows = _field(record, "map", name, list)
    if any(type(row) is not str for row in rows):
        raise ValueError(f"{name}: map: {reprlib.repr(rows)} is not a list of strings")
    starts, goals = (
        _cells(_field(record, field, name, list), f"{name}: {field}")
        for field in ("starts", "goals")
    )
    try:
        return make_instance(rows, starts, goals)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def paths_from_record(record: Mapping[str, Any], name: str) -> np.ndarray:
    """The `paths` of a record as int[T, agents, 2]; shorter ones are padded by staying.

    Raises:
      ValueError: as `instance_from_record`.
    """
    paths = _field(record, "paths", name, list)
    cells = [_cells(path, f"{name}: paths[{agent}]") for agent, path in enumerate(paths)]
    steps = max(map(len, cells))
    return np.array([path + path[-1:] * (steps - len(path)) for path in cells]).transpose(1, 0, 2)


def optimum_from_record(record: Mapping[str, Any], name: str) -> int | None:
    """The stored optimal sum of costs of a record, None if there is none or status is `feasible`.

    Raises:
      ValueError: the cost is no integer from 0 up, or does not go with the status; the message
        names the record and the field.
    """
    known = record.get("cost") is not None and _status(record, name, ("cost",)) == Status.OPTIMAL
    return _integer(record, "cost", name) if known else None


def from_records(records: Sequence[Mapping[str, Any]]) -> Instance:
    """A batch from records of `to_record`, equal to what was written.

    Maps are padded with holes to the widest lake, agents with inactive ones to the largest number,
    plans by staying to the longest one. The labels are checked as far as one plan can show: the
    paths must be valid and have the stored cost and at least the stored makespan, and wait where
    the record needs one. That no plan is better is not checked; `solve` proves it.

    Args:
      records: at least one; any mix of sizes, numbers of agents, solved and unsolved.

    Returns:
      A batch with NumPy leaves. Its solution is None if no record has a label or a status; else
      a record without is UNKNOWN.

    Raises:
      ValueError: a record lacks a field, is not a legal instance or holds a wrong label; the
        message names its id and the field.
    """
    if not records:
        raise ValueError("records=[]: at least one is needed")
    names = [str(record.get("id", f"record {i}")) for i, record in enumerate(records)]
    named = list(zip(records, names, strict=True))
    instances = stack_padded([instance_from_record(record, name) for record, name in named])
    claimed = [_status(record, name) for record, name in named]
    if all(status is None for status in claimed):
        return instances
    statuses = [Status.UNKNOWN if status is None else status for status in claimed]
    cost, makespan = np.full((2, len(records)), INFINITE_COST, np.int32)
    needs_wait = np.zeros(len(records), bool)
    # Where there is no plan the agents rest.
    paths = [
        starts[None, active]
        for starts, active in zip(instances.starts, instances.active, strict=True)
    ]
    for i, (record, name) in enumerate(named):
        known = _KNOWN[statuses[i]]
        if "needs_wait" in known:
            needs_wait[i] = _field(record, "needs_wait", name, bool)
        if "paths" in known:
            cost[i], makespan[i] = (_integer(record, key, name) for key in ("cost", "makespan"))
            paths[i] = paths_from_record(record, name)
    plans = stack_plans(paths, instances.starts.shape[-2])
    solution = Solution(
        status=np.array(statuses, np.int8),
        cost=cost,
        makespan=makespan,
        needs_wait=needs_wait,
        paths=plans.positions[:, : int(plans.num_steps.max()) + 1].astype(instances.starts.dtype),
        num_steps=plans.num_steps,
    )
    _check_labels(names, instances, solution, plans)
    return dataclasses.replace(instances, solution=solution)


def verify_in_blocks(instances: Instance, plans: Plan) -> Verdict:
    """`verify` with NumPy leaves, compiled once for any number of instances of one shape."""
    chex.assert_equal_shape_prefix([instances.starts, plans.positions], 1)
    return in_blocks(verify, instances, plans, block=_BLOCK)


def read_jsonl(path: Path | str) -> Iterator[dict[str, Any]]:
    """The records of a JSON lines file; blank lines and byte order marks are skipped.

    Raises:
      ValueError: a line is not a JSON object; the message names file and line.
    """
    with Path(path).open("rb") as file:
        for _, record in numbered_records(file, str(path)):
            yield record


def numbered_records(lines: Iterable[bytes], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(`name:line`, record) for each line that is not blank.

    Raises:
      ValueError: as `read_jsonl`.
    """
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8-sig"))  # Windows begins files with a mark.
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise ValueError(f"{where}: {reprlib.repr(record)} is not an object")
        yield where, record


def _check_labels(
    names: Sequence[str], instances: Instance, solution: Solution, plans: Plan
) -> None:
    """Raises ValueError if the plan of a solved record contradicts its labels."""
    verdicts = verify_in_blocks(instances, plans)
    distances = np.abs(instances.goals.astype(int) - instances.starts).sum(-1).max(-1)
    positions = np.asarray(plans.positions)
    waits = waiting(positions, arrivals(positions, np.asarray(instances.goals)))
    waits = np.any(waits & instances.active, axis=1)
    for i in map(int, np.nonzero(solution.cost < INFINITE_COST)[0]):
        name, cost, makespan = names[i], solution.cost[i], solution.makespan[i]
        if not verdicts.valid[i]:
            failed = [check for check in CHECKS if not getattr(verdicts, check)[i]]
            raise ValueError(f"{name}: paths: not a valid plan, failed: {', '.join(failed)}")
        if cost != verdicts.cost[i]:
            raise ValueError(
                f"{name}: cost: {cost} is stored, but the paths cost {verdicts.cost[i]}"
            )
        if solution.status[i] == Status.FEASIBLE and makespan != verdicts.makespan[i]:
            raise ValueError(
                f"{name}: makespan: {makespan} is stored, but the paths end at "
                f"{verdicts.makespan[i]}"
            )
        if not distances[i] <= makespan <= verdicts.makespan[i]:
            raise ValueError(
                f"{name}: makespan: {makespan} is stored as the smallest possible one, but the "
                f"paths end at {verdicts.makespan[i]} and a goal is {distances[i]} cells away"
            )
        if solution.needs_wait[i] and not waits[i]:
            raise ValueError(f"{name}: needs_wait: true is stored, but no agent waits in the paths")


def _status(record: Mapping[str, Any], name: str, labels: Sequence[str] = _LABELS) -> Status | None:
    """The status that a record claims, None if it has neither a status nor one of the labels."""
    present = [field for field in labels if record.get(field) is not None]
    stated = record.get("status")
    if stated is None and not present:
        return None
    allowed = {status.name.lower(): status for status in Status}
    status = Status.OPTIMAL if stated is None else allowed.get(str(stated))
    if status is None:
        raise ValueError(f"{name}: status: {stated!r} is not allowed, only {', '.join(allowed)}")
    for field in labels:
        if field in _KNOWN[status] and field not in present:
            beside = ", ".join(present) or "status"
            raise ValueError(f"{name}: {field}: missing beside {beside}")
    for field in present:
        if field not in _KNOWN[status]:
            raise ValueError(f"{name}: {field}: not allowed where the status is {stated!r}")
    return status


def _field(record: Mapping[str, Any], field: str, name: str, kind: type) -> Any:
    """A field of a record, which must be there and of one of JSON's types."""
    value = record.get(field)
    if value is None:
        raise ValueError(f"{name}: {field}: missing")
    if type(value) is not kind or value == []:
        raise ValueError(f"{name}: {field}: {reprlib.repr(value)} is not {_JSON_TYPES[kind]}")
    return value


def _integer(record: Mapping[str, Any], field: str, name: str) -> int:
    value = _field(record, field, name, int)
    if not 0 <= value < INFINITE_COST:
        raise ValueError(f"{name}: {field}: {value} is not from 0 to {INFINITE_COST}")
    return value


def _cells(value: Any, where: str) -> list[tuple[int, int]]:
    if type(value) is not list or not value:
        raise ValueError(f"{where}: {reprlib.repr(value)} is not a list of [row, column]")
    for cell in value:
        if (
            type(cell) is not list
            or [type(number) for number in cell] != [int, int]
            or max(map(abs, cell)) >= 1 << 31
        ):
            raise ValueError(f"{where}: {reprlib.repr(cell)} is not [row, column]")
    return [(cell[0], cell[1]) for cell in value]
