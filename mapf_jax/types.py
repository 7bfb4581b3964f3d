"""The values that the simulator, the solver and the generator hand to each other.

All are frozen pytrees. A leading `...` stands for any batch shape; S is the static width of the
map (lakes smaller than S x S sit in the upper left corner, the rest counts as holes), A the
static number of agents (absent ones are masked by `active`) and T a static number of time steps.
Cells are (row, column), counted from 0 at the upper left.
"""

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, Self

import jax
import numpy as np

Array = jax.Array | np.ndarray
#: A (row, column) for each of A agents: integers [A, 2].
Cells = Array | Sequence[Sequence[int]]

#: Stands for the cost of a missing, unknown or invalid plan. Sums of a few fit in int32.
INFINITE_COST = 1 << 20

MAX_LAKE_SIZE = 2048


def cell_type(width: int) -> np.dtype:
    """Type of an instance's cells on a map of this width: int8, int16 where it is above 128."""
    return np.min_scalar_type(-width)


class Status(enum.IntEnum):
    """What a solver found out about an instance."""

    OPTIMAL = 0  #: There is a plan, and it is proven that none is better.
    FEASIBLE = 1  #: There is a plan.
    UNSOLVABLE = 2  #: It is proven that there is no plan.
    UNKNOWN = 3  #: No plan was found.


