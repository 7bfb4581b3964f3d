"""Prefill and decode with a KV cache: prompts into slots, then token by token.

Letters in shapes as in `learner.decoder.model`, and: P groups of C prompts and G samples of these
at a time, T and S the capacity for tokens of a prompt and of a sample.

A prompt is stored once and read by all of its samples (shared-prefix attention, arXiv
2402.05099). Its last token is left out: every sample decodes it first, so a sample can start at
any time with nothing but the cache. Samples have lengths of their own, and what happens in a slot
does not depend on what the other slots hold.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from learner.decoder import model
from learner.decoder.attention import choose, self_attention, stored
from learner.decoder.cached_attention import cached_attention, choose_decoding
from learner.decoder.config import DecoderConfig
from learner.decoder.model import Block, Params, RMSNorm, embed, merged
from learner.decoder.rotary import rope_angles

_TRANSPOSED = {"kernel": "transposed", "unembedding": "head"}


class Cache(NamedTuple):
    """Keys and values, one array per layer: of P x C prompts, or of P x G samples' own tokens.

    With a kernel, own tokens are in pages of S tokens, N for each of X batch shards, in place of
    P x G: `learner.sampling.pages`.

    Keys have their tokens last, so that scores and weighted sums are products of plain matrices:
    on a CPU several times faster than with tokens before heads.

    Attributes:
        keys: L arrays [P, C, K, h, T] or [P, G, K, h, S].
        values: L arrays [P, C, K, T, h] or [P, G, K, S, h].
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]

    @property
    def capacity(self) -> int:
        """T or S."""
        return self.keys[0].shape[-1]


def decoding_params(params: Params, config: DecoderConfig, transpose: bool = False) -> Params:
    """The parameters for decoding: a tuple of layers, matrices in `config.dtype`, adapters added.

    Scales of norms are float32, as they are applied.

    Always a copy, even if nothing is cast: slicing stacked weights in every step would copy them in
    every step.

    Args:
        params: stacked, as everywhere.
        transpose: whether matrices are `transposed`.
    """

    def cast_leaf(path: tuple[Any, ...], x: Array) -> Array:
        return x.astype(jnp.float32 if path[-1].key == "scale" else config.dtype)

    layers = tuple(
        merged(jax.tree.map(lambda x, i=i: x[i], params["layers"]), config.dtype)
        for i in range(config.num_hidden_layers)
    )
    whole = jax.tree_util.tree_map_with_path(cast_leaf, {**params, "layers": layers})
    return transposed(whole, jnp.transpose) if transpose else whole


def transposes(config: DecoderConfig, platform: str) -> bool:
    """Whether decoding on a platform gains by `transposed` matrices: larger models on CPUs."""
    return platform == "cpu" and config.hidden_size * config.intermediate_size >= model.LARGE


def transposed(params: Params, turn: Callable[[Any], Any]) -> Params:
    """Parameters, or their shardings, with `turn` of the matrices, named as `model` reads them."""
    found: Params = {}
    for name, x in params.items():
        if name in _TRANSPOSED:
            found[_TRANSPOSED[name]] = turn(x)
        elif isinstance(x, tuple):
            found[name] = tuple(transposed(layer, turn) for layer in x)
        else:
            found[name] = transposed(x, turn) if isinstance(x, dict) else x
    return found


def empty_cache(config: DecoderConfig, slots: tuple[int, int], capacity: int) -> Cache:
    """A cache for (P, C) prompts or (P, G) samples of up to `capacity` tokens, or (X, N) pages."""

    def layers(*shape: int) -> tuple[Array, ...]:
        shape = (*slots, config.num_key_value_heads, *shape)
        return tuple(jnp.zeros(shape, config.kv_dtype) for _ in range(config.num_hidden_layers))

    return Cache(layers(config.head_dim, capacity), layers(capacity, config.head_dim))


def resize(cache: Cache, capacity: int) -> Cache:
    """The cache with another capacity: padded, or cut at the end."""

    def fit(x: Array, axis: int) -> Array:
        x = jax.lax.slice_in_dim(x, 0, min(capacity, x.shape[axis]), axis=axis)
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, capacity - x.shape[axis])
        return jnp.pad(x, padding)

    return Cache(tuple(fit(x, -1) for x in cache.keys), tuple(fit(x, -2) for x in cache.values))


