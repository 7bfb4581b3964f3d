"""Rotary embedding and root mean square norm, for blocks and for the kernels of TPUs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from learner.decoder.config import DecoderConfig, RopeScaling


def rope_angles(positions: Array, config: DecoderConfig) -> tuple[Array, Array]:
    """Cosines and sines of the rotary embedding (arXiv 2104.09864).

    Args:
        positions: i32[...].

    Returns:
        Two f32[..., 1, h / 2]; the axis of size 1 is for the heads.
    """
    exponents = jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim
    factor, frequencies = 1.0, config.rope_theta**-exponents
    if config.rope_scaling is not None:
        scaled, factor = scaled_frequencies(config, config.rope_scaling)
        frequencies = jnp.asarray(scaled)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    if factor == 1.0:
        return jnp.cos(angles), jnp.sin(angles)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def scaled_frequencies(config: DecoderConfig, scaling: RopeScaling) -> tuple[np.ndarray, float]:
    """Frequencies f32[h / 2] of a longer context, and the factor of cosines and sines.

    Slow rotations are stretched by `scaling.factor`, fast ones are kept, and between them the two
    are mixed linearly: in rotations within the original context (llama3), or in the index of the
    dimension (yarn).
    """
    h, context = config.head_dim, scaling.original_max_position_embeddings
    frequencies = config.rope_theta ** -(np.arange(0, h, 2) / h)
    kept: np.ndarray
    if scaling.kind == "llama3":
        rotations = context * frequencies / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept, factor = (rotations - low) / (high - low), 1.0
    else:

        def dimension(rotations: float) -> float:
            ratio = math.log(context / (rotations * 2 * math.pi))
            return h * ratio / (2 * math.log(config.rope_theta))

        first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
        if scaling.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, h - 1)
        width = last - first or 0.001
        kept = 1 - (np.arange(h // 2) - first) / width
        factor = scaling.attention_factor or 0.1 * math.log(max(scaling.factor, 1)) + 1
    weight = np.clip(kept, 0, 1)
    mixed = frequencies * weight + frequencies / scaling.factor * (1 - weight)
    return mixed.astype(np.float32), factor


def whole_heads(rope: tuple[Array, Array]) -> tuple[Array, Array]:
    """The rotation as kernels of TPUs take it: x * cos + (x with its halves exchanged) * sin.

    Args:
        rope: of `rope_angles`.

    Returns:
        Two f32[..., h]; the sines of the first half are negative.
    """
    cos, sin = (x[..., 0, :] for x in rope)
    return jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)


def rotate(x: Array, rope: tuple[Array, Array], by_product: bool = False) -> Array:
    """Rotate the pairs (x[i], x[i + h / 2]) of the last axis: x [..., heads, h].

    `by_product` exchanges the halves by a matrix product, which changes no bit. On TPUs half of the
    128 lanes takes as long as all, and XLA keeps x in float32 in memory to split it.
    """
    cos, sin = rope
    if by_product:
        h = x.shape[-1]
        exchange = jnp.roll(jnp.eye(h, dtype=x.dtype), h // 2, axis=0)
        other = jnp.matmul(x, exchange, precision=jax.lax.Precision.HIGHEST)
        cos, sin = (whole[..., None, :] for whole in whole_heads(rope))
        return (x.astype(jnp.float32) * cos + other.astype(jnp.float32) * sin).astype(x.dtype)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def normalize(x: Array, scale: Array, eps: float) -> Array:
    """Root mean square normalisation over the last axis (arXiv 1910.07467), in float32."""
    x32 = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * inverse * scale.astype(jnp.float32)).astype(x.dtype)
