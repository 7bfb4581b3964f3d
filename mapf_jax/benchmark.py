"""The benchmark: 3,150 instances with three to five agents, made from a seed.

It is composed like the publication's (arXiv 2606.17682): 3, 4 and 5 agents on lakes from 3x3, 4x4
and 5x5 up to 10x10; for each number of agents, size and wait-ratio subset (.25, .50, .75) 50
instances, 10 for each hole ratio .1 to .5. The published instances are another draw.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Sequence

import jax
import numpy as np

from mapf_jax import formats
from mapf_jax.environment_config import num_holes
from mapf_jax.generator import CandidatePool, NoInstanceError, SizeReport, apportion, finish
from mapf_jax.plans import join
from mapf_jax.types import Instance

SMALLEST_SIZE = {3: 3, 4: 4, 5: 5}  #: By number of agents.
FEWEST_AGENTS = 2  #: For a set of the same composition for models that cannot do three.
LARGEST_SIZE = 10
HOLE_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5)
WAIT_RATIOS = (0.25, 0.5, 0.75)
PER_HOLE_RATIO = 10
#: Of the set; to be raised when a seed makes other instances.
VERSION = 1
#: `checksum` of the set of seed 0, so that results of different people can be compared.
CHECKSUM = "fc62a725c462296e061d6cf6216f999886fd3c5064f200d7578218010bead671"
MAX_CANDIDATES = 1 << 15  #: Lakes drawn for each number of agents, size and number of holes.


@dataclasses.dataclass(frozen=True)
class BenchmarkSet:
    """N instances, and what each was made for.

    Attributes:
      instances: batch shape [N], maps of width 10, 5 agents of which 3 to 5 are active.
      ids: unique names such as `3ag_5x5_hr0.1_wr0.25_004`.
      hole_ratio: float32[N], the hole ratio of its cell of the table. Where a lake of that ratio
        has too few cells for starts and goals, or too few such lakes have a plan, the instance has
        fewer holes (see `reports`).
      wait_ratio: float32[N], the subset it belongs to.
      reports: one for each number of agents, size and number of holes.
    """

    instances: Instance
    ids: tuple[str, ...]
    hole_ratio: np.ndarray
    wait_ratio: np.ndarray
    reports: tuple[SizeReport, ...]


def checksum(made: BenchmarkSet) -> str:
    """SHA-256 of names, lakes, starts, goals and costs, not of plans: several may be optimal."""
    digest = hashlib.sha256()
    for number, name in enumerate(made.ids):
        record = formats.to_record(made.instances[number], name)
        asked = {field: record[field] for field in ("id", "map", "starts", "goals", "cost")}
        digest.update(json.dumps(asked).encode())
    return digest.hexdigest()


def _take(
    pools: Sequence[CandidatePool], holes: int, needs_wait: bool, count: int
) -> list[Instance]:
    """Candidates with `holes` holes, or else with fewer.

    If one stratum has too few for every number of holes, the other one fills up.
    """
    taken: list[Instance] = []
    for stratum in (needs_wait, not needs_wait):
        for pool in pools[holes::-1]:
            if missing := count - len(taken):
                taken += pool.take(missing, missing if stratum else 0, fill=False)
    return taken


def benchmark_instances(
    seed: int,
    num_agents: tuple[int, ...] = tuple(SMALLEST_SIZE),
    sizes: tuple[int, ...] = tuple(range(3, LARGEST_SIZE + 1)),
    per_hole_ratio: int = PER_HOLE_RATIO,
) -> BenchmarkSet:
    """Makes the benchmark, the same for the same seed. All instances are distinct.

    In a subset, the fraction `wait_ratio` needs a wait. If a hole ratio has too few lakes, the
    others have the next smaller number of holes that has enough.

    Args:
      seed: an integer from 0 to 2**32 - 1.
      num_agents: which of 3, 4 and 5, fewer for a part of the benchmark; 2 may be among them, on
        lakes of all `sizes`.
      sizes: lake sizes, fewer for a part of the benchmark.
      per_hole_ratio: instances for each number of agents, size, subset and hole ratio.

    Raises:
      ValueError: a number of agents or a size is not one of the benchmark's, or there is no such
        seed.
      NoInstanceError: too few instances were found within the budget.
    """
    for name, values, allowed in (
        ("num_agents", num_agents, (FEWEST_AGENTS, *SMALLEST_SIZE)),
        ("sizes", sizes, tuple(range(min(SMALLEST_SIZE.values()), LARGEST_SIZE + 1))),
        ("per_hole_ratio", (per_hole_ratio,), range(1, 101)),
        ("seed", (seed,), range(1 << 32)),
    ):
        if not values or not all(value in allowed for value in values):
            raise ValueError(f"{name}={values}: only {allowed[0]} to {allowed[-1]} are allowed")
    parts: list[Instance] = []
    ids: list[str] = []
    subsets: list[tuple[float, float]] = []
    reports: list[SizeReport] = []
    seen: set[bytes] = set()
    most = max(SMALLEST_SIZE)
    for agents, size in itertools.product(num_agents, sizes):
        if size < SMALLEST_SIZE.get(agents, 0):
            continue
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), agents), size)
        pools = [
            CandidatePool(jax.random.fold_in(key, holes), size, holes, agents, seen, MAX_CANDIDATES)
            for holes in range(num_holes(max(HOLE_RATIOS), size) + 1)
        ]
        asked: list[tuple[int, bool]] = []
        rows: list[Instance] = []
        for wait_ratio in WAIT_RATIOS:
            total = round(len(HOLE_RATIOS) * per_hole_ratio * wait_ratio)
            waits = apportion(total, [1 / len(HOLE_RATIOS)] * len(HOLE_RATIOS))
            for hole_ratio, waiting in zip(HOLE_RATIOS, waits, strict=True):
                holes = num_holes(hole_ratio, size)
                for needs_wait, count in ((True, waiting), (False, per_hole_ratio - waiting)):
                    asked += [(holes, needs_wait)] * count
                    rows += _take(pools, holes, needs_wait, count)
                cell = f"{agents}ag_{size}x{size}_hr{hole_ratio}_wr{wait_ratio}"
                ids += [f"{cell}_{number:03d}" for number in range(per_hole_ratio)]
                subsets += [(hole_ratio, wait_ratio)] * per_hole_ratio
        if len(rows) < len(asked):
            raise NoInstanceError(
                f"num_agents={agents}, size={size}: only {len(rows)} instances were found "
                f"among {MAX_CANDIDATES} candidates for each number of holes"
            )
        parts.append(finish(size, rows, LARGEST_SIZE, most))
        reports += [
            pool.report(
                sum(holes == pool.holes for holes, _ in asked), asked.count((pool.holes, True))
            )
            for pool in pools
            if pool.candidates or pool.exhausted
        ]
    hole_ratios, wait_ratios = np.array(subsets, np.float32).T
    return BenchmarkSet(
        instances=join(parts),
        ids=tuple(ids),
        hole_ratio=hole_ratios,
        wait_ratio=wait_ratios,
        reports=tuple(reports),
    )
