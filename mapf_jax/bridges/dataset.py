"""Solved instances as a data set in the form of the Hugging Face hub: prompts, records, labels.

A folder with one file per split and a card, `README.md`, with the type of each column, which
`datasets.load_dataset` loads from the disk and from the hub.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mapf_jax import formats
from mapf_jax.text import prompt, render_answer
from mapf_jax.types import Status

FileFormat = Literal["parquet", "jsonl"]
DATA_SOURCE = "mapf_frozenlake"

#: Type and meaning of every column. A type is the name of an Arrow type, `[type]` for lists,
#: `{name: type}`.
COLUMNS: dict[str, tuple[Any, str]] = {
    "id": ("string", "name of the instance"),
    "prompt": (
        [{"role": "string", "content": "string"}],
        "chat messages: one of the user that poses the instance",
    ),
    "answer": ("string", "an optimal answer in the form that the prompt asks for"),
    "num_agents": ("int32", "number of agents"),
    "size": ("int32", "the lake has size x size cells"),
    "num_holes": ("int32", "number of holes"),
    "map": (["string"], "rows of `F` (frozen) and `H` (hole)"),
    "starts": ([["int32"]], "[row, column] of each agent, counted from 0 at the upper left"),
    "goals": ([["int32"]], "likewise"),
    "cost": (
        "int32",
        "optimal sum of costs: for each agent the first time from which it stays on its goal",
    ),
    "makespan": ("int32", "smallest time by which all agents can be on their goals"),
    "needs_wait": ("bool", "no optimal plan is free of waits before arrival"),
    "paths": (
        [[["int32"]]],
        "an optimal plan, [agent][time][row, column]; a shorter path stays at its end",
    ),
    "data_source": ("string", "for verl"),
    "ability": ("string", "for verl"),
    "reward_model": (
        {"style": "string", "ground_truth": "string"},
        "for verl: `ground_truth` is the record of the instance as JSON",
    ),
    "extra_info": ({"split": "string", "index": "int64"}, "for verl"),
}


def dataset_rows(
    records: Sequence[Mapping[str, Any]], split: str = "train", list_holes: bool = False
) -> list[dict[str, Any]]:
    """One row of `COLUMNS` for each solved record.

    Args:
      records: solved records as `formats` has them, at least one.
      split: name of the split, for the column `extra_info`.
      list_holes: also list the cells of the holes in the prompts.

    Raises:
      ValueError: a record is not an instance with a valid optimum; names its id and the field.
    """
    instances = formats.from_records(records)
    solution, rows = instances.solution, []
    for i in range(len(instances)):
        name = str(records[i]["id"])
        if solution is None or solution.status[i] != Status.OPTIMAL:
            raise ValueError(f"{name}: cost: missing, solve the instances first")
        record = formats.to_record(instances[i], name)
        truth = {field: record[field] for field in ("id", "map", "starts", "goals", "cost")}
        paths = np.array(record["paths"]).transpose(1, 0, 2)
        rows.append(
            {
                **record,
                "prompt": [{"role": "user", "content": prompt(instances[i], list_holes)}],
                "answer": render_answer(paths, len(paths) - 1),
                "num_agents": len(record["starts"]),
                "size": len(record["map"]),
                "num_holes": "".join(record["map"]).count("H"),
                "data_source": DATA_SOURCE,
                "ability": "planning",
                "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
                "extra_info": {"split": split, "index": i},
            }
        )
    return [{column: row[column] for column in COLUMNS} for row in rows]


def write_dataset(
    folder: Path,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    file_format: FileFormat = "parquet",
    list_holes: bool = False,
) -> None:
    """Writes `data/SPLIT.parquet` or `.jsonl` for every split, and the card.

    Args:
      folder: made if it does not exist; what it holds of this data set is replaced.
      splits: solved records by name of the split.
      file_format: "parquet" needs the package `datasets`.
      list_holes: also list the cells of the holes in the prompts.

    Raises:
      ValueError: a split has no name that `datasets` takes, or a record is not solved.
      ImportError: Parquet without the package `datasets`.
    """
    for split in splits:
        if not re.fullmatch(r"\w+(\.\w+)*", split):
            raise ValueError(f"split={split!r}: letters, digits, _ and inner dots are allowed")
    if file_format == "parquet":
        import datasets  # Before anything is written.
    tables = {split: dataset_rows(records, split, list_holes) for split, records in splits.items()}
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for split, rows in tables.items():
        path = folder / "data" / f"{split}.{file_format}"
        if file_format == "parquet":
            schema = {name: kind for name, (kind, _) in COLUMNS.items()}
            features = datasets.Features(_features(schema, datasets.Value))
            datasets.Dataset.from_list(rows, features=features).to_parquet(path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "README.md").write_text(_card(tables, file_format))


def _features(kind: Any, value: Any) -> Any:
    """A type of `COLUMNS` as `datasets` has it."""
    if isinstance(kind, str):
        return value(kind)
    if isinstance(kind, list):
        return [_features(kind[0], value)]
    return {name: _features(part, value) for name, part in kind.items()}


def _described(kind: Any) -> dict[str, Any]:
    """A type of `COLUMNS` as the head of a card has it."""
    if isinstance(kind, str):
        return {"dtype": kind}
    if isinstance(kind, dict):
        return {"struct": [{"name": name, **_described(part)} for name, part in kind.items()]}
    (part,) = kind
    if isinstance(part, str):
        return {"list": part}
    return {"list": _described(part).get("struct", _described(part))}


def _card(tables: Mapping[str, Sequence[Mapping[str, Any]]], file_format: FileFormat) -> str:
    total = sum(map(len, tables.values()))
    files = [{"split": split, "path": f"data/{split}.{file_format}"} for split in tables]
    columns = [{"name": name, **_described(kind)} for name, (kind, _) in COLUMNS.items()]
    head = {
        "pretty_name": "MAPF-FrozenLake",
        "language": ["en"],
        "task_categories": ["text-generation"],
        "tags": ["multi-agent-path-finding", "planning", "reinforcement-learning"],
        "configs": [{"config_name": "default", "data_files": files}],
        "dataset_info": {"features": columns},
    }
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in head.items()),  # JSON is YAML as well.
        "---",
        "",
        "# MAPF-FrozenLake",
        "",
        f"{total} instances of multi-agent path finding on lakes with holes, each with an optimal "
        "plan. The task is that of *From Trainee to Trainer: LLM-Designed Training Environment for "
        "RL with Multi-Agent Reasoning* (arXiv 2606.17682); the instances are not the published "
        "ones. They were made, solved and written by `mapf_jax`, which also verifies answers.",
        "",
        "| split | agents | size | instances | need a wait | mean hole ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for split, rows in tables.items():
        groups: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
        for row in rows:
            groups.setdefault((row["num_agents"], row["size"]), []).append(row)
        for (agents, size), group in sorted(groups.items()):
            waits = sum(row["needs_wait"] for row in group) / len(group)
            holes = sum(row["num_holes"] for row in group) / len(group) / size**2
            lines.append(
                f"| {split} | {agents} | {size} x {size} | {len(group)} | {waits:.1%} "
                f"| {holes:.1%} |"
            )
    lines += ["", "| column | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {meaning} |" for name, (_, meaning) in COLUMNS.items()]
    return "\n".join(lines) + "\n"
