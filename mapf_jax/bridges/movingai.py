"""MovingAI benchmark files: a `.map` is a grid, a `.scen` a list of agents on it.

The format is that of Sturtevant, "Benchmarks for Grid-Based Pathfinding" (2012). A `.scen` line
gives x (column) before y (row), the first N agents of the list make an instance of N agents, and
its last number is the length of a path with diagonal moves: it is ignored on reading, and written
as the length without diagonals (0 where there is no path). Blank lines, a byte order mark, and any
blanks and cases in the header are allowed, as makers of maps differ.
"""

from pathlib import Path

import numpy as np

from mapf_jax.solver.search import shortest_costs
from mapf_jax.text import FROZEN, HOLE
from mapf_jax.types import INFINITE_COST, MAX_LAKE_SIZE, Instance, make_instance

#: Characters of a `.map`; water (`W`) cannot be entered from land. `E` and `S` are also the
#: stations of the League of Robot Runners.
_FREE, _BLOCKED = ".GSE", "@OTW"
_FIELDS = "bucket, map, width, height, start x, start y, goal x, goal y, length"


def read_movingai(
    scenario_path: Path | str,
    num_agents: int | None = None,
    map_path: Path | str | None = None,
) -> Instance:
    """An instance from a `.scen` and its `.map`; a map that is not square is padded with holes.

    Args:
      scenario_path: the `.scen` file.
      num_agents: take this many agents from the head of the list, all if None.
      map_path: the `.map` file; by default the one that the scenario names, beside the scenario.

    Raises:
      ValueError: a file is not of its format, the two do not fit, or the agents have no pairwise
        distinct free starts and goals; the message names the file.
    """
    scenario_path = Path(scenario_path)
    map_name, shape, starts, goals = _read_scenario(scenario_path)
    count = len(starts) if num_agents is None else num_agents
    if not 1 <= count <= len(starts):
        raise ValueError(f"{scenario_path}: num_agents={count}: it has {len(starts)} agents")
    if map_path is None:
        map_path = scenario_path.parent / Path(map_name.replace("\\", "/")).name
    blocked = _read_map(Path(map_path))
    if blocked.shape != shape:
        raise ValueError(
            f"{scenario_path}: its map has (height, width) {shape}, {map_path} has {blocked.shape}"
        )
    lake = np.ones((max(shape), max(shape)), bool)
    lake[: shape[0], : shape[1]] = blocked
    rows = ["".join(HOLE if hole else FROZEN for hole in row) for row in lake]
    try:
        return make_instance(rows, starts[:count], goals[:count])
    except ValueError as error:
        raise ValueError(f"{scenario_path}: {error}") from error


def write_movingai(instance: Instance, scenario_path: Path | str) -> None:
    """Writes a single instance as a `.scen` file and a `.map` of the same name beside it.

    Raises:
      ValueError: it is a batch, or the scenario would have the map's name.
    """
    instance.check_single()
    scenario_path = Path(scenario_path)
    size = int(instance.size)
    blocked = np.asarray(instance.blocked)[:size, :size]
    map_path = scenario_path.with_suffix(".map")
    if map_path == scenario_path:
        raise ValueError(f"{scenario_path}: the map would have this name, too; end it in .scen")
    rows = ["".join("@" if hole else "." for hole in row) for row in blocked]
    header = ["type octile", f"height {size}", f"width {size}", "map"]
    map_path.write_text("\n".join([*header, *rows]) + "\n", encoding="utf-8")
    agents = np.nonzero(instance.active)[0]
    starts, goals = np.asarray(instance.starts)[agents], np.asarray(instance.goals)[agents]
    costs = np.asarray(shortest_costs(blocked[None], starts[None], goals[None])[0])
    lengths = np.where(costs < INFINITE_COST, costs, 0)
    lines = ["version 1"]
    for start, goal, length in zip(starts, goals, lengths, strict=True):
        row = [length // 4, map_path.name, size, size, *start[::-1], *goal[::-1], length]
        lines.append("\t".join(map(str, row)))
    scenario_path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read_map(path: Path) -> np.ndarray:
    """bool[height, width], True where a `.map` is blocked."""
    lines = _lines(path)
    words = [line.lower().split(maxsplit=1) for _, line in lines]
    last = lines[-1][0] if lines else 0
    if ["map"] not in words:
        raise ValueError(f"{path}:{last}: the line `map` is missing")
    begin = words.index(["map"])
    where = f"{path}:{lines[begin][0]}"
    header = {key: "".join(value) for key, *value in words[:begin]}
    if set(header) - {"type"} != {"height", "width"}:
        raise ValueError(f"{where}: the header has {sorted(header)}, not height and width")
    for key, value in header.items():
        if key != "type" and not (value.isdecimal() and 1 <= int(value) <= MAX_LAKE_SIZE):
            raise ValueError(f"{where}: {key}={value!r}: allowed are 1 to {MAX_LAKE_SIZE}")
    height, width = int(header["height"]), int(header["width"])
    rows = [row for _, row in lines[begin + 1 :]]
    for number, row in lines[begin + 1 :]:
        if len(row) != width:
            raise ValueError(f"{path}:{number}: {len(row)} cells, the header says {width}")
        if not set(row) <= set(_FREE + _BLOCKED):
            raise ValueError(f"{path}:{number}: {row!r}: allowed are {_FREE} and {_BLOCKED}")
    if len(rows) != height:
        raise ValueError(f"{path}:{last}: {len(rows)} rows, the header says {height}")
    return np.array([[character in _BLOCKED for character in row] for row in rows])


def _read_scenario(
    path: Path,
) -> tuple[str, tuple[int, int], list[tuple[int, int]], list[tuple[int, int]]]:
    """(name of the map, its (height, width), starts, goals) of a `.scen` file."""
    lines = _lines(path)
    version = lines[0][1].lower().split() if lines else []
    if version not in (["version", "1"], ["version", "1.0"]):
        raise ValueError(f"{path}:1: the line `version 1` is missing")
    maps, starts, goals = [], [], []
    for number, line in lines[1:]:
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) != _FIELDS.count(",") + 1:
            raise ValueError(f"{path}:{number}: {len(fields)} fields, but needed are {_FIELDS}")
        try:
            width, height, start_x, start_y, goal_x, goal_y = map(int, fields[2:8])
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        maps.append((fields[1], (height, width)))
        if maps[-1] != maps[0]:
            raise ValueError(f"{path}:{number}: another map than in the lines before")
        starts.append((start_y, start_x))
        goals.append((goal_y, goal_x))
    if not maps:
        raise ValueError(f"{path}:{lines[-1][0]}: no agent in the file")
    return *maps[0], starts, goals


def _lines(path: Path) -> list[tuple[int, str]]:
    """(number, line) of the lines of a text file that are not blank, without blanks around."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text ({error})") from error
    numbered = enumerate(map(str.strip, text.splitlines()), 1)
    return [(number, line) for number, line in numbered if line]
