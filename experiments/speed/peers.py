"""Grid worlds of other libraries, as engines that the simulator is measured beside.

Each yields its measurements and ends. All follow one protocol: actions drawn beforehand, the
library's own auto-reset, one compiled scan, one warm-up, the median of the repeats. Where a library
wants a PRNG key in every step, drawing it counts. A task has `batches` (environments at once),
`steps` (of one measurement, at most) and `repeats`.
"""

import importlib.metadata
from collections.abc import Callable
from typing import Any

from experiments.speed.engines import Measurements, Task, seconds

NAMES = ("jumanji", "jaxmarl", "xminigrid", "gymnax", "pogema", "gymnasium")


def _row(
    library: str, environment: str, agents: int, shared_grid: bool, batch: int, speed: float
) -> dict[str, Any]:
    """A measurement: environment steps a second, summed over the batch.

    `shared_grid` says that several agents move on one grid, as in multi-agent path finding.
    """
    return {
        "library": f"{library} {importlib.metadata.version(library)}",
        "environment": environment,
        "agents": agents,
        "shared grid": shared_grid,
        "batch": batch,
        "env steps/s": speed,
        "agent steps/s": speed * agents,
    }


def _scanned(
    task: Task,
    about: tuple[str, str, int, bool],
    reset: Callable[[Any], Any],
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    draw: Callable[[Any], Any],
) -> Measurements:
    """Rows of an environment in JAX, one for each batch.

    Args:
      task: batches, and how long to measure.
      about: the arguments of `_row` up to `shared_grid`.
      reset: from a key to the carried state of one environment.
      step: (state, action, key) to (state, reward) of one environment.
      draw: from a key to the actions of one environment.
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

    def speed(batch: int) -> float:
        length = max(8, min(1000, task["steps"] // batch))
        state = jax.jit(jax.vmap(reset))(jax.random.split(jax.random.key(0), batch))
        action_keys = jax.random.split(jax.random.key(1), (length, batch))
        actions = jax.jit(jax.vmap(jax.vmap(draw)))(action_keys)
        took = seconds(
            lambda: jax.block_until_ready(run(state, actions, jax.random.key(2))), task["repeats"]
        )
        return batch * length / took

    for batch in task["batches"]:
        yield _row(*about, batch, speed(batch))


def jumanji(task: Task) -> Measurements:
    """Connector (the nearest relative: paths of several agents on a grid), and two more."""
    import jumanji as library
    from jumanji.environments import Connector
    from jumanji.environments.routing.connector.generator import UniformRandomGenerator

    connector = Connector(generator=UniformRandomGenerator(grid_size=8, num_agents=4))
    yield from _of_jumanji(task, "Connector 8x8", connector)
    for name in ("LevelBasedForaging-v0", "RobotWarehouse-v0"):
        yield from _of_jumanji(task, name, library.make(name))


def _of_jumanji(task: Task, name: str, environment: Any) -> Measurements:
    import jax
    import jax.numpy as jnp
    from jumanji.wrappers import AutoResetWrapper

    env = AutoResetWrapper(environment)
    values = jnp.asarray(env.action_spec.num_values)

    def step(state: Any, action: Any, key: Any) -> tuple[Any, Any]:
        state, timestep = env.step(state, action)
        return state, timestep.reward

    return _scanned(
        task, ("jumanji", name, values.shape[0], True),
        reset=lambda key: env.reset(key)[0],
        step=step,
        draw=lambda key: jax.random.randint(key, values.shape, 0, values),
    )  # fmt: skip


def jaxmarl(task: Task) -> Measurements:
    """Overcooked, two agents on a grid."""
    import jax
    import jaxmarl as library

    env = library.make("overcooked")
    numbers = {agent: env.action_space(agent).n for agent in env.agents}

    def draw(key: Any) -> Any:
        keys = jax.random.split(key, len(numbers))
        return {
            agent: jax.random.randint(keys[i], (), 0, n)
            for i, (agent, n) in enumerate(numbers.items())
        }

    return _scanned(
        task, ("jaxmarl", "overcooked", env.num_agents, True),
        reset=lambda key: env.reset(key)[1],
        step=lambda state, action, key: env.step(key, state, action)[1:3],
        draw=draw,
    )  # fmt: skip


def xminigrid(task: Task) -> Measurements:
    """An empty 8x8 room."""
    import jax
    import xminigrid as library
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = library.make("MiniGrid-Empty-8x8")
    env = GymAutoResetWrapper(env)

    def step(timestep: Any, action: Any, key: Any) -> tuple[Any, Any]:
        timestep = env.step(params, timestep, action)
        return timestep, timestep.reward

    return _scanned(
        task, ("xminigrid", "MiniGrid-Empty-8x8", 1, False),
        reset=lambda key: env.reset(params, key),
        step=step,
        draw=lambda key: jax.random.randint(key, (), 0, env.num_actions(params)),
    )  # fmt: skip


def gymnax(task: Task) -> Measurements:
    """Single agents on a grid."""
    import gymnax as library

    for name in ("FourRooms-misc", "FrozenLake-misc"):
        yield from _of_gymnax(task, name, *library.make(name))


def _of_gymnax(task: Task, name: str, env: Any, params: Any) -> Measurements:
    return _scanned(
        task, ("gymnax", name, 1, False),
        reset=lambda key: env.reset(key, params)[1],
        step=lambda state, action, key: env.step(key, state, action, params)[1:3],
        draw=env.action_space(params).sample,
    )  # fmt: skip


def _looped(env: Any, actions: list[Any], over: Callable[[Any], bool], task: Task) -> float:
    """Environment steps a second in a Python loop; `over` reads the two flags of an end."""
    env.reset()

    def run() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if over(terminated) or over(truncated):
                env.reset()

    return len(actions) / seconds(run, task["repeats"])


def pogema(task: Task) -> Measurements:
    """Multi-agent path finding in NumPy, one environment in a Python loop."""
    import numpy as np
    import pogema as library

    config = library.GridConfig(size=8, num_agents=4, density=0.2, max_episode_steps=100, seed=0)
    length = max(64, min(2000, task["steps"] // 64))
    actions = np.random.default_rng(0).integers(0, 5, (length, 4)).tolist()
    speed = _looped(library.pogema_v0(grid_config=config), actions, all, task)
    yield _row("pogema", "Pogema 8x8", 4, True, 1, speed)


def gymnasium(task: Task) -> Measurements:
    """FrozenLake 8x8, one in a Python loop and many in a SyncVectorEnv."""
    import gymnasium as library
    import numpy as np

    length = max(64, min(20_000, task["steps"] // 16))
    env = library.make("FrozenLake-v1", map_name="8x8")
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 4, length).tolist()
    speed = _looped(env, actions, bool, task)
    yield _row("gymnasium", "FrozenLake-v1 8x8", 1, False, 1, speed)
    batch = 64
    vector = library.make_vec(
        "FrozenLake-v1", num_envs=batch, vectorization_mode="sync", map_name="8x8"
    )
    vector.reset(seed=0)
    many = np.random.default_rng(0).integers(0, 4, (max(8, length // batch), batch))
    speed = many.size / seconds(lambda: [vector.step(action) for action in many], task["repeats"])
    yield _row("gymnasium", "FrozenLake-v1 8x8, SyncVectorEnv", 1, False, batch, speed)
