"""One call that tells whether an environment keeps the promises that programs rely on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.env.random_instances import draw_instance
from mapf_jax.types import Instance, TimeStep


class EnvironmentCheckError(AssertionError):
    """An environment breaks a promise; the message says which, and where."""


def check_env(
    env: Any, instance: Instance | None = None, num_steps: int = 64, seed: int = 0
) -> None:
    """Plays random episodes and checks the promises of the interface.

    Checked are: shapes and dtypes that never change, `jit` and `vmap` against plain calls, one
    trace for any values, determinism, untouched arguments, finite rewards, observations inside
    the observation space, action masks that allow waiting, ends that exclude each other, and
    truncation at the step limit. Made for environments of others, too: `env` needs `reset`,
    `step`, `action_space`, `observation_space`, and may have `needs_key` and `max_steps`.

    Args:
      env: what is checked; a single environment, not a batch and not an auto-reset wrapper.
      instance: an argument of `reset`; a random lake of `env.size` and `env.num_agents` if None.
      num_steps: random steps; after the end of an episode it is started again.
      seed: of everything random.

    Raises:
      EnvironmentCheckError: a promise is broken.
    """
    key = jax.random.key(seed)
    if instance is None:
        holes = min(env.size**2 // 5, env.size**2 - 2 * env.num_agents)
        draw = jax.jit(draw_instance, static_argnums=(1, 2))
        instance = draw(key, env.size, env.num_agents, holes)
    needs_key = bool(getattr(env, "needs_key", False))
    traces = {"reset": 0, "step": 0}

    def reset(value: Instance) -> Any:
        traces["reset"] += 1
        return env.reset(value)

    def step(*arguments: Any) -> Any:
        traces["step"] += 1
        return env.step(*arguments)

    jitted_reset, jitted_step = jax.jit(reset), jax.jit(step)

    state, timestep = env.reset(instance)
    _same("reset: jit against a plain call", jitted_reset(instance), (state, timestep))
    _same("reset: a second call", env.reset(instance), (state, timestep))
    first, form = (state, timestep), None
    _check_timestep(env, timestep, "after reset")
    if bool(timestep.terminated) or bool(timestep.truncated) or np.any(timestep.reward):
        raise EnvironmentCheckError("reset: an episode begins neither ended nor rewarded")

    length, trajectory = 0, []
    for number in range(num_steps):
        where = f"in step {number}"
        action_key, slip_key = jax.random.split(jax.random.fold_in(key, number))
        actions = env.action_space.sample(action_key)
        _require(env.action_space.contains(actions), f"{where}: action_space.sample is not in it")
        arguments = (state, actions, *((slip_key,) if needs_key else ()))
        before = jax.tree.map(np.array, state)
        after, timestep = jitted_step(*arguments)
        _same(f"{where}: the given state afterwards", state, before)
        if number % 24 == 0:  # Plain calls are slow.
            _same(f"{where}: jit against a plain call", (after, timestep), env.step(*arguments))
        _same(f"{where}: a second call", jitted_step(*arguments), (after, timestep))
        if form is None:
            form = _form((after, timestep))
            _require(
                _form(after) == _form(state),
                f"{where}: the state changed its form from {_form(state)} to {_form(after)}",
            )
        _require(
            _form((after, timestep)) == form, f"{where}: shapes or dtypes of the results changed"
        )
        _check_timestep(env, timestep, where)
        trajectory.append((arguments, (after, timestep)))
        length += 1
        limit = getattr(env, "max_steps", None)
        ended = bool(timestep.terminated) or bool(timestep.truncated)
        if limit is not None:
            _require(ended or length < limit, f"{where}: {length} steps, though max_steps={limit}")
            _require(
                not bool(timestep.truncated) or length == limit,
                f"{where}: truncated after {length} steps, though max_steps={limit}",
            )
        state, length = (first[0], 0) if ended else (after, length)

    _require(traces["reset"] <= 1, f"reset was traced {traces['reset']} times")
    _require(traces["step"] <= 1, f"step was traced {traces['step']} times for equal shapes")

    def stacked(values: list[Any]) -> Any:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)

    batch = jax.vmap(env.step)(*stacked([arguments for arguments, _ in trajectory]))
    _same("vmap against single steps", batch, stacked([result for _, result in trajectory]))


def _check_timestep(env: Any, timestep: TimeStep, where: str) -> None:
    reward = np.asarray(timestep.reward)
    agents = env.action_space.shape
    _require(
        reward.shape == agents and reward.dtype == np.float32,
        f"{where}: reward is {reward.dtype}{reward.shape}, float32{agents} is needed",
    )
    _require(bool(np.all(np.isfinite(reward))), f"{where}: reward={reward} is not finite")
    for name in ("terminated", "truncated"):
        flag = np.asarray(getattr(timestep, name))
        _require(
            flag.shape == () and flag.dtype == np.bool_,
            f"{where}: {name} is {flag.dtype}{flag.shape}, a single bool is needed",
        )
    _require(
        not (timestep.terminated and timestep.truncated), f"{where}: both terminated and truncated"
    )
    for name in ("observation", "final_observation"):
        value = getattr(timestep, name)
        if value is not None:
            _require(
                env.observation_space.contains(jax.tree.map(np.asarray, value)),
                f"{where}: {name} is not in the observation space {env.observation_space}",
            )
    mask = timestep.action_mask
    if mask is not None:
        _require(
            mask.shape[:1] == agents and bool(np.all(np.any(mask, axis=-1))),
            f"{where}: action_mask leaves an agent without an action",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EnvironmentCheckError(message)


def _form(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)


def _same(what: str, found: Any, expected: Any) -> None:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (found, expected)]
    _require(structures[0] == structures[1], f"{what}: another structure, {structures[0]}")
    expected_leaves = jax.tree.leaves(expected)
    for (path, leaf), other in zip(
        jax.tree_util.tree_leaves_with_path(found), expected_leaves, strict=True
    ):
        name = jax.tree_util.keystr(path)
        a, b = np.asarray(leaf), np.asarray(other)
        _require(a.dtype == b.dtype and a.shape == b.shape, f"{what}: {name} has another form")
        # Fused arithmetic may round differently; everything else must be equal.
        equal = np.allclose(a, b, atol=1e-6) if a.dtype.kind == "f" else np.array_equal(a, b)
        _require(bool(equal), f"{what}: {name} differs")
