"""The simulator as a Gymnasium environment, single and vectorised.

`import mapf_jax` registers the names of `mapf_jax.env` with Gymnasium, for `gymnasium.make` and
`gymnasium.make_vec`. Pickled environments begin anew. One actor moves all agents: an action is a
vector with one move for each, the reward the sum of the agents' rewards (which are in
`info["rewards"]`).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.draw import render
from mapf_jax.env import spaces
from mapf_jax.env.default_lakes import default_lakes
from mapf_jax.env.environment import (
    MapfFrozenLake,
    check_actions,
    check_environment,
    make,
)
from mapf_jax.env.wrappers import PoolAutoReset
from mapf_jax.padding import pad_instance
from mapf_jax.text import letters_of
from mapf_jax.types import Instance, State, TimeStep

try:
    import gymnasium
    from gymnasium.utils import EzPickle
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ModuleNotFoundError as error:
    text = "MapfGymEnv needs Gymnasium; in a clone of the project: pip install -e '.[gymnasium]'"
    raise ImportError(text) from error


def gymnasium_space(space: spaces.Space) -> gymnasium.Space:
    """The space of Gymnasium with the same members; truth values become int8 0 and 1."""
    if isinstance(space, spaces.Dict):
        return gymnasium.spaces.Dict(
            {name: gymnasium_space(part) for name, part in space.spaces.items()}
        )
    if space.dtype is np.integer:  # Actions.
        return gymnasium.spaces.MultiDiscrete(np.full(space.shape, space.high + 1))
    if np.dtype(space.dtype) == np.bool_:
        return gymnasium.spaces.MultiBinary(space.shape)
    return gymnasium.spaces.Box(space.low, space.high, space.shape, space.dtype)


RENDER_MODES = ["ansi", "rgb_array"]


class MapfGymEnv(gymnasium.Env, EzPickle):
    """One environment.

    `reset(options={"instance": instance})` plays a given single instance.

    Args:
      env: from `mapf_jax.env.make`.
      instances: a batch to play random ones of; by default lakes as large as the environment, a
        fifth of whose cells are holes.
      render_mode: None, "ansi" (text) or "rgb_array" (uint8[height, width, 3], needs Pillow).

    Raises:
      ValueError: an argument is out of its range, or text has too few letters for the agents.
    """

    metadata = {"render_modes": RENDER_MODES, "render_fps": 4}  # noqa: RUF012 - Its form.

    def __init__(
        self,
        env: MapfFrozenLake,
        instances: Instance | None = None,
        render_mode: str | None = None,
    ) -> None:
        EzPickle.__init__(self, env, instances, render_mode)
        check_environment(env)
        if render_mode not in (None, *RENDER_MODES):
            raise ValueError(f"render_mode={render_mode!r}: allowed are None and {RENDER_MODES}")
        if render_mode == "ansi":
            letters_of(env.num_agents - 1)
        if instances is None:
            instances = default_lakes(env)
        if len(instances.batch_shape) != 1 or not len(instances):
            raise ValueError(f"instances: of shape {instances.batch_shape}, a batch is needed")
        self.render_mode = render_mode
        self.observation_space = gymnasium_space(env.observation_space)
        self.action_space = gymnasium_space(env.action_space)
        self._env = env
        padded = pad_instance(instances, env.size, env.num_agents)
        self._instances = jax.tree.map(np.asarray, padded)
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        self._instance: Instance | None = None
        self._state: State | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As of Gymnasium."""
        super().reset(seed=seed)
        instance = (options or {}).get("instance")
        if instance is not None:
            instance = pad_instance(instance, self._env.size, self._env.num_agents)
        else:
            instance = self._instances[int(self.np_random.integers(len(self._instances)))]
        if self._env.needs_key:
            self._slip_key = _random_key(self.np_random)
        self._state, timestep = self._reset(instance)
        self._instance = instance
        return _as_numpy(timestep.observation), _info(timestep)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As of Gymnasium."""
        if self._state is None:
            raise ValueError("step was called before reset")
        key = None
        if self._env.needs_key:
            self._slip_key, key = jax.random.split(self._slip_key)
        self._state, timestep = self._step(self._state, _checked(action), key)
        return (
            _as_numpy(timestep.observation),
            float(timestep.reward.sum()),
            bool(timestep.terminated),
            bool(timestep.truncated),
            _info(timestep),
        )

    def render(self) -> str | np.ndarray | None:
        """The lake with the agents where they are now, as `render_mode` says."""
        if self.render_mode is None or self._instance is None or self._state is None:
            return None
        positions = np.asarray(self._env.positions(self._state))
        here = dataclasses.replace(self._instance, starts=positions, solution=None)
        here = jax.tree.map(np.asarray, here)
        if self.render_mode == "ansi":
            return render.as_text(here)
        from mapf_jax.draw import image  # Needs Pillow.

        return np.asarray(image.picture(here))

    @property
    def active(self) -> np.ndarray:
        """bool[A], the agents of this episode."""
        assert self._instance is not None
        return np.asarray(self._instance.active)


class MapfVectorEnv(VectorEnv, EzPickle):
    """Many environments in one compiled program, each playing instances of a pool in turn.

    The autoreset mode is SAME_STEP: where an episode ends, the observation is the first of the
    next one, `info["final_obs"]` holds the last one of every environment (worth reading where
    `info["_final_obs"]` is True) and `info["final_info"]` what else is known of its last step. At
    the top level, `info["action_mask"]` belongs to the observation and so to the next episode; all
    else belongs to the last step, and so to the episode that ended.

    Args:
      env: from `mapf_jax.env.make`.
      instances: the pool, a batch; None as of `MapfGymEnv`.
      num_envs: how many.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(self, env: MapfFrozenLake, instances: Instance | None, num_envs: int) -> None:
        EzPickle.__init__(self, env, instances, num_envs)
        check_environment(env)
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: at least 1 is needed")
        self.num_envs = num_envs
        self.single_observation_space = gymnasium_space(env.observation_space)
        self.single_action_space = gymnasium_space(env.action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._env = env
        wrapper = PoolAutoReset(env, default_lakes(env) if instances is None else instances)
        self._reset = jax.jit(jax.vmap(wrapper.reset))
        self._step = jax.jit(jax.vmap(wrapper.step, in_axes=(0, 0, None, 0)))
        self._state: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As of Gymnasium; no options are known."""
        if seed is not None or self._state is None:
            super().reset(seed=seed)
        key, self._slip_key = jax.random.split(_random_key(self.np_random))
        self._state, timestep = self._reset(jax.random.split(key, self.num_envs))
        return _as_numpy(timestep.observation), _info(timestep)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """As of Gymnasium."""
        if self._state is None:
            raise ValueError("step was called before reset")
        keys = None
        if self._env.needs_key:
            self._slip_key, key = jax.random.split(self._slip_key)
            keys = jax.random.split(key, self.num_envs)
        self._state, timestep = self._step(self._state, _checked(actions), None, keys)
        info: dict[str, Any] = _info(timestep)
        done = np.array(timestep.done)
        if done.any():
            info |= {
                "final_obs": _as_numpy(timestep.final_observation),
                "_final_obs": done,
                "final_info": {k: v for k, v in info.items() if k != "action_mask"},
                "_final_info": done,
            }
        return (
            _as_numpy(timestep.observation),
            np.asarray(timestep.reward, np.float64).sum(axis=-1),
            np.array(timestep.terminated),
            np.array(timestep.truncated),
            info,
        )


def _checked(actions: Any) -> np.ndarray:
    """Actions in one type for all callers, so that the step is compiled once."""
    check_actions("action", actions)
    return np.asarray(actions).astype(np.int32)


def _info(timestep: TimeStep) -> dict[str, np.ndarray]:
    """The parts of a time step that Gymnasium has no other place for."""
    info = {"rewards": np.array(timestep.reward)}
    for name in ("violation", "at_goal", "success", "costs"):
        info[name] = np.array(getattr(timestep.info, name))
    if timestep.action_mask is not None:
        info["action_mask"] = np.array(timestep.action_mask, np.int8)
    return info


def _as_numpy(value: Any) -> Any:
    """A pytree of arrays copied to NumPy, truth values as int8."""

    def converted(leaf: Any) -> np.ndarray:
        array = np.array(leaf)
        return array.astype(np.int8) if array.dtype == np.bool_ else array

    return jax.tree.map(converted, value)


def _random_key(rng: np.random.Generator) -> jax.Array:
    """A PRNG key drawn by a NumPy generator."""
    return jax.random.key(jnp.asarray(rng.integers(1 << 32, dtype=np.uint32)))


def made(name: str, render_mode: str | None = None, **options: Any) -> MapfGymEnv:
    """An environment by name, for `gymnasium.make`; options as of `mapf_jax.env.make`."""
    instances = options.pop("instances", None)
    return MapfGymEnv(make(name, **options), instances, render_mode)


def made_vector(
    name: str, num_envs: int = 1, render_mode: None = None, **options: Any
) -> MapfVectorEnv:
    """Several environments by name, for `gymnasium.make_vec`."""
    if render_mode is not None:
        raise ValueError(f"render_mode={render_mode!r}: vector environments do not render")
    instances = options.pop("instances", None)
    return MapfVectorEnv(make(name, **options), instances, num_envs)
