"""Decoding's attention to own tokens as a kernel for GPUs: in one pass, no further than filled.

XLA writes the scores of all slots into memory and reads them once for each step of the softmax, and
its products read the whole capacity of every slot.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

# With three stages this is 72 KiB of shared memory at a head_dim of 128: an L4 has 99.
_BLOCK = 64
# Rows that a product of matrices in Triton has at least.
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

    S must be a multiple of 128. `interpret` runs the kernel's steps one by one on any platform.
    """
    P, G, K, R, h = q.shape
    N, S = P * G, keys.shape[-1]
    rows = max(_ROWS, pl.next_power_of_2(R))

    def flat(x: Array) -> Array:
        return x.reshape(N, *x.shape[2:])

    def head(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, *shape), lambda n, k: (n, k) + (0,) * len(shape))

    cache, narrow = [head(h, S), head(S, h)], head(rows, 1)
    results = pl.pallas_call(
        functools.partial(_kernel, queries=R, block=_BLOCK),
        grid=(N, K),
        in_specs=[
            pl.BlockSpec((None,), lambda n, k: (n,)),
            *[head(rows, h), head(h), head(h)],
            *[head(rows, h), narrow, narrow],
            *cache,
        ],
        out_specs=[*cache, head(rows, h)],
        out_shape=[
            *(jax.ShapeDtypeStruct(flat(x).shape, x.dtype) for x in (keys, values)),
            jax.ShapeDtypeStruct((N, K, R, h), q.dtype),
        ],
        input_output_aliases={7: 0, 8: 1},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=3),
        cost_estimate=pl.CostEstimate(
            flops=4 * N * K * rows * h * S,
            transcendentals=N * K * rows * S,
            bytes_accessed=keys.nbytes + values.nbytes,
        ),
        interpret=interpret,
    )(
        counts.reshape(N),
        *map(flat, ((q * h**-0.5).astype(q.dtype), k, v, out, top, total, keys, values)),
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
    *,
    queries: int,
    block: int,
) -> None:
    """One head of one slot: an online softmax that begins at the prompt and the new token.

    Rows beyond the queries are there for the products alone.
    """
    there = jnp.arange(q.shape[0])[:, None] < queries
    load = functools.partial(plgpu.load, mask=there, other=0)
    count, rows, new_k, new_v = counts[...], load(q), k[...], v[...]

    def more(carry: tuple[Array, ...], scores: Array, weighted: Callable[[Array], Array]) -> Any:
        out, top, total = carry
        highest = jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
        weights, shrink = jnp.exp(scores - highest), jnp.exp(top - highest)
        total = shrink * total + jnp.sum(weights, axis=1, keepdims=True)
        return shrink * out + weighted(weights), highest, total

    def step(number: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        places = pl.ds(number * block, block)
        before = number * block + jnp.arange(block) < count
        scores = jnp.where(before[None], plgpu.dot(rows, keys[:, places]), -jnp.inf)
        return more(carry, scores, lambda x: plgpu.dot(x.astype(values.dtype), values[places, :]))

    products = rows.astype(jnp.float32) * new_k.astype(jnp.float32)[None]
    carry = more(
        (load(prompt_out), load(prompt_top), load(prompt_total)),
        jnp.sum(products, axis=1, keepdims=True),
        lambda x: x * new_v.astype(jnp.float32)[None],
    )
    out, _, total = jax.lax.fori_loop(0, pl.cdiv(count, block), step, carry)
    plgpu.store(result, (out / total).astype(result.dtype), mask=there)
    new_keys[:, pl.ds(count, 1)] = new_k[:, None]
    new_values[pl.ds(count, 1), :] = new_v[None]
