"""The simulator: one episode of agents on a frozen lake, as pure functions of single values.

`reset` and `step` speak of one environment. `jax.vmap` makes a batch of it, `jax.jit` and
`jax.lax.scan` a fast one. What an action does is decided in `dynamics`; this file turns it into
rewards, ends and observations.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import dynamics
from mapf_jax.env import observations, spaces
from mapf_jax.types import Array, Instance, State, StepInfo, TimeStep

#: What happens to agents in conflict.
CONFLICT_RULES = ("fail", "block")
MIN_SIZE, MAX_SIZE = 2, 126  # Positions of an instance are int8, and observations show -1.
MAX_STEPS = 65_535  # Times are kept in at most 16 bits.


@dataclasses.dataclass(frozen=True)
class RewardWeights:
    """What an agent is rewarded for; its reward of a step is the sum of the five terms.

    Attributes:
      goal: times +1 when the agent comes to its goal and -1 when it leaves it again, so that over
        an episode it counts once, and only for an agent that is on its goal at the end.
      step: times the growth of the agent's cost in this step. 1 for a step in which it is not
        resting on its goal, 0 while it rests; an agent that leaves its goal again is charged for
        its rest as well. Over a successful episode this sums to its cost in the sum of costs.
      violation: times 1 for an agent that breaks a rule (conflict="fail") or whose move is not
        carried out (conflict="block").
      team: times 1 for every agent in the step in which all are on their goals.
      team_violation: times 1 for every agent in a step in which any agent's `violation` counts.
    """

    goal: float = 1.0
    step: float = -0.01
    violation: float = -1.0
    team: float = 1.0
    team_violation: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"reward.{field.name}={value!r}: a number is needed")
            if not math.isfinite(value):
                raise ValueError(f"reward.{field.name}={value!r}: it must be finite")


#: The weights that are used where none are given. A blocked agent has lost a step already.
DEFAULT_REWARDS = {"fail": RewardWeights(), "block": RewardWeights(violation=0.0)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapfFrozenLake:
    """Agents that all have to be on their goals at once, on a lake with holes.

    An episode ends (`terminated`) when every agent is on its goal at the same time, or, under the
    rule "fail", when any agent breaks a rule; and it is cut off (`truncated`) after `max_steps`.
    An agent on its goal may move on, blocks the cell while it stays, and its cost is counted up
    to its last arrival. A move that breaks a rule is never carried out: under "fail" nobody moves
    in that step, under "block" the agents concerned stay (`dynamics.blocked_moves`), so agents
    always stand on free cells of their own.

    The options can be given to `mapf_jax.make`. The object is hashable: it may be a static
    argument of jitted functions or be closed over.

    Attributes:
      num_agents: A; an instance may use fewer by its `active`.
      size: S, width of the map; an instance may have a smaller lake in its upper left corner.
      max_steps: steps after which an episode is cut off; 2 S^2 if None.
      conflict: "fail" (the benchmark's rule) or "block" (conflicting movers stay).
      slip_probability: probability with which a move goes to one of the two sides instead, each
        half of the time, as in Gymnasium's FrozenLake (whose success_rate is 1 minus this). Waits
        never slip. If above 0, `step` needs a PRNG key.
      reward: weights; `DEFAULT_REWARDS[conflict]` if None.
      observation: "positions", "egocentric" or "planes", see `observations.observe`.
      window: side of the egocentric square, odd.
      action_mask: whether time steps carry a mask of the moves that stay on free cells.

    Raises:
      ValueError: an option is out of its range.
    """

    num_agents: int = 2
    size: int = 8
    max_steps: int | None = None
    conflict: str = "fail"
    slip_probability: float = 0.0
    reward: RewardWeights | None = None
    observation: str = "positions"
    window: int = 7
    action_mask: bool = False

    #: Axes that `jax.vmap` maps of the arguments of `reset` and `step` (without a key).
    reset_axes: ClassVar[tuple[int | None, ...]] = (0,)
    step_axes: ClassVar[tuple[int | None, ...]] = (0, 0)

    def __post_init__(self) -> None:
        _check_integer("size", self.size, MIN_SIZE, MAX_SIZE)
        _check_integer("num_agents", self.num_agents, 1, self.size**2)
        if self.max_steps is None:
            object.__setattr__(self, "max_steps", 2 * self.size**2)
        _check_integer("max_steps", self.max_steps, 1, MAX_STEPS)
        _check_choice("conflict", self.conflict, CONFLICT_RULES)
        _check_choice("observation", self.observation, observations.KINDS)
        slip = self.slip_probability
        if isinstance(slip, bool) or not isinstance(slip, (int, float)) or not 0 <= slip <= 1:
            raise ValueError(f"slip_probability={slip!r}: a number from 0 to 1 is needed")
        if self.reward is None:
            object.__setattr__(self, "reward", DEFAULT_REWARDS[self.conflict])
        elif not isinstance(self.reward, RewardWeights):
            raise ValueError(f"reward={self.reward!r}: a RewardWeights is needed")
        _check_integer("window", self.window, 1, 2 * MAX_SIZE + 1)
        if self.window % 2 == 0:
            raise ValueError(f"window={self.window}: it must be odd, with the agent in the middle")
        if not isinstance(self.action_mask, bool):
            raise ValueError(f"action_mask={self.action_mask!r}: True or False is needed")

    @property
    def action_space(self) -> spaces.MultiDiscrete:
        """One action for each agent: 0 up, 1 down, 2 left, 3 right, 4 wait."""
        return spaces.MultiDiscrete(len(dynamics.MOVES), self.num_agents)

    @property
    def observation_space(self) -> spaces.Space:
        """Where the observations of a single environment lie."""
        return observations.space(self.observation, self.num_agents, self.size, self.window)

    @property
    def needs_key(self) -> bool:
        """Whether `step` needs a PRNG key."""
        return self.slip_probability > 0

    @property
    def num_cells(self) -> int:
        """Length of `State.terrain`."""
        return (self.size + 2) ** 2

    def reset(self, instance: Instance) -> tuple[State, TimeStep]:
        """The first state of a single instance's episode and what is seen of it.

        The instance must be legal (active agents on distinct free cells); this is not checked.

        Raises:
          ValueError: the instance has not this environment's static shape.
        """
        state = self.initial_state(instance)
        return state, self.first_timestep(state)

    def step(
        self, state: State, actions: Array, key: jax.Array | None = None
    ) -> tuple[State, TimeStep]:
        """All agents act at once.

        Args:
          state: of a single environment.
          actions: int[A]; anything but the four moves 0..3 waits.
          key: PRNG key if and only if `slip_probability` is above 0.

        Returns:
          (state, timestep). Nothing special happens after the end of an episode: further steps go
          on from where it stopped.
        """
        return self.step_on(state, actions, key, self._terrain_lookup(state))

    def step_on(
        self,
        state: State,
        actions: Array,
        key: jax.Array | None,
        terrain_at: Callable[[jax.Array], jax.Array],
    ) -> tuple[State, TimeStep]:
        """`step` with the terrain looked up by a function, which may read a table shared by many.

        Args:
          state: its `terrain` is read by observations alone.
          actions: int[A].
          key: as of `step`.
          terrain_at: numbers of cells, unsigned [n], to uint8[n].
        """
        assert self.max_steps is not None
        if jnp.shape(actions) != (self.num_agents,):
            raise ValueError(
                f"actions: shape {jnp.shape(actions)}, but a single step takes ({self.num_agents},)"
                "; use jax.vmap for a batch"
            )
        moves = self._slipped(jnp.asarray(actions), key)
        wanted = dynamics.targets(state.cells, moves, self.size)
        codes = terrain_at(wanted)
        if self.conflict == "fail":
            violations = dynamics.cell_violations(state.cells, wanted, codes)
            broken = jnp.asarray(violations.any())
            failed = jnp.any(broken)
            cells = jnp.where(failed, state.cells, wanted)
        else:
            violations = dynamics.blocked_moves(state.cells, wanted, codes)
            broken = jnp.asarray(violations.any())
            failed = jnp.zeros((), bool)
            cells = jnp.where(broken, state.cells, wanted)

        active = jnp.asarray(state.cells != dynamics.ABSENT)
        # Stays at the highest number there is, however long it goes on after the end.
        latest = np.iinfo(self.time_dtype).max
        time = state.time + (state.time < latest).astype(state.time.dtype)
        at_goal = cells == state.goals  # True of absent agents, too.
        was_at_goal = jnp.asarray(state.cells == state.goals)
        costs = jnp.where(at_goal & was_at_goal, state.costs, time)
        success = jnp.all(at_goal) & ~failed
        truncated = (time >= self.max_steps) & ~(success | failed)
        after = dataclasses.replace(state, cells=cells, costs=costs, time=time)
        reward = self._reward(
            active, at_goal, was_at_goal, costs - state.costs, broken, jnp.any(broken), success
        )
        observation = self._observe(after)
        return after, TimeStep(
            observation=observation,
            reward=reward,
            terminated=success | failed,
            truncated=truncated,
            final_observation=observation,
            action_mask=self._action_mask(after, terrain_at),
            info=StepInfo(
                violation=violations.kind(),
                moves=moves.astype(jnp.int8),
                at_goal=at_goal & active,
                success=success,
                costs=costs.astype(jnp.int32),
            ),
        )

    def initial_state(self, instance: Instance) -> State:
        """The first state of a single instance, which must have the right static shape."""
        width, num_agents = instance.blocked.shape[-1], instance.starts.shape[-2]
        if instance.batch_shape:
            raise ValueError(
                f"instance: a batch of shape {instance.batch_shape}; use jax.vmap, or one by index"
            )
        if (width, num_agents) != (self.size, self.num_agents):
            raise ValueError(
                f"instance: a map of width {width} for {num_agents} agents, but the environment "
                f"has size={self.size} and num_agents={self.num_agents}; a smaller instance can be "
                "brought to this shape by mapf_jax.pad_instance"
            )
        return State(
            terrain=dynamics.terrain(instance),
            cells=dynamics.cell_numbers(instance.starts, instance.active, self.size),
            goals=dynamics.cell_numbers(instance.goals, instance.active, self.size),
            costs=jnp.zeros((num_agents,), self.time_dtype),
            time=jnp.zeros((), self.time_dtype),
        )

    def first_timestep(
        self, state: State, terrain_at: Callable[[jax.Array], jax.Array] | None = None
    ) -> TimeStep:
        """What is handed out with the first state of an episode."""
        active = state.cells != dynamics.ABSENT
        at_goal = (state.cells == state.goals) & active
        return TimeStep(
            observation=self._observe(state),
            reward=jnp.zeros((self.num_agents,), jnp.float32),
            terminated=jnp.zeros((), bool),
            truncated=jnp.zeros((), bool),
            final_observation=None,
            action_mask=self._action_mask(state, terrain_at or self._terrain_lookup(state)),
            info=StepInfo(
                violation=jnp.zeros((self.num_agents,), jnp.uint8),
                moves=jnp.full((self.num_agents,), dynamics.WAIT, jnp.int8),
                at_goal=at_goal,
                success=jnp.all(at_goal | ~active),
                costs=state.costs.astype(jnp.int32),
            ),
        )

    @property
    def time_dtype(self) -> np.dtype:
        """The type of times and costs in a state."""
        assert self.max_steps is not None
        return np.min_scalar_type(self.max_steps)

    def positions(self, state: State) -> jax.Array:
        """int8[..., A, 2], (row, column) of the agents; (-1, -1) for absent ones."""
        return dynamics.cell_positions(state.cells, self.size)

    def see(
        self,
        timestep: TimeStep,
        state: State,
        terrain_at: Callable[[jax.Array], jax.Array] | None = None,
    ) -> TimeStep:
        """The time step with observation and action mask of another state, for auto-reset."""
        return dataclasses.replace(
            timestep,
            observation=self._observe(state),
            action_mask=self._action_mask(state, terrain_at or self._terrain_lookup(state)),
        )

    def _terrain_lookup(self, state: State) -> Callable[[jax.Array], jax.Array]:
        # Moves from free cells lead at most into the border, so no index is out of bounds.
        return lambda cells: jnp.asarray(state.terrain).at[cells].get(mode="promise_in_bounds")

    def _slipped(self, actions: jax.Array, key: jax.Array | None) -> jax.Array:
        """The moves that come of the actions."""
        if not self.needs_key:
            if key is not None:
                raise ValueError("key: slip_probability is 0, so step takes no key")
            return actions
        if key is None:
            raise ValueError(
                f"key=None: with slip_probability={self.slip_probability} step needs a PRNG key"
            )
        draw = jax.random.uniform(key, actions.shape)
        slips = (draw < self.slip_probability) & (actions >= 0) & (actions < dynamics.WAIT)
        # The two moves across: left and right for up and down, and the other way round.
        first = jnp.where(actions < dynamics.LEFT, dynamics.LEFT, dynamics.UP)
        other = draw < self.slip_probability / 2
        return jnp.where(slips, first + other, actions).astype(actions.dtype)

    def _reward(
        self,
        active: jax.Array,
        at_goal: jax.Array,
        was_at_goal: jax.Array,
        more_cost: jax.Array,
        broken: jax.Array,
        any_broken: jax.Array,
        success: jax.Array,
    ) -> jax.Array:
        weights = self.reward
        assert weights is not None
        reward = jnp.zeros((self.num_agents,), jnp.float32)
        if weights.goal:
            reward += weights.goal * (at_goal.astype(jnp.float32) - was_at_goal)
        if weights.step:
            reward += weights.step * more_cost.astype(jnp.float32)
        if weights.violation:
            reward += weights.violation * broken
        if weights.team:
            reward += weights.team * success
        if weights.team_violation:
            reward += weights.team_violation * any_broken
        return jnp.where(active, reward, 0.0)

    def _observe(self, state: State) -> Any:
        return observations.observe(self.observation, state, self.size, self.window)

    def _action_mask(
        self, state: State, terrain_at: Callable[[jax.Array], jax.Array]
    ) -> jax.Array | None:
        if not self.action_mask:
            return None
        actions = jnp.arange(len(dynamics.MOVES))
        cells = jnp.repeat(state.cells, len(actions))
        ahead = dynamics.targets(cells, jnp.tile(actions, self.num_agents), self.size)
        free = terrain_at(ahead).reshape(self.num_agents, len(actions)) == dynamics.FREE
        return free | (actions == dynamics.WAIT)


def _check_integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name}={value!r}: an integer is needed")
    if not low <= value <= high:
        raise ValueError(f"{name}={value}: {low} to {high} is allowed")


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: allowed are {', '.join(map(repr, allowed))}")
