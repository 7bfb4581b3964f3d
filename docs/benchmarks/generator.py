"""Speed of the exact generator: `python docs/benchmarks/generator.py --out=docs/benchmarks`.

Exactly labelled instances a second by number of agents, lake size and hole ratio, beside
w9-pathfinding on all cores in the same run. Also says how many instances stayed undecided.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import gc
import importlib.util
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import mapf_jax
import runner
from experiments.measurements import Table
from mapf_jax import generator, plans
from mapf_jax.environment_config import num_holes
from mapf_jax.padding import WIDTHS
from mapf_jax.types import Instance, Status
from runner import seconds

_HOLE_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_W9_SECONDS = 1.0  # Limit for one instance.
_REPEATS = 3
_DRAWN = 2048  # Lakes at a time.
_LONG_SECONDS = 2.0  # Longer calls are measured only once.
_W9_CELL_SECONDS = 4.0  # Limit for all instances of a row.


def draw(agents: int, size: int, hole_ratio: float, count: int) -> tuple[Instance, float]:
    """Lakes in which each agent can reach its goal.

    Returns:
      `count` lakes, or fewer if they are rare, and their fraction among all draws.
    """
    width = next(w for w in WIDTHS if w >= size)
    numbers = jnp.int32(size), jnp.int32(num_holes(hole_ratio, size))
    kept: list[Instance] = []
    found = drawn = 0
    while found < count and drawn < 1 << 17:
        key = jax.random.fold_in(jax.random.key(1), drawn)
        lakes, connected = jax.device_get(generator.draw(key, *numbers, width, _DRAWN, agents))
        kept.append(lakes[connected])
        found, drawn = found + len(kept[-1]), drawn + _DRAWN
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *kept), found / drawn


def w9_costs(lakes: Instance) -> tuple[float, list[int | None]]:
    """Optimal sums of costs by w9-pathfinding's conflict-based search, within limits on time.

    Returns:
      Seconds for all plans, and the cost of each lake tried; None where it found no plan in time.
    """
    from w9_pathfinding.envs import Grid
    from w9_pathfinding.mapf import CBS

    gc.disable()  # It would traverse all stored paths again and again.
    begin = time.perf_counter()
    found: list[list[list[tuple[int, int]]]] = []
    for blocked, starts, goals in zip(lakes.blocked, lakes.starts, lakes.goals, strict=True):
        if time.perf_counter() - begin > _W9_CELL_SECONDS:
            break
        weights = np.where(blocked, -1, 1).tolist()
        cells = [[(int(c), int(r)) for r, c in x] for x in (starts, goals)]
        found.append([])
        with contextlib.suppress(RuntimeError):  # Timed out; the time counts.
            found[-1] = CBS(Grid(weights=weights, edge_collision=True)).mapf(
                *cells, max_length=100, max_time=_W9_SECONDS
            )
    took = time.perf_counter() - begin
    gc.enable()
    costs: list[int | None] = []
    for paths, goals in zip(found, lakes.goals, strict=False):
        plan = [np.array(path)[:, None, ::-1] for path in paths]
        arrived = [plans.arrivals(path, goals[i, None]) for i, path in enumerate(plan)]
        costs.append(int(np.sum(arrived)) if plan else None)
    return took, costs


def w9_rate(
    lakes: Instance, pool: concurrent.futures.Executor
) -> tuple[float | None, dict[int, int | None]]:
    """w9-pathfinding's instances per second, one process per core, and the costs of lakes tried.

    (None, {}) if it is not installed.
    """
    if importlib.util.find_spec("w9_pathfinding") is None:
        return None, {}
    cores = os.cpu_count() or 1
    results = list(pool.map(w9_costs, [lakes[core::cores] for core in range(cores)]))
    rate = sum(len(costs) for _, costs in results) / max(took for took, _ in results)
    return rate, {
        core + cores * i: cost
        for core, (_, costs) in enumerate(results)
        for i, cost in enumerate(costs)
    }


def our_rate(lakes: Instance) -> tuple[float, mapf_jax.Solution]:
    """This project's instances per second, and the solutions."""
    solved = functools.partial(mapf_jax.solve, lakes)
    begin = time.perf_counter()
    solution = solved()
    took = time.perf_counter() - begin
    return len(lakes) / (seconds(solved, _REPEATS) if took < _LONG_SECONDS else took), solution


def labels(
    agents: int, sizes: Sequence[int], count: int, pool: concurrent.futures.Executor
) -> Table:
    """A table of rates and outcomes, one row per size and hole ratio."""
    rows = []
    for size, hole_ratio in itertools.product(sizes, _HOLE_RATIOS):
        if num_holes(hole_ratio, size) > size * size - 2 * agents:
            continue
        print(f"measuring {agents} agents, size {size}, {hole_ratio:.0%} holes", file=sys.stderr)
        lakes, fraction = draw(agents, size, hole_ratio, count)
        number = len(lakes)
        if number < min(count, 64):
            continue
        rate, solution = our_rate(lakes)
        status = np.asarray(solution.status)
        theirs, costs = w9_rate(lakes, pool)
        both = rate
        if 0 < len(costs) < number:
            both, _ = our_rate(lakes[np.array(sorted(costs))])
        known = [
            (solution.cost[i], cost)
            for i, cost in costs.items()
            if cost is not None and status[i] in (Status.OPTIMAL, Status.UNSOLVABLE)
        ]
        rows.append(
            {
                "agents": agents,
                "size": size,
                "holes": hole_ratio,
                "connected fraction": fraction,
                "instances": number,
                "unsolvable": float(np.mean(status == Status.UNSOLVABLE)),
                "undecided": float(np.mean(np.isin(status, [Status.UNKNOWN, Status.FEASIBLE]))),
                "instances/s": rate,
                "w9's instances": len(costs),
                "instances/s of these": both,
                "w9-pathfinding CBS, instances/s": theirs,
                "ratio": theirs and both / theirs,
                "costs compared": len(known),
                "costs that differ": sum(our != their for our, their in known),
            }
        )
    return Table.of(
        f"Exactly labelled instances, {agents} agents",
        rows,
        "Lakes drawn uniformly in which each agent can reach its own goal ('connected fraction' of "
        "all draws). A label is the exact sum of costs, makespan and need of a wait, and a plan. "
        "w9-pathfinding, in one process on each core, gives a plan of optimal sum of costs only; "
        f"where it is not done with an instance after {_W9_SECONDS:g} s it gives up. It "
        f"begins no further instance after {_W9_CELL_SECONDS:g} s; the ratio is of rates on those "
        "that it came to.",
    )


def tables(options: argparse.Namespace) -> Iterator[Table]:
    """Yields the tables of the page, each after its measurements."""
    quick = options.quick
    sizes = (4,) if quick else (5, 8, 10)
    our_rate(draw(3, 5, 0.2, 64)[0])  # Compiles the solver.
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), spawn) as pool:
        for number in (2, 3) if quick else (2, 3, 4, 5):
            count = 64 if quick else 4000 if number < 4 else 1000
            yield labels(number, sizes, count, pool)


if __name__ == "__main__":
    runner.run("generator", __doc__, tables)