def prefill(
    params: Params, config: DecoderConfig, cache: Cache, tokens: Array, slots: Array
) -> Cache:
    """Run n prompts and put them into slots of the cache.

    Args:
        params: of `decoding_params`.
        tokens: i32[n, t], padded on the right, t at most T; without the prompts' last tokens.
        slots: i32[n], distinct, of P * C; a prompt whose slot is beyond them is dropped.
    """
    at = jnp.divmod(slots, cache.keys[0].shape[1])
    t = tokens.shape[1]
    rope = rope_angles(jnp.broadcast_to(jnp.arange(t), tokens.shape), config)
    implementation = choose(config).name
    keys, values = list(cache.keys), list(cache.values)

    x = embed(params["embedding"], tokens, config)
    for i, layer in enumerate(params["layers"]):

        def attend(q: Array, k: Array, v: Array, i: int = i) -> Array:
            of_cache = [stored(x, config.kv_dtype) for x in (k, v)]
            keys[i] = keys[i].at[*at, :, :, :t].set(of_cache[0].transpose(0, 2, 3, 1), mode="drop")
            values[i] = values[i].at[*at, :, :t].set(of_cache[1].transpose(0, 2, 1, 3), mode="drop")
            return self_attention(q, k, v, implementation)

        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        x = Block(config).apply({"params": layer}, x, rope, attend)
    return Cache(tuple(keys), tuple(values))


def decode_step(
    params: Params,
    config: DecoderConfig,
    prompts: Cache,
    lengths: Array,
    parents: Array,
    cache: Cache,
    rope: tuple[Array, Array],
    tokens: Array,
    counts: Array,
    pages: Array | None = None,
) -> tuple[Cache, Array]:
    """Run one token of every sample.

    Args:
        params: of `decoding_params`.
        prompts: their cache, filled by `prefill`.
        lengths: i32[P, C], of the prompts without their last tokens.
        parents: i32[P, G], which prompt of its group each sample continues, less than C.
        cache: of the samples.
        rope: `rope_angles` of all positions: T + S, or T + n * S with pages.
        tokens: i32[P, G], the newest token; the last one of the prompt at first.
        counts: i32[P, G], tokens of the sample before it. 0 at first.
        pages: i32[P, G, n], of the cache, that hold each sample's tokens; a kernel reads them.

    Returns:
        The cache with that token in it, and the final hidden states [P, G, D].
    """
    positions = jnp.take_along_axis(lengths, parents, axis=1) + counts
    rope = jax.tree.map(lambda table: table.at[positions].get(mode="promise_in_bounds"), rope)
    implementation = "reference" if pages is None else choose_decoding(config).name
    keys, values = list(cache.keys), list(cache.values)
    normalizes = config.architecture.qk_norm

    x = embed(params["embedding"], tokens, config)
    for i, layer in enumerate(params["layers"]):
        norms = jnp.ones((2, config.head_dim))
        if normalizes:
            of_heads = layer["attention"]
            norms = jnp.stack([of_heads[name]["scale"] for name in ("q_norm", "k_norm")])

        def attend(q: Array, k: Array, v: Array, i: int = i, norms: Array = norms) -> Array:
            shape = (*tokens.shape, -1)
            keys[i], values[i], out = cached_attention(
                q.reshape(shape),
                k.reshape(shape),
                v.reshape(shape),
                prompts.keys[i],
                prompts.values[i],
                keys[i],
                values[i],
                *rope,
                lengths,
                parents,
                counts,
                norms,
                eps=config.rms_norm_eps if normalizes else None,
                pages=pages,
                implementation=implementation,
            )
            return out.reshape(*q.shape)

        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        x = Block(config, decoding=True).apply({"params": layer}, x, rope, attend)
    norm = RMSNorm(config, "norm").apply({"params": params["final_norm"]}, x)
    return Cache(tuple(keys), tuple(values)), norm
