"""From an `EnvironmentConfig` to distinct, exactly solved instances in the asked proportions.

The instances of one size are uniform over all solvable ones with its number of holes, given
whether they need a wait: maps, starts and goals are drawn uniformly, unsolvable draws are
rejected, and the two strata (needs a wait or not) are filled to the wait ratio.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import plans
from mapf_jax.environment_config import MAX_AGENTS, MIN_AGENTS, EnvironmentConfig, num_holes
from mapf_jax.solver import batch as solver
from mapf_jax.solver import group_solver, joint_search
from mapf_jax.types import INFINITE_COST, Instance, Solution, Status

_BATCH = 2048  # Candidates drawn at once.
_SLICE = 16  # Candidates of three and more agents are solved in multiples of this number,
_MOST_SLICES = 32  # at most so many of them at once.
#: A candidate that these cannot decide is dropped and counted: a larger search of the few that
#: remain would take most of the time.
EFFORTS = group_solver.EFFORTS[:-1]
MAX_CANDIDATES = 1 << 17  # Default budget of a lake size.


#: `spread(function, count)` is `function(np.arange(count))`, a list with one value for each index
#: that does not depend on the others, so several processes may each make a part of it.
Spread = Callable[[Callable[[np.ndarray], list[Any]], int], list[Any]]


def here(function: Callable[[np.ndarray], list[Any]], count: int) -> list[Any]:
    """The `Spread` of one process."""
    return function(np.arange(count))


class NoInstanceError(ValueError):
    """Not a single solvable instance of a configuration was found."""


@dataclasses.dataclass(frozen=True)
class SizeReport:
    """What was asked of one lake size and number of agents and what came out.

    Attributes:
      size: lake size.
      num_agents: number of agents.
      asked: instances asked for.
      made: instances made.
      asked_wait: instances asked for that need a wait.
      made_wait: instances made that need a wait.
      holes: number of holes of each lake.
      candidates: lakes drawn.
      connected: how many of those that were looked at let each agent reach its goal on its own;
        the others are unsolvable without a search.
      solvable: how many of the connected ones have a plan.
      undecided: how many of the connected ones were too hard to solve. They are missing in the
        set, which is a bias towards easier instances as far as this number matters.
      exhausted: the budget of candidates ended before both strata were filled.
    """

    size: int
    num_agents: int
    asked: int
    made: int
    asked_wait: int
    made_wait: int
    holes: int
    candidates: int
    connected: int
    solvable: int
    undecided: int
    exhausted: bool


@dataclasses.dataclass(frozen=True)
class GenerationReport:
    """Achieved ratios beside the asked ones, for a whole set; a row for each size and number of
    agents."""

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
    blocked, active = np.asarray(instances.blocked), np.asarray(instances.active)
    starts = np.asarray(instances.starts, np.int8)
    goals = np.asarray(instances.goals, np.int8)
    return [
        size[i].tobytes()
        + np.packbits(blocked[i, : size[i], : size[i]]).tobytes()
        + starts[i, active[i]].tobytes()
        + goals[i, active[i]].tobytes()
        for i in range(len(blocked))
    ]


@functools.partial(jax.jit, static_argnames=("width", "batch", "num_agents"))
def draw(
    key: jax.Array, size: jax.Array, holes: jax.Array, width: int, batch: int, num_agents: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Uniform lakes with exactly `holes` holes and distinct free starts and goals.

    Returns:
      (blocked bool[batch, width, width], starts int8[batch, A, 2], goals likewise,
      connected bool[batch]: each agent's goal can be reached from its start).
    """
    # One random order of the cells of each lake: the first carry starts and goals, the next
    # `holes` are the holes.
    taken = 2 * num_agents
    random = jax.random.uniform(key, (batch, width * width))
    row, column = jnp.divmod(jnp.arange(width * width), width)
    inside = (row < size) & (column < size)
    order = jnp.argsort(jnp.where(inside, random, 2.0), axis=1)
    rank = jnp.argsort(order, axis=1)
    blocked = ~inside | ((rank >= taken) & (rank < taken + holes))
    blocked = blocked.reshape(batch, width, width)
    cells = jnp.stack(jnp.divmod(order[:, :taken], width), -1).astype(jnp.int8)
    starts, goals = cells[:, :num_agents], cells[:, num_agents:]
    solo = joint_search.shortest_costs(blocked, starts, goals)
    return blocked, starts, goals, jnp.all(solo < INFINITE_COST, axis=1)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One solved instance of a pool, on the pool's map width.

    Attributes:
      blocked: bool[S, S]; starts, goals: int8[A, 2].
      cost, makespan, needs_wait: its labels.
      paths: int8[T, A, 2], or None where plans are made at the end (two agents).
    """

    blocked: np.ndarray
    starts: np.ndarray
    goals: np.ndarray
    cost: int
    makespan: int
    needs_wait: bool
    paths: np.ndarray | None


class _Solved(NamedTuple):
    """What is known of a connected lake; `paths` as those of a `Candidate`."""

    solvable: bool
    undecided: bool
    cost: int
    makespan: int
    needs_wait: bool
    paths: np.ndarray | None


class CandidatePool:
    """Solved candidates of one lake size and number of agents, in two strata, drawn on demand.

    Equal arguments give equal candidates in equal order; no candidate is given twice.

    Args:
      key: PRNG key.
      size: lake size.
      holes: number of holes.
      num_agents: number of agents.
      seen: fingerprints that must not be made; the pool adds its own.
      max_candidates: lakes drawn before it gives up.
      spread: how the solving is shared; see `Spread`.
    """

    def __init__(
        self,
        key: jax.Array,
        size: int,
        holes: int,
        num_agents: int,
        seen: set[bytes],
        max_candidates: int = MAX_CANDIDATES,
        spread: Spread = here,
    ) -> None:
        self.size, self.holes, self.num_agents = size, holes, num_agents
        self.candidates = 0
        self.connected = 0
        self.solvable = 0
        self.undecided = 0
        self.exhausted = False
        self._key = key
        self._seen = seen
        self._spread = spread
        # Too few cells for the starts and goals: nothing can be drawn.
        self._max_candidates = 0 if holes > size * size - 2 * num_agents else max_candidates
        self._drawn: tuple[np.ndarray, ...] = ()  # Connected lakes that are not solved yet.
        self._strata: dict[bool, list[Candidate]] = {False: [], True: []}
        self._taken = {False: 0, True: 0}
        self._width = next((w for w in solver.WIDTHS if w >= size), size)

    def available(self, needs_wait: bool) -> int:
        """Solved candidates of a stratum that are not taken yet."""
        return len(self._strata[needs_wait]) - self._taken[needs_wait]

    def take(self, count: int, count_wait: int, fill: bool = True) -> list[Candidate]:
        """`count` candidates, of which `count_wait` need a wait, as far as the budget allows.

        With `fill`, what one stratum cannot give the other one does.
        """
        wanted = {True: count_wait, False: count - count_wait}
        while missing := sum(max(n - self.available(wait), 0) for wait, n in wanted.items()):
            if not self._solve_more(missing):
                self.exhausted = True
                break
        taken = []
        for wait, number in wanted.items():
            taken += self._pop(wait, number)
        for wait in (False, True):
            taken += self._pop(wait, count - len(taken)) if fill else []
        return taken

    def _pop(self, wait: bool, number: int) -> list[Candidate]:
        first = self._taken[wait]
        number = min(number, self.available(wait))
        self._taken[wait] += number
        return self._strata[wait][first : first + number]

    def _solve_more(self, missing: int) -> bool:
        """Solves about so many candidates more; False if the budget is used up."""
        while not self._drawn or not len(self._drawn[0]):
            if self.candidates >= self._max_candidates:
                return False
            key = jax.random.fold_in(self._key, self.candidates)
            self.candidates += _BATCH
            drawn = draw(
                key, jnp.int32(self.size), jnp.int32(self.holes), self._width, _BATCH,
                self.num_agents,
            )  # fmt: skip
            *lakes, connected = (np.asarray(array) for array in drawn)
            self._drawn = tuple(array[connected] for array in lakes)
        count = min(-(-missing // _SLICE), _MOST_SLICES) * _SLICE
        if self.num_agents == 2:  # All at once: that is as fast.
            count = _BATCH
        blocked, starts, goals = (array[:count] for array in self._drawn)
        self._drawn = tuple(array[count:] for array in self._drawn)
        self._enter(blocked, starts, goals)
        return True

    def _enter(self, blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray) -> None:
        if not len(blocked):
            return
        solved: list[_Solved] = self._spread(
            lambda rows: self._solve(blocked[rows], starts[rows], goals[rows]), len(blocked)
        )
        self.connected += len(solved)
        self.undecided += sum(found.undecided for found in solved)
        self.solvable += sum(found.solvable for found in solved)
        names = fingerprints(_as_instances(self.size, blocked, starts, goals))
        for i, found in enumerate(solved):
            if not found.solvable or names[i] in self._seen:
                continue
            self._seen.add(names[i])
            candidate = Candidate(
                blocked[i], starts[i], goals[i],
                found.cost, found.makespan, found.needs_wait, found.paths,
            )  # fmt: skip
            self._strata[candidate.needs_wait].append(candidate)

    def _solve(self, blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray) -> list[_Solved]:
        labels: solver.Labels | Solution
        paths: Iterable[Any] = itertools.repeat(None)
        if self.num_agents == 2:  # Always decided; plans are made only for what is taken.
            labels = solver.label(blocked, starts, goals)
            solvable = labels.cost < INFINITE_COST
            undecided = np.zeros_like(solvable)
        else:
            active = np.ones(starts.shape[:2], bool)
            labels = solver.solve_arrays(blocked, starts, goals, active, EFFORTS)
            solvable = np.asarray(labels.status == Status.OPTIMAL)
            undecided = np.asarray(labels.status == Status.UNDECIDED)
            paths = np.asarray(labels.paths)
        columns = (solvable, undecided, labels.cost, labels.makespan, labels.needs_wait)
        rows = zip(*(np.asarray(column).tolist() for column in columns), strict=True)
        return [_Solved._make((*row, plan)) for row, plan in zip(rows, paths, strict=False)]

    def finish(self, rows: list[Candidate], width: int, num_agents: int) -> Instance:
        """A batch of candidates with their plans, padded to a map width and number of agents."""
        blocked = np.stack([row.blocked for row in rows])
        starts = np.stack([row.starts for row in rows])
        goals = np.stack([row.goals for row in rows])
        cost = np.array([row.cost for row in rows], np.int32)
        makespan = np.array([row.makespan for row in rows], np.int32)
        needs_wait = np.array([row.needs_wait for row in rows], bool)
        given = [row.paths for row in rows if row.paths is not None]
        if not given:

            def planned(some: np.ndarray) -> list[np.ndarray]:
                labels = solver.Labels(cost[some], makespan[some], needs_wait[some])
                return list(
                    solver.optimal_paths(blocked[some], starts[some], goals[some], labels)[0]
                )

            given = self._spread(planned, len(rows))
        steps = max(map(len, given))
        paths = np.concatenate([plans.rest(path[None], steps) for path in given])
        num_steps = plans.arrivals(paths, goals).max(1)
        full = np.ones((len(rows), width, width), bool)
        full[:, : self.size, : self.size] = blocked[:, : self.size, : self.size]
        absent = ((0, 0), (0, num_agents - self.num_agents), (0, 0))
        instances = _as_instances(self.size, full, np.pad(starts, absent), np.pad(goals, absent))
        active = np.arange(num_agents) < self.num_agents
        solution = Solution(
            status=np.full(len(rows), Status.OPTIMAL, np.int8),
            cost=cost,
            makespan=makespan,
            needs_wait=needs_wait,
            paths=np.pad(paths, ((0, 0), *absent)),
            num_steps=num_steps,
        )
        return dataclasses.replace(
            instances, active=np.broadcast_to(active, instances.active.shape), solution=solution
        )

    def report(self, rows: list[Candidate], asked: int, asked_wait: int) -> SizeReport:
        """What was asked of the pool and what it gave."""
        return SizeReport(
            size=self.size,
            num_agents=self.num_agents,
            asked=asked,
            made=len(rows),
            asked_wait=asked_wait,
            made_wait=sum(row.needs_wait for row in rows),
            holes=self.holes,
            candidates=self.candidates,
            connected=self.connected,
            solvable=self.solvable,
            undecided=self.undecided,
            exhausted=self.exhausted,
        )


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


def concatenate(batches: Iterable[Instance]) -> Instance:
    """Joins solved batches of equal map width and number of agents.

    Plans are padded by resting on the goals.
    """
    batches = list(batches)
    solutions = [batch.solution for batch in batches if batch.solution is not None]
    if len(solutions) < len(batches):
        raise ValueError("batches: every batch needs its solution")
    unsolved = [dataclasses.replace(batch, solution=None) for batch in batches]
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *unsolved)
    return dataclasses.replace(joined, solution=plans.join(solutions))


def shares(total: int, ratios: Iterable[float]) -> list[int]:
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
    spread: Spread = here,
) -> tuple[Instance, GenerationReport]:
    """Makes a set of distinct solvable instances with their optimal plans.

    A stratum that cannot be filled within the budget is filled up from the other stratum of its
    size, and if that does not suffice from the other sizes; the report says what was achieved.

    Args:
      key: PRNG key; equal keys and configurations give equal sets.
      config: what to make.
      num_instances: how many, at least 1.
      num_agents: agents of every instance, where the configuration does not say (`config.agents`).
      exclude: `fingerprints` of instances that must not be made.
      max_candidates: lakes drawn of one size and number of agents before it gives up.
      spread: how the solving is shared by several processes; see `Spread`. The set does not depend
        on it.

    Returns:
      (instances, report): a batch of at most `num_instances` instances in random order, its maps
      as wide as the largest size of the configuration; agents that an instance does not have are
      not active.

    Raises:
      ValueError: an argument is out of range.
      NoInstanceError: no instance at all was found within the budget.
    """
    if num_instances < 1:
        raise ValueError(f"num_instances={num_instances}: at least 1 is needed")
    if not MIN_AGENTS <= num_agents <= MAX_AGENTS:
        raise ValueError(f"num_agents={num_agents}: only {MIN_AGENTS} to {MAX_AGENTS} are allowed")
    agents = config.agents or ((num_agents, 1.0),)
    seen = set(exclude)
    pools: list[CandidatePool] = []
    wanted: list[int] = []
    wait_ratios: list[float] = []
    for i, total in enumerate(shares(num_instances, config.data_ratio)):
        size = config.sizes[i]
        for (count, _), asked in zip(agents, shares(total, [r for _, r in agents]), strict=True):
            size_key = jax.random.fold_in(key, size)
            if count != 2:
                size_key = jax.random.fold_in(size_key, count)
            holes = num_holes(config.hole_ratio[i], size)
            pools.append(CandidatePool(size_key, size, holes, count, seen, max_candidates, spread))
            wanted.append(asked)
            wait_ratios.append(config.wait_ratio[i])
    asked_wait = [round(n * ratio) for n, ratio in zip(wanted, wait_ratios, strict=True)]
    taken = [
        pool.take(n, wait) if n else []
        for pool, n, wait in zip(pools, wanted, asked_wait, strict=True)
    ]
    # What a size could not give is asked of the others, the largest shares first.
    for i in sorted(range(len(pools)), key=lambda i: -wanted[i]):
        missing = num_instances - sum(map(len, taken))
        if missing and wanted[i] and len(taken[i]) >= wanted[i]:
            taken[i] += pools[i].take(missing, round(missing * wait_ratios[i]))
    width, most = max(config.sizes), max(count for count, _ in agents)
    made = [pool.finish(rows, width, most) for pool, rows in zip(pools, taken, strict=True) if rows]
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
            pool.report(rows, n, wait)
            for pool, rows, n, wait in zip(pools, taken, wanted, asked_wait, strict=True)
        ),
    )
    return instances[order], report
