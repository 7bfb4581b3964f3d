"""Rotary embedding and root mean square norm, for blocks and for the kernels of TPUs."""

import jax
import jax.numpy as jnp
from jax import Array

from learner.decoder.config import DecoderConfig


def rope_angles(positions: Array, config: DecoderConfig) -> tuple[Array, Array]:
    """Cosines and sines of the rotary embedding (arXiv 2104.09864).

    Args:
        positions: i32[...].

    Returns:
        Two f32[..., 1, h / 2]; the axis of size 1 is for the heads.
    """
    exponents = jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim
    angles = positions[..., None, None].astype(jnp.float32) * config.rope_theta**-exponents
    return jnp.cos(angles), jnp.sin(angles)


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
