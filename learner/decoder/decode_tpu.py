"""The TPU kernel for decode attention: takes projections, appends to the KV cache in place.

XLA's scatter into the cache makes the compiler keep a second copy of it in another layout, and its
products read the whole capacity of every sequence slot. The steps between its products (norms,
rotation, two softmaxes) take as long as the products. Here one kernel reads only the blocks of
prompts and samples that hold tokens, and puts the newest token into the cache.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from learner.decoder.attention import LANES, MASKED

# Most tokens and bytes of a block of keys; the kernel holds eight such blocks. A step has some 700
# bundles that do not depend on its block. So of one head, 512 tokens take a v6e three times as long
# as reading them does (851 bundles, 0.49 us), and 2,048 tokens no longer (1,063 bundles, 0.61 us).
_BLOCK_TOKENS = 2048
_BLOCK_BYTES = 1 << 20
# Most samples of a prompt that the kernel holds at once.
_SAMPLES = 16
# Tokens of a tile of values, the least that can be written.
_ROWS = 16
# Rows of a vector register.
_SUBLANES = 8


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
    cos: Array,
    sin: Array,
    pages: Array,
    norms: Array,
    *,
    eps: float | None,
    interpret: bool = False,
) -> tuple[Array, ...]:
    """As `learner.decoder.cached_attention.cached_attention`, but changes the cache in place.

    Args:
        q: [P, G, K * R * h], k, v: [P, G, K * h], projections.
        prompt_keys: [P, C, K, h, T]; prompt_values: [P, C, K, T, h].
        keys: [X, N, K, h, S]; values: [X, N, K, S, h], pages of S tokens, a multiple of `LANES`.
        lengths: i32[P, C], tokens of the prompts.
        parents: i32[P, G], which prompt of its group each sample continues, less than C.
        counts: i32[P, G], own tokens before the new one, less than n * S.
        cos, sin: f32[P, G, h], of the rotation; the sines of the first half are negative.
        pages: i32[P, G, n], where each sample's own tokens are, less than X * N.
        norms: f32[2, h], scales of queries and of keys.
        eps: of the norms; None does not normalise.
        interpret: run the kernel's steps one by one on any platform.

    Returns:
        Keys and values with the new token, and [P, G, K * R * h] in the dtype of `q`.
    """
    P, G, n = pages.shape
    K, h, S = keys.shape[2:]
    C, T, R = prompt_keys.shape[1], prompt_keys.shape[-1], q.shape[-1] // (K * h)
    own, shared = (block_tokens(x, K * h * keys.itemsize) for x in (S, T))
    together = next(n for n in range(min(G, _SAMPLES), 0, -1) if G % n == 0)
    parts = G // together
    rows = -(-(R + 2) // _SUBLANES) * _SUBLANES

    def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])

    def by_part(x: Array) -> Array:
        return x.reshape(P * parts, together, -1)

    # Steps of a part: the blocks of its prompts, and then those of each sample; as many as the
    # fullest prompts and the fullest sample need, not the capacity.
    first = jnp.max(jnp.sum(pl.cdiv(lengths, shared), axis=1))
    each = jnp.maximum(pl.cdiv(jnp.max(counts), own), 1)

    def sample(i: Any, j: Any, steps: Any) -> Any:
        return i * together + jax.lax.div(jnp.maximum(j - steps[0], 0), steps[1])

    def of_part(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, together, width), lambda i, j, *_: (i, 0, 0))

    def of_keys(size: int, place: Callable[..., Any]) -> pl.BlockSpec:
        def index(*at: Any) -> Any:
            row, block = place(*at)
            return row, 0, 0, block

        return pl.BlockSpec((1, K, h, size), index)

    def of_values(size: int, place: Callable[..., Any]) -> pl.BlockSpec:
        def index(*at: Any) -> Any:
            row, block = place(*at)
            return row, 0, block, 0

        return pl.BlockSpec((1, K, size, h), index)

    # Naming the last filled block again costs no second read.
    def of_prompt(i: Any, j: Any, steps: Any, lengths: Any, *_: Any) -> Any:
        slot, block, _ = _prompt_block(lengths, i // parts, C, shared, j)
        return i // parts * C + slot, block

    def paged(row: Any, block: Any, size: int, pages: Any) -> Any:
        number, within = jax.lax.div(block, S // size), jax.lax.rem(block, S // size)
        return pages[row * n + number], within

    def of_sample(i: Any, j: Any, steps: Any, _l: Any, _p: Any, counts: Any, pages: Any) -> Any:
        row = sample(i, j, steps)
        filled = jnp.maximum(counts[row] - 1, 0) // own
        block = jnp.minimum(jax.lax.rem(jnp.maximum(j - steps[0], 0), steps[1]), filled)
        return paged(row, block, own, pages)

    def newest(size: int) -> Callable[..., Any]:
        def place(i: Any, j: Any, steps: Any, _l: Any, _p: Any, counts: Any, pages: Any) -> Any:
            row = sample(i, j, steps)
            return paged(row, counts[row] // size, size, pages)

        return place

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=5,
        grid=(P * parts, first + together * each),
        in_specs=[
            *map(of_part, (K * R * h, K * h, K * h, h, h)),
            pl.BlockSpec((2, h), lambda i, j, *_: (0, 0)),
            of_keys(shared, of_prompt),
            of_values(shared, of_prompt),
            of_keys(own, of_sample),
            of_values(own, of_sample),
        ],
        out_specs=[
            of_keys(LANES, newest(LANES)),
            of_values(_ROWS, newest(_ROWS)),
            of_part(K * R * h),
        ],
        scratch_shapes=[
            pltpu.VMEM((K * together * rows, width), jnp.float32) for width in (h, h, 1, 1)
        ],
    )
    cache = [jax.ShapeDtypeStruct(flat(x).shape, x.dtype) for x in (keys, values)]
    *changed, out = pl.pallas_call(
        functools.partial(_kernel, parts=parts, prompts=C, rows=rows, eps=eps),
        grid_spec=grid,
        out_shape=[*cache, jax.ShapeDtypeStruct((P * parts, together, K * R * h), q.dtype)],
        input_output_aliases={13: 0, 14: 1},  # Arguments count from `steps` on.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=4 * P * G * K * R * h * (n * S + C * T),
            transcendentals=P * G * K * R * (n * S + C * T),
            # Of pages, as many as the samples can have: one more is for idle ones.
            bytes_accessed=sum(x.nbytes for x in (prompt_keys, prompt_values))
            + 2 * min(keys.size, P * G * n * K * h * S) * keys.itemsize,
        ),
        interpret=interpret,
        name="append_and_attend",
    )(
        jnp.stack([first, each]),
        *(x.reshape(-1) for x in (lengths, parents, counts, pages)),
        *map(by_part, (q, k, v, cos, sin)),
        norms,
        *map(flat, (prompt_keys, prompt_values, keys, values)),
    )
    return *(x.reshape(keys.shape[:2] + x.shape[1:]) for x in changed), out.reshape(q.shape)


def block_tokens(capacity: int, token_bytes: int) -> int:
    """Tokens of a block; the whole capacity where it is no multiple of `LANES`.

    Args:
        capacity: tokens of a page, or of a prompt.
        token_bytes: of the keys of a token.
    """
    if capacity % LANES:
        return capacity
    most = min(capacity, _most_tokens(token_bytes))
    return max(size for size in range(LANES, most + 1, LANES) if capacity % size == 0)


def page_tokens(longest: int, token_bytes: int) -> int:
    """Tokens of a page, which is a block: for completions of up to `longest` tokens."""
    return min(_most_tokens(token_bytes), -(-longest // LANES) * LANES)


def _most_tokens(token_bytes: int) -> int:
    return max(LANES, min(_BLOCK_TOKENS, _BLOCK_BYTES // token_bytes // LANES * LANES))


def _prompt_block(lengths: Any, group: Any, prompts: int, size: int, step: Any) -> tuple[Any, ...]:
    """(prompt, block of it, whether it holds tokens) of a step over the prompts of a group.

    The blocks that hold tokens come first, prompt by prompt; steps beyond stay at the last one.
    """
    slot, block, before = jnp.int32(0), jnp.int32(0), jnp.int32(0)
    for number in range(prompts):
        filled = pl.cdiv(lengths[group * prompts + number], size)
        here = (filled > 0) & (step >= before)
        slot = jnp.where(here, number, slot)
        block = jnp.where(here, jnp.minimum(step - before, filled - 1), block)
        before += filled
    return slot, block, step < before


def _kernel(
    steps: Any,
    lengths: Any,
    parents: Any,
    counts: Any,
    _pages: Any,
    q: Any,
    k: Any,
    v: Any,
    cos: Any,
    sin: Any,
    norms: Any,
    prompt_keys: Any,
    prompt_values: Any,
    keys: Any,
    values: Any,
    new_keys: Any,
    new_values: Any,
    result: Any,
    states: Any,
    out: Any,
    top: Any,
    total: Any,
    *,
    parts: int,
    prompts: int,
    rows: int,
    eps: float | None,
) -> None:
    """One block of a prompt or of a sample: continues the online softmax of the block before.

    In the memory kept from step to step, a sample has `rows` rows for each head: its R queries, its
    key, and its value.
    """
    first, each = steps[0], steps[1]
    part, step = pl.program_id(0), pl.program_id(1)
    _, K, h, block = keys.shape
    samples, R = q.shape[1], q.shape[2] // (K * h)
    slot, prompt_block, reads_prompt = _prompt_block(
        lengths, part // parts, prompts, prompt_keys.shape[3], step
    )
    length = lengths[part // parts * prompts + slot]
    number = jnp.maximum(step - first, 0)
    sample, number = jax.lax.div(number, each), jax.lax.rem(number, each)
    count = counts[part * samples + sample]
    last = jnp.maximum(count - 1, 0) // block

    def own(head: int) -> Any:
        return pl.ds(pl.multiple_of((head * samples + sample) * rows, rows), rows)

    def every(head: int, row: int) -> Any:
        return pl.ds(head * samples * rows + row, samples, stride=rows)

    def normed(x: Array, scale: Array) -> Array:
        """Normalised and rotated, rounded as `learner.decoder.model` does: f32[samples, h]."""
        if eps is not None:
            inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + eps)
            x = (x * inverse * scale).astype(q.dtype).astype(jnp.float32)
        x = x * cos[0] + pltpu.roll(x, h // 2, 1) * sin[0]
        return x.astype(q.dtype).astype(jnp.float32)

    def head_of(x: Any, number: int) -> Array:
        return x[0, :, number * h : (number + 1) * h].astype(jnp.float32)

    def attend(at: Any, keys: Array, values: Array, there: Array) -> None:
        scores = jnp.dot(states[at].astype(keys.dtype), keys, preferred_element_type=jnp.float32)
        scores = jnp.where(there, scores, MASKED)
        before = top[at]
        after = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        weights, shrink = jnp.exp(scores - after), jnp.exp(before - after)
        top[at] = after
        total[at] = shrink * total[at] + jnp.sum(weights, axis=1, keepdims=True)
        out[at] = shrink * out[at] + jnp.dot(
            weights.astype(values.dtype), values, preferred_element_type=jnp.float32
        )

    @pl.when(step == 0)
    def _begin() -> None:
        states[:] = jnp.zeros_like(states)
        top[:] = jnp.full_like(top, MASKED)
        out[:], total[:] = jnp.zeros_like(out), jnp.zeros_like(total)
        for head in range(K):
            queries = [normed(head_of(q, head * R + r), norms[:1]) for r in range(R)]
            queries = [(x * h**-0.5).astype(q.dtype).astype(jnp.float32) for x in queries]
            own_rows = (*queries, normed(head_of(k, head), norms[1:]), head_of(v, head))
            for row, x in enumerate(own_rows):
                states[every(head, row)] = x

    @pl.when((step < first) & reads_prompt)
    def _prompt() -> None:
        width = prompt_keys.shape[3]
        shape = (samples * rows, width)
        there = prompt_block * width + jax.lax.broadcasted_iota(jnp.int32, shape, 1) < length
        if prompts > 1:
            row = jax.lax.broadcasted_iota(jnp.int32, (samples * rows, 1), 0)
            parent = jnp.full_like(row, parents[part * samples])
            for number in range(1, samples):
                of_sample = parents[part * samples + number]
                parent = jnp.where(row < number * rows, parent, of_sample)
            there &= parent == slot
        for head in range(K):
            of_head = pl.ds(head * samples * rows, samples * rows)
            attend(of_head, prompt_keys[0, head], prompt_values[0, head], there)

    @pl.when((step >= first) & (number <= last) & (count > 0))
    def _own() -> None:
        places = number * block + jax.lax.broadcasted_iota(jnp.int32, (rows, block), 1)
        for head in range(K):
            attend(own(head), keys[0, head], values[0, head], places < count)

    @pl.when((step >= first) & (number == last))
    def _append() -> None:
        # Nothing reads past the new token, so a tile that begins with it may lose other values.
        within = count - last * block

        def tile(size: int) -> Any:
            start = jnp.minimum(within // size, block // size - 1) * size
            return pl.ds(pl.multiple_of(start, size), size)

        lane = jax.lax.broadcasted_iota(jnp.int32, (h, LANES), 1)
        place = jax.lax.broadcasted_iota(jnp.int32, (_ROWS, h), 0)
        for head in range(K):
            at = own(head)
            state = states[at]
            key, value = state[R : R + 1], state[R + 1 : R + 2]
            score, before = jnp.sum(state * key, axis=1, keepdims=True), top[at]
            after = jnp.maximum(before, score)
            weight, shrink = jnp.exp(score - after), jnp.exp(before - after)
            sums = shrink * total[at] + weight
            out[at] = (shrink * out[at] + weight * value) / sums
            # A column for every lane: a row for every sublane, transposed.
            column = jnp.broadcast_to(key, (LANES, h)).T
            new_keys[0, head] = jnp.where(
                lane == count % LANES, column.astype(new_keys.dtype), keys[0, head, :, tile(LANES)]
            )
            new_values[0, head] = jnp.where(
                place == count % _ROWS,
                jnp.broadcast_to(value, (_ROWS, h)).astype(new_values.dtype),
                values[0, head, tile(_ROWS)],
            )

    @pl.when(step == pl.num_programs(1) - 1)
    def _end() -> None:
        for number in range(K * R):
            x = out[every(*divmod(number, R))]
            result[0, :, number * h : (number + 1) * h] = x.astype(result.dtype)
