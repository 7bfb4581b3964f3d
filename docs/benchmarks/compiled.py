"""What compilers of accelerators make of the simulator: `python docs/benchmarks/compiled.py`.

Memory and bytes of one step of many environments, and of the exact search for two agents, on chips
that need not be there. Times are predicted by the compilers, for TPUs alone.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

import runner
import simulator
from experiments.measurements import Table
from learner.plan import targets
from learner.plan.programs import compile_program
from learner.plan.targets import Target
from mapf_jax import generator, joint_costs
from simulator import HOLES, SIZE

_AGENTS = 4
_POOL = 4096  # Instances for resets.
_LEVELS = 20  # Assumed depth of each breadth-first search, one level per time step.


def programs(quick: bool) -> Iterator[tuple[str, int, Any, Any, int]]:
    """Yields name, batch size, jitted function, shapes of arguments and iterations of its loops."""
    batch = 1024 if quick else 65_536
    key = jax.random.key(0)
    wrapper, pool = simulator.environment(_AGENTS, _POOL)
    reset = jax.vmap(wrapper.reset, in_axes=(0, None))
    state, _ = jax.eval_shape(reset, jax.random.split(key, batch), pool)
    actions = jax.ShapeDtypeStruct((batch, _AGENTS), jnp.int8)
    step = jax.jit(jax.vmap(wrapper.step, in_axes=(0, 0, None)), donate_argnums=0)
    yield f"environment step, {_AGENTS} agents", batch, step, (state, actions, pool), 1
    batch //= 16
    lakes, _ = generator.draw(key, SIZE, HOLES, SIZE, batch, 2)
    arguments = lakes.blocked, lakes.starts, lakes.goals, jnp.ones(batch, bool)
    yield "exact search, 2 agents", batch, joint_costs, arguments, _LEVELS


def tables(options: argparse.Namespace) -> Iterator[Table]:
    """Yields the table of the page, one row per program and chip."""
    targets.use_compilers()
    rows = []
    for name, batch, function, arguments, times in programs(options.quick):
        for target in options.chips:
            device = SingleDeviceSharding(target.devices()[0])
            shapes = jax.tree.map(
                lambda x, device=device: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
                arguments,
            )
            made = compile_program(name, function.lower(*shapes), target.chip, times)
            if made.problem:
                raise RuntimeError(f"{name} on {target.name}: {made.problem}")
            # For a search `made` covers one level.
            seconds = None if made.seconds is None else made.seconds * times
            rows.append(
                {
                    "program": name,
                    "lakes": batch,
                    "chip": target.name,
                    "compiled in s": made.compile_seconds,
                    "MB of arguments": made.arguments / 1e6,
                    "of temporaries": made.temporaries / 1e6,
                    "MB needed": (made.arguments + made.outputs) / 1e6,
                    "moved": made.bytes_moved * times / 1e6,
                    "predicted ms": None if seconds is None else 1e3 * seconds,
                    "lakes/s": None if seconds is None else batch / seconds,
                }
            )
    yield Table.of(
        f"The simulator on lakes of {SIZE} x {SIZE}",
        rows,
        "Nothing was run. Memory and bytes are of the compiled programs; needed are arguments and "
        "results, once each. Compilers for TPUs predict times, those for GPUs do not; gathers, "
        "which they give no estimate for, count by their schedules. Waits for memory are left out. "
        f"Each search is assumed to end after {_LEVELS} time steps, and to keep what it has "
        "reached in memory.",
    )


def _chips(names: str) -> list[Target]:
    try:
        return [Target.parse(name) for name in names.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(argv: Sequence[str] | None = None) -> None:
    """Compiles, prints the page, and writes it if a folder is given."""
    chips = {"type": _chips, "default": "v5e,v5p,v6e,h200", "help": "separated by commas"}
    runner.run("compiled", __doc__, tables, argv, chips=chips)


if __name__ == "__main__":
    main()
