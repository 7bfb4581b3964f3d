"""The questions of a benchmark: named instances with their optima and their groups in the tables.

The folder of a benchmark stores them in `instances.jsonl`, and their origin in `set.json`. The
first start writes both files; later starts read them.
"""

import argparse
import collections
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import mapf_jax
from experiments.families.lakes.published import Group
from experiments.run import store as files
from experiments.run.status import Reporter
from experiments.text.errors import UserError, user_errors
from mapf_jax import benchmark, formats
from mapf_jax.bridges import hub_records
from mapf_jax.padding import BLOCK

BUILTIN: Mapping[str, Callable[..., mapf_jax.benchmark.BenchmarkSet]] = {
    "builtin": mapf_jax.benchmark_instances,
    # For models that solve no instance of "builtin".
    "small": functools.partial(mapf_jax.benchmark_instances, num_agents=(2, 3), sizes=(3, 4, 5)),
}
"""Sets generated as published, from a seed and the number of instances of each hole ratio."""
_NAME = re.compile(
    r"\d+ag_\d+x\d+_hr(?P<hole_ratio>\d*\.?\d+)(?:_wr(?P<wait_ratio>\d*\.?\d+))?_\d+", re.ASCII
)
# A wait-ratio subset in the name of a file: wr0.25, wr25, wr_0_5, ...
_SUBSET = re.compile(r"wr_?0*[._]?(25|50?|75)(?!\d)", re.ASCII)
_SUBSETS = {"25": 0.25, "5": 0.5, "50": 0.5, "75": 0.75}
_Made = tuple[list[dict[str, Any]], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class BenchmarkQuestions:
    """N instances.

    Attributes:
      names: N unique names.
      instances: batch shape [N], NumPy leaves, with solutions that need not be OPTIMAL.
      groups: the N groups of the instances, with all fields that are known.
      about: the content of `set.json`: the `options` of the set, and `of`, its full size; of a
        built-in set also `version` and `checksum`, see `mapf_jax.benchmark`.
    """

    names: tuple[str, ...]
    instances: mapf_jax.Instance
    groups: tuple[Group, ...]
    about: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def solved(self) -> np.ndarray:
        """bool[N], the optimum is known."""
        assert self.instances.solution is not None
        return np.asarray(self.instances.solution.status) == mapf_jax.Status.OPTIMAL

    @property
    def partial(self) -> bool:
        """Whether these are only a part of the set."""
        return len(self) < self.about["of"]

    def chat(self, question: int, list_holes: bool) -> list[dict[str, str]]:
        """The question about one instance, as a chat."""
        return [{"role": "user", "content": mapf_jax.prompt(self.instances[question], list_holes)}]

    def keys(self, seed: int, indices: np.ndarray) -> jax.Array:
        """PRNG keys [len(indices)]; each depends only on the seed and the name of its instance."""
        digests = (hashlib.sha256(self.names[i].encode()).digest()[:4] for i in indices)
        numbers = np.array([int.from_bytes(digest, "big") for digest in digests], np.uint32)
        return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), numbers)


def open_set(root: Path, options: argparse.Namespace, reporter: Reporter) -> BenchmarkQuestions:
    """The questions in a folder; creates them if there are none.

    Args:
      options: of the command: `set` (one of `BUILTIN`, or files of JSON lines), `set_seed`,
        `per_cell` and `limit`.

    Raises:
      UserError: the folder has other questions, or they cannot be created; the message names the
        option.
    """
    chosen = {"per_cell": options.per_cell, "limit": options.limit}
    if options.set[0] in BUILTIN:
        chosen |= {"set": options.set[0], "set_seed": options.set_seed}
    else:  # Files are identified by their content.
        chosen |= {"set": [f"{Path(path).name} {_sha256(path)}" for path in options.set]}
    if not (root / "set.json").exists():
        records, about = _make(options, reporter)
        files.write_file(root / "instances.jsonl", records)
        files.write_file(root / "set.json", {"options": chosen, **about})
    if changed := files.changes(files.read_file(root / "set.json")["options"], chosen):
        raise UserError(
            f"out={root}: the benchmark there asks other instances ({'; '.join(changed)}); "
            "use those options, or another --out"
        )
    return read_set(root)


def read_set(root: Path) -> BenchmarkQuestions:
    """The questions in a folder.

    Raises:
      UserError: there are none, or their files are damaged.
    """
    if not (root / "set.json").exists():
        raise UserError(f"out={root}: no benchmark is there; a --model is needed to begin one")
    with files.damage_named(root / "instances.jsonl"):
        records = list(formats.read_jsonl(root / "instances.jsonl"))
        return BenchmarkQuestions(
            names=tuple(record["id"] for record in records),
            instances=formats.from_records(records),
            groups=tuple(map(_group, records)),
            about=files.read_file(root / "set.json"),
        )


