"""From an `EnvironmentConfig` to distinct, exactly solved instances in the asked proportions.

The instances of one size are uniform over all solvable ones with its number of holes, given
whether they need a wait: maps, starts and goals are drawn uniformly, unsolvable draws are
rejected, and the two strata (needs a wait or not) are filled to the wait ratio.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import joint_search, solver
from mapf_jax.environment_config import EnvironmentConfig, num_holes
from mapf_jax.types import INFINITE_COST, Instance, Solution, Status

#: Lakes are drawn and solved on maps of these widths, so that sizes share compiled programs.
_WIDTHS = (5, 8, 10, 16, 32)
_BATCH = 2048  # Candidates drawn at once.
MAX_CANDIDATES = 1 << 17  # Default budget of a lake size.


class NoInstanceError(ValueError):
    """Not a single solvable instance of a configuration was found."""


@dataclasses.dataclass(frozen=True)
class SizeReport:
    """What was asked of one lake size and what came out.

    Attributes:
      size: lake size.
      asked: instances asked for.
      made: instances made.
      asked_wait: instances asked for that need a wait.
      made_wait: instances made that need a wait.
      holes: number of holes of each lake.
      candidates: lakes drawn.
      solvable: how many of the drawn lakes have a plan (only counted where both agents' goals
        are reachable on their own; the others are unsolvable without a search).
      exhausted: the budget of candidates ended before both strata were filled.
    """

    size: int
    asked: int
    made: int
    asked_wait: int
    made_wait: int
    holes: int
    candidates: int
    solvable: int
    exhausted: bool


@dataclasses.dataclass(frozen=True)
class GenerationReport:
    """Achieved ratios beside the asked ones, for a whole set."""

    asked: int
    made: int
    sizes: tuple[SizeReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the ratios that were asked and achieved."""
        rows = []
        for row in self.sizes:
            rows.append(
                {
                    **dataclasses.asdict(row),
                    "asked_data_ratio": round(row.asked / max(self.asked, 1), 4),
                    "achieved_data_ratio": round(row.made / max(self.made, 1), 4),
                    "asked_wait_ratio": round(row.asked_wait / max(row.asked, 1), 4),
                    "achieved_wait_ratio": round(row.made_wait / max(row.made, 1), 4),
                }
            )
        return {"asked": self.asked, "made": self.made, "sizes": rows}


def fingerprints(instances: Instance) -> list[bytes]:
    """One value for each instance of a batch, equal only for the same map, starts and goals."""
    size = np.asarray(instances.size, np.uint8)
    blocked = np.asarray(instances.blocked)
    cells = np.concatenate([instances.starts, instances.goals], axis=-2).astype(np.int8)
    return [
        size[i].tobytes()
        + np.packbits(blocked[i, : size[i], : size[i]]).tobytes()
        + cells[i].tobytes()
        for i in range(len(blocked))
    ]


