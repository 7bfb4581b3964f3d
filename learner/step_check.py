"""Does a training step keep its promises on a mesh? A check of the compiled program; nothing runs.

    python -m learner.step_check --config=Qwen3-4B --mesh=32x8x1

The promises, each a rule here:

- `parameters`: no device ever holds all layers of a matrix that is split, and outside the loops
  over layers no more than one layer of weights is gathered.
- `logits`: no array has a row of logits for more tokens than `learner.qwen3.logprobs` computes
at once.
- `bfloat16`: weights are cast before they are gathered; products with them, and what is kept of
  every layer for the backward pass, are bfloat16.

They are read off the partitioned program (`learner.hlo`), so they hold for every platform. Exits
with 1 if one is broken, and says by which instruction.
"""

import argparse
import dataclasses
import inspect
import itertools
import math
import sys
from collections.abc import Iterator, Sequence

import jax
from jax.sharding import Mesh

from learner import hlo, plan
from learner.devices import sharding
from learner.qwen3 import model
from learner.qwen3.config import DTYPES, Qwen3Config
from learner.qwen3.logprobs import token_logprobs
from learner.training.trainer import GRPOConfig

_CHUNK = inspect.signature(token_logprobs).parameters["chunk"].default
_FLOATS = ("f32", "bf16", "f16", "f64")
_MATRICES = ("embedding", "unembedding")


