"""Whole episodes as plans, to verify and to draw."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mapf_jax.draw import render
from mapf_jax.dynamics import MOVES
from mapf_jax.env.environment import MapfFrozenLake
from mapf_jax.types import Instance, Plan


def rollout(
    env: MapfFrozenLake,
    instance: Instance,
    policy: Callable[[jax.Array, Any], Any],
    key: jax.Array,
    save: Path | str | None = None,
) -> Plan:
    """One episode; without `save` a pure function.

    Args:
      env: an environment, not an auto-reset wrapper.
      instance: a single instance.
      policy: from a PRNG key and an observation to actions int[A]; it is traced.
      key: PRNG key.
      save: a file to draw the episode to, see `render.save`.

    Returns:
      A plan of T = `max_steps` + 1 times, which ends when the episode does. Where a broken rule
      ended it, its last cells are those that agents wanted to enter, so that the verifier finds the
      rule.
    """

    if save is not None:  # One program compiles sooner than the episode's many operations.
        episode = jax.jit(lambda instance, key: rollout(env, instance, policy, key))
        plan = episode(instance, key)
        render.save(save, instance, plan)
        return plan

    def one(carry: Any, key: jax.Array) -> Any:
        state, observation, cells, ended = carry
        policy_key, slip_key = jax.random.split(key)
        actions = policy(policy_key, observation)
        state, timestep = env.step(state, actions, slip_key if env.needs_key else None)
        failed = timestep.terminated & ~timestep.info.success
        wanted = cells + jnp.asarray(MOVES)[timestep.info.moves]
        after = jnp.where(failed, wanted, env.positions(state))
        carry = state, timestep.observation, jnp.where(ended, cells, after), ended | timestep.done
        return carry, (carry[2], ended)

    state, first = env.reset(instance)
    carry = state, first.observation, env.positions(state), jnp.zeros((), bool)
    assert env.max_steps is not None  # It is set when the environment is made.
    keys = jax.random.split(key, env.max_steps)
    _, (cells, ended) = jax.lax.scan(one, carry, keys)
    return Plan(
        positions=jnp.concatenate([env.positions(state)[None], cells]).astype(jnp.int16),
        num_steps=(~ended).sum(dtype=jnp.int32),
        parsable=jnp.ones((), bool),
        num_agents=jnp.asarray(instance.active).sum(dtype=jnp.int32),
    )
