"""Decoding's attention to own tokens as a kernel for TPUs: in place, and no further than filled.

XLA's scatter into the cache makes the compiler keep a second copy of it in another layout, and its
products read the whole capacity of every sequence slot. Here one kernel puts the newest token into
the cache and reads, of every slot, the blocks that hold its tokens.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from learner.qwen3.attention import LANES

_BLOCKS = (512, 256, 128)
# Tokens of a tile of values, which is what can be written at least.
_ROWS = 16


def append_and_attend(
    q: Array,
    k: Array,
    v: Array,
    keys: Array,
    values: Array,
    counts: Array,
    out: Array,
    top: Array,
    total: Array,
    *,
    interpret: bool = False,
) -> tuple[Array, ...]:
    """As the reference of `learner.qwen3.cached_attention`, but with the cache changed in place.

    S must be a multiple of `LANES`. `interpret` runs the kernel's steps one by one on any platform.
    """
    P, G, K, R, h = q.shape
    N, S = P * G, keys.shape[-1]
    block = next(size for size in _BLOCKS if S % size == 0)

    def flat(x: Array) -> Array:
        return x.reshape(N, *x.shape[2:])

    def filled(n: Any, j: Any, counts: Any) -> Any:
        """The j-th block of a slot, or again the last one that holds tokens: not read again."""
        return jnp.minimum(j, jnp.maximum(counts[n] - 1, 0) // block)

    def slot(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, *shape), lambda n, j, counts: (n,) + (0,) * len(shape))

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(N, S // block),
        in_specs=[
            slot(K, R, h),
            slot(K, h),
            slot(K, h),
            slot(K, R, h),
            slot(K, R, h),
            slot(K, R, h),
            pl.BlockSpec((1, K, h, block), lambda n, j, counts: (n, 0, 0, filled(n, j, counts))),
            pl.BlockSpec((1, K, block, h), lambda n, j, counts: (n, 0, filled(n, j, counts), 0)),
        ],
        out_specs=[
            pl.BlockSpec((1, K, h, LANES), lambda n, j, counts: (n, 0, 0, counts[n] // LANES)),
            pl.BlockSpec((1, K, _ROWS, h), lambda n, j, counts: (n, 0, counts[n] // _ROWS, 0)),
            slot(K, R, h),
        ],
        scratch_shapes=[
            pltpu.VMEM((K, R, h), jnp.float32),
            pltpu.VMEM((K, R, 1), jnp.float32),
            pltpu.VMEM((K, R, 1), jnp.float32),
        ],
    )
    cache = [jax.ShapeDtypeStruct(flat(x).shape, x.dtype) for x in (keys, values)]
    # Narrow arrays would be laid out anew on their way.
    state = (jnp.broadcast_to(x, q.shape) for x in (out, top, total))
    results = pl.pallas_call(
        functools.partial(_kernel, heads=K, block=block),
        grid_spec=grid,
        out_shape=[*cache, jax.ShapeDtypeStruct((N, K, R, h), q.dtype)],
        input_output_aliases={7: 0, 8: 1},  # Counted from the counts on.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=4 * N * K * R * h * S,
            transcendentals=N * K * R * S,
            bytes_accessed=keys.nbytes + values.nbytes,
        ),
        interpret=interpret,
    )(
        counts.reshape(N),
        *map(flat, ((q * h**-0.5).astype(q.dtype), k, v, *state, keys, values)),
    )
    return tuple(x.reshape(P, G, *x.shape[1:]) for x in results)


def _kernel(
    counts: Any,
    q: Any,
    k: Any,
    v: Any,
    prompt_out: Any,
    prompt_top: Any,
    prompt_total: Any,
    keys: Any,
    values: Any,
    new_keys: Any,
    new_values: Any,
    result: Any,
    out: Any,
    top: Any,
    total: Any,
    *,
    heads: int,
    block: int,
) -> None:
    """One block of one slot: an online softmax that begins at the prompt and the new token."""
    slot, number = pl.program_id(0), pl.program_id(1)
    count = counts[slot]
    last = jnp.maximum(count - 1, 0) // block

    def row_of(x: Any, head: int) -> Array:
        return x[0, head : head + 1].astype(jnp.float32)

    @pl.when(number == 0)
    def _begin() -> None:
        for head in range(heads):
            products = q[0, head].astype(jnp.float32) * row_of(k, head)
            score, before = jnp.sum(products, axis=1, keepdims=True), prompt_top[0, head, :, :1]
            top[head] = after = jnp.maximum(before, score)
            weight, shrink = jnp.exp(score - after), jnp.exp(before - after)
            total[head] = shrink * prompt_total[0, head, :, :1] + weight
            out[head] = shrink * prompt_out[0, head] + weight * row_of(v, head)

    @pl.when((number <= last) & (count > 0))
    def _block() -> None:
        places = number * block + jax.lax.broadcasted_iota(jnp.int32, (q.shape[2], block), 1)
        for head in range(heads):
            scores = jnp.dot(q[0, head], keys[0, head], preferred_element_type=jnp.float32)
            scores = jnp.where(places < count, scores, -jnp.inf)
            before = top[head]
            after = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
            weights, shrink = jnp.exp(scores - after), jnp.exp(before - after)
            top[head] = after
            total[head] = shrink * total[head] + jnp.sum(weights, axis=1, keepdims=True)
            out[head] = shrink * out[head] + jnp.dot(
                weights.astype(values.dtype), values[0, head], preferred_element_type=jnp.float32
            )

    @pl.when(number == last)
    def _append() -> None:
        # What is behind the new token is not looked at; where it begins a tile, nothing is kept.
        within = count - last * block

        def tile(size: int) -> Any:
            start = jnp.minimum(within // size, block // size - 1) * size
            return pl.ds(pl.multiple_of(start, size), size)

        h = q.shape[3]
        lane = jax.lax.broadcasted_iota(jnp.int32, (h, LANES), 1)
        row = jax.lax.broadcasted_iota(jnp.int32, (_ROWS, h), 0)
        for head in range(heads):
            result[0, head] = (out[head] / total[head]).astype(result.dtype)
            # A column for every lane: a row for every sublane, transposed.
            column = jnp.broadcast_to(row_of(k, head), (LANES, h)).T
            new_keys[0, head] = jnp.where(
                lane == count % LANES,
                column.astype(new_keys.dtype),
                keys[0, head, :, tile(LANES)],
            )
            new_values[0, head] = jnp.where(
                row == count % _ROWS,
                row_of(v, head).astype(new_values.dtype),
                values[0, head, tile(_ROWS)],
            )
