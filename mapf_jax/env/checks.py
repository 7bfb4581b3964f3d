"""A check of the properties of an environment that programs rely on."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.types import Instance, TimeStep


class EnvironmentCheckError(AssertionError):
    """An environment breaks a promise; the message says which, and where."""


def check_env(env: Any, instance: Instance, num_steps: int = 64, seed: int = 0) -> None:
    """Plays random episodes and checks the promises of the interface.

    Checked are: shapes and dtypes that never change, `jit` and `vmap` against plain calls, one
    trace for any values, determinism, untouched arguments, finite rewards, observations inside
    the observation space, action masks that allow waiting, ends that exclude each other, and
    truncation at the step limit. It checks other environments, too: `env` needs `reset`, `step`,
    `action_space`, `observation_space`, and may have `needs_key` and `max_steps`.

    Args:
      env: a single environment, not a batch and not an auto-reset wrapper.
      instance: an argument of `reset`.
      num_steps: random steps; after the end of an episode it is started again.
      seed: of everything random.

    Raises:
      EnvironmentCheckError: a promise is broken.
    """
    key = jax.random.key(seed)
    traces = []

    @jax.jit
    def step(*arguments: Any) -> Any:
        traces.append("step")
        return env.step(*arguments)

    needs_key, limit = getattr(env, "needs_key", False), getattr(env, "max_steps", None)

    first, timestep = env.reset(instance)
    _same("reset: jit against a plain call", jax.jit(env.reset)(instance), (first, timestep))
    _same("reset: a second call", env.reset(instance), (first, timestep))
    _check_timestep(env, timestep, "after reset")
    _require(
        not (timestep.terminated or timestep.truncated or np.any(timestep.reward)),
        "reset: an episode begins neither ended nor rewarded",
    )
    state, length, trajectory = first, 0, []
    for number in range(num_steps):
        where = f"in step {number}"
        action_key, slip_key = jax.random.split(jax.random.fold_in(key, number))
        actions = env.action_space.sample(action_key)
        _require(env.action_space.contains(actions), f"{where}: action_space.sample is not in it")
        arguments = (state, actions, slip_key) if needs_key else (state, actions)
        before = jax.tree.map(np.array, state)
        result = after, timestep = step(*arguments)
        _same(f"{where}: the given state afterwards", state, before)
        if number == 0:  # Plain calls are slow.
            _same(f"{where}: jit against a plain call", result, env.step(*arguments))
        _same(f"{where}: a second call", step(*arguments), result)
        _same(f"{where}: the state's form", *jax.tree.map(jnp.zeros_like, (after, before)))
        _check_timestep(env, timestep, where)
        trajectory.append((arguments, result))
        length += 1
        ended = bool(timestep.terminated or timestep.truncated)
        if limit is not None:
            _require(ended or length < limit, f"{where}: {length} steps, though max_steps={limit}")
            _require(
                not timestep.truncated or length == limit,
                f"{where}: truncated after {length} steps, though max_steps={limit}",
            )
        state, length = (first, 0) if ended else (after, length)

    _require(len(traces) <= 1, f"step was traced {len(traces)} times for equal shapes")
    arguments, results = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trajectory)
    _same("vmap against single steps", jax.jit(jax.vmap(env.step))(*arguments), results)


def _check_timestep(env: Any, timestep: TimeStep, where: str) -> None:
    agents = env.action_space.shape
    truth = np.zeros((), bool)
    forms = {"reward": np.zeros(agents, np.float32), "terminated": truth, "truncated": truth}
    for name, form in forms.items():
        found = np.zeros_like(getattr(timestep, name))
        _same(f"{where}: {name} is of another shape or dtype", found, form)
    finite = bool(np.all(np.isfinite(timestep.reward)))
    _require(finite, f"{where}: reward={timestep.reward} is not finite")
    both = bool(timestep.terminated and timestep.truncated)
    _require(not both, f"{where}: both terminated and truncated")
    for name in ("observation", "final_observation"):
        value = getattr(timestep, name)
        _require(
            env.observation_space.contains(jax.tree.map(np.asarray, value)),
            f"{where}: {name} is not in the observation space {env.observation_space}",
        )
    mask = timestep.action_mask
    _require(
        mask is None or (mask.shape[:1] == agents and bool(np.all(np.any(mask, axis=-1)))),
        f"{where}: action_mask leaves an agent without an action",
    )


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise EnvironmentCheckError(message)


def _same(what: str, found: Any, expected: Any) -> None:
    """Compares two trees; fused arithmetic may round floats differently."""
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(found, expected)
        chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
    except AssertionError as error:
        raise EnvironmentCheckError(f"{what}: {error}") from error
