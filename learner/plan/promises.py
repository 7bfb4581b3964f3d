"""Promises about the gradients of a compiled update, checked in the program of one device.

- `parameters`: no device holds all layers of a matrix that is split; outside the loops over layers
  no more than one layer of weights is gathered.
- `logits`: no array has logits for more tokens than `learner.decoder.logprobs` computes at once.
- `bfloat16`: weights are cast before they are gathered; what is kept of every layer for the
  backward pass is bfloat16.
"""

import inspect
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from learner.decoder import model
from learner.decoder.config import DecoderConfig
from learner.decoder.logprobs import token_logprobs
from learner.devices import sharding
from learner.plan.hlo import Instruction, Module

_CHUNK = inspect.signature(token_logprobs).parameters["chunk"].default


def broken(
    text: str, config: DecoderConfig, mesh: Mesh, tokens: int, adapters: Any = None
) -> list[str]:
    """Broken promises, each with its instruction; empty if all are kept.

    Args:
        text: `jax.stages.Compiled.as_text` of the gradients.
        config: the model, with scanned layers.
        mesh: what it was compiled for.
        tokens: number of tokens in the rows of one device.
        adapters: what is trained in place of the model's parameters; any leaves with shapes.
    """
    module = Module.parse(text)
    visits = [(i, times) for _, i, times in module.visits()]
    loops = config.num_hidden_layers // config.scan_unroll
    scans = [i for i, _ in visits if i.opcode == "while" and module.iterations(i) == loops]
    found = [*_parameters(visits, config, mesh), *_logits(visits, config, mesh)]
    if config.dtype == "bfloat16":
        trained = {tuple(sorted(x.shape)) for x in jax.tree.leaves(adapters)}
        found += _bfloat16(visits, scans, config, mesh, tokens, trained)
    if len(scans) < 2:
        found.append(f"parameters: {len(scans)} loops over layers; there must be two, one each way")
    return list(dict.fromkeys(found))


def _parameters(
    visits: list[tuple[Instruction, int]], config: DecoderConfig, mesh: Mesh
) -> Iterator[str]:
    _, gathered = _stacks(config, mesh)
    layers = jax.tree.leaves(model.abstract_params(config)["layers"])
    layer = sum(leaf.size for leaf in layers) // config.num_hidden_layers
    outside = 0
    for instruction, times in visits:
        for shape in instruction.shapes:
            if tuple(sorted(shape.dims)) in gathered:
                yield f"parameters: {_described(instruction)} holds a matrix of all layers"
            is_weight = shape.dtype in ("f32", "bf16") and len(shape.dims) > 1
            is_weight &= not _widths(config.vocab_size, "tensor", mesh) & set(shape.dims)
            ends = instruction.opcode in ("all-gather", "all-gather-done")
            if ends and times == 1 and is_weight:
                outside += math.prod(shape.dims)
    if outside > layer:
        yield (
            f"parameters: {outside:,} numbers are gathered outside the loops over layers, more "
            f"than the {layer:,} of a layer"
        )


def _logits(
    visits: list[tuple[Instruction, int]], config: DecoderConfig, mesh: Mesh
) -> Iterator[str]:
    widths = _widths(config.hidden_size, "fsdp", mesh)
    columns = config.vocab_size // mesh.shape["tensor"]
    sizes = _widths(config.vocab_size, "tensor", mesh) | _widths(columns, "fsdp", mesh) - widths
    for instruction, _ in visits:
        for shape in instruction.shapes:
            for size in sizes & set(shape.dims):
                tokens = math.prod(shape.dims) // size
                if tokens * size > _CHUNK * columns and tokens not in widths:
                    yield f"logits: {_described(instruction)} has those of {tokens:,} tokens"


def _bfloat16(
    visits: list[tuple[Instruction, int]],
    scans: list[Instruction],
    config: DecoderConfig,
    mesh: Mesh,
    tokens: int,
    trained: set[tuple[int, ...]],
) -> Iterator[str]:
    vector = max(config.hidden_size, config.num_attention_heads * config.head_dim)
    # One number for each token whose log-probability the devices compute together.
    statistics = _CHUNK * mesh.shape["fsdp"]
    for instruction, _ in visits:
        for shape in instruction.shapes:
            size = math.prod(shape.dims)
            large = size > vector and (size > statistics or config.hidden_size in shape.dims)
            large &= shape.dtype == "f32"
            if instruction.opcode.startswith("all-gather") and large:
                yield f"bfloat16: {_described(instruction)} gathers float32"
    own, _ = _stacks(config, mesh)
    # The largest that may be float32: cosines and sines of the rotation, one head per token.
    rotation = tokens * config.head_dim
    smallest = max(rotation + 1, tokens * min(_widths(config.hidden_size, "fsdp", mesh)))
    for scan in scans:
        for shape in scan.shapes:
            size = math.prod(shape.dims)
            if shape.dtype != "f32" or tuple(sorted(shape.dims)) in own | trained:
                continue
            stacked = shape.dims[:1] == (config.num_hidden_layers,)
            kept = stacked and size > config.num_hidden_layers * vector
            if kept or (not stacked and size >= smallest):
                yield f"bfloat16: {_described(scan)} carries activations as {shape}"


def _widths(size: int, axis: str, mesh: Mesh) -> set[int]:
    """Lengths that an axis can have on a device: whole, or split."""
    return {size, size // mesh.shape[axis]}


def _stacks(config: DecoderConfig, mesh: Mesh) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """Dimensions of the stacked parameters, sorted: as each device has them, and gathered ones."""
    rules = dict(sharding.RULES)
    own: set[tuple[int, ...]] = set()
    gathered: set[tuple[int, ...]] = set()
    leaves = zip(
        jax.tree.leaves(model.abstract_params(config)["layers"]),
        jax.tree.leaves(model.logical_axes(config)["layers"]),
        strict=True,
    )
    for leaf, axes in leaves:
        splits = [mesh.shape.get(str(rules[axis]), 1) for axis in axes]
        for choice in itertools.product(*[{1, split} for split in splits]):
            dims = tuple(sorted(n // split for n, split in zip(leaf.shape, choice, strict=True)))
            (own if choice == tuple(splits) else gathered).add(dims)
    return own, gathered - own


def _described(instruction: Instruction) -> str:
    shape = instruction.shapes[0] if len(instruction.shapes) == 1 else "a tuple"
    return f"{instruction.opcode} {instruction.name} ({shape}, of {instruction.source!r})"
