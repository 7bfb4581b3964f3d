"""Speed of the simulator: `python -m experiments.speed.simulator --out=docs/benchmarks`.

Environment steps a second with auto-reset from a pool of instances and per-agent rewards, on
actions drawn beforehand, beside other libraries' grid worlds measured in the same run.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.speed import peers as peers_lib
from experiments.speed import records
from mapf_jax.env import Batched, PoolAutoReset, draw_instance, make
from mapf_jax.env.wrappers import Pool

_HOLE_RATIO = 0.2
_MAX_STEPS = 100  # As many as the peers' environments have, where it can be chosen.
_PEER_SECONDS = 1200
_TARGET_AGENTS = 4  # The number of agents of which the ratio to the peers is stated.


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Speed at one number of agents and one batch size.

    Attributes:
      agents: A.
      batch: environments at once.
      steps_per_second: environment steps, all environments together.
      bytes_per_step: that an environment step at least reads and writes: its state and actions,
        its part of the pool, its rewards and end.
      bandwidth: bytes a second of adding 1 to an array of the batch's size, read and write.
    """

    agents: int
    batch: int
    steps_per_second: float
    bytes_per_step: int
    bandwidth: float

    @property
    def roofline_share(self) -> float:
        """Share of the speed that the memory bandwidth allows."""
        return self.steps_per_second * self.bytes_per_step / self.bandwidth


