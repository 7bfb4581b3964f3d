"""What the adapters share: one environment played from Python, and spaces of Gymnasium."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.draw import render
from mapf_jax.env import spaces
from mapf_jax.env.environment import MapfFrozenLake
from mapf_jax.env.random_instances import draw_instance
from mapf_jax.env.wrappers import RandomAutoReset
from mapf_jax.environment_config import num_holes
from mapf_jax.padding import pad_instance
from mapf_jax.types import Instance, State, TimeStep


def gymnasium_space(space: spaces.Space) -> gymnasium.Space:
    """The space of Gymnasium with the same members; truth values become int8 0 and 1."""
    if isinstance(space, spaces.MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete([space.n] * space.length)
    if isinstance(space, spaces.Dict):
        return gymnasium.spaces.Dict(
            {name: gymnasium_space(part) for name, part in space.spaces.items()}
        )
    if np.dtype(space.dtype) == np.bool_:
        return gymnasium.spaces.MultiBinary(space.shape)
    return gymnasium.spaces.Box(space.low, space.high, space.shape, space.dtype)


def as_numpy(value: Any) -> Any:
    """A pytree of arrays as a pytree of NumPy arrays of one's own, truth values as int8."""

    def converted(leaf: Any) -> np.ndarray:
        array = np.array(leaf)
        return array.astype(np.int8) if array.dtype == np.bool_ else array

    return jax.tree.map(converted, value)


def random_key(rng: np.random.Generator) -> jax.Array:
    """A PRNG key drawn by a NumPy generator."""
    return jax.random.key(jnp.asarray(rng.integers(1 << 32, dtype=np.uint32)))


class Host:
    """Plays single episodes with compiled `reset` and `step`.

    Args:
      env: the environment.
      instances: a batch of which a random one is played in each episode; None for random lakes
        on which every goal can be reached from its start (`draw_instance`).
      hole_ratio: of the random lakes.
      render_mode: None or "ansi" (text).

    Raises:
      ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        env: MapfFrozenLake,
        instances: Instance | None,
        hole_ratio: float,
        render_mode: str | None,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise ValueError(f"render_mode={render_mode!r}: allowed are None and 'ansi'")
        if instances is not None and (len(instances.batch_shape) != 1 or not len(instances)):
            raise ValueError(
                f"instances: the batch shape is {instances.batch_shape}, a batch of at least one "
                "is needed"
            )
        self.env = env
        self.render_mode = render_mode
        self._instances = None
        if instances is None:
            hole_ratio = RandomAutoReset(env, hole_ratio).hole_ratio  # It is checked there.
        else:
            padded = pad_instance(instances, env.size, env.num_agents)
            self._instances = jax.tree.map(np.asarray, padded)
        holes = num_holes(hole_ratio, env.size)
        self._draw = jax.jit(lambda key: draw_instance(key, env.size, env.num_agents, holes))
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        self._state: State | None = None
        self._instance: Instance | None = None

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any] | None) -> TimeStep:
        """A new episode, of `options["instance"]` if there is one; its first time step."""
        instance = (options or {}).get("instance")
        if instance is not None:
            instance = pad_instance(instance, self.env.size, self.env.num_agents)
        elif self._instances is not None:
            instance = self._instances[int(rng.integers(len(self._instances)))]
        else:
            instance = self._draw(random_key(rng))
        if self.env.needs_key:
            self._slip_key = random_key(rng)
        self._instance = instance
        self._state, timestep = self._reset(instance)
        return timestep

    def step(self, actions: Any) -> TimeStep:
        """One step of the episode.

        Raises:
          ValueError: no episode has begun.
        """
        if self._state is None:
            raise ValueError("step was called before reset")
        key = None
        if self.env.needs_key:
            self._slip_key, key = jax.random.split(self._slip_key)
        # One type for all callers, so that the step is compiled once.
        self._state, timestep = self._step(self._state, np.asarray(actions, np.int32), key)
        return timestep

    @property
    def active(self) -> np.ndarray:
        """bool[A], the agents of this episode."""
        assert self._instance is not None
        return np.asarray(self._instance.active)

    def render(self) -> str | None:
        """The lake as text, with the agents where they are now, if `render_mode` is "ansi"."""
        if self.render_mode is None or self._instance is None or self._state is None:
            return None
        positions = np.asarray(self.env.positions(self._state))
        here = dataclasses.replace(self._instance, starts=positions, solution=None)
        return render.as_text(jax.tree.map(np.asarray, here))
