"""The TPU kernel for decode attention: takes projections, appends to the KV cache in place.

XLA's scatter into the cache makes the compiler keep a second copy of it in another layout, and its
products read the whole capacity of every sequence slot. The steps between its products (norms,
rotation, two softmaxes) take as long as the products. Here one kernel reads only the blocks of
prompts and samples that hold tokens, and puts the newest token into the cache.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from learner.decoder.attention import LANES, MASKED, stored

# Most tokens and bytes of a block of keys; the kernel holds eight such blocks. A step has some 350
# bundles (540 with two heads) that do not depend on its block, so small blocks leave the memory
# idle, and large ones read more than short completions have.
_BLOCK_TOKENS = 2048
_BLOCK_BYTES = 1 << 20
# Most samples of a prompt that the kernel holds at once.
_SAMPLES = 16
# Bytes that the tokens of a tile of values take in one column; a tile is the least written at once.
_TILE_BYTES = 32
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
    parts = P * G // together
    rows = -(-(R + 2) // _SUBLANES) * _SUBLANES
    tile = _tile_tokens(keys.dtype)

    def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])

    def by_part(x: Array) -> Array:
        return x.reshape(parts, together, -1)

    blocks = keys.shape[0] * keys.shape[1] * S // own
    steps, table = _work(lengths, counts, pages, together, Sizes(S, own, T, shared, tile), blocks)
    cores, most = table.shape[1:]

    def of_part(width: int) -> pl.BlockSpec:
        def index(i: Any, j: Any, table: Any, *_: Any) -> Any:
            return _entry(table, "part", i, j, cores, most), 0, 0

        return pl.BlockSpec((1, together, width), index)

    def place(at: tuple[Any, ...], row: str, block: str) -> tuple[Any, Any]:
        i, j, table, *_ = at
        row, block = (_entry(table, name, i, j, cores, most) for name in (row, block))
        return row, block

    def of_keys(size: int, *names: str) -> pl.BlockSpec:
        def index(*at: Any) -> Any:
            row, block = place(at, *names)
            return row, 0, 0, block

        return pl.BlockSpec((1, K, h, size), index)

    def of_values(size: int, *names: str) -> pl.BlockSpec:
        def index(*at: Any) -> Any:
            row, block = place(at, *names)
            return row, 0, block, 0

        return pl.BlockSpec((1, K, size, h), index)

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=4,
        grid=(cores, steps),
        in_specs=[
            *map(of_part, (K * R * h, K * h, K * h, h, h)),
            pl.BlockSpec((2, h), lambda *_: (0, 0)),
            of_keys(shared, "prompt", "prompt_block"),
            of_values(shared, "prompt", "prompt_block"),
            of_keys(own, "page", "page_block"),
            of_values(own, "page", "page_block"),
        ],
        out_specs=[
            of_keys(LANES, "new_page", "new_keys"),
            of_values(tile, "new_page", "new_values"),
            of_part(K * R * h),
        ],
        scratch_shapes=[
            pltpu.VMEM((K * together * rows, width), jnp.float32) for width in (h, h, 1, 1)
        ],
    )
    cache = [jax.ShapeDtypeStruct(flat(x).shape, x.dtype) for x in (keys, values)]
    *changed, out = pl.pallas_call(
        functools.partial(_kernel, cores=cores, most=most, prompts=C, rows=rows, eps=eps),
        grid_spec=grid,
        out_shape=[*cache, jax.ShapeDtypeStruct((parts, together, K * R * h), q.dtype)],
        input_output_aliases={12: 0, 13: 1},  # Arguments count from `table` on.
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
        *(x.reshape(-1) for x in (table, lengths, parents, counts)),
        *map(by_part, (q, k, v, cos, sin)),
        norms,
        *map(flat, (prompt_keys, prompt_values, keys, values)),
    )
    return *(x.reshape(keys.shape[:2] + x.shape[1:]) for x in changed), out.reshape(q.shape)


class Sizes(NamedTuple):
    """Tokens of a page and of its blocks, of a prompt's capacity and of its blocks, of a tile."""

    page: int
    block: int
    prompt: int
    prompt_block: int
    tile: int


#: What the grid's steps do: bits of the column "does" of the table of work.
_BEGINS, _READS_PROMPT, _READS_OWN, _APPENDS, _ENDS = (1 << bit for bit in range(5))
#: The table's columns. "item" is a prompt slot or a sample of the part, "number" its block.
_COLUMNS = (
    *("does", "part", "item", "number", "prompt", "prompt_block", "page", "page_block"),
    *("new_page", "new_keys", "new_values"),
)


