"""From an `EnvironmentConfig` to distinct, exactly solved instances in its proportions.

The instances of one size are uniform over all solvable ones with its number of holes, given
whether they need a wait: maps, starts and goals are drawn uniformly, unsolvable draws are
rejected, and the two strata (needs a wait or not) are filled to the wait ratio.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import plans
from mapf_jax.environment_config import MAX_AGENTS, MIN_AGENTS, EnvironmentConfig, num_holes
from mapf_jax.padding import WIDTHS, pad_instance
from mapf_jax.solver import search
from mapf_jax.solver.batch import solve
from mapf_jax.types import INFINITE_COST, Instance, Solution, Status, cell_type

_BATCH = 2048  # Candidates drawn at once.
_SLICE = 64  # They are solved in multiples of this number.
MAX_CANDIDATES = 1 << 17  #: Default budget of a lake size.

#: `spread(function, count)` is `function(np.arange(count))`, a list with one value for each index
#: that does not depend on the others, so several processes may each make a part of it.
Spread = Callable[[Callable[[np.ndarray], list[Any]], int], list[Any]]


def here(function: Callable[[np.ndarray], list[Any]], count: int) -> list[Any]:
    """The `Spread` of one process."""
    return function(np.arange(count))


class NoInstanceError(ValueError):
    """No solvable instance of a configuration was found."""


@dataclasses.dataclass(frozen=True)
class SizeReport:
    """What was asked for and made of one lake size and number of agents."""

    size: int
    num_agents: int
    asked: int
    made: int
    asked_wait: int  #: Instances asked for that need a wait.
    made_wait: int
    holes: int  #: Of each lake.
    candidates: int  #: Lakes drawn.
    #: Lakes, of those tried, that let each agent reach its goal on its own; no search is needed to
    #: reject the others.
    connected: int
    solvable: int  #: Connected lakes that have a plan.
    #: Connected lakes that were too hard to solve. The set lacks them, so a large number is a bias
    #: towards easier instances.
    undecided: int
    exhausted: bool  #: The budget of candidates ended before both strata were filled.


@dataclasses.dataclass(frozen=True)
class GenerationReport:
    """What was asked for and made of a whole set, with a row for each size."""

    asked: int
    made: int
    sizes: tuple[SizeReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the ratios that were asked and achieved."""
        ratios = [
            {
                "asked_data_ratio": round(row.asked / max(self.asked, 1), 4),
                "achieved_data_ratio": round(row.made / max(self.made, 1), 4),
                "asked_wait_ratio": round(row.asked_wait / max(row.asked, 1), 4),
                "achieved_wait_ratio": round(row.made_wait / max(row.made, 1), 4),
            }
            for row in self.sizes
        ]
        fields = dataclasses.asdict(self)
        return {**fields, "sizes": [a | b for a, b in zip(fields["sizes"], ratios, strict=True)]}


def fingerprints(instances: Instance) -> list[bytes]:
    """One value for each instance of a batch, equal only for the same map, starts and goals."""
    size = np.asarray(instances.size, np.int16)
    blocked, active = np.asarray(instances.blocked), np.asarray(instances.active)
    starts, goals = np.asarray(instances.starts, np.int16), np.asarray(instances.goals, np.int16)
    return [
        size[i].tobytes()
        + np.packbits(blocked[i, : size[i], : size[i]]).tobytes()
        + starts[i, active[i]].tobytes()
        + goals[i, active[i]].tobytes()
        for i in range(len(blocked))
    ]


