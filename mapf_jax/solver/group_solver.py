"""Exact optima of groups of three and more agents: certificates first, then complete search.

1. Prioritised plans in several orders. One that costs as much as the shortest paths is optimal.
2. Exact costs of all pairs of agents: a pair without a plan proves that the group has none, and
   joined they bound the group's cost from below, often by as much as the plan costs.
3. Search over joint states within rising bounds (`group_search`), first with little memory, then
   with more. What does not fit into the largest effort stays undecided.
"""

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import plans
from mapf_jax.solver import group_search, search
from mapf_jax.solver.blocks import in_blocks
from mapf_jax.solver.group_search import COST, HOPELESS, MAKESPAN, Effort, Group
from mapf_jax.solver.joint_search import (
    TABLE_INFINITE,
    distance_fields,
    pair_tables,
    shortest_costs,
)
from mapf_jax.solver.prioritized import prioritized_plans
from mapf_jax.types import INFINITE_COST, Array, Solution, Status

MAX_WIDTH = 16  # Lakes up to this width have pair tables; wider ones only have certificates.
EFFORTS = (
    Effort(capacity=64, room=128, slots=1 << 11, chunk=32),
    Effort(capacity=512, room=1024, slots=1 << 14, chunk=8),
    Effort(capacity=4096, room=8192, slots=1 << 17, chunk=2),
    Effort(capacity=16384, room=65536, slots=1 << 19, chunk=1),
    Effort(capacity=65536, room=262144, slots=1 << 21, chunk=1),
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
        [_solve_batch(blocked[rows], starts[rows], goals[rows], efforts) for rows in batches]
    )


