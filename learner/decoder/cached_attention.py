"""Decode attention: each sample's newest token over the KV caches of its prompt and its own.

Letters in shapes: P groups of C prompts and G samples of these, S the capacity for the own tokens
of a sample, T that for a prompt; H query heads, K key/value heads, R = H / K, h head width.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from learner.decoder.attention import (
    LANES,
    MASKED,
    Choice,
    choose,
    over_mesh,
    problem,
    stored,
)
from learner.decoder.config import DecoderConfig
from learner.decoder.rotary import normalize, rotate, whole_heads

_AXES = ("batch", "activation", "kv_heads")

_product = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)


@functools.cache
def choose_decoding(config: DecoderConfig) -> Choice:
    """The implementation for a model, and why; the same on every call.

    Here "flash" and "cudnn" are our own kernels for TPUs and GPUs, used with the kernels of these
    names for whole sequences. A kernel is first tried, as in `learner.decoder.attention.choose`.
    """
    name = choose(config).name
    if name == "reference":
        return Choice(name, "there are kernels beside flash and cuDNN only")
    K, H, h = config.num_key_value_heads, config.num_attention_heads, config.head_dim
    if name == "cudnn" and h & (h - 1):
        return Choice("reference", f"the kernel needs a power of two for head_dim, and this is {h}")
    if config.attention == name:
        return Choice(name, "the configuration asks for its kernels")
    P, C, G, S = 1, 2, 2, LANES
    rng = np.random.default_rng(0)
    new = [(P, G, heads * h) for heads in (H, K, K)]
    caches = [(P, n, K, *shape) for n in (C, G) for shape in ((h, S), (S, h))]
    dtypes = [config.dtype] * len(new) + [config.kv_dtype] * len(caches)
    args = [
        rng.normal(size=shape).astype(jnp.dtype(dtype))
        for shape, dtype in zip((*new, *caches), dtypes, strict=True)
    ]
    angles = [np.float32(rng.uniform(size=(P, G, 1, h // 2))) for _ in range(2)]
    batched = [np.array([x], np.int32) for x in ((S - 1, 1), (0, 1), (0, S // 2))]
    pages: Any = np.array([[[0], [1]]], np.int32)  # One for each sample, as the reference has them.
    if wrong := problem(
        functools.partial(cached_attention, eps=1e-6, pages=pages, implementation=name),
        functools.partial(cached_attention, eps=1e-6),
        [*args, *angles, *batched, np.ones((2, h), np.float32)],
    ):
        return Choice("reference", f"the kernel failed when tried: {wrong}")
    return Choice(name, "its kernel agrees with the reference")


def cached_attention(
    q: Array,
    k: Array,
    v: Array,
    prompt_keys: Array,
    prompt_values: Array,
    keys: Array,
    values: Array,
    cos: Array,
    sin: Array,
    lengths: Array,
    parents: Array,
    counts: Array,
    norms: Array,
    *,
    eps: float | None,
    pages: Array | None = None,
    implementation: str = "reference",
) -> tuple[Array, Array, Array]:
    """Put a token of each sample into its cache; attend to its prompt and its own tokens.

    All samples of a group share one matrix product with the keys of each of its prompts. The result
    starts an online softmax over their own tokens (arXiv 1805.02867), so that the two are never
    concatenated.

    Args:
        q: [P, G, H * h]; k, v: [P, G, K * h], projections of the token.
        prompt_keys: [P, C, K, h, T]; prompt_values: [P, C, K, T, h].
        keys: [P, G, K, h, S]; values: [P, G, K, S, h]. For kernels, [X, N, K, h, S] and
            [X, N, K, S, h]: each of X batch shards has N pages of S tokens.
        cos, sin: f32[P, G, 1, h / 2], of the rotation at the token's position.
        lengths: i32[P, C], tokens of the prompts.
        parents: i32[P, G], which prompt of its group each sample continues, less than C.
        counts: i32[P, G], own tokens before the new one; there must be room for one more.
        norms: f32[2, h], scales of the norms of queries and of keys.
        eps: of these norms; None does not normalise.
        pages: i32[P, G, n], the pages of each sample's own tokens, in their order, for kernels.
            Two samples may share a page only if neither's result matters.
        implementation: `choose_decoding(config).name`; kernels need S to be a multiple of `LANES`.

    Caches in another dtype than `q` (`DecoderConfig.cache_dtype`) are converted to that of `q`
    before the products.

    Returns:
        Keys and values with the token in them, and [P, G, H * h] in the dtype of `q`. Scores and
        softmax are float32.
    """
    (P, G), (K, h) = counts.shape, keys.shape[2:4]
    caches = (prompt_keys, prompt_values, keys, values)
    batched: list[Any] = [lengths, parents, counts]
    whole: list[Any] = []
    attend: Callable[..., Any] = _attend_reference
    if implementation == "flash":
        from learner.decoder import decode_tpu  # Each kernel imports Pallas for its platform.

        attend = functools.partial(decode_tpu.append_and_attend, eps=eps)
        cos, sin = whole_heads((cos, sin))
        batched, whole = [*batched, cos, sin, pages], [norms]
    else:
        assert implementation in ("reference", "cudnn"), implementation
        if implementation == "cudnn":
            from learner.decoder import decode_gpu

            attend, batched = decode_gpu.append_and_attend, [*batched, pages]
        q, k, v = (x.reshape(P, G, -1, h) for x in (q, k, v))
        q, k = (
            rotate(x if eps is None else normalize(x, scale, eps), (cos, sin))
            for x, scale in ((q, norms[0]), (k, norms[1]))
        )
        q = q.reshape(P, G, K, -1, h)
    keys, values, out = over_mesh(attend, _AXES, q, k, v, *caches, batched=batched, whole=whole)
    return keys, values, out.reshape(P, G, -1)


def _attend_reference(
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
) -> tuple[Array, Array, Array]:
    """`cached_attention` of normalised and rotated queries and keys, for every platform.

    Args:
        q: [P, G, K, R, h].
        k, v: [P, G, K, h].
        others: as in that function.

    Returns:
        Keys and values with the new token, and [P, G, K, R, h] in the dtype of `q`.
    """
    P, G, K, R, h = q.shape

    queries = q.transpose(0, 2, 1, 3, 4).reshape(P, 1, K, G * R, h)

    def by_sample(x: Array) -> Array:  # [P, C, K, G * R, n] -> [P, G, K, R, n], its own prompt's.
        if x.shape[1] > 1:
            own = jnp.repeat(parents, R, axis=1)[:, None, None, :, None]
            x = jnp.take_along_axis(x, own, axis=1)
        return x[:, 0].reshape(P, K, G, R, -1).transpose(0, 2, 1, 3, 4)

    scores = _product(queries, prompt_keys.astype(q.dtype)) * h**-0.5
    there = jnp.arange(prompt_keys.shape[-1]) < lengths[..., None]
    scores = jnp.where(there[:, :, None, None], scores, MASKED)
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    out = _product(weights.astype(q.dtype), prompt_values.astype(q.dtype))
    out, top, total = (by_sample(x) for x in (out, top, total))

    keys, values = _append(keys, k, counts, axis=-1), _append(values, v, counts, axis=-2)
    there = jnp.arange(keys.shape[-1]) <= counts[..., None, None, None]
    scores = jnp.where(there, _product(q, keys.astype(q.dtype)) * h**-0.5, MASKED)
    highest = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
    weights, shrink = jnp.exp(scores - highest), jnp.exp(top - highest)
    total = shrink * total + jnp.sum(weights, axis=-1, keepdims=True)
    out = shrink * out + _product(weights.astype(q.dtype), values.astype(q.dtype))
    return keys, values, (out / total).astype(q.dtype)


def _append(cache: Array, new: Array, counts: Array, axis: int) -> Array:
    """Put [P, G, K, h] into place counts[P, G] of `axis` of a cache of samples."""
    P, G = counts.shape
    groups, samples = jnp.arange(P)[:, None], jnp.arange(G)
    places = cache.at[groups, samples, :, :, counts]
    if axis == -2:
        places = cache.at[groups, samples, :, counts]
    return places.set(stored(new, cache.dtype), mode="promise_in_bounds")
