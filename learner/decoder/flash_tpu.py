"""The TPU kernels for attention over whole sequences, forwards and backwards (arXiv 2205.14135).

A key is visible from its own slot to an end, so one number for each key says what causal attention
hides, other prompts in a sequence, and other completions to a prompt (as in arXiv 2410.01359).
Tiles without a visible pair are not computed, and only tiles with a hidden pair are masked.

JAX's splash attention masks every tile as soon as there are segments, skips none of them, and
computes scores and probabilities twice for the gradients. Here a step holds all query heads of a
key/value head; one kernel makes all gradients, with the sums of a sequence's queries in VMEM; and
the softmax has base 2, whose factor comes with the queries. docs/scaling.md has the schedules.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_LANES = 128
_TILES = (512, 256, 128)
# Bytes of VMEM, of which v5p has the least with 64 MiB, and of them for gradients of queries.
_VMEM, _QUERY_BYTES = 48 << 20, 24 << 20
_MASKED = float(jnp.finfo(jnp.float32).min)
# A step is a number: its tile of queries, its tile of keys, and whether it computes, masks, and is
# the first or the last for a tile of results.
_BITS, _ACTIVE, _MASK, _FIRST, _LAST = 12, 1 << 24, 1 << 25, 1 << 26, 1 << 27

_dot = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)
_ROWS_BY_COLUMNS, _ROWS_BY_ROWS = (((1,), (0,)), ((), ())), (((1,), (1,)), ((), ()))


def flash_attention(
    q: Array, k: Array, v: Array, ends: Array, name: str, interpret: bool = False
) -> Array:
    """Attention of the last Q tokens of sequences of T; R = H / K query heads share keys.

    Args:
        q: [B, H, Q, h], already times h^-1/2 log2(e); k, v: [B, K, T, h]. Q, T and h are multiples
            of 128.
        ends: i32[B, T]; a key at slot t is visible to the queries of slots t to ends - 1. Every
            query sees a key.
        name: by which policies of `jax.checkpoint` know what the backward pass needs.
        interpret: run the kernel's steps one by one on any platform.

    Returns:
        [B, H, Q, h] in the dtype of `q`.
    """
    B, _, Q, h = q.shape
    grouped = q.reshape(B, k.shape[1], -1, Q, h)
    return _attention(grouped, k, v, ends, name, interpret).reshape(q.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(q: Array, k: Array, v: Array, ends: Array, name: str, interpret: bool) -> Array:
    """q [B, K, R, Q, h] -> the same."""
    return _forward(q, k, v, ends, interpret)[0]


def _fwd(q: Array, k: Array, v: Array, ends: Array, name: str, interpret: bool) -> Any:
    out, logsums = (checkpoint_name(x, name) for x in _forward(q, k, v, ends, interpret))
    return out, (q, k, v, ends, out, logsums)


def _bwd(name: str, interpret: bool, kept: tuple[Array, ...], gradient: Array) -> Any:
    q, k, v, ends, out, logsums = kept
    product = gradient.astype(jnp.float32) * out.astype(jnp.float32)
    of_queries = (q, logsums, gradient, jnp.sum(product, axis=-1))
    _, _, R, Q, h = q.shape
    T, tile = k.shape[2], tile_size(Q, k.shape[2])
    # Of a float32 sum and two buffers of the result.
    most = _QUERY_BYTES // (R * h * (4 + 2 * q.dtype.itemsize)) // tile * tile
    size = max(tile, most)
    of_q, of_k, of_v = [], jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    for begin in range(0, Q, size):
        end = min(begin + size, Q)
        seen = T - Q + end
        own = [x[:, :, :, begin:end] for x in of_queries]
        made = _backward(own, k[:, :, :seen], v[:, :, :seen], ends[:, :seen], interpret)
        if size >= Q:
            return *made, None
        of_q.append(made[0])
        of_k, of_v = (x.at[:, :, :seen].add(y) for x, y in zip((of_k, of_v), made[1:], strict=True))
    return jnp.concatenate(of_q, axis=3), of_k.astype(k.dtype), of_v.astype(v.dtype), None


_attention.defvjp(_fwd, _bwd)


def tile_size(*tokens: int) -> int:
    """The largest tile, in tokens, that divides each of some numbers of tokens."""
    return next(size for size in _TILES if not any(count % size for count in tokens))


# Which tiles ------------------------------------------------------------------


def _steps(ends: Array, queries: int, by_keys: bool) -> Array:
    """i32[B, N], the steps of each sequence: its tiles with keys up to the last of the queries.

    Those of a tile of queries follow each other, or `by_keys` those of a tile of keys. A step that
    computes nothing keeps what the one before it has read.
    """
    T = ends.shape[1]
    tile, ahead = tile_size(queries, T), T - queries
    behind = ahead // tile
    pairs = [(row, key) for row in range(queries // tile) for key in range(behind + row + 1)]
    if by_keys:
        pairs.sort(key=lambda pair: pair[::-1])
    rows, keys = np.array(pairs).T
    own, other = (keys, rows) if by_keys else (rows, keys)
    first = np.diff(own, prepend=-1) != 0
    last = np.append(first[1:], True)

    by_tile = ends.reshape(-1, T // tile, tile)
    begin = ahead + rows * tile
    active = by_tile.max(axis=2)[:, keys] > begin
    mask = (by_tile.min(axis=2)[:, keys] < begin + tile) | (keys == behind + rows)
    latest = jax.lax.cummax(jnp.where(active, np.arange(len(pairs)), 0), axis=1)
    read = jnp.asarray(other)[latest]
    place = keys << _BITS | read if by_keys else rows | read << _BITS
    flags = first * _FIRST + last * _LAST + active * (_ACTIVE + mask * _MASK)
    return (place + flags).astype(jnp.int32)


def computed_tiles(ends: np.ndarray) -> tuple[float, float]:
    """Tiles of a sequence that are computed, and those with a mask; means over `ends` i32[B, T]."""
    steps = np.asarray(_steps(jnp.asarray(ends), ends.shape[1], by_keys=False))
    active, mask = (float(np.mean(np.sum(steps & x != 0, axis=1))) for x in (_ACTIVE, _MASK))
    return active, mask


def _place(step: Any) -> tuple[Any, Any]:
    return step & (1 << _BITS) - 1, step >> _BITS & (1 << _BITS) - 1


def _when(step: Any, flags: int, value: int) -> Any:
    return pl.when(step & flags == value)


def _visible(step: Any, ends: Array, ahead: int, tile: int) -> Array:
    """bool[tile, tile], the visible pairs; keys go down where `ends` does, else across."""
    (row, key), shape = _place(step), (tile, tile)
    down = ends.shape[0] > 1
    keys = jax.lax.broadcasted_iota(jnp.int32, shape, 1 - down) + key * tile
    queries = jax.lax.broadcasted_iota(jnp.int32, shape, int(down)) + (ahead + row * tile)
    return (keys <= queries) & (queries < ends)


# Kernels ----------------------------------------------------------------------


def _forward(q: Array, k: Array, v: Array, ends: Array, interpret: bool) -> tuple[Array, Array]:
    """[B, K, R, Q, h], and the logarithms f32[B, K, R, Q] of the softmax's sums, of base 2."""
    B, K, R, Q, h = q.shape
    tile, steps = tile_size(Q, k.shape[2]), _steps(ends, Q, by_keys=False)
    queries, keys, of_ends, numbers = _blocks(steps.shape[1], R, tile, h)
    out, logsums = pl.pallas_call(
        functools.partial(_forward_kernel, steps=steps.shape[1], ahead=k.shape[2] - Q),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(K, B, steps.shape[1]),
            in_specs=[queries, keys, keys, of_ends],
            out_specs=[queries, numbers],
            scratch_shapes=[
                pltpu.VMEM((R, tile, width), jnp.float32) for width in (_LANES, _LANES, h)
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((B, K, R, Q), jnp.float32),
        ],
        compiler_params=_params(),
        name="flash_forward",
        interpret=interpret,
    )(steps.reshape(-1), q, k, v, ends[:, None])
    return out, logsums


