"""The simulator as a Gymnasium environment, single and vectorised.

One actor moves all agents: an action is a vector with one move for each, the reward the sum of
theirs (each one's own is in `info["rewards"]`).
"""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mapf_jax.env.environment import MapfFrozenLake
from mapf_jax.env.host import Host, as_numpy, gymnasium_space, random_key
from mapf_jax.env.wrappers import Batched, PoolAutoReset
from mapf_jax.types import Instance, TimeStep


def _info(timestep: TimeStep) -> dict[str, np.ndarray]:
    """The parts of a time step that have no place of their own in Gymnasium."""
    step = timestep.info
    info = {
        "rewards": np.array(timestep.reward),
        "violation": np.array(step.violation),
        "at_goal": np.array(step.at_goal),
        "success": np.array(step.success),
        "costs": np.array(step.costs),
    }
    if timestep.action_mask is not None:
        info["action_mask"] = np.array(timestep.action_mask, np.int8)
    return info


class MapfGymEnv(gymnasium.Env):
    """One environment.

    `reset(options={"instance": instance})` plays a given single instance.

    Args:
      env: from `mapf_jax.env.make`.
      instances: a batch to play random ones of; random lakes if None.
      hole_ratio: of the random lakes.
      render_mode: None or "ansi" (text).
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - Gymnasium's own form.

    def __init__(
        self,
        env: MapfFrozenLake,
        instances: Instance | None = None,
        hole_ratio: float = 0.2,
        render_mode: str | None = None,
    ) -> None:
        self._host = Host(env, instances, hole_ratio, render_mode)
        self.render_mode = render_mode
        self.observation_space = gymnasium_space(env.observation_space)
        self.action_space = gymnasium_space(env.action_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As of Gymnasium."""
        super().reset(seed=seed)
        timestep = self._host.reset(self.np_random, options)
        return as_numpy(timestep.observation), _info(timestep)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As of Gymnasium."""
        timestep = self._host.step(action)
        return (
            as_numpy(timestep.observation),
            float(timestep.reward.sum()),
            bool(timestep.terminated),
            bool(timestep.truncated),
            _info(timestep),
        )

    def render(self) -> str | None:
        """The lake as text if `render_mode` is "ansi"."""
        return self._host.render()


class MapfVectorEnv(VectorEnv):
    """Many environments in one compiled program, each playing instances of a pool in turn.

    The autoreset mode is SAME_STEP: where an episode ends, the observation is the first of the
    next one, `info["final_obs"]` holds the last one of every environment (worth reading where
    `info["_final_obs"]` is True) and `info["final_info"]` what else is known of its last step. At
    the top level, `info["action_mask"]` is of the observation and so of the next episode; all else
    is of the step that was made, that is of the episode that ended.

    Args:
      env: from `mapf_jax.env.make`.
      instances: the pool, a batch.
      num_envs: how many.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(self, env: MapfFrozenLake, instances: Instance, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: at least 1 is needed")
        self.num_envs = num_envs
        self.single_observation_space = gymnasium_space(env.observation_space)
        self.single_action_space = gymnasium_space(env.action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._env = env
        wrapper = PoolAutoReset(env)
        self._pool = wrapper.pool(instances)
        batched = Batched(wrapper)
        self._reset, self._step = jax.jit(batched.reset), jax.jit(batched.step)
        self._state: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As of Gymnasium; no options are known."""
        if seed is not None or self._state is None:
            super().reset(seed=seed)
        key, self._slip_key = jax.random.split(random_key(self.np_random))
        self._state, timestep = self._reset(self._pool, jax.random.split(key, self.num_envs))
        return as_numpy(timestep.observation), _info(timestep)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """As of Gymnasium."""
        if self._state is None:
            raise ValueError("step was called before reset")
        arguments: tuple[Any, ...] = (self._state, np.asarray(actions, np.int32), self._pool)
        if self._env.needs_key:
            self._slip_key, key = jax.random.split(self._slip_key)
            arguments += (jax.random.split(key, self.num_envs),)
        self._state, timestep = self._step(*arguments)
        info: dict[str, Any] = _info(timestep)
        done = np.array(timestep.done)
        if done.any():
            info |= {
                "final_obs": as_numpy(timestep.final_observation),
                "_final_obs": done,
                "final_info": {k: v for k, v in info.items() if k != "action_mask"},
                "_final_info": done,
            }
        return (
            as_numpy(timestep.observation),
            np.asarray(timestep.reward, np.float64).sum(axis=-1),
            np.array(timestep.terminated),
            np.array(timestep.truncated),
            info,
        )