class _Batch:
    """Pytrees of arrays that are indexed together."""

    def __getitem__(self, index: Any) -> Self:
        """Indexes the leading batch axes of every field."""
        return jax.tree.map(lambda leaf: leaf[index], self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solution(_Batch):
    """The best known plan of an instance; it can be used as a `Plan`.

    Attributes:
      status: int8[...], a `Status`.
      cost: int32[...], sum of costs of `paths`, which is the optimum where the status is OPTIMAL;
        `INFINITE_COST` where there is no plan.
      makespan: int32[...], the smallest possible makespan (of any plan) where the status is
        OPTIMAL, that of `paths` where it is FEASIBLE; likewise.
      needs_wait: bool[...], OPTIMAL and no plan of this cost is free of waits before arrival.
      paths: int8 or int16[..., T, A, 2], the plan; if OPTIMAL free of waits before arrival unless
        `needs_wait`. After `num_steps` every agent rests on its goal.
      num_steps: int32[...], number of moves of `paths`, so entries 0..num_steps are the plan.
    """

    status: Array
    cost: Array
    makespan: Array
    needs_wait: Array
    paths: Array
    num_steps: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Instance(_Batch):
    """One multi-agent path finding problem on a frozen lake, or a batch of them.

    Attributes:
      size: int32[...], the lake has `size` x `size` cells, size <= S.
      blocked: bool[..., S, S], True where there is a hole and everywhere outside the lake.
      starts: int8[..., A, 2], start cell of each agent; see `cell_type`.
      goals: int8[..., A, 2], goal cell of each agent; likewise.
      active: bool[..., A], False for an agent that does not exist.
      solution: the best plan where one is known, else None.
    """

    size: Array
    blocked: Array
    starts: Array
    goals: Array
    active: Array
    solution: Solution | None = None

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading `...` of all fields."""
        return tuple(self.blocked.shape[:-2])

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("a single Instance has no length")
        return self.batch_shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def check_single(self) -> None:
        """Raises ValueError if this is a batch."""
        if self.batch_shape:
            raise ValueError(
                f"instance: a batch of shape {self.batch_shape}, where a single one is needed: "
                "instances[i]"
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Plan(_Batch):
    """A proposed plan: the cells of all agents at every time step.

    Attributes:
      positions: int16[..., T, A, 2], from time `num_steps` on the last cells are repeated.
      num_steps: int32[...], number of moves, so entries 0..num_steps are the plan.
      parsable: bool[...], False if no plan could be read; the other fields are then filler.
      num_agents: int32[...], number of agents in the plan (it may differ from the instance's;
        `positions` is then padded or cut to A).
    """

    positions: Array
    num_steps: Array
    parsable: Array
    num_agents: Array


def as_plan(instance: Instance, plan: Plan | Solution) -> Plan:
    """A plan unchanged, or a solution as one, not `parsable` if it has none; single or a batch."""
    if isinstance(plan, Plan):
        return plan
    return Plan(
        positions=plan.paths.astype(np.int16),
        num_steps=plan.num_steps,
        parsable=(plan.status == Status.OPTIMAL) | (plan.status == Status.FEASIBLE),
        num_agents=instance.active.sum(-1, dtype=np.int32),
    )


class ViolationKind(enum.IntEnum):
    """The rule that an agent breaks; if it breaks several, the first one in this order.

    The first five are the rules of movement (see `dynamics`), the others are about whole plans.
    """

    NONE = 0
    ILLEGAL_MOVE = 1
    OUT_OF_BOUNDS = 2
    HOLE = 3
    VERTEX = 4
    SWAP = 5
    WRONG_START = 6
    GOAL_MISSED = 7


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Verdict(_Batch):
    """The verifier's result for a plan. The eight checks are bool[...], True where they hold.

    All but `parsable` are False where the plan is not parsable or has another number of agents.

    Attributes:
      parsable: a plan could be read.
      legal_moves: no agent moves farther than to a neighbouring cell in one step.
      conflict_free: no vertex conflict and no swap conflict.
      goals_reached: every agent ends on its goal.
      starts_correct: every agent begins on its start.
      agent_count: the answer has exactly one path for each agent.
      no_holes: no agent is ever in a hole.
      in_bounds: no agent is ever outside the lake.
      valid: all eight checks hold.
      cost: int32[...], sum of costs; `INFINITE_COST` unless valid.
      makespan: int32[...], largest single cost; likewise.
      gap: int32[...], cost minus the optimum; `INFINITE_COST` unless valid and the optimum known.
      optimal: bool[...], valid and gap 0.
      violation_time: int32[...], time of the first broken rule, -1 if there is none. A rule about
        a move is broken at the time of arrival, a start at time 0, a goal at the last time.
      violation_agent: int32[...], the agent that breaks it, the lowest of several at that time, -1
        if there is none.
      violation_kind: int32[...], the `ViolationKind`, the lowest of several of that agent; NONE for
        valid plans, and where nothing but `parsable` and `agent_count` was checked.
    """

    parsable: Array
    legal_moves: Array
    conflict_free: Array
    goals_reached: Array
    starts_correct: Array
    agent_count: Array
    no_holes: Array
    in_bounds: Array
    valid: Array
    cost: Array
    makespan: Array
    gap: Array
    optimal: Array
    violation_time: Array
    violation_agent: Array
    violation_kind: Array


#: The eight checks, in the order in which they are reported.
CHECKS = tuple(field.name for field in dataclasses.fields(Verdict))[:8]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The state of an episode of the simulator; it holds no PRNG key.

    Cells are numbers as in `dynamics` (`positions(state)` of the environment gives rows and
    columns), in the smallest unsigned type that holds them: uint8 for lakes up to 14 x 14, uint16
    above; times likewise, uint8 up to 255 steps.

    Attributes:
      terrain: uint8[..., (S + 2) * (S + 2)], kind of each cell; None where it is kept elsewhere.
      cells: unsigned [..., A], cell of each agent; 0 for an agent that does not exist.
      goals: unsigned [..., A], its goal cell; likewise.
      costs: unsigned [..., A], the last step in which it was not resting on its goal: its cost if
        it stays there from now on.
      time: unsigned [...], steps done.
      offset: int32[...], where the lake begins in a `terrain` of many lakes; None for its own.
      blocked: bool[..., S * S], cells of the lake that are not free; given if `offset` is.
    """

    terrain: Array | None
    cells: Array
    goals: Array
    costs: Array
    time: Array
    offset: Array | None = None
    blocked: Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepInfo:
    """What a step did, for logs and metrics, not for agents.

    Attributes:
      violation: uint8[..., A], the `ViolationKind` of each agent's move.
      moves: int8[..., A], the actions after slipping.
      at_goal: bool[..., A], the agent exists and is on its goal after the step.
      success: bool[...], all agents are on their goals after the step.
      costs: int32[..., A], each agent's cost so far, see `State.costs`; their sum is the sum of
        costs of the plan once `success` holds.
    """

    violation: Array
    moves: Array
    at_goal: Array
    success: Array
    costs: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TimeStep:
    """What a reset or a step of the simulator returns.

    Attributes:
      observation: what the agents see now (see `observations`). Under auto-reset the first one of
        the next episode where an episode has just ended.
      reward: float32[..., A], of each agent; 0 for one that does not exist, and after a reset.
      terminated: bool[...], the episode ended by success or by a violation: nothing comes after.
      truncated: bool[...], the step limit alone ended the episode; the value of what would have
        followed may be estimated. Never together with `terminated`.
      final_observation: what the agents saw right after the step, before any auto-reset. The same
        as `observation` where no episode ended, and after a reset.
      action_mask: bool[..., A, 5], False for moves into a hole or off the lake; it belongs to
        `observation`. None unless the environment's `action_mask` is set.
      info: what the step did, before any auto-reset.
    """

    observation: Any
    reward: Array
    terminated: Array
    truncated: Array
    final_observation: Any
    action_mask: Array | None
    info: StepInfo

    @property
    def done(self) -> Array:
        """bool[...], the episode ended, for whatever reason."""
        return self.terminated | self.truncated


def make_instance(rows: Sequence[str], starts: Cells, goals: Cells) -> Instance:
    """Builds one instance from map rows of `F` and `H` (blanks are ignored) and cells.

    Args:
      rows: of the map.
      starts: (row, column) of each agent, as pairs or an array of integers [A, 2].
      goals: likewise.

    Raises:
      ValueError: the map is not square, has other characters, or starts or goals are not pairwise
        distinct passable cells. An agent may start on a goal.
    """
    starts, goals = _pairs("starts", starts), _pairs("goals", goals)
    cells = [row.replace(" ", "") for row in rows]
    size = len(cells)
    if size == 0 or any(len(row) != size for row in cells):
        raise ValueError(f"map={rows!r}: the map must be square")
    if size > MAX_LAKE_SIZE:
        raise ValueError(f"map: {size} x {size} cells, at most {MAX_LAKE_SIZE} a side are allowed")
    if strange := set("".join(cells)) - {"F", "H"}:
        raise ValueError(f"map={rows!r}: {sorted(strange)} are not allowed, only F and H")
    if len(starts) != len(goals) or not starts:
        raise ValueError(f"{len(starts)} starts and {len(goals)} goals: one of each an agent")
    blocked = np.array([[c == "H" for c in row] for row in cells])
    for name, row, column in [("start", *s) for s in starts] + [("goal", *g) for g in goals]:
        if not (0 <= row < size and 0 <= column < size):
            raise ValueError(f"{name}=({row}, {column}) is outside the {size} x {size} lake")
        if blocked[row, column]:
            raise ValueError(f"{name}=({row}, {column}) is a hole")
    for name, given in (("starts", starts), ("goals", goals)):
        if len({*given}) < len(given):
            raise ValueError(f"{name}={given}: must be pairwise distinct cells")
    return Instance(
        size=np.asarray(size, np.int32),
        blocked=blocked,
        starts=np.array(starts, cell_type(size)),
        goals=np.array(goals, cell_type(size)),
        active=np.ones(len(starts), bool),
    )


def _pairs(name: str, cells: Cells) -> list[tuple[int, int]]:
    """Cells as pairs of Python's integers."""
    try:
        return [(index(row), index(column)) for row, column in cells]
    except (TypeError, ValueError):
        raise ValueError(f"{name}={cells!r}: each is a (row, column) of integers") from None


def stack(instances: Sequence[Instance]) -> Instance:
    """Stacks single instances of equal static shape into a batch.

    Raises:
      ValueError: there are none, or they differ in the width of the map or in the number of agents.
    """
    if not instances:
        raise ValueError("instances: there are none")
    shapes = {(one.blocked.shape[-1], one.starts.shape[-2]) for one in instances}
    if len(shapes) > 1:
        raise ValueError(
            f"instances: (size, num_agents) are {sorted(shapes)}; mapf_jax.pad_instance(instance, "
            f"{', '.join(str(max(numbers)) for numbers in zip(*shapes, strict=True))}) makes each "
            "as large as the largest"
        )
    return jax.tree.map(lambda *leaves: np.stack(leaves), *instances)