def _work(
    lengths: Array, counts: Array, pages: Array, together: int, sizes: Sizes, blocks: int
) -> tuple[Array, Array]:
    """The steps of the kernel's grid: one for each block that holds tokens, and no others.

    A part, the samples that go together, begins with the blocks of its prompts; then come those of
    each sample, at least one, which appends the new token. Two cores have half of the parts each,
    and as many steps as the fuller half.

    Args:
        lengths, counts, pages: of `append_and_attend`.
        together: samples of a part.
        sizes: of pages and blocks.
        blocks: of all pages.

    Returns:
        i32[], the steps of a core, and i32[columns, cores, most steps].
    """
    lengths, counts, pages = map(jnp.asarray, (lengths, counts, pages))
    (P, G, n), C = pages.shape, lengths.shape[1]
    parts = P * G // together
    cores = 2 if parts % 2 == 0 else 1
    each = parts // cores
    of_prompts = pl.cdiv(lengths, sizes.prompt_block)
    of_samples = jnp.maximum(pl.cdiv(counts, sizes.block), 1).reshape(parts, together)
    of_prompts = jnp.repeat(of_prompts, parts // P, axis=0)
    # Blocks of every item: the prompts and the samples of each part.
    items = jnp.concatenate([of_prompts, of_samples], axis=1).reshape(cores, -1)
    ends = jnp.cumsum(items, axis=1)
    # No page is held twice, and idle samples have a step each.
    capacity = -(-n * sizes.page // sizes.block)
    most = min(each * together * capacity, blocks + each * together)
    most += each * C * -(-sizes.prompt // sizes.prompt_block)
    step = jnp.arange(most, dtype=jnp.int32)
    item = jax.vmap(lambda ends: jnp.sum(ends[:, None] <= step, axis=0, dtype=jnp.int32))(ends)
    runs = item < items.shape[1]
    item = jnp.minimum(item, items.shape[1] - 1)
    before, held = (jnp.take_along_axis(x, item, axis=1) for x in (ends - items, items))
    number = jnp.minimum(step - before, held - 1)
    last = number == held - 1
    part, item = jnp.divmod(item, C + together)
    part += each * jnp.arange(cores, dtype=jnp.int32)[:, None]
    is_prompt, sample = item < C, jnp.maximum(item - C, 0)
    row = part * together + sample
    count = counts.reshape(-1)[row]
    begins = jnp.concatenate([jnp.ones((cores, 1), bool), part[:, 1:] != part[:, :-1]], axis=1)
    does = (
        _BEGINS * begins
        + _READS_PROMPT * is_prompt
        + _READS_OWN * (~is_prompt & (count > 0))
        + _APPENDS * (~is_prompt & last)
        + _ENDS * (last & (item == C + together - 1))
    )
    # Naming the last block again costs no second read.
    prompt = part // (parts // P) * C + item
    latest = jax.lax.cummax(jnp.where(is_prompt, step, -1), axis=1)
    prompt, prompt_block = (
        jnp.where(latest < 0, 0, jnp.take_along_axis(x, jnp.maximum(latest, 0), axis=1))
        for x in (prompt, number)
    )
    own = jnp.where(is_prompt, 0, number)

    def within(block: Array, size: int) -> tuple[Array, Array]:
        number, rest = jnp.divmod(block, sizes.page // size)
        return pages.reshape(-1)[row * n + number], rest

    new_page, new_keys = within(count // LANES, LANES)
    columns = {
        "does": jnp.where(runs, does, 0),
        "part": part,
        "item": jnp.where(is_prompt, item, sample),
        "number": number,
        "prompt": prompt,
        "prompt_block": prompt_block,
        **dict(zip(("page", "page_block"), within(own, sizes.block), strict=True)),
        "new_page": new_page,
        "new_keys": new_keys,
        "new_values": within(count // sizes.tile, sizes.tile)[1],
    }
    table = jnp.stack([columns[name] for name in _COLUMNS]).astype(jnp.int32)
    return jnp.max(ends[:, -1]), table


def _entry(table: Any, name: str, core: Any, step: Any, cores: int, most: int) -> Any:
    """A cell of the flat table."""
    return table[(_COLUMNS.index(name) * cores + core) * most + step]


def _tile_tokens(dtype: Any) -> int:
    """Tokens of a tile of values, the least written at once: 16 in 16 bits, 32 in 8."""
    return _TILE_BYTES // jnp.dtype(dtype).itemsize


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
    # Of one head in 16 bits, a v6e reads half as many tokens in the time of a step.
    tokens = _BLOCK_TOKENS if token_bytes > 2 * LANES else max(LANES, _BLOCK_TOKENS // 2)
    return max(LANES, min(tokens, _BLOCK_BYTES // token_bytes // LANES * LANES))


def _kernel(
    table: Any,
    lengths: Any,
    parents: Any,
    counts: Any,
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
    cores: int,
    most: int,
    prompts: int,
    rows: int,
    eps: float | None,
) -> None:
    """One block of a prompt or of a sample: continues the online softmax of the block before.

    In the memory kept from step to step, a sample has `rows` rows for each head: its R queries, its
    key, and its value.
    """
    core, step = pl.program_id(0), pl.program_id(1)
    does, part, item, number, prompt = (
        _entry(table, name, core, step, cores, most) for name in _COLUMNS[:5]
    )
    _, K, h, block = keys.shape
    samples, R = q.shape[1], q.shape[2] // (K * h)

    def own(head: int) -> Any:
        return pl.ds(pl.multiple_of((head * samples + item) * rows, rows), rows)

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
        keys, values = keys.astype(q.dtype), values.astype(q.dtype)
        scores = jnp.dot(states[at].astype(q.dtype), keys, preferred_element_type=jnp.float32)
        scores = jnp.where(there, scores, MASKED)
        before = top[at]
        after = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        weights, shrink = jnp.exp(scores - after), jnp.exp(before - after)
        top[at] = after
        total[at] = shrink * total[at] + jnp.sum(weights, axis=1, keepdims=True)
        out[at] = shrink * out[at] + jnp.dot(
            weights.astype(values.dtype), values, preferred_element_type=jnp.float32
        )

    @pl.when(does & _BEGINS != 0)
    def _begin() -> None:
        states[:] = jnp.zeros_like(states)
        top[:] = jnp.full_like(top, MASKED)
        out[:], total[:] = jnp.zeros_like(out), jnp.zeros_like(total)
        for head in range(K):
            queries = [normed(head_of(q, head * R + r), norms[:1]) for r in range(R)]
            queries = [(x * h**-0.5).astype(q.dtype).astype(jnp.float32) for x in queries]
            newest = (normed(head_of(k, head), norms[1:]), head_of(v, head))
            own_rows = (*queries, *(stored(x, new_keys.dtype).astype(jnp.float32) for x in newest))
            for row, x in enumerate(own_rows):
                states[every(head, row)] = x

    @pl.when(does & _READS_PROMPT != 0)
    def _prompt() -> None:
        width = prompt_keys.shape[3]
        shape = (samples * rows, width)
        places = number * width + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        there = places < lengths[prompt]
        if prompts > 1:
            row = jax.lax.broadcasted_iota(jnp.int32, (samples * rows, 1), 0)
            parent = jnp.full_like(row, parents[part * samples])
            for sample in range(1, samples):
                of_sample = parents[part * samples + sample]
                parent = jnp.where(row < sample * rows, parent, of_sample)
            there &= parent == item
        for head in range(K):
            of_head = pl.ds(head * samples * rows, samples * rows)
            attend(of_head, prompt_keys[0, head], prompt_values[0, head], there)

    @pl.when(does & _READS_OWN != 0)
    def _own() -> None:
        count = counts[part * samples + item]
        places = number * block + jax.lax.broadcasted_iota(jnp.int32, (rows, block), 1)
        for head in range(K):
            attend(own(head), keys[0, head], values[0, head], places < count)

    @pl.when(does & _APPENDS != 0)
    def _append() -> None:
        # Nothing reads past the new token, so a tile that begins with it may lose other values.
        count = counts[part * samples + item]
        within = count - number * block

        def tile(size: int) -> Any:
            start = jnp.minimum(within // size, block // size - 1) * size
            return pl.ds(pl.multiple_of(start, size), size)

        held = functools.partial(stored, dtype=new_keys.dtype)
        lane = jax.lax.broadcasted_iota(jnp.int32, (h, LANES), 1)
        size = new_values.shape[2]
        place = jax.lax.broadcasted_iota(jnp.int32, (size, h), 0)
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
            new_keys[0, head] = held(
                jnp.where(
                    lane == count % LANES,
                    column.astype(q.dtype),
                    keys[0, head, :, tile(LANES)].astype(q.dtype),
                )
            )
            new_values[0, head] = held(
                jnp.where(
                    place == count % size,
                    jnp.broadcast_to(value, (size, h)).astype(q.dtype),
                    values[0, head, tile(size)].astype(q.dtype),
                )
            )

    @pl.when(does & _ENDS != 0)
    def _end() -> None:
        for number in range(K * R):
            x = out[every(*divmod(number, R))]
            result[0, :, number * h : (number + 1) * h] = x.astype(result.dtype)
