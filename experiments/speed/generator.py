"""Speed of the exact generator: `python -m experiments.speed.generator --out=docs/benchmarks`.

Exactly labelled instances a second by number of agents, lake size and hole ratio, beside
w9-pathfinding one instance at a time in the same run; a training set of 4,000 instances; the
benchmark of 3,150 instances. Also says how many instances stayed undecided.
"""

import argparse
import contextlib
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mapf_jax
from experiments.speed import records
from mapf_jax import generator
from mapf_jax.environment_config import num_holes
from mapf_jax.solver import batch as solver
from mapf_jax.types import Status

_HOLE_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_W9_SECONDS = 1.0  # Limit for one instance.
_W9_CELL_SECONDS = 1.5  # Time for all instances of a row.

_COLUMNS = (
    "agents", "size", "holes", "connected share", "instances", "unsolvable", "undecided",
    "instances/s", "w9-pathfinding CBS, one by one, instances/s", "ratio",
)  # fmt: skip
_NOTE = (
    "Lakes drawn uniformly in which each agent can reach its own goal ('connected share' of all "
    "draws). A label is the exact sum of costs, makespan and need of a wait; for three and more "
    "agents also a plan. w9-pathfinding gives a plan of optimal sum of costs only; where it is not "
    f"done with an instance after {_W9_SECONDS:g} s it gives up."
)


def draw(agents: int, size: int, hole_ratio: float, count: int) -> tuple[np.ndarray, ...] | None:
    """(blocked, starts, goals, share) of `count` lakes in which each agent can reach its goal.

    None if too few were found; `share` is the share of such lakes among uniform draws.
    """
    width = next(w for w in solver.WIDTHS if w >= size)
    kept: list[tuple[np.ndarray, ...]] = []
    drawn = 0
    while sum(len(lakes[0]) for lakes in kept) < count and drawn < 1 << 17:
        key = jax.random.fold_in(jax.random.key(1), drawn)
        holes = num_holes(hole_ratio, size)
        *lakes, connected = generator.draw(
            key, jnp.int32(size), jnp.int32(holes), width, 2048, agents
        )
        drawn += 2048
        keep = np.asarray(connected)
        kept.append(tuple(np.asarray(lake)[keep] for lake in lakes))
    arrays = [np.concatenate(column) for column in zip(*kept, strict=True)]
    share = len(arrays[0]) / drawn
    if len(arrays[0]) < min(count, 64):
        return None
    return (*(array[:count] for array in arrays), np.asarray(share))


