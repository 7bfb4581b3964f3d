"""The TPU kernel between projections and attention: norm, rotary embedding, order of heads.

A projection makes all heads of a token; attention takes all tokens of a head. To get from one to
the other, XLA makes heads a dimension of the product, whose 128 columns fill half of a v6e's matrix
unit, and norm and rotation take several times as long as moving their bytes. The kernel reads and
writes each number once, in whole tiles.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from learner.decoder.attention import LANES, over_mesh, problem
from learner.decoder.config import DecoderConfig
from learner.decoder.rotary import normalize, rope_angles, rotate, whole_heads

_BLOCKS = (512, 256, 128)
_HEADS = 8  # Most heads of a block.


def heads_first(
    x: Array,
    scale: Array,
    eps: float,
    cos: Array,
    sin: Array,
    factor: float = 1.0,
    interpret: bool = False,
) -> Array:
    """Normalise and rotate the heads of a projection, times a factor, each step rounded.

    Args:
        x: [B, T, n, h], h a multiple of `LANES`.
        scale: [h], eps: of the norm.
        cos, sin: f32[B, T, h], of the rotation; the sines of the first half are negative.
        factor: multiplies the result.
        interpret: run the kernel's steps one by one on any platform.

    Returns:
        [B, n, T, h] in the dtype of `x`.
    """
    B, T, n, h = x.shape

    def of_device(x: Array, cos: Array, sin: Array, scale: Array) -> Array:
        padded = (jnp.pad(y, ((0, 0), (0, -T % LANES), (0, 0))) for y in (x, cos, sin))
        return _heads_first(*padded, scale, eps, factor, interpret)[:, :, :T]

    return over_mesh(
        of_device,
        ("batch", "length", "heads"),
        x.reshape(B, T, n * h),
        batched=(cos, sin),
        whole=(scale.astype(jnp.float32)[None],),
        out_axes=("batch", "heads", "length", "head_dim"),
    )


def reference(
    x: Array, scale: Array, eps: float, cos: Array, sin: Array, factor: float = 1.0
) -> Array:
    """`heads_first` for every platform."""
    half = x.shape[-1] // 2
    out = rotate(normalize(x, scale, eps), (cos[..., None, half:], sin[..., None, half:]))
    return (out * factor).astype(x.dtype).transpose(0, 2, 1, 3)


@functools.cache
def works(config: DecoderConfig) -> bool:
    """Whether the kernel agrees with the reference on this machine, forwards and backwards.

    Not tried if the configuration asks for kernels, as in `learner.decoder.attention.choose`.
    """
    if config.attention == "flash":
        return True
    heads, h = config.num_attention_heads, config.head_dim
    x = np.random.default_rng(0).normal(size=(1, LANES, heads, h)).astype(config.dtype)

    def both_ways(function: Callable[..., Array], x: Array, scale: Array) -> Any:
        cos, sin = whole_heads(rope_angles(jnp.arange(LANES)[None], config))
        out, vjp = jax.vjp(lambda *args: function(*args, 1e-6, cos, sin, h**-0.5), x, scale)
        return [out, *vjp(jnp.ones_like(out))]

    kernel, plain = (functools.partial(both_ways, way) for way in (heads_first, reference))
    return problem(kernel, plain, [x, np.ones(h, np.float32)]) is None


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _heads_first(
    x: Array, cos: Array, sin: Array, scale: Array, eps: float, factor: float, interpret: bool
) -> Array:
    """x [B, T, n * h], T a multiple of `LANES`; scale f32[1, h]."""
    B, T, width = x.shape
    h = cos.shape[-1]
    grid, tokens, heads, rotation, whole, _ = _blocks(x.shape, h)
    return pl.pallas_call(
        functools.partial(_forward_kernel, eps=eps, factor=factor),
        grid=grid,
        in_specs=[tokens, rotation, rotation, whole],
        out_specs=heads,
        out_shape=jax.ShapeDtypeStruct((B, width // h, T, h), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3),
        interpret=interpret,
    )(x, cos, sin, scale)


def _bwd(
    eps: float, factor: float, interpret: bool, kept: tuple[Array, ...], gradient: Array
) -> Any:
    x, cos, sin, scale = kept
    h = cos.shape[-1]
    grid, tokens, heads, rotation, whole, part = _blocks(x.shape, h)
    of_x, of_scale = pl.pallas_call(
        functools.partial(_backward_kernel, eps=eps, factor=factor),
        grid=grid,
        in_specs=[heads, tokens, rotation, rotation, whole],
        out_specs=[tokens, part],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((*grid, 1, h), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3),
        interpret=interpret,
    )(gradient, x, cos, sin, scale)
    return of_x, None, None, jnp.sum(of_scale, axis=(0, 1, 2))


def _fwd(*args: Any) -> Any:
    return _heads_first(*args), args[:4]


_heads_first.defvjp(_fwd, _bwd)


def _blocks(shape: tuple[int, ...], h: int) -> Any:
    """The grid, and blocks of tokens, of heads, of the rotation, of the scale and its gradient."""
    B, T, width = shape
    size = next(size for size in _BLOCKS if T % size == 0)
    count = next(n for n in range(min(_HEADS, width // h), 0, -1) if width // h % n == 0)
    return (
        (B, T // size, width // h // count),
        pl.BlockSpec((1, size, count * h), lambda b, t, n: (b, t, n)),
        pl.BlockSpec((1, count, size, h), lambda b, t, n: (b, n, t, 0)),
        pl.BlockSpec((1, size, h), lambda b, t, n: (b, t, 0)),
        pl.BlockSpec((1, h), lambda b, t, n: (0, 0)),
        pl.BlockSpec((1, 1, 1, 1, h), lambda b, t, n: (b, t, n, 0, 0)),
    )


def _inverse(x: Array, eps: float) -> Array:
    return jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + eps)


def _forward_kernel(
    x: Any, cos: Any, sin: Any, scale: Any, out: Any, *, eps: float, factor: float
) -> None:
    h = cos.shape[-1]
    for head in range(out.shape[1]):
        y = x[0, :, head * h : (head + 1) * h].astype(jnp.float32)
        y = (y * _inverse(y, eps) * scale[:]).astype(x.dtype).astype(jnp.float32)
        y = (y * cos[0] + pltpu.roll(y, h // 2, 1) * sin[0]).astype(x.dtype)
        if factor != 1:
            y = y.astype(jnp.float32) * _rounded(factor, x.dtype)
        out[0, head] = y.astype(x.dtype)


def _backward_kernel(
    gradient: Any,
    x: Any,
    cos: Any,
    sin: Any,
    scale: Any,
    of_x: Any,
    of_scale: Any,
    *,
    eps: float,
    factor: float,
) -> None:
    h = cos.shape[-1]
    total = jnp.zeros((1, h), jnp.float32)
    for head in range(gradient.shape[1]):
        y = x[0, :, head * h : (head + 1) * h].astype(jnp.float32)
        g = gradient[0, head].astype(jnp.float32) * _rounded(factor, x.dtype)
        g = g * cos[0] + pltpu.roll(g * sin[0], h // 2, 1)
        inverse = _inverse(y, eps)
        y *= inverse
        total += jnp.sum(g * y, axis=0, keepdims=True)
        g *= scale[:]
        g = inverse * (g - y * jnp.mean(g * y, axis=1, keepdims=True))
        of_x[0, :, head * h : (head + 1) * h] = g.astype(of_x.dtype)
    of_scale[0, 0, 0] = total


def _rounded(factor: float, dtype: Any) -> float:
    return float(jnp.dtype(dtype).type(factor))
