"""Decoding with a cache of keys and values: prompts into slots, then token by token.

Letters in shapes as in `learner.qwen3.model`, and: P slots for prompts, G samples of each prompt
at a time, T and S the capacity for tokens of a prompt and of a sample.

A prompt is stored once and read by all of its samples (shared-prefix attention, arXiv
2402.05099). Its last token is not part of it: that is the first token that every sample decodes,
so a sample can start at any time with nothing but the cache. Samples have lengths of their own,
and each slot's arithmetic is the same whatever the other slots hold.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from learner.qwen3.attention import RowMask, cached_attention, choose, self_attention
from learner.qwen3.config import Qwen3Config
from learner.qwen3.model import Block, Params, RMSNorm, embed, rope_angles

_IN_BOUNDS = "promise_in_bounds"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PromptCache:
    """Keys and values of the prompts, one array per layer. Keys have their slots last.

    Scores and weighted sums are then products of plain matrices: on a CPU several times faster
    than with tokens before heads.

    Attributes:
        keys: L arrays [P, K, h, T]; values: L arrays [P, K, T, h].
        lengths: i32[P]; slots from there on are padding.
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    lengths: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SampleCache:
    """Keys and values of the samples' own tokens, one array per layer.

    Attributes:
        keys: L arrays [P, G, K, h, S]; values: L arrays [P, G, K, S, h].
    """

    keys: tuple[Array, ...]
    values: tuple[Array, ...]


def decoding_params(params: Params, config: Qwen3Config) -> Params:
    """The parameters for decoding: a tuple of layers, everything in `config.dtype`.

    A copy, also where the parameters have that dtype already and nothing is cast: slicing stacked
    weights anew at every step would copy them at every step.
    """
    cast = jax.tree.map(lambda x: x.astype(config.dtype), params)
    layers = tuple(
        jax.tree.map(lambda x, i=i: x[i], cast["layers"]) for i in range(config.num_hidden_layers)
    )
    return {**cast, "layers": layers}


def prompt_cache(config: Qwen3Config, slots: int, capacity: int) -> PromptCache:
    """An empty cache for P = `slots` prompts of up to T = `capacity` tokens."""
    lead = (slots, config.num_key_value_heads)
    return PromptCache(
        keys=_zeros(config, (*lead, config.head_dim, capacity)),
        values=_zeros(config, (*lead, capacity, config.head_dim)),
        lengths=jnp.zeros(slots, jnp.int32),
    )


def sample_cache(config: Qwen3Config, slots: int, samples: int, capacity: int) -> SampleCache:
    """An empty cache for P x G = `slots` x `samples` completions of up to S = `capacity` tokens."""
    lead = (slots, samples, config.num_key_value_heads)
    return SampleCache(
        keys=_zeros(config, (*lead, config.head_dim, capacity)),
        values=_zeros(config, (*lead, capacity, config.head_dim)),
    )