@functools.partial(jax.jit, static_argnames=("width", "batch", "num_agents", "distinct"))
def draw(
    key: jax.Array,
    size: jax.Array,
    holes: jax.Array,
    width: int,
    batch: int,
    num_agents: int,
    distinct: bool = True,
) -> tuple[Instance, jax.Array]:
    """Uniform lakes with exactly `holes` holes and free starts and goals, unsolved.

    Args:
      key: PRNG key.
      size: int32[], of the lakes.
      holes: int32[], at most `size * size` less the cells that starts and goals need.
      width: of the map, at least `size`; static, as are the following.
      batch: number of lakes.
      num_agents: A, at most as many as a lake has cells for starts and goals.
      distinct: no agent starts on a goal; otherwise it may start on one, but not on its own.

    Returns:
      (instances, connected): of batch shape [batch], and bool[batch], each agent's goal can be
      reached from its start, and is not its start.

    Raises:
      ValueError: the map has too few cells for the agents. Where only the lake in it has, some lie
        outside of it, and no lake is connected.
    """
    # One random order of the cells of each lake: the first carry starts and goals, the next
    # `holes` are the holes.
    taken = (1 + distinct) * num_agents
    if taken > width * width:
        raise ValueError(f"num_agents={num_agents}: {taken} cells are needed, there are {width**2}")
    if not distinct:
        key, goal_key = jax.random.split(key)
    random = jax.random.uniform(key, (batch, width * width), jnp.float32)
    row, column = jnp.divmod(jnp.arange(width * width), width)
    inside = (row < size) & (column < size)
    order = jnp.argsort(jnp.where(inside, random, 2.0), axis=1)
    rank = jnp.argsort(order, axis=1)
    blocked = ~inside | ((rank >= taken) & (rank < taken + holes))
    order = order[:, :taken]
    if not distinct:  # Goals of an order of their own.
        random = jax.random.uniform(goal_key, random.shape, jnp.float32)
        goals = jnp.argsort(jnp.where(blocked, 2.0, random), axis=1)[:, :num_agents]
        order = jnp.concatenate([order, goals], axis=1)
    blocked = blocked.reshape(batch, width, width)
    cells = jnp.stack(jnp.divmod(order, width), -1).astype(cell_type(width))
    starts, goals = cells[:, :num_agents], cells[:, num_agents:]
    solo = search.shortest_costs(blocked, starts, goals)
    sizes, active = jnp.full(batch, size, jnp.int32), jnp.ones((batch, num_agents), bool)
    lakes = Instance(sizes, blocked, starts, goals, active)
    return lakes, jnp.all((solo < INFINITE_COST) & (solo > 0), axis=1)


