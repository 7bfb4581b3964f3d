"""Exact optima of groups of three and more agents: certificates first, then complete search.

1. Prioritised plans in several orders. One that costs as much as the shortest paths is optimal.
2. Exact costs of all pairs of agents: a pair without a plan proves that the group has none, and
   joined they bound the group's cost from below, often by as much as the plan costs.
3. Search over joint states within rising bounds (`group_search`), first with little memory, then
   with more. What does not fit into the largest effort stays undecided.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import plans
from mapf_jax.solver import group_search, search
from mapf_jax.solver.blocks import in_blocks
from mapf_jax.solver.group_search import COST, HOPELESS, MAKESPAN, Effort, Group
from mapf_jax.solver.joint_search import TABLE_INFINITE, pair_tables
from mapf_jax.solver.prioritized import FoundPlans, prioritized_plans
from mapf_jax.types import INFINITE_COST, Array, Solution, Status

MAX_WIDTH = 16  # Lakes up to this width have pair tables; wider ones only have certificates.
EFFORTS = (
    Effort(capacity=64, buffer=128, slots=1 << 11, chunk=32),
    Effort(capacity=512, buffer=1024, slots=1 << 14, chunk=8),
    Effort(capacity=4096, buffer=8192, slots=1 << 17, chunk=2),
    Effort(capacity=16384, buffer=65536, slots=1 << 19, chunk=1),
    Effort(capacity=65536, buffer=262144, slots=1 << 21, chunk=1),
)
_FIRST_ORDERS, _ALL_ORDERS = 8, 120
_PLANLESS_ROUNDS = 6  # Bounds tried of a group without any known plan, for each effort.
_PLAN_BLOCK, _ALL_BLOCK, _TABLE_BLOCK, _BATCH = 64, 8, 16, 512  # Groups of one call.
_CELLS = (100, 256)  # Searches run on graphs of so many cells, so that widths share programs.


def solve_groups(
    blocked: np.ndarray,
    starts: np.ndarray,
    goals: np.ndarray,
    efforts: Sequence[Effort] = EFFORTS,
) -> Solution:
    """Exact optima of groups of agents that can all reach their own goals.

    Args:
      blocked: bool[B, S, S].
      starts: int8[B, A, 2], A >= 1.
      goals: int8[B, A, 2].
      efforts: what the searches may keep, smallest first.

    Returns:
      A `Solution` of batch shape [B] with NumPy leaves. The status is OPTIMAL only if cost,
      makespan and needs_wait are all exact; the paths are filler elsewhere.
    """
    batches = (slice(i, i + _BATCH) for i in range(0, len(blocked), _BATCH))
    return plans.join(
        [_Batch(blocked[rows], starts[rows], goals[rows]).solve(efforts) for rows in batches]
    )


class _Batch:
    """Bounds and plans of B groups while they are being solved; bounds by objective."""

    def __init__(self, blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray) -> None:
        self.lakes = (blocked, starts, goals)
        self.goals = goals
        batch, self.num_agents = starts.shape[:2]
        self.width = blocked.shape[-1]
        shortest = in_blocks(search.shortest_costs, *self.lakes, block=_PLAN_BLOCK)
        # Longest plan, in steps: well above the longest path that winds through a lake of at most
        # 16 x 16, and enough for an agent alone on any.
        alone = -(-int(shortest.max()) // 16) * 16 if self.num_agents == 1 else 0
        self.horizon = max(16 * max(self.width, 10), alone)
        self.shortest = shortest.sum(1)
        self.lower = {COST: self.shortest.copy(), MAKESPAN: shortest.max(1)}
        self.upper = {name: np.full(batch, INFINITE_COST) for name in (COST, MAKESPAN)}
        self.paths = np.repeat(starts[:, None].astype(np.int8), self.horizon + 1, axis=1)
        self.waits = np.zeros(batch, bool)  # Whether a wait stands in `paths`.
        self.needs_wait = np.zeros(batch, bool)
        self.wait_known = np.zeros(batch, bool)
        self.unsolvable = np.zeros(batch, bool)

    def solve(self, efforts: Sequence[Effort]) -> Solution:
        """Closes the gaps between the bounds as far as the efforts reach."""
        self.try_orders(np.arange(len(self.paths)), _FIRST_ORDERS, 4 * self.width + 8, _PLAN_BLOCK)
        (planless,) = np.nonzero(self.upper[COST] == INFINITE_COST)
        self.try_orders(planless, _ALL_ORDERS, self.horizon, _ALL_BLOCK)
        (rows,) = np.nonzero(self.open(COST) | self.open(MAKESPAN))
        searchable = self.num_agents <= group_search.MAX_AGENTS and self.width <= MAX_WIDTH
        if rows.size and searchable:
            self.build_groups(rows)
            self.search(rows, efforts)
        gap = self.upper[COST] - self.shortest
        # Without waits each path has the parity of a shortest one, so an odd gap proves a wait; a
        # gap of 0 proves that there is none, because who waits before its arrival is late.
        proven = (gap == 0) | (gap % 2 == 1) | ~self.waits
        needs_wait = np.where(proven, gap % 2 == 1, self.needs_wait)
        decided = ~self.open(COST) & ~self.open(MAKESPAN) & (proven | self.wait_known)
        decided &= ~self.unsolvable
        status = np.where(decided, Status.OPTIMAL, Status.UNDECIDED)
        num_steps = plans.arrivals(self.paths, self.goals).max(1)
        return Solution(
            status=np.where(self.unsolvable, Status.UNSOLVABLE, status).astype(np.int8),
            cost=np.where(decided, self.upper[COST], INFINITE_COST).astype(np.int32),
            makespan=np.where(decided, self.upper[MAKESPAN], INFINITE_COST).astype(np.int32),
            needs_wait=needs_wait & decided,
            paths=self.paths,
            num_steps=np.where(decided, num_steps, 0).astype(np.int32),
        )

    def open(self, objective: str) -> np.ndarray:
        """bool[B]: the bounds do not meet yet."""
        return self.lower[objective] < self.upper[objective]

    def try_orders(self, rows: np.ndarray, num_orders: int, horizon: int, block: int) -> None:
        """Prioritised plans for some groups."""
        if rows.size:
            function = functools.partial(prioritized_plans, num_orders=num_orders, horizon=horizon)
            found = in_blocks(function, *(array[rows] for array in self.lakes), block=block)
            self.adopt(rows, found)

    def adopt(self, rows: np.ndarray, found: FoundPlans) -> None:
        """Takes over plans that are cheaper, or equally cheap and without waits."""
        cost, waits, makespan, paths = map(np.asarray, found)
        known = self.upper[COST][rows]
        equal = (cost == known) & (cost < INFINITE_COST)
        better = (cost < known) | (equal & ~waits & self.waits[rows])
        chosen, steps = rows[better], paths.shape[1]
        self.upper[COST][chosen] = cost[better]
        self.waits[chosen] = waits[better]
        self.paths[chosen, :steps] = paths[better]
        self.paths[chosen, steps:] = self.goals[chosen, None]
        self.upper[MAKESPAN][rows] = np.minimum(self.upper[MAKESPAN][rows], makespan)

    def build_groups(self, rows: np.ndarray) -> None:
        """Tables of some groups, and what their pairs of agents say of the bounds."""
        cells = min(number for number in _CELLS if number >= self.width**2)
        by_cost, by_makespan, excess, fastest = in_blocks(
            functools.partial(_build_groups, cells=cells),
            *(array[rows] for array in self.lakes),
            block=_TABLE_BLOCK,
        )
        self.groups = {COST: by_cost, MAKESPAN: by_makespan}
        self.place = np.zeros(len(self.paths), int)  # Of a group in these tables.
        self.place[rows] = np.arange(len(rows))
        self.unsolvable[rows] = np.any(excess >= HOPELESS // 2, axis=1)
        known = np.where(excess < HOPELESS // 2, excess, 0)
        bonus = np.asarray(group_search.lower_bound(known, self.num_agents))
        for name, bound in ((COST, self.shortest[rows] + bonus), (MAKESPAN, fastest)):
            self.lower[name][rows] = np.maximum(self.lower[name][rows], bound)

    def search(self, rows: np.ndarray, efforts: Sequence[Effort]) -> None:
        """Finds plans of least cost, then whether they need waits, then the least makespans."""
        upper = self.upper[COST]
        # Few groups are searched for the fastest plan; every other effort spares programs to
        # compile.
        for_makespan = efforts[::-2][::-1]
        pending = rows[(self.open(COST) & ~self.unsolvable)[rows]]
        for effort in efforts:
            # Rising bounds never end where there is no plan; so where none is known, after a few
            # rounds everything that can be reached is searched instead, for the fastest plan or
            # none.
            planless = upper[pending] == INFINITE_COST
            left = self.close(COST, pending[planless], effort, _PLANLESS_ROUNDS)
            left = left[upper[left] == INFINITE_COST]
            if effort in for_makespan:
                self.close(MAKESPAN, left, effort, _PLANLESS_ROUNDS)
            pending = pending[~self.unsolvable[pending]]
            known = upper[pending] < INFINITE_COST
            left = self.close(COST, pending[known], effort)
            pending = np.concatenate([left, pending[~known]])
        gap = upper - self.shortest
        waiting = ~self.open(COST) & (gap > 0) & (gap % 2 == 0) & self.waits & ~self.unsolvable
        self.find_waits(rows[waiting[rows]], efforts)
        slow = self.open(MAKESPAN) & (self.upper[MAKESPAN] < INFINITE_COST) & ~self.unsolvable
        pending = rows[slow[rows]]
        for effort in for_makespan:
            pending = self.close(MAKESPAN, pending, effort)

    def close(
        self, objective: str, rows: np.ndarray, effort: Effort, max_rounds: int = 1000
    ) -> np.ndarray:
        """Searches within rising bounds until the bounds of each group meet or memory runs out.

        Args:
          objective: `COST` or `MAKESPAN`.
          rows: groups to search.
          effort: what a search may keep.
          max_rounds: bounds that are tried of one group.

        Returns:
          Those of `rows` that are still open.
        """
        lower, upper = self.lower[objective], self.upper[objective]
        left: list[np.ndarray] = []
        slack = np.zeros(len(rows), np.int64)
        for _ in range(max_rounds):
            if not rows.size:
                break
            bound = np.minimum(lower[rows] + slack, upper[rows] - 1)
            if objective == MAKESPAN:  # Where nothing is known, any plan is welcome.
                bound = np.where(upper[rows] < INFINITE_COST, bound, HOPELESS - 1)
            result = self.bounded(objective, rows, bound, True, effort)
            complete = ~result.overflow
            proven = np.minimum(result.next_bound, upper[rows])
            lower[rows] = np.where(complete, np.maximum(lower[rows], proven), lower[rows])
            if np.any(lower[rows] > upper[rows]):
                raise RuntimeError(f"{objective}: a lower bound above the cost of a plan")
            none = complete & (upper[rows] == INFINITE_COST) & (result.next_bound == INFINITE_COST)
            self.unsolvable[rows] |= none
            still = (lower[rows] < upper[rows]) & ~self.unsolvable[rows]
            left.append(rows[still & ~complete])
            # Layers about double with the bound: one that is far from full can be raised further.
            slack = np.log2(effort.capacity / np.maximum(result.peak, 1)).astype(np.int64) // 2
            slack = np.maximum(slack, 0)[still & complete]
            rows = rows[still & complete]
        return np.concatenate([*left, rows])

    def find_waits(self, rows: np.ndarray, efforts: Sequence[Effort]) -> None:
        """Decides for groups of known cost whether a plan of that cost does without waits."""
        for effort in efforts:
            if rows.size:
                result = self.bounded(COST, rows, self.upper[COST][rows], False, effort)
                found = result.cost < INFINITE_COST
                known = found | ~result.overflow
                self.wait_known[rows] = known
                self.needs_wait[rows] = known & ~found
                rows = rows[~known]

    def bounded(
        self, objective: str, rows: np.ndarray, bound: np.ndarray, wait: bool, effort: Effort
    ) -> group_search.SearchResult:
        """One bounded search of some groups, whose plans it takes over."""
        place = self.place[rows]
        result = in_blocks(
            functools.partial(
                group_search.bounded_search,
                effort=effort, horizon=self.horizon, objective=objective,
            ),
            jax.tree.map(lambda leaf: leaf[place], self.groups[objective]),
            bound.astype(np.int32),
            np.full(len(rows), wait),
            block=effort.chunk,
        )  # fmt: skip
        paths = np.stack(np.divmod(result.paths, self.width), -1).astype(np.int8)
        arrivals = plans.arrivals(paths, self.goals[rows])
        arrivals = np.where((result.cost < INFINITE_COST)[:, None], arrivals, INFINITE_COST)
        waits = np.any(plans.waiting(paths, arrivals), axis=1)
        self.adopt(rows, FoundPlans(arrivals.sum(1), waits, arrivals.max(1), paths))
        return result


@functools.partial(jax.jit, static_argnames=("cells",))
def _build_groups(
    blocked: Array, starts: Array, goals: Array, cells: int
) -> tuple[Group, Group, jax.Array, jax.Array]:
    """The tables of both objectives, and what they say of the starts.

    Returns:
      (group to minimise the cost, group to minimise the makespan, int32[B, pairs] excess of each
      pair over its shortest paths, int32[B] largest makespan of a pair).
    """
    batch, width = blocked.shape[:2]
    num_agents, pad = starts.shape[1], cells - width * width

    def on_graph(array: jax.Array, fill: int, axes: int = 1) -> jax.Array:
        """Adds the cells that the lake does not have along the last axes."""
        pads = [(0, 0)] * (array.ndim - axes) + [(0, pad)] * axes
        return jnp.pad(array, pads, constant_values=fill)

    number = jnp.arange(width * width).reshape(width, width)
    around = search.neighbours(jnp.where(blocked, -1, number), -1)
    neighbours = [on_graph(values.reshape(batch, -1), -1) for values in around]
    distance = search.distance_fields(blocked, goals).reshape(batch, num_agents, -1)
    # All pairs of all lakes are one batch of the table search.
    pairs = np.array(list(group_search.agent_pairs(num_agents)))
    tables = pair_tables(jnp.repeat(blocked, len(pairs), axis=0), goals[:, pairs].reshape(-1, 2, 2))
    cost, rest, fastest = (
        on_graph(table, TABLE_INFINITE, axes).reshape(batch, len(pairs), -1)
        for table, axes in zip(tables, (2, 1, 2), strict=True)
    )
    begin, end = (  # Cells are int8, their numbers need not fit.
        cell[..., 0].astype(jnp.int32) * width + cell[..., 1] for cell in (starts, goals)
    )
    by_cost = Group(
        neighbours=jnp.stack(neighbours, -1),
        starts=begin,
        goals=end,
        distance=on_graph(distance, INFINITE_COST),
        pairs=jnp.concatenate([cost, rest], -1),
    )
    parked = jnp.zeros((1,), jnp.int32)
    excess = jax.vmap(lambda g, p: group_search.pair_excess(g, p[None], parked)[0])(by_cost, begin)
    index = begin[:, pairs[:, 0]] * cells + begin[:, pairs[:, 1]]
    slowest = jnp.take_along_axis(fastest, index[..., None], axis=2)[..., 0]
    slowest = jnp.where(slowest == TABLE_INFINITE, 0, slowest).max(1)
    return by_cost, by_cost._replace(pairs=fastest), excess, slowest.astype(jnp.int32)