def _make(options: argparse.Namespace, reporter: Reporter) -> _Made:
    """The chosen records with their optima, and what `set.json` says beside the options."""
    if options.set[0] in BUILTIN:
        return _builtin(options, reporter)
    with user_errors():
        records = list(_read_sources(options.set))
        names = collections.Counter(record["id"] for record in records)
        if not records:
            raise ValueError(f"set={options.set}: no instance is there")
        name, count = names.most_common(1)[0]
        if count > 1:
            raise ValueError(f"set: the id {name!r} occurs {count} times")
        chosen = _limited(_per_cell(records, options.per_cell), options.limit)
        _solve(chosen, reporter)
        formats.from_records(chosen)  # Validates existing labels.
    return chosen, {"of": len(records)}


def _builtin(options: argparse.Namespace, reporter: Reporter) -> _Made:
    whole = benchmark.PER_HOLE_RATIO
    per_cell = whole if options.per_cell is None else options.per_cell
    if per_cell > whole:
        raise UserError(f"per_cell={per_cell}: the built-in set has {whole}")
    reporter.line("making the built-in set, which takes minutes; it is kept in the folder")
    with user_errors():
        made = BUILTIN[options.set[0]](options.set_seed, per_hole_ratio=per_cell)
    checksum, known = benchmark.checksum(made), benchmark.CHECKSUM
    if (options.set[0], options.set_seed, per_cell) == ("builtin", 0, whole) and checksum != known:
        raise UserError(
            f"set=builtin: its checksum is {checksum}, but that of version {benchmark.VERSION} is "
            f"{known}; use other versions of the packages, or the files of a set made elsewhere"
        )
    records = [
        {
            **formats.to_record(made.instances[i], name),
            "hole_ratio": round(float(made.hole_ratio[i]), 4),
            "wait_ratio": round(float(made.wait_ratio[i]), 4),
        }
        for i, name in enumerate(made.ids)
    ]
    about = {"of": len(records) * whole // per_cell, "version": benchmark.VERSION}
    return _limited(records, options.limit), {**about, "checksum": checksum}


def _read_sources(sources: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The records of the files in our format, with their hole and wait ratios if known."""
    for source in sources:
        # The name of a file or of its folder may give the wait-ratio subset.
        names = (Path(source).stem, Path(source).parent.name)
        subset = next((_SUBSETS[found[-1]] for found in map(_SUBSET.findall, names) if found), None)
        with Path(source).open("rb") as file:
            for where, record in formats.numbered_records(file, source):
                read = _from_published if hub_records.is_published(record) else _from_ours
                yield read(record, where, subset)


def _from_ours(record: dict[str, Any], where: str, subset: float | None) -> dict[str, Any]:
    formats.instance_from_record(record, where)
    match = _NAME.fullmatch(record["id"])
    ratios: dict[str, Any] = {"hole_ratio": None, "wait_ratio": subset}
    if match is not None:
        ratios |= {name: float(text) for name, text in match.groupdict().items() if text}
    ratios |= {name: record[name] for name in ratios if name in record}
    for name, value in ratios.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and 0 <= value <= 1):
            raise ValueError(f"{where}: {name}: {value!r} is neither a number from 0 to 1 nor null")
    return {**record, **ratios}


def _from_published(record: Mapping[str, Any], where: str, subset: float | None) -> dict[str, Any]:
    question = {**hub_records.read_published(record, where), "wait_ratio": subset}
    if subset is not None:  # Subsets repeat names.
        head, _, number = question["id"].rpartition("_")
        question["id"] = f"{head}_wr{subset}_{number}"
    return question


def _group(record: Mapping[str, Any]) -> Group:
    ratios = {
        name: None if record[name] is None else round(record[name], 4)
        for name in ("wait_ratio", "hole_ratio")
    }
    return Group(len(record["starts"]), len(record["map"]), **ratios)


def _per_cell(records: list[dict[str, Any]], count: int | None) -> list[dict[str, Any]]:
    seen: collections.Counter[Group] = collections.Counter()
    chosen = []
    for record in records:
        cell = _group(record)
        seen[cell] += 1
        if count is None or seen[cell] <= count:
            chosen.append(record)
    return chosen


def _limited(records: list[dict[str, Any]], limit: int | None) -> list[dict[str, Any]]:
    if limit is None or limit >= len(records):
        return records
    return [records[i] for i in np.linspace(0, len(records) - 1, limit).round().astype(int)]


def _solve(records: list[dict[str, Any]], reporter: Reporter) -> None:
    """Solves the records without a cost, in place."""
    unsolved = [i for i, record in enumerate(records) if record.get("cost") is None]
    with reporter.bar("solving the set", total=len(unsolved)) as advance:
        for first in range(0, len(unsolved), BLOCK):
            chunk = unsolved[first : first + BLOCK]
            bare = [
                {name: records[i][name] for name in ("id", "map", "starts", "goals")} for i in chunk
            ]
            instances = formats.from_records(bare)
            solved = dataclasses.replace(instances, solution=mapf_jax.solve(instances))
            for place, i in enumerate(chunk):
                records[i] |= formats.to_record(solved[place], records[i]["id"])
            advance(first + len(chunk), "")


def _sha256(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"set={path}: {error.strerror}") from error
