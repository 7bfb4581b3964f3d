"""The simulator: one episode of agents on a frozen lake, as pure functions.

`reset` and `step` act on a single environment; `jax.vmap` makes a batch of it, `jax.jit` and
`jax.lax.scan` make it fast. `dynamics` decides what an action does; this file turns that into
rewards, ends and observations.
"""

import dataclasses
import difflib
import functools
import numbers
from collections.abc import Collection
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import dynamics
from mapf_jax.env import observations, spaces
from mapf_jax.types import Array, Instance, State, StepInfo, TimeStep

#: Rules for agents in conflict.
CONFLICT_RULES = ("fail", "block")
MIN_SIZE, MAX_SIZE = 2, 126  # Positions of an instance are int8, and observations show -1.
MAX_STEPS = 65_535  #: Times are kept in at most 16 bits.


@dataclasses.dataclass(frozen=True)
class RewardWeights:
    """Weights of the five terms of an agent's reward in a step.

    Attributes:
      goal: times +1 when the agent enters its goal and -1 when it leaves it again, so that over
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
        for name, weight in vars(self).items():
            if not (isinstance(weight, int | float | np.number) and abs(float(weight)) <= 1e30):
                # Sums over the longest episode stay finite in float32.
                raise ValueError(
                    f"reward.{name}={weight!r}: allowed are numbers from -1e30 to 1e30"
                )


#: The default weights. A blocked agent has lost a step already.
DEFAULT_REWARDS = {"fail": RewardWeights(), "block": RewardWeights(violation=0.0)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapfFrozenLake:
    """A lake with holes, on which all agents have to be on their goals at the same time.

    An episode ends (`terminated`) when every agent is on its goal at the same time, or, under the
    rule "fail", when any agent breaks a rule; and it is cut off (`truncated`) after `max_steps`.
    An agent on its goal may move on, blocks the cell while it stays, and its cost is counted up
    to its last arrival. A move that breaks a rule is never carried out: under "fail" nobody moves
    in that step, under "block" the agents concerned stay (`dynamics.blocked_moves`), so agents
    always stand on free cells of their own.

    The options can be given to `mapf_jax.env.make`. The object is hashable: it may be a static
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

    def __post_init__(self) -> None:
        for name in ("size", "num_agents", "window", "max_steps"):
            if (value := getattr(self, name)) is not None:
                if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                    raise ValueError(f"{name}={value!r}: allowed are integers")
                object.__setattr__(self, name, int(value))
        if self.max_steps is None:
            object.__setattr__(self, "max_steps", 2 * self.size**2)
        if self.reward is None and self.conflict in CONFLICT_RULES:
            object.__setattr__(self, "reward", DEFAULT_REWARDS[self.conflict])
        most_agents, most_window = self.size**2, 2 * MAX_SIZE + 1
        for name, allowed, described in (
            ("size", range(MIN_SIZE, MAX_SIZE + 1), f"{MIN_SIZE} to {MAX_SIZE}"),
            ("num_agents", range(1, most_agents + 1), f"1 to {most_agents}"),
            ("max_steps", range(1, MAX_STEPS + 1), f"1 to {MAX_STEPS}"),
            ("conflict", CONFLICT_RULES, f"{CONFLICT_RULES}"),
            ("observation", observations.KINDS, f"{observations.KINDS}"),
            ("window", range(1, most_window + 1, 2), f"odd numbers from 1 to {most_window}"),
            ("action_mask", (False, True), "False and True"),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed are {described}")
        slips = self.slip_probability
        if not (isinstance(slips, int | float | np.number) and 0 <= float(slips) <= 1):
            raise ValueError(f"slip_probability={slips!r}: allowed are 0 to 1")
        if not isinstance(self.reward, RewardWeights):
            raise ValueError(f"reward={self.reward!r}: allowed is a RewardWeights")

    @property
    def action_space(self) -> spaces.Box:
        """One action for each agent: 0 up, 1 down, 2 left, 3 right, 4 wait."""
        return spaces.Box(0, len(dynamics.MOVES) - 1, (self.num_agents,), np.integer)

    @property
    def observation_space(self) -> spaces.Space:
        """Where the observations of a single environment lie."""
        return observations.space(self.observation, self.num_agents, self.size, self.window)

    @property
    def observation_space_of_agent(self) -> spaces.Space:
        """Where the view of one agent lies, `observations.of_agent`."""
        whole = self.observation_space
        if isinstance(whole, spaces.Box) and self.observation == "egocentric":
            return dataclasses.replace(whole, shape=whole.shape[1:])
        return whole

    @property
    def needs_key(self) -> bool:
        """Whether `step` needs a PRNG key."""
        return self.slip_probability > 0

    @property
    def num_cells(self) -> int:
        """Length of `State.terrain`."""
        return (self.size + 2) ** 2

    def reset(self, instance: Instance) -> tuple[State, TimeStep]:
        """The first state of a single instance's episode, and its time step.

        The instance must be legal (active agents on distinct free cells); this is not checked.

        Raises:
          ValueError: the instance does not have this environment's static shape.
        """
        state = self.initial_state(instance)
        return state, self.first_timestep(state)

    def step(
        self, state: State, actions: Array, key: jax.Array | None = None
    ) -> tuple[State, TimeStep]:
        """All agents act at once.

        Args:
          state: of a single environment.
          actions: int[A], 0 up, 1 down, 2 left, 3 right, 4 wait. Other numbers raise an error, but
            wait where they are traced, as in `jax.jit` and `jax.vmap`. `jax.vmap` takes no list.
          key: PRNG key if and only if `slip_probability` is above 0.

        Returns:
          (state, timestep). Nothing special happens after the end of an episode: further steps go
          on from where it stopped.

        Raises:
          ValueError: the actions have another shape or type or are not 0 to 4, or a key is missing
            or not needed.
        """
        actions = jnp.asarray(actions)
        if not jnp.issubdtype(actions.dtype, jnp.integer):
            raise ValueError(f"actions: of type {actions.dtype}, allowed are integers 0 to 4")
        chex.assert_shape(
            actions,
            (self.num_agents,),
            custom_message="actions of a single step; use jax.vmap for a batch",
            exception_type=ValueError,
        )
        check_actions("actions", actions)
        assert self.max_steps is not None  # Set in __post_init__, as is the reward.
        assert self.reward is not None
        moves = self._slipped(actions, key)
        wanted = dynamics.targets(state.cells, moves, self.size)
        codes = _terrain_at(state, wanted)
        fail = self.conflict == "fail"  # Nobody moves when anybody breaks a rule.
        judge = dynamics.cell_violations if fail else dynamics.blocked_moves
        violations = judge(state.cells, wanted, codes)
        broken = functools.reduce(jnp.bitwise_or, violations.values())
        failed = jnp.any(broken) & fail
        cells = jnp.where(broken | failed, state.cells, wanted)

        at_goal = cells == state.goals  # True of absent agents, too.
        was_at_goal = jnp.asarray(state.cells == state.goals)
        # The clock stops at the highest number there is, in case steps go on after the end.
        time = state.time + (state.time < np.iinfo(self.time_dtype).max).astype(self.time_dtype)
        costs = jnp.where(at_goal & was_at_goal, state.costs, time)
        success = jnp.all(at_goal) & ~failed
        after = dataclasses.replace(state, cells=cells, costs=costs, time=time)

        active = jnp.asarray(state.cells != dynamics.ABSENT)
        weights, rewards = self.reward, jnp.zeros((self.num_agents,), jnp.float32)
        for weight, term in (
            (weights.goal, at_goal.astype(jnp.int8) - was_at_goal.astype(jnp.int8)),
            (weights.step, costs - state.costs),
            (weights.violation, broken),
            (weights.team, success),
            (weights.team_violation, jnp.any(broken)),
        ):
            if weight:
                rewards += weight * term.astype(jnp.float32)
        shown = self.first_timestep(after)
        return after, dataclasses.replace(
            shown,
            reward=jnp.where(active, rewards, 0.0),
            terminated=success | failed,
            truncated=(time >= self.max_steps) & ~(success | failed),
            info=dataclasses.replace(
                shown.info,
                violation=dynamics.first_broken(violations),
                moves=moves.astype(jnp.int8),
                success=success,
            ),
        )

    def initial_state(self, instance: Instance) -> State:
        """The first state of a single instance, which must have the right static shape."""
        if not isinstance(instance, Instance):
            raise ValueError(
                f"instance: {type(instance).__name__}; allowed are instances of generate and draw; "
                "PoolAutoReset(env, instances) resets from a key alone"
            )
        if instance.batch_shape:
            raise ValueError(
                f"instance: a batch of shape {instance.batch_shape}; use jax.vmap, or one by index"
            )
        shape = (instance.blocked.shape[-1], instance.starts.shape[-2])
        if shape != (self.size, self.num_agents):
            raise ValueError(
                f"instance: (size, num_agents) is {shape}, but the environment's "
                f"{(self.size, self.num_agents)}; mapf_jax.pad_instance brings a smaller one to it"
            )
        return State(
            terrain=dynamics.terrain(instance),
            cells=dynamics.cell_numbers(instance.starts, instance.active, self.size),
            goals=dynamics.cell_numbers(instance.goals, instance.active, self.size),
            costs=jnp.zeros((self.num_agents,), self.time_dtype),
            time=jnp.zeros((), self.time_dtype),
        )

    def first_timestep(self, state: State) -> TimeStep:
        """The time step of the first state of an episode."""
        at_goal = jnp.asarray(state.cells == state.goals)  # True of absent agents, too.
        observation, action_mask = self.observe(state)
        return TimeStep(
            observation=observation,
            reward=jnp.zeros((self.num_agents,), jnp.float32),
            terminated=jnp.zeros((), bool),
            truncated=jnp.zeros((), bool),
            final_observation=observation,
            action_mask=action_mask,
            info=StepInfo(
                violation=jnp.zeros((self.num_agents,), jnp.uint8),
                moves=jnp.full((self.num_agents,), dynamics.WAIT, jnp.int8),
                at_goal=at_goal & (state.cells != dynamics.ABSENT),
                success=jnp.all(at_goal),
                costs=state.costs.astype(jnp.int32),
            ),
        )

    def observe(self, state: State) -> tuple[Any, jax.Array | None]:
        """What agents see of a state: (observation, action mask if the environment has one)."""
        observation = observations.observe(self.observation, state, self.size, self.window)
        if not self.action_mask:
            return observation, None
        actions = jnp.arange(len(dynamics.MOVES))
        cells = jnp.repeat(state.cells, len(actions))
        ahead = dynamics.targets(cells, jnp.tile(actions, self.num_agents), self.size)
        codes = _terrain_at(state, ahead).reshape(self.num_agents, len(actions))
        return observation, (codes == dynamics.FREE) | (actions == dynamics.WAIT)

    @property
    def time_dtype(self) -> np.dtype:
        """The type of times and costs in a state."""
        assert self.max_steps is not None
        return np.min_scalar_type(self.max_steps)

    def positions(self, state: State) -> jax.Array:
        """int8[..., A, 2], (row, column) of the agents; (-1, -1) for absent ones."""
        return dynamics.cell_positions(state.cells, self.size)

    def _slipped(self, actions: jax.Array, key: jax.Array | None) -> jax.Array:
        """The moves that the actions lead to."""
        if self.needs_key != (key is not None):
            needed = "needs a PRNG key" if self.needs_key else "takes no key"
            raise ValueError(f"key: with slip_probability={self.slip_probability} step {needed}")
        if key is None:
            return actions
        draw = jax.random.uniform(key, actions.shape, jnp.float32)
        slips = (draw < self.slip_probability) & (actions >= 0) & (actions < dynamics.WAIT)
        # The two moves across: left and right for up and down, and the other way round.
        first = jnp.where(actions < dynamics.LEFT, dynamics.LEFT, dynamics.UP)
        other = draw < self.slip_probability / 2
        return jnp.where(slips, first + other.astype(jnp.int32), actions).astype(actions.dtype)


def _terrain_at(state: State, cells: jax.Array) -> jax.Array:
    """uint8[n], the kinds of numbered cells."""
    index = cells if state.offset is None else state.offset + cells.astype(jnp.int32)
    # Moves from free cells lead at most into the border, so no index is out of bounds.
    return jnp.asarray(state.terrain).at[index].get(mode="promise_in_bounds")


# By name, the options that differ from the environment's own defaults.
_REGISTRY: dict[str, dict[str, Any]] = {
    "MapfFrozenLake-v0": {},
    "MapfFrozenLakeBlock-v0": {"conflict": "block"},
    # As slippery as Gymnasium's FrozenLake: a move goes where it should one time in three.
    "MapfFrozenLakeSlippery-v0": {"conflict": "block", "slip_probability": 2 / 3},
}


def registered_envs() -> tuple[str, ...]:
    """The names that `make` knows, sorted."""
    return tuple(sorted(_REGISTRY))


def make(name: str, **options: Any) -> MapfFrozenLake:
    """An environment by name.

    Args:
      name: one of `registered_envs()`.
      **options: those of `MapfFrozenLake`.

    Raises:
      ValueError: the name or an option is unknown (near ones are named) or out of range.
    """
    _check_known("name", name, _REGISTRY)
    for option in options:
        _check_known("option", option, [field.name for field in dataclasses.fields(MapfFrozenLake)])
    return MapfFrozenLake(**{**_REGISTRY[name], **options})


def check_environment(env: Any) -> None:
    """Raises `ValueError` unless `env` is an environment: its name, for example, is none."""
    if not isinstance(env, MapfFrozenLake):
        name = env if isinstance(env, str) else next(iter(_REGISTRY))
        raise ValueError(f"env={env!r}: allowed are environments, mapf_jax.env.make({name!r}, ...)")


def check_actions(name: str, actions: Any) -> None:
    """Raises `ValueError` for a number that is no action; traced values are not known yet."""
    if isinstance(actions, jax.core.Tracer):
        return
    given = np.asarray(actions)
    if given.dtype.kind not in "iu" or not np.isin(given, range(len(dynamics.MOVES))).all():
        raise ValueError(
            f"{name}={given.tolist()}: allowed are 0 up, 1 down, 2 left, 3 right, 4 wait, as "
            "integers"
        )


def _check_known(what: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        near = difflib.get_close_matches(word, known, n=3, cutoff=0.5) or known
        raise ValueError(f"{what}={word!r}: did you mean {' or '.join(map(repr, near))}?")
