"""Environments that start the next episode by themselves, and a log of episodes.

Where a step ends an episode, `observation` and `action_mask` are already those of the next one;
`final_observation`, `reward`, `terminated`, `truncated` and `info` are those of the episode that
ended (the contract of Gymnasium's vector environments in SAME_STEP mode and of gymnax 1.0).

`PoolAutoReset` takes the next instance from a pool: its own, or an argument of `reset` and `step`,
which can change at any time without recompiling. `LogEpisodes` wraps it. Like the simulator, each
is a single environment, and `jax.vmap` makes a batch of it. All environments share a pool with
`in_axes=(0, None)` for `reset` and `(0, 0, None)` for `step`. With 0 in place of None each has its
own pool, stacked along a leading axis; a pool of one instance repeats it.
"""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.env import observations
from mapf_jax.env.environment import MapfFrozenLake, check_environment
from mapf_jax.padding import pad_instance
from mapf_jax.types import Array, Instance, State, TimeStep


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pool:
    """N instances as the simulator reads them, shared by a batch of environments.

    Attributes:
      terrain: uint8[N * (S + 2) * (S + 2)], as in `State`, one lake after the other.
      starts: unsigned [N, A], numbers of the start cells.
      goals: unsigned [N, A], likewise.
      blocked: bool[N, S * S], cells that are not free; observations are faster from these than from
        a terrain with its border.
    """

    terrain: Array
    starts: Array
    goals: Array
    blocked: Array

    def __len__(self) -> int:
        return self.starts.shape[0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PoolState:
    """State of `PoolAutoReset`.

    Attributes:
      episode: the current episode; its terrain stays in the pool.
      index: int32[...], the instance in the pool.
      stream: uint32[...], names the sequence of instances; never changes.
      count: uint32[...], episodes before this one.
    """

    episode: State
    index: Array
    stream: Array
    count: Array


class _Wrapper:
    """Forwards the attributes of what it wraps, such as `num_agents` and the spaces."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("_"):  # Not there yet, or private.
            raise AttributeError(name)
        return getattr(self.env, name)


class PoolAutoReset(_Wrapper):
    """Continues `env` with another instance of a pool, drawn uniformly by a hash of a counter.

    A hash costs next to nothing; a PRNG key in every step would be most of the work. The key given
    to `reset` alone determines the sequence of instances.

    Args:
      env: the environment.
      instances: a batch for its own pool; without it, `reset` and `step` need a pool.
    """

    env: MapfFrozenLake

    def __init__(self, env: MapfFrozenLake, instances: Instance | None = None) -> None:
        check_environment(env)
        super().__init__(env)
        self._own = None if instances is None else self.pool(instances)

    def pool(self, instances: Instance) -> Pool:
        """Prepares a batch of instances, narrower ones and ones with fewer agents included.

        Raises:
          ValueError: they are no batch or too many, or larger than the environment.
        """
        most = np.iinfo(np.int32).max // self.env.num_cells
        if len(instances.batch_shape) != 1 or not 1 <= len(instances) <= most:
            raise ValueError(
                f"instances: the batch shape is {instances.batch_shape}, a batch is needed, of 1 "
                f"to {most}"
            )
        padded = pad_instance(instances, self.env.size, self.env.num_agents)
        states = jax.jit(jax.vmap(self.env.initial_state))(padded)
        blocked = observations.blocked_cells(states.terrain, self.env.size)
        return Pool(jnp.ravel(states.terrain), states.cells, states.goals, blocked)

    def reset(self, key: jax.Array, pool: Pool | None = None) -> tuple[PoolState, TimeStep]:
        """The first episode of the sequence that the key names."""
        pool = self._given(pool)
        stream = jax.random.bits(key, (), jnp.uint32)
        state = self._start(pool, stream, jnp.zeros((), jnp.uint32))
        return state, self.env.first_timestep(self._episode(pool, state))

    def step(
        self,
        state: PoolState,
        actions: Array,
        pool: Pool | None = None,
        key: jax.Array | None = None,
    ) -> tuple[PoolState, TimeStep]:
        """As `MapfFrozenLake.step`, then a new episode if one ended."""
        pool = self._given(pool)
        after, timestep = self.env.step(self._episode(pool, state), actions, key)
        after = dataclasses.replace(after, terrain=None, offset=None, blocked=None)
        going_on = dataclasses.replace(state, episode=after)
        first = self._start(pool, state.stream, state.count + jnp.uint32(1))
        state = jax.tree.map(functools.partial(jnp.where, timestep.done), first, going_on)
        observation, action_mask = self.observe(state, pool)
        shown = dataclasses.replace(timestep, observation=observation, action_mask=action_mask)
        return state, shown

    def observe(self, state: PoolState, pool: Pool | None = None) -> tuple[Any, jax.Array | None]:
        """As `MapfFrozenLake.observe`."""
        return self.env.observe(self._episode(self._given(pool), state))

    def _given(self, pool: Pool | None) -> Pool:
        pool = self._own if pool is None else pool
        if pool is None:
            raise ValueError("pool=None: PoolAutoReset(env) has no instances of its own")
        if not isinstance(pool, Pool):
            raise ValueError(
                f"pool: of type {type(pool).__name__}, allowed is what `pool(instances)` returns; "
                "a key for slips must be named: step(state, actions, key=key)"
            )
        chex.assert_shape([pool.starts, pool.goals], (None, self.env.num_agents))
        return pool

    def _start(self, pool: Pool, stream: Array, count: Array) -> PoolState:
        # An odd factor and an own offset keep the streams of two environments apart.
        index = _below(_mixed(jnp.asarray(count * (stream | 1) + stream)), len(pool))
        starts, goals = (
            jnp.asarray(cells).at[index].get(mode="promise_in_bounds")
            for cells in (pool.starts, pool.goals)
        )
        time = jnp.zeros((), self.env.time_dtype)
        episode = State(None, starts, goals, jnp.zeros_like(starts, time.dtype), time)
        return PoolState(episode, index, jnp.asarray(stream), jnp.asarray(count))

    def _episode(self, pool: Pool, state: PoolState) -> State:
        """The current episode with its lake, which is not copied out of the pool."""
        offset = state.index * self.env.num_cells
        # A row, not a slice: XLA for TPUs copies slices of a batch one after the other.
        blocked = jnp.asarray(pool.blocked).at[state.index].get(mode="promise_in_bounds")
        return dataclasses.replace(
            state.episode, terrain=pool.terrain, offset=offset, blocked=blocked
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LogState:
    """State of `LogEpisodes`, about the episode of the last step, which may have ended it.

    Attributes:
      inner: state of what is wrapped.
      rewards: float32[..., A], summed over the episode's steps so far.
      length: int32[...], number of these steps.
      done: bool[...], the last step ended the episode.
    """

    inner: Any
    rewards: Array
    length: Array
    done: Array


class LogEpisodes(_Wrapper):
    """Keeps an episode's rewards and length in the state; `TimeStep.info` has its cost and success.

    `reset` and `step` pass all arguments to the wrapped environment or `PoolAutoReset`.
    """

    def reset(self, *arguments: Any, **named: Any) -> tuple[LogState, TimeStep]:
        """`reset` of the wrapped environment, with empty sums."""
        inner, timestep = self.env.reset(*arguments, **named)
        zeros = jnp.zeros_like(timestep.reward), jnp.zeros((), jnp.int32)
        return LogState(inner, *zeros, jnp.zeros((), bool)), timestep

    def step(self, state: LogState, *arguments: Any, **named: Any) -> tuple[LogState, TimeStep]:
        """`step` of the wrapped environment; the sums restart after an episode's last step."""
        inner, timestep = self.env.step(state.inner, *arguments, **named)
        rewards = jnp.where(state.done, 0.0, state.rewards) + timestep.reward
        length = jnp.where(state.done, 0, state.length) + 1
        return LogState(inner, rewards, length, timestep.done), timestep


def _mixed(bits: jax.Array) -> jax.Array:
    """A hash of uint32 to uint32: xorshift and multiply, constants of Wellons's `lowbias32`."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def _below(bits: jax.Array, bound: int) -> jax.Array:
    """int32, `bits * bound / 2^32` rounded down: uniform below `bound` for uniform uint32 bits.

    The product is put together from halves, since JAX has no 64-bit integers by default.
    """
    high, low = bits >> 16, bits & 0xFFFF
    bound_high, bound_low = bound >> 16, bound & 0xFFFF
    carry = (low * jnp.uint32(bound_low)) >> 16
    middle = high * jnp.uint32(bound_low) + carry
    cross = low * jnp.uint32(bound_high) + (middle & 0xFFFF)
    return (high * jnp.uint32(bound_high) + (middle >> 16) + (cross >> 16)).astype(jnp.int32)
