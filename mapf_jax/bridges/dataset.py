"""Solved instances as a data set in the form of the Hugging Face hub: prompts, records, labels.

A folder with one file per split and a card, `README.md`, with the type of each column, which
`datasets.load_dataset` loads from the disk and from the hub.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mapf_jax import formats
from mapf_jax.text import prompt, render_answer
from mapf_jax.types import Status

try:
    import jinja2
    import yaml
except ModuleNotFoundError as error:
    text = "a card needs Jinja2 and PyYAML; in a clone of the project: pip install -e '.[datasets]'"
    raise ImportError(text) from error

DATA_SOURCE = "mapf_frozenlake"

_FOLDER = Path(__file__).parent
_COLUMNS = yaml.safe_load((_FOLDER / "columns.yaml").read_text(encoding="utf-8"))
#: The types of the columns as in the card, where `datasets` reads them.
TYPES: list[dict[str, Any]] = _COLUMNS["types"]
#: What every column means, in order.
COLUMNS: dict[str, str] = _COLUMNS["meanings"]


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
    folder: Path | str,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    list_holes: bool = False,
) -> None:
    """Writes `data/SPLIT.parquet` for every split, and the card.

    Args:
      folder: made if it does not exist; files of this data set in it are replaced.
      splits: solved records by name of the split.
      list_holes: also list the cells of the holes in the prompts.

    Raises:
      ValueError: a split has no name that `datasets` takes, or a record is not solved.
      ImportError: the package `datasets` is not installed.
    """
    import datasets  # Before anything is written.

    folder = Path(folder)
    for split in splits:
        if not re.fullmatch(r"\w+(\.\w+)*", split):
            raise ValueError(f"split={split!r}: letters, digits, _ and inner dots are allowed")
    tables = {split: dataset_rows(records, split, list_holes) for split, records in splits.items()}
    (folder / "data").mkdir(parents=True, exist_ok=True)
    features = datasets.Features._from_yaml_list(TYPES)
    digest = hashlib.sha256()
    for split, rows in tables.items():
        table = datasets.Dataset.from_list(rows, features=features)
        path = folder / "data" / f"{split}.parquet"
        table.to_parquet(path)
        digest.update(path.read_bytes())
    template = jinja2.Template(
        (_FOLDER / "card.md").read_text(encoding="utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    files = [{"split": split, "path": f"data/{split}.parquet"} for split in tables]
    # `datasets` keeps what it has loaded, by the folder's name and the card alone.
    config = {
        "config_name": "default",
        "description": f"sha256 {digest.hexdigest()}",
        "data_files": files,
    }
    card = template.render(tables=tables, config=config, features=TYPES, columns=COLUMNS)
    (folder / "README.md").write_text(card, encoding="utf-8")
