"""MovingAI benchmark files: a `.map` is a grid, a `.scen` a list of agents on it.

The format is that of Sturtevant, "Benchmarks for Grid-Based Pathfinding" (2012). A `.scen` line
gives x (column) before y (row), the first N agents of the list make an instance of N agents, and
its last number is the length of a path with diagonal moves: it is ignored on reading, and written
as the length without diagonals (0 where there is no path).
"""

import dataclasses
from pathlib import Path

import numpy as np

from mapf_jax.solver.search import distance_field
from mapf_jax.text import FROZEN, HOLE
from mapf_jax.types import INFINITE_COST, MAX_LAKE_SIZE, Instance, make_instance

_FREE, _BLOCKED = ".GS", "@OTW"
_SCENARIO_FIELDS = 9


@dataclasses.dataclass(frozen=True)
class Scenario:
    """The agents of a `.scen` file.

    Attributes:
      map_name: the map file that its lines name.
      shape: (height, width) of that map as the lines state it.
      starts: (row, column) of every agent of the list.
      goals: likewise.
    """

    map_name: str
    shape: tuple[int, int]
    starts: tuple[tuple[int, int], ...]
    goals: tuple[tuple[int, int], ...]


def read_map(path: Path) -> np.ndarray:
    """bool[height, width], True where a `.map` is blocked.

    Free are `.`, `G` and `S`, blocked `@`, `O`, `T` and `W` (water cannot be entered from land).

    Raises:
      ValueError: the file is not of the format; the message names file and line.
    """
    lines = _lines(path)
    header: dict[str, str] = {}
    number = 0
    for number, line in enumerate(lines, 1):
        if line.strip() == "map":
            break
        key, _, value = line.strip().partition(" ")
        if key not in ("type", "height", "width") or key in header:
            raise ValueError(f"{path}:{number}: {line!r} is not a line of a map's header")
        header[key] = value.strip()
    else:
        raise ValueError(f"{path}:{number}: the line `map` is missing")
    sides = []
    for key in ("height", "width"):
        value = header.get(key, "")
        if not (value.isascii() and value.isdigit() and 1 <= int(value) <= MAX_LAKE_SIZE):
            raise ValueError(
                f"{path}:{number}: {key}={value!r} is not an integer from 1 to {MAX_LAKE_SIZE}"
            )
        sides.append(int(value))
    height, width = sides
    rows = lines[number : number + height]
    for i, row in enumerate(rows, number + 1):
        if len(row) != width:
            raise ValueError(f"{path}:{i}: the row has {len(row)} cells, the header says {width}")
        strange = set(row) - set(_FREE + _BLOCKED)
        if strange:
            raise ValueError(f"{path}:{i}: characters {sorted(strange)} are no terrain")
    if len(rows) != height:
        raise ValueError(f"{path}:{len(lines)}: {len(rows)} rows, the header says {height}")
    for i, line in enumerate(lines[number + height :], number + height + 1):
        if line.strip():
            raise ValueError(f"{path}:{i}: {line!r} after the {height} rows of the map")
    return np.array([[character in _BLOCKED for character in row] for row in rows])


def read_scenario(path: Path) -> Scenario:
    """Every agent of a `.scen` file.

    Raises:
      ValueError: the file is not of the format; the message names file and line.
    """
    lines = _lines(path)
    if not lines or lines[0].split() not in (["version", "1"], ["version", "1.0"]):
        raise ValueError(f"{path}:1: the line `version 1` is missing")
    names: list[str] = []
    shapes, starts, goals = [], [], []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) != _SCENARIO_FIELDS:
            raise ValueError(
                f"{path}:{number}: {len(fields)} fields, {_SCENARIO_FIELDS} are needed: "
                "bucket, map, width, height, start x, start y, goal x, goal y, length"
            )
        try:
            width, height, start_x, start_y, goal_x, goal_y = map(int, fields[2:8])
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        names.append(fields[1])
        shapes.append((height, width))
        if names[-1] != names[0] or shapes[-1] != shapes[0]:
            raise ValueError(f"{path}:{number}: another map than in the lines before")
        starts.append((start_y, start_x))
        goals.append((goal_y, goal_x))
    if not starts:
        raise ValueError(f"{path}:{len(lines)}: no agent in the file")
    return Scenario(names[0], shapes[0], tuple(starts), tuple(goals))


def read_movingai(
    scenario_path: Path, num_agents: int | None = None, map_path: Path | None = None
) -> Instance:
    """An instance from a `.scen` and its `.map`; a map that is not square is padded with holes.

    Args:
      scenario_path: the `.scen` file.
      num_agents: take so many agents from the head of the list, all if None.
      map_path: the `.map` file; by default the one that the scenario names, beside the scenario.

    Raises:
      ValueError: a file is not of its format, the two do not fit, or the agents have no pairwise
        distinct free starts and goals; the message names the file.
    """
    scenario = read_scenario(scenario_path)
    available = len(scenario.starts)
    count = available if num_agents is None else num_agents
    if not 1 <= count <= available:
        raise ValueError(f"{scenario_path}: num_agents={count}: it has {available} agents")
    if map_path is None:
        map_path = scenario_path.parent / Path(scenario.map_name.replace("\\", "/")).name
    blocked = read_map(map_path)
    if blocked.shape != scenario.shape:
        raise ValueError(
            f"{scenario_path}: its map has (height, width) {scenario.shape}, "
            f"{map_path} has {blocked.shape}"
        )
    size = max(blocked.shape)
    lake = np.ones((size, size), bool)
    lake[: blocked.shape[0], : blocked.shape[1]] = blocked
    rows = ["".join(HOLE if hole else FROZEN for hole in row) for row in lake]
    try:
        return make_instance(rows, list(scenario.starts[:count]), list(scenario.goals[:count]))
    except ValueError as error:
        raise ValueError(f"{scenario_path}: {error}") from error


def write_movingai(instance: Instance, scenario_path: Path) -> None:
    """Writes a single instance as a `.scen` file and a `.map` of the same name beside it."""
    size = int(instance.size)
    blocked = np.asarray(instance.blocked)[:size, :size]
    map_path = scenario_path.with_suffix(".map")
    rows = ["".join("@" if hole else "." for hole in row) for row in blocked]
    header = ["type octile", f"height {size}", f"width {size}", "map"]
    map_path.write_text("\n".join([*header, *rows]) + "\n")
    agents = np.nonzero(instance.active)[0]
    starts, goals = np.asarray(instance.starts)[agents], np.asarray(instance.goals)[agents]
    fields = distance_field(np.repeat(blocked[None], len(agents), axis=0), goals)
    lines = ["version 1"]
    for start, goal, field in zip(starts, goals, np.asarray(fields), strict=True):
        length = int(field[tuple(start)])
        length = length if length < INFINITE_COST else 0
        row = [
            length // 4, map_path.name, size, size, start[1], start[0], goal[1], goal[0], length
        ]  # fmt: skip
        lines.append("\t".join(map(str, row)))
    scenario_path.write_text("\n".join(lines) + "\n")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text ({error})") from error