@functools.partial(jax.jit, static_argnames=("width", "batch"))
def _draw(
    key: jax.Array, size: jax.Array, holes: jax.Array, width: int, batch: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Uniform lakes with exactly `holes` holes and distinct free starts and goals of two agents.

    Returns:
      (blocked bool[batch, width, width], starts int8[batch, 2, 2], goals likewise,
      connected bool[batch]: each agent's goal can be reached from its start).
    """
    # One random order of the cells of each lake: the first four carry starts and goals, the next
    # `holes` are the holes.
    random = jax.random.uniform(key, (batch, width * width))
    row, column = jnp.divmod(jnp.arange(width * width), width)
    inside = (row < size) & (column < size)
    order = jnp.argsort(jnp.where(inside, random, 2.0), axis=1)
    rank = jnp.argsort(order, axis=1)
    blocked = ~inside | ((rank >= 4) & (rank < 4 + holes))
    blocked = blocked.reshape(batch, width, width)
    cells = jnp.stack(jnp.divmod(order[:, :4], width), -1).astype(jnp.int8)
    starts, goals = cells[:, :2], cells[:, 2:]
    solo = joint_search.shortest_costs(blocked, starts, goals)
    return blocked, starts, goals, jnp.all(solo < INFINITE_COST, axis=1)


class _SizePool:
    """The solved candidates of one lake size, drawn until two strata hold enough."""

    def __init__(
        self,
        key: jax.Array,
        size: int,
        hole_ratio: float,
        seen: set[bytes],
        max_candidates: int,
    ) -> None:
        self.size = size
        self.holes = num_holes(hole_ratio, size)
        self.candidates = 0
        self.solvable = 0
        self.exhausted = False
        self._key = key
        self._seen = seen
        self._max_candidates = max_candidates
        self._strata: dict[bool, list[tuple[Any, ...]]] = {False: [], True: []}
        self._taken = {False: 0, True: 0}
        self._width = next((w for w in _WIDTHS if w >= size), size)

    def available(self, needs_wait: bool) -> int:
        return len(self._strata[needs_wait]) - self._taken[needs_wait]

    def take(self, count: int, count_wait: int) -> list[tuple[Any, ...]]:
        """`count` candidates, of which `count_wait` need a wait, as far as the budget allows."""
        wanted = {True: count_wait, False: count - count_wait}
        while any(self.available(wait) < number for wait, number in wanted.items()):
            if self.candidates >= self._max_candidates:
                self.exhausted = True
                break
            self._draw_batch()
        taken = []
        for wait, number in wanted.items():
            taken += self._pop(wait, number)
        # What one stratum could not give, the other one does: the data ratio is kept.
        for wait in (False, True):
            taken += self._pop(wait, count - len(taken))
        return taken

    def _pop(self, wait: bool, number: int) -> list[tuple[Any, ...]]:
        first = self._taken[wait]
        number = min(number, self.available(wait))
        self._taken[wait] += number
        return self._strata[wait][first : first + number]

    def _draw_batch(self) -> None:
        key = jax.random.fold_in(self._key, self.candidates)
        self.candidates += _BATCH
        drawn = _draw(key, jnp.int32(self.size), jnp.int32(self.holes), self._width, _BATCH)
        blocked, starts, goals, connected = (np.asarray(array) for array in drawn)
        (rows,) = np.nonzero(connected)
        if not rows.size:
            return
        blocked, starts, goals = blocked[rows], starts[rows], goals[rows]
        labels = solver.label(blocked, starts, goals)
        solvable = labels.cost < INFINITE_COST
        self.solvable += int(solvable.sum())
        names = fingerprints(_as_instances(self.size, blocked, starts, goals))
        for i in np.nonzero(solvable)[0]:
            if names[i] in self._seen:
                continue
            self._seen.add(names[i])
            candidate = (
                blocked[i], starts[i], goals[i],
                labels.cost[i], labels.makespan[i], labels.needs_wait[i],
            )  # fmt: skip
            self._strata[bool(labels.needs_wait[i])].append(candidate)


def _as_instances(
    size: int, blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray
) -> Instance:
    batch = len(blocked)
    return Instance(
        size=np.full(batch, size, np.int32),
        blocked=blocked,
        starts=starts,
        goals=goals,
        active=np.ones((batch, starts.shape[1]), bool),
    )


def _finish(pool: _SizePool, rows: list[tuple[Any, ...]], width: int) -> Instance:
    """Candidates of one size with their plans, on maps of `width`."""
    blocked, starts, goals, cost, makespan, needs_wait = (
        np.stack(column) for column in zip(*rows, strict=True)
    )
    labels = solver.Labels(cost, makespan, needs_wait)
    paths, num_steps = solver.optimal_paths(blocked, starts, goals, labels)
    full = np.ones((len(rows), width, width), bool)
    full[:, : pool.size, : pool.size] = blocked[:, : pool.size, : pool.size]
    solution = Solution(
        status=np.full(len(rows), Status.OPTIMAL, np.int8),
        cost=cost,
        makespan=makespan,
        needs_wait=needs_wait,
        paths=paths,
        num_steps=num_steps,
    )
    return dataclasses.replace(_as_instances(pool.size, full, starts, goals), solution=solution)


def concatenate(batches: Iterable[Instance]) -> Instance:
    """Joins solved batches of equal map width; plans are padded by resting on the goals."""
    batches = list(batches)
    solutions = [batch.solution for batch in batches]
    if any(solution is None for solution in solutions):
        raise ValueError("batches: every batch needs its solution")
    steps = max(solution.paths.shape[1] for solution in solutions if solution is not None)

    def padded(solution: Solution) -> Solution:
        extra = steps - solution.paths.shape[1]
        paths = np.pad(solution.paths, ((0, 0), (0, extra), (0, 0), (0, 0)), mode="edge")
        return dataclasses.replace(solution, paths=paths)

    batches = [
        dataclasses.replace(batch, solution=padded(batch.solution))
        for batch in batches
        if batch.solution is not None
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)


def _shares(total: int, ratios: Iterable[float]) -> list[int]:
    """Splits `total` by the largest remainder, so that the parts sum to it."""
    exact = [total * ratio for ratio in ratios]
    parts = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def generate(
    key: jax.Array,
    config: EnvironmentConfig,
    num_instances: int,
    num_agents: int = 2,
    exclude: Collection[bytes] = (),
    max_candidates: int = MAX_CANDIDATES,
) -> tuple[Instance, GenerationReport]:
    """Makes a set of distinct solvable instances with their optimal plans.

    A stratum that cannot be filled within the budget is filled up from the other stratum of its
    size, and if that does not suffice from the other sizes; the report says what was achieved.

    Args:
      key: PRNG key; equal keys and configurations give equal sets.
      config: what to make.
      num_instances: how many, at least 1.
      num_agents: only 2 agents can be solved.
      exclude: `fingerprints` of instances that must not be made.
      max_candidates: lakes drawn of one size before it gives up.

    Returns:
      (instances, report): a batch of at most `num_instances` instances in random order, its maps
      as wide as the largest size of the configuration.

    Raises:
      ValueError: an argument is out of range.
      NoInstanceError: no instance at all was found within the budget.
    """
    if num_instances < 1:
        raise ValueError(f"num_instances={num_instances}: at least 1 is needed")
    if num_agents != 2:
        raise ValueError(f"num_agents={num_agents}: only 2 agents can be solved")
    wanted = _shares(num_instances, config.data_ratio)
    seen = set(exclude)
    pools: list[_SizePool] = []
    asked_wait: list[int] = []
    taken: list[list[tuple[Any, ...]]] = []
    for i, size in enumerate(config.sizes):
        pool = _SizePool(
            jax.random.fold_in(key, size), size, config.hole_ratio[i], seen, max_candidates
        )
        pools.append(pool)
        asked_wait.append(round(wanted[i] * config.wait_ratio[i]))
        taken.append([])
        if pool.holes > size * size - 2 * num_agents:
            pool.exhausted = True  # Too few cells for the starts and goals.
        elif wanted[i]:
            taken[i] += pool.take(wanted[i], asked_wait[i])
    # What a size could not give is asked of the others, the largest shares first.
    for i in sorted(range(len(pools)), key=lambda i: -wanted[i]):
        missing = num_instances - sum(map(len, taken))
        if missing and wanted[i] and len(taken[i]) >= wanted[i]:
            taken[i] += pools[i].take(missing, round(missing * config.wait_ratio[i]))
    width = max(config.sizes)
    made = [_finish(pool, rows, width) for pool, rows in zip(pools, taken, strict=True) if rows]
    if not made:
        raise NoInstanceError(
            f"config={config}: no solvable instance was found among "
            f"{sum(pool.candidates for pool in pools)} candidates"
        )
    instances = concatenate(made)
    order = np.asarray(jax.random.permutation(jax.random.fold_in(key, 0), len(instances)))
    report = GenerationReport(
        asked=num_instances,
        made=len(instances),
        sizes=tuple(
            SizeReport(
                size=pool.size,
                asked=wanted[i],
                made=len(taken[i]),
                asked_wait=asked_wait[i],
                made_wait=sum(bool(row[-1]) for row in taken[i]),
                holes=pool.holes,
                candidates=pool.candidates,
                solvable=pool.solvable,
                exhausted=pool.exhausted,
            )
            for i, pool in enumerate(pools)
        ),
    )
    return instances[order], report