@dataclasses.dataclass(frozen=True)
class Violation:
    """A broken promise.

    Attributes:
        rule: "parameters", "logits" or "bfloat16".
        what: the instruction, its shape and where it comes from, and what is wrong with it.
    """

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Expectation:
    """What the shapes of a program mean.

    Attributes:
        config: the model.
        mesh: axis -> size.
        tokens: tokens in the rows of one device.
        completion_tokens: of these, the positions that go through the output matrix.
    """

    config: Qwen3Config
    mesh: dict[str, int]
    tokens: int
    completion_tokens: int

    def __post_init__(self) -> None:
        layers, unroll = self.config.num_hidden_layers, self.config.scan_unroll
        if layers < 2 * unroll or layers % unroll:
            raise ValueError(
                f"scan_unroll is {unroll} of {layers} layers; the check needs a loop over layers"
            )
        widths = self._widths(self.config.hidden_size, "fsdp")
        if self.completion_tokens <= _CHUNK or self.completion_tokens in widths:
            raise ValueError(
                f"completions of one device have {self.completion_tokens} tokens; to tell full "
                f"logits they must have more than {_CHUNK}, and another number than "
                f"{sorted(widths)}"
            )

    @property
    def iterations(self) -> int:
        """Of a loop over layers."""
        return self.config.num_hidden_layers // self.config.scan_unroll

    @property
    def vocabulary(self) -> set[int]:
        """Lengths that an axis over the vocabulary can have on a device."""
        return self._widths(self.config.vocab_size, "tensor")

    @property
    def widths(self) -> set[int]:
        """Lengths that the axis of the residual stream can have on a device."""
        return self._widths(self.config.hidden_size, "fsdp")

    def _widths(self, size: int, axis: str) -> set[int]:
        return {size, size // self.mesh[axis]}

    def stacks(self) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
        """Shapes of the layers' parameters, stacked: as each device has them, and gathered ones.

        Gathered over fsdp, over tensor, or over both; only where that makes a difference.
        """
        whole = model.abstract_params(self.config)["layers"]
        names = model.logical_axes(self.config)["layers"]
        rules = dict(sharding.RULES)
        own: set[tuple[int, ...]] = set()
        gathered: set[tuple[int, ...]] = set()
        leaves = zip(
            jax.tree.leaves(whole),
            jax.tree.leaves(names, is_leaf=lambda x: isinstance(x, tuple)),
            strict=True,
        )
        for leaf, axes in leaves:
            splits = [self.mesh.get(str(rules[axis]), 1) for axis in axes]
            choices = itertools.product(*[{1, split} for split in splits])
            shapes = {
                tuple(n // split for n, split in zip(leaf.shape, choice, strict=True))
                for choice in choices
            }
            mine = tuple(n // split for n, split in zip(leaf.shape, splits, strict=True))
            own.add(mine)
            gathered |= shapes - {mine}
        return own, gathered - own

    def layer_size(self) -> int:
        """Elements of one layer's parameters."""
        layers = jax.tree.leaves(model.abstract_params(self.config)["layers"])
        return sum(leaf.size for leaf in layers) // self.config.num_hidden_layers


def check(module: hlo.Module, expected: Expectation) -> list[Violation]:
    """All broken promises of a program that computes gradients; empty if it keeps them.

    Args:
        module: of `hlo.partitioned`.
        expected: what its shapes mean.
    """
    visits = list(module.visits())
    loops = [
        visit
        for visit in visits
        if visit.instruction.opcode == "while"
        and module.iterations(visit.instruction) == expected.iterations
        and not visit.loops
    ]
    found = [
        *_parameters(visits, expected),
        *_logits(visits, expected),
        *_bfloat16(visits, loops, expected),
    ]
    if len(loops) < 2:
        found.append(
            Violation(
                "parameters",
                f"{len(loops)} loops of {expected.iterations} iterations; the passes forwards and "
                "backwards over the layers must be one each",
            )
        )
    # The same instruction may run in several places.
    return list(dict.fromkeys(found))


def check_update(
    config: Qwen3Config, training: GRPOConfig, mesh: Mesh, prompt_length: int
) -> list[Violation]:
    """Compile the gradients of one micro-batch of the longest rows for a mesh, and check them.

    Args:
        config: the model; scanned.
        training: how it is trained; `max_new_tokens` above the chunk of `token_logprobs`.
        mesh: of devices of any kind.
        prompt_length: tokens of the longest prompt.

    Raises:
        ValueError: the shapes are such that the check could not tell.
    """
    rows = training.micro_batch_rows // sharding.num_row_shards(mesh)
    completions = rows * training.completions_per_row * training.max_new_tokens
    length, _ = training.row_shape(
        prompt_length + training.completions_per_row * training.max_new_tokens, 1
    )
    expected = Expectation(config, dict(mesh.shape), rows * length, completions)
    lowered = plan.abstract_trainer(config, training, mesh).lower_update(prompt_length)
    return check(hlo.partitioned(lowered["gradients"], mesh.size), expected)


def _parameters(visits: Sequence[hlo.Visit], expected: Expectation) -> Iterator[Violation]:
    _, gathered = expected.stacks()
    outside = 0
    largest: hlo.Visit | None = None
    for visit in visits:
        instruction = visit.instruction
        for shape in instruction.shapes:
            if shape.dims in gathered:
                yield Violation("parameters", f"{_told(visit)} holds a matrix of all layers")
        if instruction.opcode != "all-gather" or expected.iterations in visit.loops:
            continue
        for shape in instruction.shapes:
            if shape.dtype in _FLOATS and not expected.vocabulary & set(shape.dims):
                outside += visit.times * shape.size
                if largest is None or shape.size > largest.instruction.shapes[0].size:
                    largest = visit
    if largest is not None and outside > expected.layer_size():
        yield Violation(
            "parameters",
            f"{outside:,} numbers are gathered outside the loops over layers, more than the "
            f"{expected.layer_size():,} of a layer; the largest is {_told(largest)}",
        )


def _logits(visits: Sequence[hlo.Visit], expected: Expectation) -> Iterator[Violation]:
    for visit in visits:
        for shape in visit.instruction.shapes:
            for size in expected.vocabulary & set(shape.dims):
                others = shape.size // size
                if others > _CHUNK and others not in expected.widths:
                    yield Violation(
                        "logits",
                        f"{_told(visit)} has logits of {others:,} tokens; {_CHUNK:,} are allowed",
                    )


def _bfloat16(
    visits: Sequence[hlo.Visit], loops: Sequence[hlo.Visit], expected: Expectation
) -> Iterator[Violation]:
    config = expected.config
    own, _ = expected.stacks()
    vector = max(config.hidden_size, config.num_attention_heads * config.head_dim)
    for visit in visits:
        instruction = visit.instruction
        if instruction.opcode == "all-gather":
            for shape in instruction.shapes:
                if shape.dtype == "f32" and shape.size > vector:
                    yield Violation("bfloat16", f"{_told(visit)} gathers float32")
        if instruction.opcode == "dot" and expected.iterations in visit.loops:
            # Products of attention have batch dimensions, those with weights have none.
            plain = not instruction.attribute("lhs_batch_dims")
            if plain and any(op.shapes[0].dtype == "f32" for op in visit.operands):
                yield Violation("bfloat16", f"{_told(visit)} multiplies float32 by a weight")
    # The largest that may be float32: cosines and sines of the rotation, half a head a token.
    rotation = expected.tokens * config.head_dim // 2
    smallest = max(rotation + 1, expected.tokens * min(expected.widths))
    for visit in loops:
        for shape in visit.instruction.shapes:
            if shape.dtype != "f32" or shape.dims in own:
                continue
            stacked = shape.dims[:1] == (config.num_hidden_layers,)
            kept = stacked and shape.size > config.num_hidden_layers * vector
            if kept or (not stacked and shape.size >= smallest):
                yield Violation(
                    "bfloat16", f"{_told(visit)} carries activations as {shape} over the layers"
                )


def _told(visit: hlo.Visit) -> str:
    instruction = visit.instruction
    shape = instruction.shapes[0] if len(instruction.shapes) == 1 else "a tuple"
    return f"{instruction.opcode} {instruction.name} ({shape}, of {instruction.source!r})"


# Command ------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Check, print, and return 1 if a promise is broken, 2 if the options are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m learner.step_check",
        description=__doc__.split("\n\n")[0] if __doc__ else None,
    )
    add = parser.add_argument
    add("--config", required=True, help="a published name, a folder, or a hub name")
    add("--mesh", default="32x8x1", help="data x fsdp x tensor, one or several")
    add("--dtype", choices=DTYPES, default="bfloat16", help="of activations and products")
    add("--prompt_length", type=int, default=512, help="tokens of the longest prompt")
    add("--max_new_tokens", type=int, default=4095, help="tokens of the longest completion")
    options = parser.parse_args(argv)
    broken = 0
    try:
        config = plan.model_config(options.config, dtype=options.dtype, remat="full")
        sizes = plan.mesh_sizes(options.mesh)
        plan.use_host_devices(max(math.prod(size) for size in sizes))
        for size in sizes:
            mesh = sharding.make_mesh(*size)
            shards = sharding.num_row_shards(mesh)
            training = GRPOConfig(
                prompts_per_step=shards,
                micro_batch_rows=shards,
                max_new_tokens=options.max_new_tokens,
                sampling_rows=shards,
            )
            found = check_update(config, training, mesh, options.prompt_length)
            broken += len(found)
            print(f"{options.config} on {mesh.size} devices, {'x'.join(map(str, size))}: ", end="")
            print("keeps all promises" if not found else f"{len(found)} violations")
            for violation in found:
                print(f"  {violation}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
