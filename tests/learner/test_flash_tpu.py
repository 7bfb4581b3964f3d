"""The kernels of TPUs for whole sequences, their steps run one by one on the CPU."""

import functools

import jax
import jax.numpy as jnp
import micro_model
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.decoder import attention, flash_tpu


@st.composite
def sequences(draw):
    """Two packed sequences of some tiles, as numbers of prompts and completions."""
    length = 128 * draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    prompts, completions = (np.zeros((2, length), np.int32) for _ in range(2))
    for row in range(2):
        begin, most = 0, int(rng.integers(10, 400))
        while begin < length and rng.random() < 0.9:
            prompt, others = rng.integers(1, most), rng.integers(1, most, rng.integers(0, 4))
            end = begin + prompt + others.sum()
            prompts[row, begin:end] = prompts[row].max() + 1
            begin += prompt
            for other in others:
                completions[row, begin : begin + other] = completions[row].max() + 1
                begin += other
    return attention.Segments(jnp.asarray(prompts), jnp.asarray(completions))


def dense(ends):
    """bool[B, queries, keys], by the definition of `ends`."""
    slots = np.arange(ends.shape[1])
    return (slots <= slots[:, None]) & (slots[:, None] < np.asarray(ends)[:, None, :])


@settings(max_examples=50, deadline=None)
@given(sequences())
def test_ends_say_what_is_visible(segments):
    got = dense(segments.ends())
    slots = jnp.arange(got.shape[1])
    want = np.asarray(segments.visible(slots)) & np.tri(got.shape[1], dtype=bool)
    padding = np.asarray(segments.prompts) == 0
    np.testing.assert_array_equal(got[~padding], want[~padding])
    # A token of the padding sees itself, so that nothing is computed for pairs of them.
    assert (got[padding].sum(axis=1) == 1).all()


@settings(max_examples=50, deadline=None)
@given(sequences(), st.booleans(), st.integers(0, 4))
def test_steps_are_the_tiles_with_something_visible(segments, by_keys, behind):
    length = segments.prompts.shape[1]
    queries = length - 128 * min(behind, length // 128 - 1)
    steps = np.asarray(flash_tpu._steps(segments.ends(), queries, by_keys))
    size = flash_tpu.tile_size(queries, length)
    visible = dense(segments.ends())[:, length - queries :]
    rows, keys = flash_tpu._place(steps)
    for sequence, (row, key) in enumerate(zip(rows, keys, strict=True)):
        flags = steps[sequence]
        active, masked, first, last = (
            flags & flag != 0
            for flag in (flash_tpu._ACTIVE, flash_tpu._MASK, flash_tpu._FIRST, flash_tpu._LAST)
        )
        tiles = visible[sequence].reshape(queries // size, size, length // size, size)
        tiles = tiles.swapaxes(1, 2)
        some, whole = tiles.any(axis=(2, 3)), tiles.all(axis=(2, 3))
        computed = list(zip(row[active], key[active], strict=True))
        assert len(set(computed)) == len(computed)
        assert set(computed) == set(zip(*np.nonzero(some), strict=True))
        np.testing.assert_array_equal(masked[active], ~whole[row[active], key[active]])
        assert not masked[~active].any()
        # Every tile of results begins and ends once, and its steps follow each other.
        own = key if by_keys else row
        assert own[first].tolist() == sorted(set(own.tolist())) == own[last].tolist()
        assert (np.diff(own) >= 0).all()
        # A step without anything to compute does not read anything new.
        other, after = row if by_keys else key, np.flatnonzero(~active[1:]) + 1
        np.testing.assert_array_equal(other[after], other[after - 1])
    if queries == length:
        active, masked = flash_tpu.computed_tiles(np.asarray(segments.ends()))
        assert active == np.mean(np.sum(steps & flash_tpu._ACTIVE != 0, axis=1))
        assert masked == np.mean(np.sum(steps & flash_tpu._MASK != 0, axis=1))


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("pieces", [1, 3])
def test_many_tiles_equal_the_reference(heads, pieces, monkeypatch):
    """Tiles that are left out, whole, and masked; gradients of queries at once and in pieces."""
    monkeypatch.setattr(flash_tpu, "_TILES", (128,))
    B, T, K, h = 2, 384, 2, 128
    if pieces > 1:  # No room for more than a tile.
        monkeypatch.setattr(flash_tpu, "_QUERY_BYTES", 0)
    keys = jax.random.split(jax.random.key(heads), 4)
    q, k, v, weights = (
        jax.random.normal(key, (B, T, n, h))
        for key, n in zip(keys, (heads, K, K, heads), strict=True)
    )
    slots = jnp.arange(T)
    # Two prompts with two and one completions and padding; one whole sequence.
    prompts = jnp.stack([jnp.where(slots < 150, 1, jnp.where(slots < 370, 2, 0)), slots * 0 + 1])
    own = jnp.where(slots < 20, 0, jnp.where(slots < 90, 1, jnp.where(slots < 150, 2, 0)))
    own = jnp.where((slots >= 290) & (slots < 370), 3, own)
    segments = attention.Segments(prompts, jnp.stack([own, jnp.where(slots < 7, 0, 1)]))
    there = (prompts > 0)[..., None, None]
    valid = jnp.stack([(slots < 5) | (slots >= 130), slots >= 0])  # Keys of the last 250 tokens.

    def total(attend, q, k, v):
        packed = jnp.where(there, attend(q, k, v, segments), 0)
        last = jnp.pad(attend(q[:, -250:], k, v, valid), ((0, 0), (T - 250, 0), (0, 0), (0, 0)))
        return jnp.sum(weights * (packed + jnp.sin(last)))

    def results(attend):
        return jax.jit(jax.value_and_grad(functools.partial(total, attend), (0, 1, 2)))(q, k, v)

    want = results(attention._reference)
    got = results(functools.partial(attention._flash, interpret=True))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4, rtol=2e-4)


def test_what_a_run_tries_first_has_tiles_of_all_kinds(monkeypatch):
    """Left out, whole and masked: otherwise a fault on a real chip would go unseen."""
    seen = []

    def kernel(q, k, v, layout=None):
        if isinstance(layout, attention.Segments):
            jax.debug.callback(lambda ends: seen.append(np.asarray(ends)), layout.ends())
        return attention._flash(q, k, v, layout, interpret=True)

    monkeypatch.setitem(attention._KERNELS, "flash", kernel)
    config = micro_model.config(head_dim=128, num_attention_heads=4, dtype="bfloat16")
    assert attention._try("flash", config) is None
    computed, masked = flash_tpu.computed_tiles(seen[0])
    tiles = seen[0].shape[1] // flash_tpu.tile_size(seen[0].shape[1])
    assert 0 < masked < computed < tiles * (tiles + 1) / 2