def label_all(blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """Status of each instance; cost, makespan and needs_wait are computed and dropped."""
    if starts.shape[1] == 2:
        cost = solver.label(blocked, starts, goals).cost
        return np.where(cost < mapf_jax.INFINITE_COST, Status.OPTIMAL, Status.UNSOLVABLE)
    active = np.ones(starts.shape[:2], bool)
    return np.asarray(solver.solve_arrays(blocked, starts, goals, active).status)


def w9_rate(blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray) -> float | None:
    """Instances a second of w9-pathfinding's conflict-based search, costs only; None without it."""
    try:
        from w9_pathfinding.envs import Grid
        from w9_pathfinding.mapf import CBS
    except ImportError:
        return None

    def solve_one(i: int) -> None:
        weights = np.where(blocked[i], -1, 1).tolist()
        cells = [[(int(c), int(r)) for r, c in x[i]] for x in (starts, goals)]
        with contextlib.suppress(RuntimeError):  # Out of time, which counts.
            CBS(Grid(weights=weights, edge_collision=True)).mapf(
                *cells, max_length=100, max_time=_W9_SECONDS
            )

    done, begin = 0, time.perf_counter()
    while done < len(blocked) and time.perf_counter() - begin < _W9_CELL_SECONDS:
        solve_one(done)
        done += 1
    return done / (time.perf_counter() - begin)


def rows_of_labels(agents: int, sizes: Sequence[int], count: int, repeats: int) -> list[list[Any]]:
    """One row for each size and hole ratio: rates, and what became of the instances."""
    rows = []
    for size, hole_ratio in itertools.product(sizes, _HOLE_RATIOS):
        if num_holes(hole_ratio, size) > size * size - 2 * agents:
            continue
        print(f"measuring {agents} agents, size {size}, {hole_ratio:.0%} holes", file=sys.stderr)
        lakes = draw(agents, size, hole_ratio, count)
        if lakes is None:
            continue
        blocked, starts, goals, share = lakes
        status = label_all(blocked, starts, goals)  # Compiles.
        seconds = _median(functools.partial(label_all, blocked, starts, goals), repeats)
        ours, theirs = len(blocked) / seconds, w9_rate(blocked, starts, goals)
        rows.append(
            [
                agents, size, hole_ratio, float(share), len(blocked),
                float(np.mean(status == Status.UNSOLVABLE)),
                float(np.mean(status == Status.UNDECIDED)),
                ours, theirs, None if theirs is None else ours / theirs,
            ]
        )  # fmt: skip
    return rows


def training_set(num_instances: int) -> list[list[Any]]:
    """Seconds of a set over sizes 3 to 10 at wait ratio one half, first and second call."""
    config = mapf_jax.EnvironmentConfig.uniform(range(3, 11), hole_ratio=0.2, wait_ratio=0.5)
    rows = []
    for call in ("first, with compilation", "second"):
        begin = time.perf_counter()
        key = jax.random.key(0 if call == "second" else 1)
        _, report = mapf_jax.generate(key, config, num_instances)
        seconds = time.perf_counter() - begin
        waits = sum(row.made_wait for row in report.sizes) / report.made
        rows.append([call, report.made, waits, seconds, report.made / seconds])
    return rows


def benchmark_set(quick: bool) -> list[list[Any]]:
    """Seconds of the benchmark by number of agents, compilation included."""
    jax.clear_caches()  # What the other tables have compiled would not count.
    rows = []
    for agents in (3,) if quick else (3, 4, 5):
        sizes = (3, 4) if quick else tuple(range(3, 11))
        begin = time.perf_counter()
        made = mapf_jax.benchmark_instances(0, num_agents=(agents,), sizes=sizes)
        seconds = time.perf_counter() - begin
        connected = sum(report.connected for report in made.reports)
        undecided = sum(report.undecided for report in made.reports)
        waits = sum(report.made_wait for report in made.reports) / len(made.ids)
        rows.append([agents, len(made.ids), waits, connected, undecided / connected, seconds])
    return rows


def _median(function: Callable[[], Any], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints the page, and writes it if a folder is given."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.speed.generator", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a few short measurements")
    parser.add_argument("--agents", help="numbers of agents, separated by commas; 2,3,4,5")
    parser.add_argument("--sizes", help="lake sizes, separated by commas; 5,8,10")
    parser.add_argument("--out", help="folder for generator.json and generator.md")
    options = parser.parse_args(argv)
    quick = options.quick
    about = records.facts()
    agents = [int(n) for n in (options.agents or ("2,3" if quick else "2,3,4,5")).split(",")]
    sizes = [int(n) for n in (options.sizes or ("4" if quick else "5,8,10")).split(",")]
    tables: list[records.Table] = []
    notes = ["A quick run: single short measurements."] if quick else []
    print(f"{about['processor']}, {about['cores']} cores; ran on {about['device']}")

    def add(table: records.Table) -> None:
        """Prints a table and writes the page anew, so that a run cut short leaves what it has."""
        tables.append(table)
        print(table.to_markdown(), flush=True)
        if options.out:
            records.write("generator", "Generator", tables, options.out, notes, about)

    for number in agents:
        count = 64 if quick else 4096 if number == 2 else 128
        rows = rows_of_labels(number, sizes, count, repeats=1 if quick or number > 2 else 3)
        add(records.Table(f"Exactly labelled instances, {number} agents", _COLUMNS, rows, _NOTE))
    add(
        records.Table(
            "A training set: sizes 3 to 10, 20% holes, half of it needs a wait, two agents",
            ("call", "instances", "need a wait", "seconds", "instances/s"),
            training_set(200 if quick else 4000),
        )
    )
    add(
        records.Table(
            "The benchmark set",
            ("agents", "instances", "need a wait", "candidates solved", "undecided", "seconds"),
            benchmark_set(quick),
            note="Compilation is included.",
        )
    )


if __name__ == "__main__":
    main()
