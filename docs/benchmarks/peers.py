"""Grid worlds of other libraries, an engine that the simulator is compared with.

All follow one protocol: actions drawn beforehand, the library's own auto-reset, one compiled scan
(in JAX), one warm-up, the median of the repeats. If a library needs a PRNG key in every step, the
time includes splitting keys. A task has the name of the `library`, `batches` (batch sizes), `steps`
(at most, per measurement) and `repeats`.
"""

import functools
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

from runner import Measurements, Task, seconds

Runs = Iterator[tuple[int, int, Callable[[], Any]]]
"""Batch size, environment steps of the whole batch, and the function that takes them."""
World = tuple[str, int, bool, Runs]
"""Name, number of agents, whether they share a grid as in multi-agent path finding, and runs."""


def measure(task: Task) -> Measurements:
    """Yields one measurement per batch size; speeds are totals over the batch."""
    library = task["library"]
    version = importlib.metadata.version(library)
    environment, agents, shared_grid, runs = LIBRARIES[library](task)
    for batch, steps, run in runs:
        speed = steps / seconds(run, task["repeats"])
        yield {
            "library": f"{library} {version}",
            "environment": environment,
            "agents": agents,
            "shared grid": shared_grid,
            "batch": batch,
            "env steps/s": speed,
            "agent steps/s": speed * agents,
        }


def _scanned(
    task: Task,
    reset: Callable[[Any], Any],
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    draw: Callable[[Any], Any],
) -> Runs:
    """Yields the runs of an environment in JAX, one per batch size.

    Args:
      task: has the batch sizes and the number of steps.
      reset: function of a key; returns the state of one environment.
      step: function of (state, action, key); returns (state, reward) of one environment.
      draw: function of a key; returns the actions of one environment for one step.
    """
    import jax
    import jax.numpy as jnp

    @jax.jit
    def run(state: Any, actions: Any, key: Any) -> Any:
        def body(carry: Any, action: Any) -> tuple[Any, None]:
            state, key, total = carry
            key, this = jax.random.split(key)
            keys = jax.random.split(this, len(jax.tree.leaves(action)[0]))
            state, reward = jax.vmap(step)(state, action, keys)
            rewards = [leaf.astype(jnp.float32) for leaf in jax.tree.leaves(reward)]
            return (state, key, total + sum(leaf.sum() for leaf in rewards)), None

        return jax.lax.scan(body, (state, key, jnp.zeros(())), actions)[0]

    def waited(*given: Any) -> Any:
        return jax.block_until_ready(run(*given))

    for batch in task["batches"]:
        length = max(8, min(1000, task["steps"] // batch))
        state = jax.jit(jax.vmap(reset))(jax.random.split(jax.random.key(0), batch))
        action_keys = jax.random.split(jax.random.key(1), (length, batch))
        given = state, jax.jit(jax.vmap(jax.vmap(draw)))(action_keys), jax.random.key(2)
        yield batch, batch * length, functools.partial(waited, *given)


def jumanji(task: Task) -> World:
    """Connector, the most similar environment: paths of several agents on a grid."""
    import jax
    from jumanji.environments import Connector
    from jumanji.environments.routing.connector.generator import UniformRandomGenerator
    from jumanji.wrappers import AutoResetWrapper

    env = AutoResetWrapper(Connector(generator=UniformRandomGenerator(grid_size=8, num_agents=4)))
    values = env.action_spec.num_values

    def step(state: Any, action: Any, key: Any) -> tuple[Any, Any]:
        state, timestep = env.step(state, action)
        return state, timestep.reward

    def draw(key: Any) -> Any:
        return jax.random.randint(key, values.shape, 0, values)

    return "Connector 8x8", 4, True, _scanned(task, lambda key: env.reset(key)[0], step, draw)


def jaxmarl(task: Task) -> World:
    """Overcooked, two agents on a grid."""
    import jax
    import jaxmarl as library

    env = library.make("overcooked")
    numbers = {agent: env.action_space(agent).n for agent in env.agents}

    def step(state: Any, action: Any, key: Any) -> tuple[Any, Any]:
        return env.step(key, state, action)[1:3]

    def draw(key: Any) -> Any:
        keys = jax.random.split(key, len(numbers))
        pairs = zip(keys, numbers.items(), strict=True)
        return {agent: jax.random.randint(own, (), 0, n) for own, (agent, n) in pairs}

    runs = _scanned(task, lambda key: env.reset(key)[1], step, draw)
    return "overcooked", env.num_agents, True, runs


def gymnax(task: Task) -> World:
    """FrozenLake, one agent."""
    import gymnax as library

    env, params = library.make("FrozenLake-misc")

    def step(state: Any, action: Any, key: Any) -> tuple[Any, Any]:
        return env.step(key, state, action, params)[1:3]

    draw = env.action_space(params).sample
    runs = _scanned(task, lambda key: env.reset(key, params)[1], step, draw)
    return "FrozenLake-misc", 1, False, runs


def _looped(env: Any, actions: list[Any], over: Callable[[Any], bool]) -> Runs:
    """One environment in a Python loop; `over` reduces `terminated` or `truncated` to a bool."""
    env.reset(seed=0)

    def run() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if over(terminated) or over(truncated):
                env.reset()

    yield 1, len(actions), run


def pogema(task: Task) -> World:
    """Multi-agent path finding in NumPy."""
    import numpy as np
    import pogema as library

    config = library.GridConfig(size=8, num_agents=4, density=0.2, max_episode_steps=100, seed=0)
    length = max(64, min(2000, task["steps"] // 64))
    actions = np.random.default_rng(0).integers(0, 5, (length, 4)).tolist()
    return "Pogema 8x8", 4, True, _looped(library.pogema_v0(grid_config=config), actions, all)


def gymnasium(task: Task) -> World:
    """FrozenLake 8x8, one agent."""
    import gymnasium as library
    import numpy as np

    length = max(64, min(20_000, task["steps"] // 16))
    actions = np.random.default_rng(0).integers(0, 4, length).tolist()
    env = library.make("FrozenLake-v1", map_name="8x8")
    return "FrozenLake-v1 8x8", 1, False, _looped(env, actions, bool)


LIBRARIES: dict[str, Callable[[Task], World]] = {
    each.__name__: each for each in (jumanji, jaxmarl, gymnax, pogema, gymnasium)
}
