"""Speed of other libraries' grid worlds, each measured in a process of its own.

`python -m experiments.speed.peers NAME` prints one JSON row a line. It imports nothing of
this project, so that it also runs under another interpreter with the versions that a library
wants. Protocol: actions drawn beforehand, the library's own auto-reset, one compiled scan, one
warm-up, the median of the repeats; where a library wants a PRNG key in every step, drawing it
counts.
"""

import argparse
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
      library: name and version.
      environment: name in the library.
      agents: how many agents act in a step of one environment.
      shared_grid: several agents move on one grid, as in multi-agent path finding.
      batch: environments at once.
      steps_per_second: environment steps, summed over the batch.
    """

    library: str
    environment: str
    agents: int
    shared_grid: bool
    batch: int
    steps_per_second: float


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
      batches: environments at once.
      steps: environment steps of one measurement, at most.
      repeats: measurements, of which the median counts.
    """

    batches: tuple[int, ...]
    steps: int
    repeats: int

    def length(self, batch: int) -> int:
        """Steps of each environment of a batch."""
        return max(8, min(1000, self.steps // batch))


def _seconds(function: Callable[[], Any], repeats: int) -> float:
    function()
    measured = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        measured.append(time.perf_counter() - begin)
    return statistics.median(measured)


def _scanned(
    reset: Callable[[Any], Any],
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    draw: Callable[[Any], Any],
    batch: int,
    effort: Effort,
) -> float:
    """Environment steps a second.

    Args:
      reset: from a key to the carried state of one environment.
      step: (state, action, key) to (state, reward) of one environment.
      draw: from a key to the actions of one environment.
      batch: environments at once.
      effort: how long.
    """
    import jax
    import jax.numpy as jnp

    length = effort.length(batch)
    keys = jax.random.split(jax.random.key(0), batch)
    state = jax.jit(jax.vmap(reset))(keys)
    action_keys = jax.random.split(jax.random.key(1), (length, batch))
    actions = jax.jit(jax.vmap(jax.vmap(draw)))(action_keys)

    def run(state: Any, actions: Any, key: Any) -> Any:
        def body(carry: Any, action: Any) -> tuple[Any, None]:
            state, key, total = carry
            key, this = jax.random.split(key)
            state, reward = jax.vmap(step)(state, action, jax.random.split(this, batch))
            rewards = [leaf.astype(jnp.float32) for leaf in jax.tree.leaves(reward)]
            return (state, key, total + sum(leaf.sum() for leaf in rewards)), None

        return jax.lax.scan(body, (state, key, jnp.zeros(())), actions)[0]

    compiled = jax.jit(run).lower(state, actions, jax.random.key(2)).compile()
    duration = _seconds(
        lambda: jax.block_until_ready(compiled(state, actions, jax.random.key(2))), effort.repeats
    )
    return batch * length / duration


def jumanji(effort: Effort) -> Iterator[Row]:
    """Connector (the nearest relative: paths of several agents on a grid), and two more."""
    import importlib.metadata

    import jax
    import jax.numpy as jnp
    import jumanji as library
    from jumanji.environments import Connector
    from jumanji.environments.routing.connector.generator import UniformRandomGenerator
    from jumanji.wrappers import AutoResetWrapper

    version = importlib.metadata.version("jumanji")
    connector = Connector(generator=UniformRandomGenerator(grid_size=8, num_agents=4))
    for name, environment, agents in (
        ("Connector 8x8", connector, 4),
        ("LevelBasedForaging-v0", library.make("LevelBasedForaging-v0"), None),
        ("RobotWarehouse-v0", library.make("RobotWarehouse-v0"), None),
    ):
        env = AutoResetWrapper(environment)
        values = jnp.asarray(env.action_spec.num_values)
        for batch in effort.batches:

            def step(state: Any, action: Any, key: Any, env: Any = env) -> tuple[Any, Any]:
                state, timestep = env.step(state, action)
                return state, timestep.reward

            def draw(key: Any, values: Any = values) -> Any:
                return jax.random.randint(key, values.shape, 0, values)

            def reset(key: Any, env: Any = env) -> Any:
                return env.reset(key)[0]

            speed = _scanned(reset, step, draw, batch, effort)
            count = agents or values.shape[0]
            yield Row(f"jumanji {version}", name, count, True, batch, speed)


def jaxmarl(effort: Effort) -> Iterator[Row]:
    """Overcooked, two agents on a grid."""
    import importlib.metadata

    import jax
    import jaxmarl as library

    version = importlib.metadata.version("jaxmarl")
    env = library.make("overcooked")
    numbers = {agent: env.action_space(agent).n for agent in env.agents}

    def step(state: Any, action: Any, key: Any) -> tuple[Any, Any]:
        _, state, reward, _, _ = env.step(key, state, action)
        return state, reward

    def draw(key: Any) -> Any:
        keys = jax.random.split(key, len(numbers))
        return {
            agent: jax.random.randint(keys[i], (), 0, n)
            for i, (agent, n) in enumerate(numbers.items())
        }

    for batch in effort.batches:
        speed = _scanned(lambda key: env.reset(key)[1], step, draw, batch, effort)
        yield Row(f"jaxmarl {version}", "overcooked", env.num_agents, True, batch, speed)


def xminigrid(effort: Effort) -> Iterator[Row]:
    """An empty 8x8 room."""
    import importlib.metadata

    import jax
    import xminigrid as library
    from xminigrid.wrappers import GymAutoResetWrapper

    version = importlib.metadata.version("xminigrid")
    env, params = library.make("MiniGrid-Empty-8x8")
    env = GymAutoResetWrapper(env)

    def step(timestep: Any, action: Any, key: Any) -> tuple[Any, Any]:
        timestep = env.step(params, timestep, action)
        return timestep, timestep.reward

    def draw(key: Any) -> Any:
        return jax.random.randint(key, (), 0, env.num_actions(params))

    for batch in effort.batches:
        speed = _scanned(lambda key: env.reset(params, key), step, draw, batch, effort)
        yield Row(f"xminigrid {version}", "MiniGrid-Empty-8x8", 1, False, batch, speed)


def gymnax(effort: Effort) -> Iterator[Row]:
    """Single agents on a grid."""
    import importlib.metadata

    import gymnax as library

    version = importlib.metadata.version("gymnax")
    for name in ("FourRooms-misc", "FrozenLake-misc"):
        try:
            env, params = library.make(name)
        except ValueError:
            continue  # Older versions have no frozen lake.

        def step(
            state: Any, action: Any, key: Any, env: Any = env, params: Any = params
        ) -> tuple[Any, Any]:
            _, state, reward, *_ = env.step(key, state, action, params)
            return state, reward

        def reset(key: Any, env: Any = env, params: Any = params) -> Any:
            return env.reset(key, params)[1]

        for batch in effort.batches:
            speed = _scanned(reset, step, env.action_space(params).sample, batch, effort)
            yield Row(f"gymnax {version}", name, 1, False, batch, speed)


def pogema(effort: Effort) -> Iterator[Row]:
    """Multi-agent path finding in NumPy, one environment in a Python loop."""
    import importlib.metadata

    import numpy as np
    import pogema as library

    version = importlib.metadata.version("pogema")
    config = library.GridConfig(size=8, num_agents=4, density=0.2, max_episode_steps=100, seed=0)
    env = library.pogema_v0(grid_config=config)
    env.reset()
    length = max(64, min(2000, effort.steps // 64))
    actions = np.random.default_rng(0).integers(0, 5, (length, 4)).tolist()

    def run() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if all(terminated) or all(truncated):
                env.reset()

    speed = length / _seconds(run, effort.repeats)
    yield Row(f"pogema {version}", "Pogema 8x8", 4, True, 1, speed)


def gymnasium(effort: Effort) -> Iterator[Row]:
    """FrozenLake 8x8, one in a Python loop and many in a SyncVectorEnv."""
    import gymnasium as library
    import numpy as np

    version = library.__version__
    length = max(64, min(20_000, effort.steps // 16))
    env = library.make("FrozenLake-v1", map_name="8x8")
    env.reset(seed=0)
    single = np.random.default_rng(0).integers(0, 4, length).tolist()

    def run() -> None:
        for action in single:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    speed = length / _seconds(run, effort.repeats)
    yield Row(f"gymnasium {version}", "FrozenLake-v1 8x8", 1, False, 1, speed)
    batch = 64
    vector = library.make_vec(
        "FrozenLake-v1", num_envs=batch, vectorization_mode="sync", map_name="8x8"
    )
    vector.reset(seed=0)
    many = np.random.default_rng(0).integers(0, 4, (max(8, length // batch), batch))

    def run_vector() -> None:
        for action in many:
            vector.step(action)

    speed = many.size / _seconds(run_vector, effort.repeats)
    yield Row(f"gymnasium {version}", "FrozenLake-v1 8x8, SyncVectorEnv", 1, False, batch, speed)


PEERS: dict[str, Callable[[Effort], Iterator[Row]]] = {
    "jumanji": jumanji,
    "jaxmarl": jaxmarl,
    "xminigrid": xminigrid,
    "gymnax": gymnax,
    "pogema": pogema,
    "gymnasium": gymnasium,
}


def main() -> None:
    """Measures one library and prints its rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("--batches", default="1,1024", help="environments at once")
    parser.add_argument("--steps", type=int, default=1 << 18, help="steps of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    effort = Effort(
        tuple(int(part) for part in options.batches.split(",")), options.steps, options.repeats
    )
    for row in PEERS[options.name](effort):
        assert math.isfinite(row.steps_per_second)
        print(json.dumps(dataclasses.asdict(row)), flush=True)


if __name__ == "__main__":
    main()
