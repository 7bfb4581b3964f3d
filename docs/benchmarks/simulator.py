"""Speed of the simulator: `python docs/benchmarks/simulator.py --out=docs/benchmarks`.

Environment steps a second with auto-reset from a pool of instances and per-agent rewards, on
actions drawn beforehand, beside other libraries' grid worlds measured in the same run.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import peers
import runner
from experiments.measurements import Table
from mapf_jax import generator
from mapf_jax.env import PoolAutoReset, make
from mapf_jax.env.wrappers import Pool
from runner import Case, Outcome, compare, seconds

SIZE = 8  # Width of the lakes.
_HOLE_RATIO = 0.2
HOLES = int(_HOLE_RATIO * SIZE * SIZE)
_MAX_STEPS = 100  # Also the limit of the peers' environments, where it can be set.
_TARGET_AGENTS = 4  # Number of agents in the ratio to the best peer.


def environment(agents: int, pool_size: int) -> tuple[PoolAutoReset, Pool]:
    """The measured environment, and a pool of `pool_size` instances for its resets."""
    wrapper = PoolAutoReset(
        make("MapfFrozenLake-v0", num_agents=agents, size=SIZE, max_steps=_MAX_STEPS)
    )
    lakes, _ = generator.draw(jax.random.key(0), SIZE, HOLES, SIZE, pool_size, agents)
    return wrapper, wrapper.pool(lakes)


def measure(agents: int, batch: int, steps: int, pool_size: int, repeats: int) -> dict[str, Any]:
    """Measures one case.

    Args:
      agents: A.
      batch: number of environments.
      steps: approximate environment steps per measurement; at least 32 in each environment.
      pool_size: instances in the pool.
      repeats: number of measurements; their median counts.

    Returns:
      A row of the table.
    """
    wrapper, pool = environment(agents, pool_size)
    reset = jax.jit(jax.vmap(wrapper.reset, in_axes=(0, None)))
    step = jax.vmap(wrapper.step, in_axes=(0, 0, None))
    length = max(32, min(4096, steps // batch))
    actions = jax.random.randint(jax.random.key(1), (length, batch, agents), 0, 5, jnp.int8)
    state, _ = reset(jax.random.split(jax.random.key(2), batch), pool)

    @jax.jit
    def run(state: Any, actions: jax.Array, pool: Pool) -> Any:
        def body(carry: Any, actions: jax.Array) -> tuple[Any, None]:
            state, rewards, ends = carry
            state, timestep = step(state, actions, pool)
            # Uses both kinds of end and every agent's reward, as a learner does.
            ends = (ends[0] + timestep.terminated, ends[1] + timestep.truncated)
            return (state, rewards + timestep.reward, ends), None

        zeros = jnp.zeros((batch,), jnp.int32)
        start = (state, jnp.zeros((batch, agents), jnp.float32), (zeros, zeros))
        return jax.lax.scan(body, start, actions)[0]

    took = seconds(lambda: jax.block_until_ready(run(state, actions, pool)), repeats)
    speed = batch * length / took
    return {
        "agents": agents,
        "batch": batch,
        "env steps/s": speed,
        "agent steps/s": speed * agents,
    }


def tables(own: Sequence[Mapping[str, Any]], outcomes: Mapping[str, Outcome]) -> Iterator[Table]:
    """Yields the tables of the page from rows of `measure` and the peers' outcomes by name."""
    yield Table.of(
        "Environment steps per second",
        own,
        f"{SIZE} x {SIZE} lakes, {_HOLE_RATIO:.0%} holes, rule 'fail', at most {_MAX_STEPS} "
        "steps an episode, auto-reset from a pool of instances, a reward for every agent. Actions "
        "are drawn beforehand; one compiled scan; compilation and a warm-up are not counted; the "
        "median of the repeats. Each peer runs in a process of its own with its own auto-reset.",
    )
    rows = [row for outcome in outcomes.values() for row in outcome.measurements]
    failed = [{"library": n, "note": o.obstacle} for n, o in outcomes.items() if o.obstacle]
    yield Table.of(
        "Other libraries",
        rows + failed,
        "Other games on other maps: this is what a step of a grid world costs there, not the "
        "cost of the same computation.",
    )
    if shared := [row for row in rows if row["shared grid"]]:
        unit = "agent steps/s"
        best = max(shared, key=lambda row: row[unit])
        name = "{library} {environment}, {agents} agents, batch {batch}".format(**best)
        yield Table(
            f"Against the best multi-agent grid world, in {unit}",
            ("agents", "batch", unit, "best peer", f"its {unit}", "ratio"),
            [
                (r["agents"], r["batch"], r[unit], name, best[unit], r[unit] / best[unit])
                for r in own
                if r["agents"] == _TARGET_AGENTS
            ],
            "The peer's best speed at any batch size.",
        )


def measured(options: argparse.Namespace) -> Iterator[Table]:
    """Measures the peers, then the simulator."""
    quick = options.quick
    # Peers first: once this process has used an accelerator, it holds the accelerator's memory.
    task = {"batches": [1, 1024], "steps": 1 << 14, "repeats": 1} if quick else {
        "batches": [1, 64, 1024, 8192], "steps": 1 << 19, "repeats": 3
    }  # fmt: skip
    cases = {
        name: Case("peers:measure", task | {"library": name}, python)
        for name, python in options.python.items()
    }
    outcomes = compare(cases)
    numbers, batches = ([4], [1, 1024]) if quick else ([2, 4, 8], [1, 64, 1024, 8192, 65536])
    steps, pool_size, repeats = (1 << 18, 1024, 1) if quick else (1 << 23, 16_384, 5)
    own = []
    for agents, batch in itertools.product(numbers, batches):
        print(f"measuring {agents} agents, batch {batch}", file=sys.stderr, flush=True)
        own.append(measure(agents, batch, steps, pool_size, repeats))
    yield from tables(own, outcomes)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints the page, and writes it if a folder is given."""
    runner.run("simulator", __doc__, measured, argv, peers=peers.LIBRARIES)


if __name__ == "__main__":
    main()
