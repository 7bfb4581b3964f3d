"""GPU kernels for decode attention, each one pass over the filled part of a KV cache.

XLA writes the scores of all prompts and slots into memory and reads them once for each step of the
softmax, and its products read the whole capacity of every slot.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from learner.decoder.attention import MASKED, stored

# With three stages this is 72 KiB of shared memory at a head_dim of 128: an L4 has 99.
_BLOCK = 64
# Fewest rows of a matrix product in Triton, and most rows of one here.
_LEAST, _MOST = 16, 64


def append_and_attend(
    q: Array,
    k: Array,
    v: Array,
    prompt_keys: Array,
    prompt_values: Array,
    keys: Array,
    values: Array,
    lengths: Array,
    parents: Array,
    counts: Array,
    pages: Array,
    *,
    interpret: bool = False,
) -> tuple[Array, ...]:
    """As the reference of `learner.decoder.cached_attention`, but changes the cache in place.

    Args:
        keys: [X, Y, K, h, S]; values: [X, Y, K, S, h], pages of S tokens, a multiple of 128.
        pages: i32[P, G, n], where each sample's own tokens are, less than X * Y.
        interpret: run the kernels' steps one by one on any platform.
        others: as there; T must be a multiple of 16.
    """
    P, G, K, R, h = q.shape
    N, C, S, T = P * G, prompt_keys.shape[1], keys.shape[-1], prompt_keys.shape[-1]
    n = pages.shape[-1]
    # Products take at least `_LEAST` rows. Those beyond a group's queries are padding, so that
    # every slice stays inside its array. Their results are dropped.
    block_rows = min(_MOST, max(_LEAST, pl.next_power_of_2(G * R)))
    sample_rows = max(_LEAST, pl.next_power_of_2(R))
    blocks = pl.cdiv(G * R, block_rows)
    padded = max(blocks * block_rows, (G - 1) * R + sample_rows)
    queries = (q * h**-0.5).astype(q.dtype).transpose(0, 2, 1, 3, 4).reshape(P, K, G * R, h)
    queries = jnp.pad(queries, ((0, 0), (0, 0), (0, padded - G * R), (0, 0)))
    options = plgpu.CompilerParams(num_warps=4, num_stages=3)

    def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])

    def estimate(keys: Array, capacity: int) -> pl.CostEstimate:
        pairs = N * K * R * capacity
        return pl.CostEstimate(
            flops=4 * pairs * h, transcendentals=pairs, bytes_accessed=2 * keys.nbytes
        )

    def of_prompt(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, *shape), lambda p, k, i: (p, k, 0, 0))

    of_its_group = pl.BlockSpec((None, None, padded, h), lambda p, k, i: (p // C, k, 0, 0))

    state = [of_prompt(padded, width) for width in (h, 1, 1)]
    shared = pl.pallas_call(
        functools.partial(_prompt_kernel, rows=block_rows, block=math.gcd(T, _BLOCK)),
        grid=(P * C, K, blocks),
        in_specs=[
            pl.BlockSpec((None,), lambda p, k, i: (p,)),
            of_its_group,
            *map(of_prompt, (h, T), (T, h)),
        ],
        out_specs=state,
        out_shape=[jax.ShapeDtypeStruct((P * C, K, padded, w), jnp.float32) for w in (h, 1, 1)],
        compiler_params=options,
        cost_estimate=estimate(prompt_keys, T),
        interpret=interpret,
    )(lengths.reshape(P * C), queries, flat(prompt_keys), flat(prompt_values))

    def head(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, *shape), lambda n, k: (n, k) + (0,) * len(shape))

    def of_prompts(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, C, None, padded, width), lambda n, k: (n // G, 0, k, 0, 0))

    of_group = pl.BlockSpec((None, None, padded, h), lambda n, k: (n // G, k, 0, 0))
    of_slot = pl.BlockSpec((None,), lambda n, k: (n,))
    every = math.prod(keys.shape[:2])
    cache = [
        pl.BlockSpec((every, None, *shape), lambda _, k: (0, k, 0, 0)) for shape in ((h, S), (S, h))
    ]
    results = pl.pallas_call(
        functools.partial(_kernel, samples=G, queries=R, rows=sample_rows),
        grid=(N, K),
        in_specs=[
            *[of_slot, of_slot, pl.BlockSpec((None, n), lambda i, _: (i, 0))],
            *[of_group, head(h), head(h)],
            *map(of_prompts, (h, 1, 1)),
            *cache,
        ],
        out_specs=[*cache, head(sample_rows, h)],
        out_shape=[
            *(jax.ShapeDtypeStruct(flat(x).shape, x.dtype) for x in (keys, values)),
            jax.ShapeDtypeStruct((N, K, sample_rows, h), q.dtype),
        ],
        input_output_aliases={9: 0, 10: 1},
        compiler_params=options,
        cost_estimate=estimate(keys, n * S),
        interpret=interpret,
    )(
        *(x.reshape(N) for x in (parents, counts)),
        *(pages.reshape(N, n), queries, flat(k), flat(v)),
        *(x.reshape(P, C, *x.shape[1:]) for x in shared),
        *map(flat, (keys, values)),
    )
    *changed, out = results
    out = out[:, :, :R].reshape(q.shape)
    return *(x.reshape(keys.shape[:2] + x.shape[1:]) for x in changed), out


def _more(
    carry: tuple[Array, ...], scores: Array, weighted: Callable[[Array], Array]
) -> tuple[Array, ...]:
    """Continue an online softmax (out, top, total) with scores [rows, n]."""
    out, top, total = carry
    highest = jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
    weights, shrink = jnp.exp(scores - highest), jnp.exp(top - highest)
    total = shrink * total + jnp.sum(weights, axis=1, keepdims=True)
    return shrink * out + weighted(weights), highest, total


def _over_blocks(
    carry: tuple[Array, ...],
    rows: Array,
    keys: Callable[[Array], Array],
    values: Callable[[Array], Array],
    count: Array,
    block: int,
) -> tuple[Array, ...]:
    """`_more` with the first `count` tokens of keys [h, n] and values [n, h], by blocks."""

    def step(number: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        before = number * block + jnp.arange(block) < count
        scores = jnp.where(before[None], plgpu.dot(rows, keys(number).astype(rows.dtype)), MASKED)

        def weighted(weights: Array) -> Array:
            return plgpu.dot(weights.astype(rows.dtype), values(number).astype(rows.dtype))

        return _more(carry, scores, weighted)

    return jax.lax.fori_loop(0, pl.cdiv(count, block), step, carry)


def _prompt_kernel(
    lengths: Any,
    q: Any,
    keys: Any,
    values: Any,
    out: Any,
    top: Any,
    total: Any,
    *,
    rows: int,
    block: int,
) -> None:
    """One head of one prompt, and some rows of the queries of all samples of its group."""
    here = pl.ds(pl.program_id(2) * rows, rows)
    shape = (rows, q.shape[1])
    begin = (jnp.zeros(shape), jnp.full((rows, 1), MASKED), jnp.zeros((rows, 1)))

    def of(number: Array) -> Any:
        return pl.ds(number * block, block)

    end = _over_blocks(
        begin, q[here, :], lambda i: keys[:, of(i)], lambda i: values[of(i), :], lengths[...], block
    )
    for x, value in zip((out, top, total), end, strict=True):
        x[here, :] = value


def _kernel(
    parents: Any,
    counts: Any,
    pages: Any,
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
    samples: int,
    queries: int,
    rows: int,
) -> None:
    """One head of one slot: an online softmax that starts from its prompt and the new token.

    Rows beyond its queries, of the next slot or padding, only fill up the products.
    """
    here = pl.ds(pl.program_id(0) % samples * queries, rows)
    count, row = counts[...], q[here, :]
    new_k, new_v = (stored(x[...], new_keys.dtype) for x in (k, v))
    products = row.astype(jnp.float32) * new_k.astype(jnp.float32)[None]
    parent = parents[...]
    carry = _more(
        tuple(x[parent, here, :] for x in (prompt_out, prompt_top, prompt_total)),
        jnp.sum(products, axis=1, keepdims=True),
        lambda x: x * new_v.astype(jnp.float32)[None],
    )
    size = keys.shape[2]

    def place(token: Array, width: int) -> tuple[Any, Any]:
        return pages[jax.lax.div(token, size)], pl.ds(jax.lax.rem(token, size), width)

    def block_of_keys(number: Array) -> Array:
        page, tokens = place(number * _BLOCK, _BLOCK)
        return keys[page, :, tokens]

    def block_of_values(number: Array) -> Array:
        page, tokens = place(number * _BLOCK, _BLOCK)
        return values[page, tokens, :]

    out, _, total = _over_blocks(carry, row, block_of_keys, block_of_values, count, _BLOCK)
    result[...] = (out / total).astype(result.dtype)
    page, token = place(count, 1)
    new_keys[page, :, token] = new_k[:, None]
    new_values[page, token, :] = new_v[None]