def _zeros(config: Qwen3Config, shape: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(jnp.zeros(shape, config.dtype) for _ in range(config.num_hidden_layers))


def resize(cache: SampleCache, capacity: int) -> SampleCache:
    """The cache for `capacity` tokens of every sample: padded, or cut at the end."""

    def fit(x: Array, axis: int) -> Array:
        if capacity <= x.shape[axis]:
            return jax.lax.slice_in_dim(x, 0, capacity, axis=axis)
        padding = [(0, capacity - x.shape[axis] if i == axis else 0) for i in range(x.ndim)]
        return jnp.pad(x, padding)

    return SampleCache(
        keys=tuple(fit(x, 4) for x in cache.keys), values=tuple(fit(x, 3) for x in cache.values)
    )


def prefill(
    params: Params,
    config: Qwen3Config,
    cache: PromptCache,
    tokens: Array,
    lengths: Array,
    slots: Array,
) -> PromptCache:
    """Run n prompts and put them into slots of the cache.

    Args:
        params: of `decoding_params`.
        tokens: i32[n, t], padded on the right, t at most T; without the prompts' last tokens.
        lengths: i32[n], from 0 up.
        slots: i32[n], distinct; a prompt whose slot is P or more is dropped.
    """
    n, t = tokens.shape
    positions = jnp.arange(t)
    rope = rope_angles(jnp.broadcast_to(positions, (n, t)), config)
    mask = RowMask(positions < lengths[:, None], right_padded=True)
    implementation = choose(config).name
    keys, values = list(cache.keys), list(cache.values)

    x = embed(params["embedding"], tokens, config)
    for i, layer in enumerate(params["layers"]):

        def attend(q: Array, k: Array, v: Array, i: int = i) -> Array:
            keys[i] = keys[i].at[slots, :, :, :t].set(k.transpose(0, 2, 3, 1), mode="drop")
            values[i] = values[i].at[slots, :, :t].set(v.transpose(0, 2, 1, 3), mode="drop")
            return self_attention(q, k, v, mask, implementation)

        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        x = Block(config).apply({"params": layer}, x, rope, attend)
    lengths = cache.lengths.at[slots].set(lengths, mode="drop")
    return PromptCache(tuple(keys), tuple(values), lengths)


def rope_table(
    config: Qwen3Config, prompts: PromptCache, cache: SampleCache
) -> tuple[Array, Array]:
    """`rope_angles` of all positions that the caches hold; made once, ahead of a loop.

    Computed in every step, XLA's CPU backend would fuse the cosines and sines into every layer and
    compute them there for every head: a twentieth of the time of a small model.

    Returns:
        Cosines and sines, f32[T + S, 1, h / 2] each.
    """
    return rope_angles(jnp.arange(prompts.keys[0].shape[-1] + cache.keys[0].shape[-1]), config)


def decode_step(
    params: Params,
    config: Qwen3Config,
    prompts: PromptCache,
    cache: SampleCache,
    rope: tuple[Array, Array],
    tokens: Array,
    counts: Array,
) -> tuple[SampleCache, Array]:
    """Run one token of every sample.

    Args:
        params: of `decoding_params`.
        rope: `rope_table` of both caches.
        tokens: i32[P, G], the newest token; the last one of the prompt at first.
        counts: i32[P, G], tokens of the sample before it, less than S. 0 at first.

    Returns:
        The cache with that token in it, and the final hidden states [P, G, D].
    """
    T, S = prompts.keys[0].shape[-1], cache.keys[0].shape[-1]
    positions = prompts.lengths[:, None] + counts
    rope = jax.tree.map(lambda table: table.at[positions].get(mode=_IN_BOUNDS), rope)
    prompt_mask = (jnp.arange(T) < prompts.lengths[:, None])[:, None, None]
    own_mask = jnp.arange(S) <= counts[..., None, None, None]
    keys, values = list(cache.keys), list(cache.values)

    x = embed(params["embedding"], tokens, config)
    for i, layer in enumerate(params["layers"]):

        def attend(q: Array, k: Array, v: Array, i: int = i) -> Array:
            keys[i] = _write(keys[i], k, counts, axis=-1)
            values[i] = _write(values[i], v, counts, axis=-2)
            return cached_attention(
                q, prompts.keys[i], prompts.values[i], keys[i], values[i], prompt_mask, own_mask
            )

        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        x = Block(config).apply({"params": layer}, x, rope, attend)
    norm = RMSNorm(config, "norm").apply({"params": params["final_norm"]}, x)
    return SampleCache(tuple(keys), tuple(values)), norm


def _write(cache: Array, new: Array, counts: Array, axis: int) -> Array:
    """Put [P, G, K, h] into slot counts[P, G] of `axis` of a cache of samples.

    Every device writes its own rows and heads: left to itself, XLA would first gather the new
    entries of all rows on each.
    """

    def write(cache: Array, new: Array, counts: Array) -> Array:
        P, G = counts.shape
        rows, columns = jnp.arange(P)[:, None], jnp.arange(G)
        places = cache.at[rows, columns, :, :, counts]
        if axis == -2:
            places = cache.at[rows, columns, :, counts]
        return places.set(new, mode=_IN_BOUNDS)

    if jax.sharding.get_abstract_mesh().empty:
        return write(cache, new, counts)
    rows = nn.logical_to_mesh_axes(("batch",))
    heads = nn.logical_to_mesh_axes(("batch", "activation", "kv_heads"))
    split = jax.shard_map(write, in_specs=(heads, heads, rows), out_specs=heads)
    return split(cache, new, counts)
