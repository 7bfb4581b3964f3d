"""What a training step costs one device: operations, bytes, and what it exchanges with others.

    python -m learner.compiled_cost --config=Qwen3-0.6B --mesh=1x1x1,1x2x1,1x4x1,1x8x1 --rows=8

Counted in the partitioned program (`learner.hlo`), in which every loop's contents count as often
as the loop runs. That is exact, and the same on every machine; it is no time. With as many rows on
every mesh the lines show strong scaling.

Operations are those of matrix products alone, 2 for each multiplication and addition; bytes are
those of their operands and results. What lies between two products fuses into them or not,
depending on the compiler. Attention is the reference, which computes masked scores too: kernels
compute about half of them.
"""

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Sequence

import jax

from learner import hlo, plan
from learner.devices import sharding
from learner.qwen3.config import DTYPES, REMAT, Qwen3Config
from learner.training.trainer import GRPOConfig

_SLICES = ("dynamic-slice", "slice")
# What stands between a sum and the slice of it without changing anything.
_TRANSPARENT = ("bitcast", "copy", "reshape", "convert")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All exchanges of one kind in a program.

    Attributes:
        kind: one of `hlo.COLLECTIVES`.
        dtype: of what is exchanged.
        group: devices in one group.
        count: how many run.
        payload: bytes on each device, in all: of the result of an all-gather, of the operand of
            the others.
    """

    kind: str
    dtype: str
    group: int
    count: int
    payload: int

    @property
    def sent(self) -> float:
        """Bytes that each device sends, by the ring algorithm."""
        share = (self.group - 1) / self.group
        return {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share) * (
            self.payload
        )


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a program to each device.

    Attributes:
        flops: of matrix products.
        bytes: of their operands and results.
        collectives: merged by kind, dtype and group.
    """

    flops: int
    bytes: int
    collectives: tuple[Collective, ...]

    @property
    def sent(self) -> float:
        """Bytes that each device sends."""
        return sum(collective.sent for collective in self.collectives)


def cost(module: hlo.Module) -> Cost:
    """Count a program.

    Raises:
        ValueError: it has a loop of an unknown number of iterations.
    """
    flops = moved = 0
    merged: dict[tuple[str, str, int], tuple[int, int]] = {}
    for visit in module.visits():
        instruction = visit.instruction
        if instruction.opcode == "dot":
            flops += visit.times * _dot_flops(visit)
            operands = sum(operand.nbytes for operand in visit.operands)
            moved += visit.times * (operands + instruction.nbytes)
        kind = instruction.opcode.removesuffix("-start")
        group = module.group_size(instruction) if kind in hlo.COLLECTIVES else 1
        if group > 1:
            arrays = instruction.shapes
            if kind != "all-gather":
                arrays = tuple(shape for op in visit.operands for shape in op.shapes)
            if kind == "all-reduce" and _is_cut(visit, group):
                kind = "reduce-scatter"
            key = (kind, arrays[0].dtype, group)
            count, payload = merged.get(key, (0, 0))
            payload += visit.times * sum(shape.nbytes for shape in arrays)
            merged[key] = (count + visit.times, payload)
    collectives = [Collective(*key, *value) for key, value in merged.items()]
    collectives.sort(key=lambda collective: -collective.payload)
    return Cost(flops, moved, tuple(collectives))


def update_cost(
    config: Qwen3Config, training: GRPOConfig, mesh: jax.sharding.Mesh, prompt_length: int
) -> Cost:
    """The cost of the gradients of one micro-batch of the longest rows; nothing runs.

    Args:
        config: the model; scanned, of any size.
        training: how it is trained.
        mesh: of devices of any kind.
        prompt_length: tokens of the longest prompt.
    """
    lowered = plan.abstract_trainer(config, training, mesh).lower_update(prompt_length)
    return cost(hlo.partitioned(lowered["gradients"], mesh.size))


def _dot_flops(visit: hlo.Visit) -> int:
    contracted = visit.instruction.attribute("lhs_contracting_dims") or ""
    left = visit.operands[0].shapes[0].dims
    inner = math.prod(left[int(axis)] for axis in re.findall(r"\d+", contracted))
    return 2 * visit.instruction.shapes[0].size * inner


def _is_cut(visit: hlo.Visit, group: int) -> bool:
    """Whether every device of a sum goes on with its part of it alone."""
    instruction = visit.instruction
    while True:
        users = visit.computation.users[instruction.name]
        if len(users) != 1:
            return False
        (user,) = users
        if user.opcode in _SLICES:
            return user.shapes[0].size * group == visit.instruction.shapes[0].size
        if user.opcode not in _TRANSPARENT:
            return False
        instruction = user


# Command ------------------------------------------------------------------------


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m learner.compiled_cost",
        description=__doc__.split("\n\n")[0] if __doc__ else None,
    )
    add = parser.add_argument
    add("--config", required=True, help="a published name, a folder, or a hub name")
    add("--mesh", default="1x1x1,1x2x1,1x4x1,1x8x1", help="data x fsdp x tensor, several")
    add("--rows", type=int, default=8, help="rows of a micro-batch, on all devices together")
    add("--prompt_length", type=int, default=512, help="tokens of the longest prompt")
    add("--max_new_tokens", type=int, default=1024, help="tokens of the longest completion")
    add("--dtype", choices=DTYPES, default="bfloat16", help="of activations and products")
    add("--remat", choices=REMAT, default="full", help="what the backward pass finds kept")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Count for every mesh and print tables in Markdown; 2 if the options are wrong."""
    options = _arguments(argv)
    try:
        config = plan.model_config(options.config, dtype=options.dtype, remat=options.remat)
        sizes = plan.mesh_sizes(options.mesh)
        plan.use_host_devices(max(math.prod(size) for size in sizes))
        training = GRPOConfig(
            prompts_per_step=options.rows,
            micro_batch_rows=options.rows,
            max_new_tokens=options.max_new_tokens,
            sampling_rows=2 * options.rows,
        )
        costs = {}
        for size in sizes:
            mesh = sharding.make_mesh(*size)
            costs[size] = update_cost(config, training, mesh, options.prompt_length)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    length, _ = training.row_shape(options.prompt_length + options.max_new_tokens, 1)
    print(
        f"{options.config} in {options.dtype}, remat {options.remat}: gradients of one micro-batch "
        f"of {options.rows} rows of {length} tokens, on each device\n"
    )
    print(scaling_table(costs))
    return 0


def scaling_table(costs: dict[tuple[int, int, int], Cost]) -> str:
    """Costs of meshes (data, fsdp, tensor), and their collectives, as Markdown."""
    lines = [
        "| devices | data x fsdp x tensor | Tflop | GB of products | GB sent |",
        "| --- | --- | --- | --- | --- |",
    ]
    for size, of_mesh in costs.items():
        lines.append(
            f"| {math.prod(size)} | {'x'.join(map(str, size))} | {of_mesh.flops / 1e12:.2f} "
            f"| {of_mesh.bytes / 1e9:.1f} | {of_mesh.sent / 1e9:.2f} |"
        )
    lines += [
        "",
        "| devices | collective | dtype | group | count | GB | GB sent |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size, of_mesh in costs.items():
        for one in of_mesh.collectives:
            lines.append(
                f"| {math.prod(size)} | {one.kind} | {one.dtype} | {one.group} | {one.count:,} "
                f"| {one.payload / 1e9:.3g} | {one.sent / 1e9:.3g} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
