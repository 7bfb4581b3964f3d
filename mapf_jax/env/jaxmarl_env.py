"""The simulator in the form of JaxMARL's environments: dictionaries by agent, `reset(key)`."""

import contextlib
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.dynamics import MOVES, WAIT
from mapf_jax.env import observations, spaces
from mapf_jax.env.default_lakes import default_lakes
from mapf_jax.env.environment import MapfFrozenLake, check_actions, check_environment
from mapf_jax.env.wrappers import PoolAutoReset, PoolState
from mapf_jax.types import Array, Instance


class MapfJaxMarlEnv:
    """The interface that JaxMARL's trainers and wrappers need; JaxMARL itself is not needed.

    A single environment, for `jax.vmap`. Each agent, `agent_0`, `agent_1` and so on, sees
    `observations.of_agent`, as one vector unless `flat` is False: the arrays of a mapping in the
    order of their names. All are done at the same time, and the next episode then begins with
    another instance. Agents that an instance does not have stay where they are, without a reward.

    Attributes:
      num_agents: A.
      agents: their names.
      observation_spaces, action_spaces: by agent; a Box and a Discrete of gymnax if that is there,
        as with JaxMARL, whose wrappers look for them.

    Args:
      env: from `mapf_jax.env.make`.
      instances: a batch; an episode plays one, drawn uniformly. None as of `MapfGymEnv`.
      flat: views are vectors f32[n], as JaxMARL's networks and its `CTRolloutManager` expect.
    """

    name = "MapfFrozenLake"

    def __init__(
        self, env: MapfFrozenLake, instances: Instance | None = None, flat: bool = True
    ) -> None:
        check_environment(env)
        self._env = env
        self._flat = flat
        self._wrapper = PoolAutoReset(env, default_lakes(env) if instances is None else instances)
        self.num_agents = env.num_agents
        self.agents = [f"agent_{i}" for i in range(env.num_agents)]
        seen, acts = env.observation_space_of_agent, spaces.Box(0, len(MOVES) - 1, (), np.integer)
        self.observation_spaces = dict.fromkeys(
            self.agents, _of_gymnax(_flattened(seen) if flat else seen)
        )
        self.action_spaces = dict.fromkeys(self.agents, _of_gymnax(acts))

    def observation_space(self, agent: str) -> Any:
        """What an agent may see."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """What an agent may do: 0 up, 1 down, 2 left, 3 right, 4 wait."""
        return self.action_spaces[agent]

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key: jax.Array) -> tuple[dict[str, Any], PoolState]:
        """The first episode: views by agent, and the state."""
        state, timestep = self._wrapper.reset(key)
        return self._views(timestep.observation), state

    def step(
        self, key: jax.Array, state: PoolState, actions: dict[str, Array]
    ) -> tuple[dict[str, Any], PoolState, dict[str, Array], dict[str, Array], dict[str, Array]]:
        """All agents act at once.

        Args:
          key: PRNG key, used where moves may slip.
          state: of the last call.
          actions: int[] by agent; one without an action waits.

        Returns:
          Views, state, rewards float32[] and ends bool[] by agent (ends also under "__all__"), and
          facts about the episode of this step, an array [A] each: `success`, `truncated`, `costs`,
          `violation`, `at_goal`.

        Raises:
          ValueError: an action is none (traced ones, as in `jax.jit` and `jax.vmap`, wait instead),
            or it is of an agent that does not exist.
        """
        if strangers := set(actions) - set(self.agents):
            raise ValueError(f"actions: {sorted(strangers)} do not exist, only {self.agents}")
        for agent, action in actions.items():
            check_actions(f"actions[{agent!r}]", action)
        return self._step(key, state, actions)

    @functools.partial(jax.jit, static_argnums=0)
    def _step(self, key: jax.Array, state: PoolState, actions: dict[str, Array]) -> Any:
        joint = jnp.stack([jnp.asarray(actions.get(agent, WAIT)) for agent in self.agents])
        slip_key = key if self._env.needs_key else None
        state, timestep = self._wrapper.step(state, joint, key=slip_key)
        info, everyone = timestep.info, (self.num_agents,)
        facts = {
            "success": jnp.broadcast_to(info.success, everyone),
            "truncated": jnp.broadcast_to(timestep.truncated, everyone),
            "costs": info.costs,
            "violation": info.violation,
            "at_goal": info.at_goal,
        }
        done = dict.fromkeys([*self.agents, "__all__"], timestep.done)
        rewards = {agent: timestep.reward[i] for i, agent in enumerate(self.agents)}
        return self._views(timestep.observation), state, rewards, done, facts

    def get_avail_actions(self, state: PoolState) -> dict[str, Array]:
        """bool[5] by agent: which moves stay on free cells, if the environment has such a mask."""
        mask = self._wrapper.observe(state)[1]
        if mask is None:
            mask = jnp.ones((self.num_agents, len(MOVES)), bool)
        return {agent: mask[i] for i, agent in enumerate(self.agents)}

    def get_obs(self, state: PoolState) -> dict[str, Any]:
        """Views by agent."""
        return self._views(self._wrapper.observe(state)[0])

    def _views(self, observation: Any) -> dict[str, Any]:
        kind = self._env.observation
        views = {
            agent: observations.of_agent(kind, observation, i)
            for i, agent in enumerate(self.agents)
        }
        if not self._flat:
            return views
        return {
            agent: jnp.concatenate(
                [jnp.ravel(part).astype(jnp.float32) for part in jax.tree.leaves(view)]
            )
            for agent, view in views.items()
        }


def _flattened(space: spaces.Space) -> spaces.Box:
    """Where vectors of a space's values lie."""
    boxes = [space] if isinstance(space, spaces.Box) else list(space.spaces.values())
    return spaces.Box(
        min(box.low for box in boxes),
        max(box.high for box in boxes),
        (sum(math.prod(box.shape) for box in boxes),),
        np.float32,
    )


def _of_gymnax(space: spaces.Space) -> Any:
    """The same space as gymnax has it; unchanged if that is not installed."""
    with contextlib.suppress(ImportError):
        from gymnax.environments import spaces as theirs

        if not isinstance(space, spaces.Box):
            return theirs.Dict({name: _of_gymnax(box) for name, box in space.spaces.items()})
        if not space.shape:
            return theirs.Discrete(space.n)
        return theirs.Box(space.low, space.high, space.shape, space.dtype)
    return space
