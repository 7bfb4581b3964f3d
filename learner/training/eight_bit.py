"""Adam's moments in 8 bits, quantised in blocks (Dettmers et al., arXiv 2110.02861).

A block of numbers along the last axis stores its largest magnitude in float32, and a code of 8 bits
for each number. Codes are of the paper's dynamic data type: the decade below the largest magnitude
of a block has half of them, evenly spaced, each decade below that half of the rest. So large
numbers are precise, and small ones are not lost: a first moment spans seven orders of magnitude, a
second one, which has no sign, eight. Here a code stands for the upper end of its interval (in the
paper for the mean), so that the largest magnitude itself is exact: else it would shrink with every
update.

Blocks are smaller than the paper's 2,048, so that they do not straddle the devices of a mesh.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

#: Numbers of a block, or the largest divisor of this that divides the last axis.
BLOCK = 64


def quantise(x: Array, signed: bool) -> tuple[Array, Array]:
    """Codes, and the largest magnitude of each block.

    A number other than 0 becomes 0 only if it, or its fraction of its block's largest, is below
    1.2e-38, or that largest is above 8e37: a second moment of 0 would let the next step be as large
    as `eps` allows.

    Args:
        x: f32[..., n]; not negative unless `signed`.

    Returns:
        i8[..., n] if signed, else u8[..., n]; f32[..., n / block].
    """
    bits = 7 if signed else 8
    blocks = x.reshape(*x.shape[:-1], -1, math.gcd(BLOCK, x.shape[-1]))
    largest = jnp.max(jnp.abs(blocks), axis=-1)
    magnitudes = jnp.abs(blocks) / jnp.where(largest > 0, largest, 1.0)[..., None]
    # Decade i has 2 ** i codes, the last one those of magnitudes above a tenth.
    passed = [(magnitudes > 10.0**-i).astype(jnp.int32) for i in range(1, bits)]
    decades = functools.reduce(jnp.add, passed)
    fractions = (magnitudes / _upper_end(decades, bits) - 0.1) / 0.9
    steps = jnp.round(fractions * jnp.exp2(decades.astype(jnp.float32)))
    # No step up from the lower end of a decade is the upper end of the one below.
    codes = (1 << decades) - 1 + steps.astype(jnp.int32)
    codes = jnp.where(magnitudes > 0, jnp.clip(codes, 1, (1 << bits) - 1), 0)
    if signed:
        codes = jnp.where(blocks < 0, -codes, codes)
    return codes.reshape(x.shape).astype(jnp.int8 if signed else jnp.uint8), largest


def dequantise(codes: Array, largest: Array) -> Array:
    """The numbers of `quantise`, f32[..., n]."""
    signed = codes.dtype == jnp.int8
    numbers = jnp.abs(codes.astype(jnp.int32))
    decades = 31 - jax.lax.clz(jnp.maximum(numbers, 1))
    steps = (numbers + 1).astype(jnp.float32) / jnp.exp2(decades.astype(jnp.float32)) - 1
    values = _upper_end(decades, 7 if signed else 8) * (0.1 + 0.9 * steps)
    values = jnp.where(numbers > 0, jnp.where(codes < 0, -values, values), 0.0)
    blocks = values.reshape(*largest.shape, -1) * largest[..., None]
    return blocks.reshape(codes.shape)


def _upper_end(decades: Array, bits: int) -> Array:
    """The largest magnitude of a decade, whose values are above a tenth of it."""
    return jnp.power(jnp.float32(10), (decades - bits + 1).astype(jnp.float32))


def scale_by_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """`optax.scale_by_adam` that keeps its moments in 8 bits between updates.

    The update itself is in float32: it divides by the second moment before that is quantised.
    Each moment is {"codes": tree, "largest": tree}, trees like that of the parameters.
    """
    adam = optax.scale_by_adam(b1, b2, eps)

    def init(params: Any) -> Any:
        # Zeros as they are: XLA would fold their quantisation at compile time, number by number.
        state = adam.init(params)
        return state._replace(mu=_zeros(params, jnp.int8), nu=_zeros(params, jnp.uint8))

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        moments = {name: _unpacked(getattr(state, name)) for name in ("mu", "nu")}
        changes, state = adam.update(gradients, state._replace(**moments), params)
        return changes, state._replace(mu=_packed(state.mu, True), nu=_packed(state.nu, False))

    return optax.GradientTransformation(init, update)


def _zeros(params: Any, dtype: Any) -> dict[str, Any]:
    """The codes of zeros, and the largest magnitudes of their blocks."""

    def largest(x: Array) -> Array:
        return jnp.zeros((*x.shape[:-1], x.shape[-1] // math.gcd(BLOCK, x.shape[-1])))

    codes = jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), params)
    return {"codes": codes, "largest": jax.tree.map(largest, params)}


def _packed(moments: Any, signed: bool) -> dict[str, Any]:
    pairs = jax.tree.map(lambda x: quantise(x, signed), moments)
    codes, largest = (jax.tree.map(lambda _, pair, i=i: pair[i], moments, pairs) for i in range(2))
    return {"codes": codes, "largest": largest}


def _unpacked(moments: dict[str, Any]) -> Any:
    return jax.tree.map(dequantise, moments["codes"], moments["largest"])