def _forward_kernel(
    table: Any,
    q: Any,
    k: Any,
    v: Any,
    ends: Any,
    out: Any,
    logsums: Any,
    most: Any,
    total: Any,
    mean: Any,
    *,
    steps: int,
    ahead: int,
) -> None:
    """Online softmax; `most`, `total` and `mean` are its maximum, sum and unscaled result."""
    step = table[pl.program_id(1) * steps + pl.program_id(2)]
    R, tile, h = q.shape

    def across(x: Array, width: int) -> Array:  # [tile, lanes], all alike, to [tile, width].
        return jnp.tile(x, (1, width // _LANES))

    @_when(step, _FIRST, _FIRST)
    def begin() -> None:
        most[...] = jnp.full(most.shape, _MASKED, jnp.float32)
        total[...] = jnp.zeros(total.shape, jnp.float32)
        mean[...] = jnp.zeros(mean.shape, jnp.float32)

    def attend(masked: bool) -> None:
        visible = _visible(step, ends[...], ahead, tile) if masked else None
        for head in range(R):
            scores = _dot(q[head], k[...], _ROWS_BY_ROWS)
            if visible is not None:
                scores = jnp.where(visible, scores, _MASKED)
            before = most[head]
            after = jnp.maximum(before, scores.max(axis=1, keepdims=True))
            probs = jnp.exp2(scores - across(after, tile))
            scale = jnp.exp2(before - after)
            most[head] = after
            total[head] = scale * total[head] + probs.sum(axis=1, keepdims=True)
            values = _dot(probs.astype(v.dtype), v[...], _ROWS_BY_COLUMNS)
            mean[head] = across(scale, h) * mean[head] + values

    _when(step, _ACTIVE | _MASK, _ACTIVE)(lambda: attend(masked=False))
    _when(step, _ACTIVE | _MASK, _ACTIVE | _MASK)(lambda: attend(masked=True))

    @_when(step, _LAST, _LAST)
    def end() -> None:
        for head in range(R):
            out[head] = (mean[head] / across(total[head], h)).astype(out.dtype)
            logs = most[head] + jnp.log2(total[head])
            logsums[head : head + 1] = logs.T[:1]


def _backward(
    of_queries: list[Array], k: Array, v: Array, ends: Array, interpret: bool
) -> tuple[Array, ...]:
    """Gradients of q [B, K, R, Q, h], k and v.

    Args:
        of_queries: q, `logsums`, the gradient of the result, and its product with the result.
    """
    q = of_queries[0]
    B, K, R, Q, h = q.shape
    tile, steps = tile_size(Q, k.shape[2]), _steps(ends, Q, by_keys=True)
    queries, keys, of_ends, numbers = _blocks(steps.shape[1], R, tile, h)
    whole = pl.BlockSpec((None, None, R, Q, h), lambda head, b, *_: (b, head, 0, 0, 0))
    return pl.pallas_call(
        functools.partial(_backward_kernel, steps=steps.shape[1], ahead=k.shape[2] - Q),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(K, B, steps.shape[1]),
            in_specs=[queries, numbers, queries, numbers, keys, keys, of_ends],
            out_specs=[whole, keys, keys],
            scratch_shapes=[
                pltpu.VMEM(shape, jnp.float32) for shape in ((R, h, Q), (tile, h), (tile, h))
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)],
        compiler_params=_params(),
        name="flash_backward",
        interpret=interpret,
    )(steps.reshape(-1), *of_queries, k, v, ends[:, None])


def _backward_kernel(
    table: Any,
    q: Any,
    logsums: Any,
    gradient: Any,
    product: Any,
    k: Any,
    v: Any,
    ends: Any,
    of_q: Any,
    of_k: Any,
    of_v: Any,
    sum_q: Any,
    sum_k: Any,
    sum_v: Any,
    *,
    steps: int,
    ahead: int,
) -> None:
    """Keys go down and queries across, so numbers of queries need not be transposed.

    `sum_q` [R, h, Q] has queries across, too: only keys are transposed, not each tile's gradients.
    """
    number = pl.program_id(2)
    step = table[pl.program_id(1) * steps + number]
    (R, tile, _), row = q.shape, _place(step)[0]
    factor = math.log(2)  # Scores are of base 2.

    @pl.when(number == 0)
    def begin_sequence() -> None:
        sum_q[...] = jnp.zeros(sum_q.shape, jnp.float32)

    @_when(step, _FIRST, _FIRST)
    def begin_tile() -> None:
        sum_k[...] = jnp.zeros(sum_k.shape, jnp.float32)
        sum_v[...] = jnp.zeros(sum_v.shape, jnp.float32)

    def attend(masked: bool) -> None:
        visible = None
        if masked:
            down = jnp.broadcast_to(ends[...], (_LANES, tile)).T
            down = jnp.tile(down, (1, tile // _LANES))
            visible = _visible(step, down, ahead, tile)
        slots = pl.ds(pl.multiple_of(row * tile, tile), tile)
        for head in range(R):
            scores = _dot(k[...], q[head], _ROWS_BY_ROWS)
            if visible is not None:
                scores = jnp.where(visible, scores, _MASKED)
            probs = jnp.exp2(scores - logsums[head : head + 1])
            sum_v[...] += _dot(probs.astype(v.dtype), gradient[head], _ROWS_BY_COLUMNS)
            of_probs = _dot(v[...], gradient[head], _ROWS_BY_ROWS)
            of_scores = (probs * (of_probs - product[head : head + 1])).astype(k.dtype)
            sum_k[...] += _dot(of_scores, q[head], _ROWS_BY_COLUMNS)
            sum_q[head, :, slots] += _dot(k[...].T, of_scores, _ROWS_BY_COLUMNS)

    _when(step, _ACTIVE | _MASK, _ACTIVE)(lambda: attend(masked=False))
    _when(step, _ACTIVE | _MASK, _ACTIVE | _MASK)(lambda: attend(masked=True))

    @_when(step, _LAST, _LAST)
    def end_tile() -> None:
        of_k[...] = (factor * sum_k[...]).astype(of_k.dtype)
        of_v[...] = sum_v[...].astype(of_v.dtype)

    @pl.when(number == steps - 1)
    def end_sequence() -> None:
        def write(number: Any, _: None) -> None:
            slots = pl.ds(pl.multiple_of(number * tile, tile), tile)
            for head in range(R):
                of_q[head, slots] = (factor * sum_q[head, :, slots]).T.astype(of_q.dtype)

        jax.lax.fori_loop(0, of_q.shape[1] // tile, write, None)


def _blocks(steps: int, R: int, tile: int, h: int) -> tuple[pl.BlockSpec, ...]:
    """Of queries [B, K, R, Q, h], keys [B, K, T, h], ends [B, 1, T], numbers [B, K, R, Q]."""

    def spec(shape: tuple[int | None, ...], index: Any) -> pl.BlockSpec:
        def at(head: Any, b: Any, n: Any, table: Any) -> Any:
            return index(head, b, *_place(table[b * steps + n]))

        return pl.BlockSpec(shape, at)

    return (
        spec((None, None, R, tile, h), lambda head, b, row, key: (b, head, 0, row, 0)),
        spec((None, None, tile, h), lambda head, b, row, key: (b, head, key, 0)),
        spec((None, 1, tile), lambda head, b, row, key: (b, 0, key)),
        spec((None, None, R, tile), lambda head, b, row, key: (b, head, 0, row)),
    )


def _params() -> pltpu.CompilerParams:
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=_VMEM
    )