class _Batch:
    """Bounds and plans of B groups while they are being solved."""

    def __init__(self, blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray) -> None:
        self.blocked, self.starts, self.goals = blocked, starts, goals
        self.batch, self.num_agents = starts.shape[:2]
        self.width = blocked.shape[-1]
        shortest = in_blocks(shortest_costs, blocked, starts, goals, block=_PLAN_BLOCK)
        # Longest plan, in steps: well above the longest path that winds through a lake of at most
        # 16 x 16, and enough for an agent alone on any.
        alone = -(-int(shortest.max()) // 16) * 16 if self.num_agents == 1 else 0
        self.horizon = max(16 * max(self.width, 10), alone)
        self.shortest = shortest.sum(1)
        self.lower, self.upper = self.shortest.copy(), np.full(self.batch, INFINITE_COST)
        self.lower_makespan = shortest.max(1)
        self.upper_makespan = self.upper.copy()
        self.paths = np.broadcast_to(
            starts[:, None].astype(np.int8), (self.batch, self.horizon + 1, self.num_agents, 2)
        ).copy()
        self.waits = np.zeros(self.batch, bool)  # Whether a wait stands in `paths`.
        self.needs_wait = np.zeros(self.batch, bool)
        self.wait_known = np.zeros(self.batch, bool)
        self.unsolvable = np.zeros(self.batch, bool)

    def try_orders(self, rows: np.ndarray, num_orders: int, horizon: int, block: int) -> None:
        """Prioritised plans for some groups."""
        if not rows.size:
            return
        function = functools.partial(prioritized_plans, num_orders=num_orders, horizon=horizon)
        found = in_blocks(
            function, self.blocked[rows], self.starts[rows], self.goals[rows], block=block
        )
        self.adopt(rows, found.cost, found.paths, found.waits)
        self.upper_makespan[rows] = np.minimum(self.upper_makespan[rows], found.makespan)

    def adopt(
        self, rows: np.ndarray, cost: np.ndarray, paths: np.ndarray, waits: np.ndarray
    ) -> None:
        """Takes over plans that are cheaper, or equally cheap and without waits."""
        better = (cost < self.upper[rows]) | (
            (cost == self.upper[rows]) & ~waits & self.waits[rows] & (cost < INFINITE_COST)
        )
        chosen, paths = rows[better], paths[better]
        self.upper[chosen] = cost[better]
        self.waits[chosen] = waits[better]
        steps = paths.shape[1]
        self.paths[chosen, :steps] = paths
        self.paths[chosen, steps:] = self.goals[chosen, None]


def _solve_batch(
    blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray, efforts: Sequence[Effort]
) -> Solution:
    state = _Batch(blocked, starts, goals)
    everything = np.arange(state.batch)
    state.try_orders(everything, _FIRST_ORDERS, 4 * state.width + 8, _PLAN_BLOCK)
    (planless,) = np.nonzero(state.upper == INFINITE_COST)
    state.try_orders(planless, _ALL_ORDERS, state.horizon, _ALL_BLOCK)
    (rows,) = np.nonzero(
        (state.upper > state.lower) | (state.upper_makespan > state.lower_makespan)
    )
    searchable = state.num_agents <= group_search.MAX_AGENTS and state.width <= MAX_WIDTH
    if rows.size and searchable:
        _search(state, rows, efforts)
    exact = state.upper == state.lower
    gap = state.upper - state.shortest
    # Without waits each path has the parity of a shortest one, so an odd gap proves a wait; a gap
    # of 0 proves that there is none, because who waits before its arrival is late.
    proven = exact & ((gap == 0) | (gap % 2 == 1) | ~state.waits)
    needs_wait = np.where(proven, gap % 2 == 1, state.needs_wait)
    decided = exact & (proven | state.wait_known) & (state.upper_makespan == state.lower_makespan)
    decided &= ~state.unsolvable
    status = np.where(decided, Status.OPTIMAL, Status.UNDECIDED)
    status = np.where(state.unsolvable, Status.UNSOLVABLE, status).astype(np.int8)
    num_steps = plans.arrivals(state.paths, goals).max(1)
    return Solution(
        status=status,
        cost=np.where(decided, state.upper, INFINITE_COST).astype(np.int32),
        makespan=np.where(decided, state.upper_makespan, INFINITE_COST).astype(np.int32),
        needs_wait=needs_wait & decided,
        paths=state.paths,
        num_steps=np.where(decided, num_steps, 0).astype(np.int32),
    )


def _search(state: _Batch, rows: np.ndarray, efforts: Sequence[Effort]) -> None:
    """Closes the gap between the bounds of some groups, as far as the efforts reach."""
    function = functools.partial(_build_groups, cells=min(n for n in _CELLS if n >= state.width**2))
    built = in_blocks(
        function, state.blocked[rows], state.starts[rows], state.goals[rows], block=_TABLE_BLOCK
    )
    groups, makespans, excess, fastest = built
    hopeless = np.any(excess >= HOPELESS // 2, axis=1)
    state.unsolvable[rows[hopeless]] = True
    bonus = np.asarray(group_search.lower_bound(np.where(excess < HOPELESS // 2, excess, 0),
                                                state.num_agents))  # fmt: skip
    state.lower[rows] = np.maximum(state.lower[rows], state.shortest[rows] + bonus)
    state.lower_makespan[rows] = np.maximum(state.lower_makespan[rows], fastest)

    closer = functools.partial(_close, state, rows)
    # Few groups are searched for the fastest plan; every other effort spares programs to compile.
    for_makespan = efforts[::-2][::-1]
    open_ = ~hopeless & (state.lower[rows] < state.upper[rows])
    (pending,) = np.nonzero(open_)
    for effort in efforts:
        # Rising bounds never end where there is no plan; so where none is known, after a few
        # rounds everything that can be reached is searched instead, for the fastest plan or none.
        planless = state.upper[rows[pending]] == INFINITE_COST
        left = closer(groups, COST, pending[planless], effort, _PLANLESS_ROUNDS)
        left = left[state.upper[rows[left]] == INFINITE_COST]
        if effort in for_makespan:
            closer(makespans, MAKESPAN, left, effort, _PLANLESS_ROUNDS)
        pending = pending[~state.unsolvable[rows[pending]]]
        known = state.upper[rows[pending]] < INFINITE_COST
        left = closer(groups, COST, pending[known], effort)
        pending = np.concatenate([left, pending[~known]])

    open_ = ~state.unsolvable[rows]
    gap = state.upper - state.shortest
    waiting = (state.lower == state.upper) & (gap > 0) & (gap % 2 == 0) & state.waits
    _find_waits(state, rows, efforts, groups, np.nonzero(open_ & waiting[rows])[0])
    slow = open_ & (state.lower_makespan[rows] < state.upper_makespan[rows])
    slow &= state.upper_makespan[rows] < INFINITE_COST
    (pending,) = np.nonzero(slow)
    for effort in for_makespan:
        pending = closer(makespans, MAKESPAN, pending, effort)


def _close(
    state: _Batch,
    rows: np.ndarray,
    groups: Group,
    objective: str,
    pending: np.ndarray,
    effort: Effort,
    max_rounds: int = 1000,
) -> np.ndarray:
    """Searches within rising bounds until the bounds of each group meet or memory runs out.

    Args:
      state: bounds and plans; what is found is entered there.
      rows: int[R], the groups of `state` that `groups` holds.
      groups: their tables for the objective.
      objective: `COST` or `MAKESPAN`.
      pending: indices into `rows` of the groups to search.
      effort: what a search may keep.
      max_rounds: bounds that are tried of one group.

    Returns:
      The indices of `pending` that are still open.
    """
    if objective == COST:
        lower, upper = state.lower, state.upper
    else:
        lower, upper = state.lower_makespan, state.upper_makespan
    open_: list[np.ndarray] = []
    slack = np.zeros(len(pending), np.int64)
    for _ in range(max_rounds):
        if not pending.size:
            break
        at = rows[pending]
        bound = np.minimum(lower[at] + slack, upper[at] - 1)
        if objective == MAKESPAN:  # Where nothing is known, any plan is welcome.
            bound = np.where(upper[at] < INFINITE_COST, bound, HOPELESS - 1)
        result = _run(state, groups, pending, bound, True, effort, objective)
        found = result.cost < INFINITE_COST
        paths = _cells(result.paths, state.width)
        arrivals = plans.arrivals(paths, state.goals[at])
        cost = np.where(found, arrivals.sum(1), INFINITE_COST)
        state.adopt(at, cost, paths, np.asarray(plans.waiting(paths, arrivals).any(1)))
        makespan = np.where(found, arrivals.max(1), INFINITE_COST)
        state.upper_makespan[at] = np.minimum(state.upper_makespan[at], makespan)
        complete = ~result.overflow
        proven = np.minimum(result.next_bound, upper[at])
        lower[at] = np.where(complete, np.maximum(lower[at], proven), lower[at])
        if np.any(lower[at] > upper[at]):
            raise RuntimeError(f"{objective}: a lower bound above the cost of a plan")
        none = complete & (upper[at] == INFINITE_COST) & (result.next_bound == INFINITE_COST)
        state.unsolvable[at] |= none
        still = (lower[at] < upper[at]) & ~state.unsolvable[at]
        open_.append(pending[still & ~complete])
        # Layers about double with the bound: one that is far from full can be raised further.
        slack = np.log2(effort.capacity / np.maximum(result.peak, 1)).astype(np.int64) // 2
        slack = np.maximum(slack, 0)[still & complete]
        pending = pending[still & complete]
    return np.concatenate([*open_, pending])


def _find_waits(
    state: _Batch, rows: np.ndarray, efforts: Sequence[Effort], groups: Group, pending: np.ndarray
) -> None:
    """Decides for groups of known cost whether a plan of that cost does without waits."""
    for effort in efforts:
        if not pending.size:
            return
        at = rows[pending]
        result = _run(state, groups, pending, state.upper[at], False, effort, COST)
        found = result.cost < INFINITE_COST
        paths = _cells(result.paths, state.width)
        state.adopt(at, np.asarray(result.cost), paths, np.zeros(len(at), bool))
        known = found | ~result.overflow
        state.wait_known[at] = known
        state.needs_wait[at] = known & ~found
        pending = pending[~known]


def _run(
    state: _Batch,
    groups: Group,
    index: np.ndarray,
    bound: np.ndarray,
    wait: bool,
    effort: Effort,
    objective: str,
) -> group_search.SearchResult:
    function = functools.partial(
        group_search.bounded_search, effort=effort, horizon=state.horizon, objective=objective
    )
    chosen = jax.tree.map(lambda leaf: leaf[index], groups)
    waits = np.full(len(index), wait)
    return in_blocks(function, chosen, bound.astype(np.int32), waits, block=effort.chunk)


def _cells(paths: Array, width: int) -> np.ndarray:
    """int8[..., 2] from cell numbers."""
    return np.stack(np.divmod(paths, width), -1).astype(np.int8)


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
    num_agents, own_cells = starts.shape[1], width * width
    pad = cells - own_cells
    number = jnp.arange(own_cells).reshape(width, width)
    around = search.neighbours(jnp.where(blocked, -1, number), -1)
    neighbours = jnp.stack([x.reshape(batch, own_cells) for x in around], -1)
    neighbours = jnp.pad(neighbours, ((0, 0), (0, pad), (0, 0)), constant_values=-1)
    distance = distance_fields(blocked, goals).reshape(batch, num_agents, own_cells)
    distance = jnp.pad(distance, ((0, 0), (0, 0), (0, pad)), constant_values=INFINITE_COST)
    # All pairs of all lakes are one batch of the table search.
    pairs = np.array(list(itertools.combinations(range(num_agents), 2)))
    tables = pair_tables(jnp.repeat(blocked, len(pairs), axis=0), goals[:, pairs].reshape(-1, 2, 2))
    fill, square = TABLE_INFINITE, ((0, 0), (0, pad), (0, pad))
    shape = (batch, len(pairs), -1)
    cost = jnp.pad(tables.cost, square, constant_values=fill).reshape(shape)
    rest = jnp.pad(tables.rest, ((0, 0), (0, 0), (0, pad)), constant_values=fill).reshape(shape)
    fastest = jnp.pad(tables.makespan, square, constant_values=fill).reshape(shape)
    begin, end = (cell[..., 0] * width + cell[..., 1] for cell in (starts, goals))
    begin, end = begin.astype(jnp.int32), end.astype(jnp.int32)
    cost_group = Group(neighbours, begin, end, distance, jnp.concatenate([cost, rest], -1))
    makespan_group = Group(neighbours, begin, end, distance, fastest)
    parked = jnp.zeros((1,), jnp.int32)
    excess = jax.vmap(lambda g, p: group_search.pair_excess(g, p[None], parked)[0])(
        cost_group, begin
    )
    index = begin[:, pairs[:, 0]] * cells + begin[:, pairs[:, 1]]
    slowest = jnp.take_along_axis(fastest, index[..., None], axis=2)[..., 0]
    slowest = jnp.where(slowest == fill, 0, slowest).max(1)
    return cost_group, makespan_group, excess, slowest.astype(jnp.int32)