def measure(
    agents: int, batch: int, size: int, conflict: str, steps: int, pool_size: int, repeats: int
) -> Measurement:
    """Measures one case.

    Args:
      agents: A.
      batch: environments at once.
      size: width of the lakes.
      conflict: rule of conflicts.
      steps: environment steps of one measurement, about; at least 32 of each environment.
      pool_size: instances in the pool.
      repeats: of which the median counts.
    """
    env = make(
        "MapfFrozenLake-v0", num_agents=agents, size=size, conflict=conflict, max_steps=_MAX_STEPS
    )
    wrapper = PoolAutoReset(env)
    batched = Batched(wrapper)
    holes = int(_HOLE_RATIO * size * size)
    keys = jax.random.split(jax.random.key(0), pool_size)
    draw = jax.jit(jax.vmap(lambda key: draw_instance(key, size, agents, holes)))
    pool = wrapper.pool(draw(keys))
    length = max(32, min(4096, steps // batch))
    actions = jax.random.randint(jax.random.key(1), (length, batch, agents), 0, 5, jnp.int8)
    state, _ = jax.jit(batched.reset)(pool, jax.random.split(jax.random.key(2), batch))

    @jax.jit
    def run(state: Any, actions: jax.Array, pool: Pool) -> Any:
        def body(carry: Any, actions: jax.Array) -> tuple[Any, None]:
            state, rewards, ends = carry
            state, timestep = batched.step(state, actions, pool)
            # Both kinds of end and every agent's reward are wanted, as a learner wants them.
            ends = (ends[0] + timestep.terminated, ends[1] + timestep.truncated)
            return (state, rewards + timestep.reward, ends), None

        zeros = jnp.zeros((batch,), jnp.int32)
        start = (state, jnp.zeros((batch, agents), jnp.float32), (zeros, zeros))
        return jax.lax.scan(body, start, actions)[0]

    duration = records.seconds(lambda: run(state, actions, pool), repeats=repeats)
    carried = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) // batch
    # State read and written, actions, terrain and starts and goals from the pool, rewards and
    # counts of ends read and written by whoever sums them up.
    cell = pool.starts.dtype.itemsize
    touched = 2 * carried + agents * (1 + 1 + 2 * cell) + 2 * (4 * agents + 8)
    return Measurement(
        agents, batch, batch * length / duration, touched, bandwidth(touched * batch // 2)
    )


def bandwidth(size: int) -> float:
    """Bytes a second, read and written, of adding 1 to an array of `size` bytes again and again."""
    count = max(size // 4, 16_384)
    rounds = max(4, (1 << 25) // count)
    array = jnp.zeros((count,), jnp.int32)
    add = jax.jit(lambda x: jax.lax.fori_loop(0, rounds, lambda _, x: x + 1, x))
    return 2 * 4 * count * rounds / records.seconds(lambda: add(array), repeats=3)


def measure_peer(
    name: str, python: str, effort: peers_lib.Effort
) -> tuple[list[peers_lib.Row], str | None]:
    """Runs one library in a process of its own: (rows, what went wrong or None)."""
    root = Path(__file__).parents[2]
    command = [python, "-m", "experiments.speed.peers", name]
    command += [f"--batches={','.join(map(str, effort.batches))}"]
    command += [f"--steps={effort.steps}", f"--repeats={effort.repeats}"]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed, errors = process.communicate(timeout=_PEER_SECONDS)
        problem = None
    except subprocess.TimeoutExpired:
        process.kill()
        printed, errors = process.communicate()
        problem = f"stopped after {_PEER_SECONDS} s"
    rows = [
        peers_lib.Row(**json.loads(line)) for line in printed.splitlines() if line.startswith("{")
    ]
    if problem is None and process.returncode:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if "Error" in line), (lines or ["?"])[-1])
        missing = f"No module named '{name}'" in last
        problem = "not installed" if missing else f"failed: {last[:160]}"
    return rows, problem


def tables(
    own: Sequence[Measurement], rows: Sequence[peers_lib.Row], problems: dict[str, str]
) -> list[records.Table]:
    """The tables of the page."""
    result = [
        records.Table(
            "Environment steps per second",
            (
                "agents", "batch", "env steps/s", "agent steps/s",
                "bytes per step", "bandwidth GB/s", "share of roofline",
            ),
            [
                (
                    m.agents, m.batch, m.steps_per_second, m.steps_per_second * m.agents,
                    m.bytes_per_step, m.bandwidth / 1e9, m.roofline_share,
                )
                for m in own
            ],
            "The roofline is the speed at which the bytes that a step must touch pass through "
            "memory at the bandwidth measured on an array of the same size.",
        )
    ]  # fmt: skip
    if rows or problems:
        listed: list[tuple[Any, ...]] = [
            (r.library, r.environment, r.agents, r.shared_grid, r.batch, r.steps_per_second, "")
            for r in rows
        ]
        listed += [(name, None, None, None, None, None, why) for name, why in problems.items()]
        result.append(
            records.Table(
                "Other libraries",
                ("library", "environment", "agents", "shared grid", "batch", "env steps/s", ""),
                listed,
                "Other games on other maps: the figures say what a step of a grid world costs "
                "there, not that the same was computed.",
            )
        )
    best_own = [m for m in own if m.agents == _TARGET_AGENTS]
    shared = [row for row in rows if row.shared_grid]
    same = [row for row in shared if row.agents == _TARGET_AGENTS]
    for peers, by_agent in ((same, False), (shared, True)):
        if peers and best_own:
            result.append(_against(best_own, peers, by_agent))
    return result


def _against(
    own: Sequence[Measurement], peers: Sequence[peers_lib.Row], by_agent: bool
) -> records.Table:
    """Our speed beside the best of the peers at any batch size: in steps, or in steps of agents."""

    def speed(row: Measurement | peers_lib.Row) -> float:
        return row.steps_per_second * (row.agents if by_agent else 1)

    peer = max(peers, key=speed)
    unit = "agent steps/s" if by_agent else "env steps/s"
    name = f"{peer.library} {peer.environment}, {peer.agents} agents, batch {peer.batch}"
    which = "multi-agent grid world" if by_agent else f"grid world of {_TARGET_AGENTS} agents"
    return records.Table(
        f"Against the best {which}, in {unit}",
        ("agents", "batch", unit, "best peer", f"its {unit}", "ratio"),
        [(m.agents, m.batch, speed(m), name, speed(peer), speed(m) / speed(peer)) for m in own],
        "The peer's best figure at any batch size.",
    )


def _integers(name: str, values: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(value) for value in values.split(","))
    except ValueError:
        sys.exit(f"error: {name}={values}: integers separated by commas are needed")
    if any(number < 1 for number in numbers):
        sys.exit(f"error: {name}={values}: numbers of at least 1 are needed")
    return numbers


def _interpreters(pairs: Sequence[str]) -> dict[str, str]:
    result = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or name not in peers_lib.PEERS:
            sys.exit(
                f"error: peer_python={pair!r}: NAME=INTERPRETER is needed, NAME one of "
                f"{', '.join(peers_lib.PEERS)}"
            )
        if not Path(path).is_file():
            sys.exit(f"error: peer_python={pair!r}: there is no file {path!r}")
        result[name] = path
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.speed.simulator", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a few short measurements instead of all of them")
    add("--agents", help="numbers of agents, separated by commas; 2,4,8 if not given")
    add("--batches", help="environments at once; 1,64,1024,8192,65536 if not given, more on a GPU")
    add(
        "--size", type=int, default=8, choices=range(3, 127), metavar="N", help="width of the lakes"
    )
    add("--conflict", default="fail", choices=["fail", "block"], help="the rule of conflicts")
    add(
        "--peers",
        default=",".join(peers_lib.PEERS),
        help="other libraries to measure (extra `peers`); none: --peers=",
    )
    add(
        "--peer_python",
        action="append",
        default=[],
        metavar="NAME=INTERPRETER",
        help="an interpreter to measure a library with, if it wants other versions",
    )
    add("--out", help="folder for simulator.json and simulator.md")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints the page, and writes it if a folder is given."""
    options = _parser().parse_args(argv)
    quick = options.quick
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    agents = _integers("agents", options.agents or ("4" if quick else "2,4,8"))
    usual = "1,1024" if quick else "1,64,1024,8192,65536"
    batches = _integers("batches", options.batches or usual)
    names = [name for name in options.peers.split(",") if name]
    for name in names:
        if name not in peers_lib.PEERS:
            sys.exit(f"error: peers={name!r}: known are {', '.join(peers_lib.PEERS)}")
    interpreters = _interpreters(options.peer_python)

    # The peers come first: once this process has touched an accelerator it holds its memory.
    peer_batches = (1, 1024) if quick else (1, 64, 1024, 8192)
    effort = peers_lib.Effort(peer_batches, 1 << 14 if quick else 1 << 19, 1 if quick else 3)
    rows: list[peers_lib.Row] = []
    problems: dict[str, str] = {}
    for name in names:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        found, problem = measure_peer(name, interpreters.get(name, sys.executable), effort)
        rows += found
        if problem is not None:
            problems[name] = problem

    about = {**records.facts(), "load_before": load}
    accelerator = about["backend"] != "cpu"
    if accelerator and not options.batches and not quick:
        batches += (1 << 20, 1 << 22)
    own = []
    for number in agents:
        for batch in batches:
            print(f"measuring {number} agents, batch {batch}", file=sys.stderr, flush=True)
            own.append(
                measure(
                    agents=number,
                    batch=batch,
                    size=options.size,
                    conflict=options.conflict,
                    steps=1 << 18 if quick else 1 << (28 if accelerator else 23),
                    pool_size=1024 if quick else 16_384,
                    repeats=1 if quick else 5,
                )
            )
    lakes = f"{options.size} x {options.size} lakes, {_HOLE_RATIO:.0%} holes"
    notes = [
        f"{lakes}, rule {options.conflict!r}, at most {_MAX_STEPS} steps an episode, auto-reset "
        "from a pool of instances, a reward for every agent. Actions are drawn beforehand; one "
        "compiled scan; compilation and a warm-up are not counted; the median of the repeats. "
        "Each peer runs in a process of its own with its own auto-reset.",
        *(["A quick run: single short measurements."] if quick else []),
    ]
    pages = tables(own, rows, problems)
    print(f"{about['processor']}, {about['cores']} cores; ran on {about['device']}")
    print("\n".join(table.to_markdown() for table in pages))
    if options.out:
        for path in records.write("simulator", "Simulator", pages, options.out, notes, about):
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