@dataclasses.dataclass
class CandidatePool:
    """Solved candidates of one lake size and number of agents, in two strata, drawn on demand.

    Equal arguments give equal candidates in equal order; no candidate is given twice. `seen` holds
    fingerprints that must not be made, to which the pool adds its own; after `max_candidates` lakes
    it gives up.
    """

    key: jax.Array
    size: int
    holes: int
    num_agents: int
    seen: set[bytes]
    max_candidates: int
    spread: Spread = here
    distinct: bool = True
    # State: lakes drawn, candidates taken, whether it gave up, solved lakes by status, connected
    # lakes that are not solved yet, candidates left by whether they need a wait.
    candidates: int = 0
    taken: list[Instance] = dataclasses.field(default_factory=list)
    exhausted: bool = False
    found: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    drawn: Instance | None = None
    strata: dict[bool, list[Instance]] = dataclasses.field(
        default_factory=lambda: {False: [], True: []}
    )

    def take(self, count: int, count_wait: int, fill: bool = True) -> list[Instance]:
        """`count` candidates, of which `count_wait` need a wait, as far as the budget allows.

        With `fill`, one stratum fills up for the other.
        """
        wanted = {True: count_wait, False: count - count_wait}
        while missing := sum(max(n - len(self.strata[w]), 0) for w, n in wanted.items()):
            if not self._solve_more(missing):
                self.exhausted = True
                break
        taken: list[Instance] = []
        filling = [(False, count), (True, count)] if fill else []
        for wait, number in (*wanted.items(), *filling):
            stratum, number = self.strata[wait], min(number, count - len(taken))
            taken += stratum[:number]
            self.strata[wait] = stratum[number:]
        self.taken += taken
        return taken

    def _solve_more(self, missing: int) -> bool:
        """Solves about `missing` more candidates; False if the budget is used up."""
        # Where starts and goals need more cells than there are, nothing can be drawn.
        enough = self.holes + (1 + self.distinct) * self.num_agents <= self.size**2
        while self.drawn is None or not len(self.drawn):
            if self.candidates >= self.max_candidates or not enough:
                return False
            key = jax.random.fold_in(self.key, self.candidates)
            self.candidates += _BATCH
            width = next((w for w in WIDTHS if w >= self.size), self.size)
            shape = width, _BATCH, self.num_agents, self.distinct
            drawn = draw(key, jnp.int32(self.size), jnp.int32(self.holes), *shape)
            lakes, connected = jax.tree.map(np.asarray, drawn)
            self.drawn = lakes[connected]
        count = -(-missing // _SLICE) * _SLICE
        chosen, self.drawn = self.drawn[:count], self.drawn[count:]
        solved: list[Instance] = self.spread(lambda rows: _solve(chosen[rows]), len(chosen))
        for candidate, name in zip(solved, fingerprints(chosen), strict=True):
            found = _solution(candidate)
            self.found[int(found.status)] += 1
            if found.status == Status.OPTIMAL and name not in self.seen:
                self.seen.add(name)
                self.strata[bool(found.needs_wait)].append(candidate)
        return True

    def report(self, asked: int, asked_wait: int) -> SizeReport:
        """What the pool was asked for and what it made."""
        return SizeReport(
            size=self.size,
            num_agents=self.num_agents,
            asked=asked,
            made=len(self.taken),
            asked_wait=asked_wait,
            made_wait=sum(bool(_solution(row).needs_wait) for row in self.taken),
            holes=self.holes,
            candidates=self.candidates,
            connected=self.found.total(),
            solvable=self.found[Status.OPTIMAL],
            undecided=self.found[Status.UNKNOWN] + self.found[Status.FEASIBLE],
            exhausted=self.exhausted,
        )


def _solve(lakes: Instance) -> list[Instance]:
    """Candidates of any status from connected lakes."""
    solved = dataclasses.replace(lakes, solution=solve(lakes))
    return [solved[i] for i in range(len(solved))]


def _solution(candidate: Instance) -> Solution:
    assert candidate.solution is not None
    return candidate.solution


def finish(size: int, rows: Sequence[Instance], width: int, num_agents: int) -> Instance:
    """Candidates of one lake size and number of agents as a batch of instances with their plans.

    Args:
      size: their lake size.
      rows: at least one.
      width: map width of the batch.
      num_agents: its number of agents.
    """
    joined = plans.join([row[None] for row in rows])
    solution = _solution(joined)
    absent = ((0, 0), (0, 0), (0, num_agents - solution.paths.shape[2]), (0, 0))
    solution = dataclasses.replace(
        solution,
        paths=np.pad(solution.paths, absent),
        num_steps=plans.arrivals(np.asarray(solution.paths), joined.goals).max(1),
    )
    lakes = dataclasses.replace(joined, blocked=joined.blocked[:, :size, :size])
    return dataclasses.replace(pad_instance(lakes, width, num_agents), solution=solution)


def apportion(total: int, ratios: Iterable[float]) -> list[int]:
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
    distinct: bool = True,
) -> tuple[Instance, GenerationReport]:
    """Makes a set of distinct solvable instances with their optimal plans.

    A stratum that cannot be filled within the budget is filled up from the other stratum of its
    size, and if that does not suffice from the other sizes; the report says what was achieved.

    Args:
      key: PRNG key; equal keys and configurations give equal sets.
      config: what to make.
      num_instances: how many, at least 1.
      num_agents: agents of every instance, 2 to 5.
      exclude: `fingerprints` of instances that must not be made.
      max_candidates: lakes drawn of one size before it gives up.
      spread: how several processes share the solving, see `Spread`; does not change the set.
      distinct: no agent starts on a goal; otherwise it may start on another's.

    Returns:
      (instances, report): a batch of at most `num_instances` instances in random order, its maps
      as wide as the largest size of the configuration.

    Raises:
      ValueError: an argument is out of range.
      NoInstanceError: no instance at all was found within the budget.
    """
    if not isinstance(num_instances, int | np.integer) or not 1 <= num_instances < 1 << 31:
        raise ValueError(
            f"num_instances={num_instances!r}: allowed are integers from 1 to 2**31 - 1"
        )
    if not MIN_AGENTS <= num_agents <= MAX_AGENTS:
        raise ValueError(f"num_agents={num_agents}: only {MIN_AGENTS} to {MAX_AGENTS} are allowed")
    seen = set(exclude)
    wanted: list[tuple[CandidatePool, int, float]] = []  # (pool, instances, wait ratio).
    totals = apportion(num_instances, config.data_ratio)
    for size, asked, holes, waits in zip(
        config.sizes, totals, config.hole_ratio, config.wait_ratio, strict=True
    ):
        size_key = jax.random.fold_in(key, size)
        if num_agents != 2:
            size_key = jax.random.fold_in(size_key, num_agents)
        number = num_holes(holes, size)
        pool = CandidatePool(
            size_key, size, number, num_agents, seen, max_candidates, spread, distinct
        )
        wanted.append((pool, asked, waits))
    for pool, asked, waits in wanted:
        if asked:
            pool.take(asked, round(asked * waits))
    # Other sizes, those with the most instances first, make what a size could not.
    for pool, asked, waits in sorted(wanted, key=lambda row: -row[1]):
        missing = num_instances - sum(len(other.taken) for other, *_ in wanted)
        if missing and asked and len(pool.taken) >= asked:
            pool.take(missing, round(missing * waits))
    width = max(config.sizes)
    made = [finish(pool.size, pool.taken, width, num_agents) for pool, *_ in wanted if pool.taken]
    if not made:
        candidates = sum(pool.candidates for pool, *_ in wanted)
        why = f"among {candidates} candidates"
        if not candidates and max_candidates > 0:
            why = f"as no lake has cells for its holes and {num_agents} starts and goals"
        raise NoInstanceError(f"config={config}: no solvable instance was found {why}")
    instances = plans.join(made)
    order = np.asarray(jax.random.permutation(jax.random.fold_in(key, 0), len(instances)))
    report = GenerationReport(
        asked=num_instances,
        made=len(instances),
        sizes=tuple(pool.report(asked, round(asked * waits)) for pool, asked, waits in wanted),
    )
    return instances[order], report
