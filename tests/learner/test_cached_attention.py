"""Decoding's attention: the kernels, step by step on this machine, against the reference."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import micro_model
import numpy as np
import pytest
from jax._src.state import indexing

from learner.decoder import attention, decode_gpu, decode_tpu, model
from learner.decoder.attention import Choice
from learner.decoder.cached_attention import cached_attention, choose_decoding
from learner.devices import sharding
from learner.plan import measure, programs
from learner.plan.targets import Target
from learner.sampling.distribution import SamplingParams
from learner.sampling.sampler import Sampler
from learner.sampling.slots import FinishReason, Schedule
from learner.training.trainer import GRPOConfig

MODULES = {"flash": decode_tpu, "cudnn": decode_gpu}


class _Start(int):
    """A number that is true even if it is 0."""

    def __bool__(self):
        return True


@pytest.fixture(autouse=True)
def own_choice():
    """What a test lets be chosen is chosen in no other."""
    yield
    choose_decoding.cache_clear()


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels run one step after the other on any platform, under jax 0.12's rule for slices.

    Versions before it do not check slices that start at 0.
    """
    concretize = indexing._maybe_concretize

    def checked(x):
        value = concretize(x)
        return None if value is None or isinstance(value, jax.Array) else _Start(value)

    monkeypatch.setattr(indexing, "_maybe_concretize", checked)
    for module in MODULES.values():
        kernel = functools.partial(module.append_and_attend, interpret=True)
        monkeypatch.setattr(module, "append_and_attend", kernel)
    flash = functools.partial(attention._flash, interpret=True)
    monkeypatch.setitem(attention._KERNELS, "flash", flash)


def choose_kernel(monkeypatch, name):
    """Choices as on a machine with such kernels, but for cuDNN's own, which cannot be run here."""
    chosen = {"decoder.cached_attention": name}
    chosen["sampling.decoding"] = name if name == "flash" else "reference"
    for owner, which in chosen.items():
        choice = Choice(which, "")
        monkeypatch.setattr(f"learner.{owner}.choose", lambda config, choice=choice: choice)
    choose_decoding.cache_clear()


# Counts at the edges of what is written at a time, of blocks, and of the capacity.
EDGES = [0, 1, 15, 16, 127, 128, 129, 255, 256, 511, 512, 640, 767]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "T", "capacity", "page", "dtype", "of_cache", "eps"),
    [
        (4, 2, 384, 768, 256, "float32", "float32", 1e-6),
        (2, 2, 96, 128, 128, "bfloat16", "bfloat16", 1e-6),
        (4, 1, 160, 1024, 1024, "bfloat16", "bfloat16", 1e-6),
        (2, 2, 96, 256, 128, "bfloat16", "float8_e4m3fn", 1e-6),
        (6, 1, 32, 256, 128, "float32", "float32", 1e-6),
        (6, 2, 32, 256, 128, "float32", "float32", None),
    ],
)
def test_the_kernel_equals_the_reference(
    interpreted, monkeypatch, name, heads, kv_heads, T, capacity, page, dtype, of_cache, eps
):
    """Output and cache, for all lengths, groupings and dtypes, of more samples than go together.

    The kernel's cache has pages in any order, and more than are used.
    """
    monkeypatch.setattr(decode_tpu, "_SAMPLES", 4)
    rng = np.random.default_rng(0)
    P, C, h = 2, 3, 128
    lengths = [[0, 2 * T // 3, 1], [T - 1, 0, 0]]
    counts = np.array([n for n in EDGES if n < capacity][-2 * (len(EDGES) // 2) :], np.int32)
    counts = counts[: len(counts) // 2 * 2].reshape(P, -1)
    G = counts.shape[1]

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), dtype)

    angles = jnp.asarray(rng.uniform(0, 6, size=(P, G, 1, h // 2)), jnp.float32)
    args = (
        normal(P, G, heads * h),
        normal(P, G, kv_heads * h),
        normal(P, G, kv_heads * h),
        *(
            normal(*shape).astype(of_cache)
            for shape in (
                (P, C, kv_heads, h, T),
                (P, C, kv_heads, T, h),
                (P, G, kv_heads, h, capacity),
                (P, G, kv_heads, capacity, h),
            )
        ),
        jnp.cos(angles),
        jnp.sin(angles),
        jnp.array(lengths),
        jnp.asarray(rng.integers(C, size=(P, G)), jnp.int32),
        jnp.asarray(counts),
        1 + normal(2, h).astype(jnp.float32) / 8,
    )
    want = cached_attention(*args, eps=eps)
    pages = 3 + rng.permutation(counts.size * (capacity // page)).reshape(P, G, -1)
    in_pages = [into_pages(x, pages, axis) for x, axis in ((args[5], -1), (args[6], -2))]
    *got, out = cached_attention(
        *args[:5],
        *in_pages,
        *args[7:],
        eps=eps,
        pages=jnp.asarray(pages, jnp.int32),
        implementation=name,
    )
    got = [*(out_of_pages(x, pages, axis) for x, axis in zip(got, (-1, -2), strict=True)), out]
    filled = np.arange(capacity) <= counts[..., None]
    for axis, mine, theirs in ((-1, got[0], want[0]), (-2, got[1], want[1])):
        mask = filled[:, :, None, None] if axis == -1 else filled[:, :, None, :, None]
        mine, theirs = (np.where(mask, x, 0).astype(np.float32) for x in (mine, theirs))
        # Sums of the norms may round otherwise, and 8 bits then differ in their last.
        rtol = max(8 * float(jnp.finfo(dtype).eps), float(jnp.finfo(of_cache).eps))
        chex.assert_trees_all_close(mine, theirs, rtol=rtol, atol=1e-6)
    tolerance = 2e-6 if dtype == "float32" else 2e-2
    chex.assert_trees_all_close(
        got[2].astype(jnp.float32), want[2].astype(jnp.float32), atol=tolerance
    )


def into_pages(cache, pages, axis):
    """[P, G, K, ...] as [1, N, K, ...] of pages, NaN where there is no token of a sample."""
    of_samples = np.split(np.asarray(cache, np.float32), pages.shape[2], axis=axis)
    parts = np.stack(of_samples, axis=2)
    found = np.full((3 + pages.size, *parts.shape[3:]), np.nan, np.float32)
    found[pages] = parts
    return jnp.asarray(found[None], cache.dtype)


def out_of_pages(cache, pages, axis):
    """The inverse of `into_pages`."""
    parts = np.asarray(cache, np.float32)[0][pages]
    return np.concatenate([parts[:, :, i] for i in range(pages.shape[2])], axis=axis)


@pytest.mark.parametrize("name", MODULES)
def test_the_first_token_of_prompts_of_one_token(interpreted, name):
    """No prompt and no sample has a token in the cache: attention is to the new token alone."""
    rng = np.random.default_rng(1)
    P, C, G, K, h, S = 2, 2, 4, 2, 128, 128
    new = [jnp.asarray(rng.normal(size=(P, G, n * h)), jnp.float32) for n in (4, K, K)]
    caches = [jnp.zeros((P, n, K, *shape)) for n in (C, G) for shape in ((h, S), (S, h))]
    angles = [jnp.asarray(rng.uniform(size=(P, G, 1, h // 2)), jnp.float32) for _ in range(2)]
    rows = [jnp.zeros((P, n), jnp.int32) for n in (C, G, G)]
    caches[2:] = [x.reshape(1, P * G, *x.shape[2:]) for x in caches[2:]]
    _, values, out = cached_attention(
        *new,
        *caches,
        *angles,
        *rows,
        jnp.ones((2, h)),
        eps=1e-6,
        pages=jnp.arange(P * G, dtype=jnp.int32).reshape(P, G, 1),
        implementation=name,
    )
    value = new[2].reshape(P, G, K, h)
    chex.assert_trees_all_close(values.reshape(P, G, K, S, h)[:, :, :, 0], value)
    chex.assert_trees_all_close(out, jnp.repeat(value, 2, axis=2).reshape(P, G, -1), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [1.0, 0.75])
@pytest.mark.parametrize("name", MODULES)
def test_samples_are_those_of_the_reference(interpreted, monkeypatch, name, fraction):
    """A whole call, slots refilled and completions of two pages, on a mesh of four.

    Two groups of two slots each, so that prompts wait and the second prompt slots are used. With
    three pages for the two slots of a shard, one completion loses its page and begins again.
    """
    config = micro_model.config(
        head_dim=128, vocab_size=160, intermediate_size=32, num_hidden_layers=1
    )
    params = model.init_params(jax.random.key(0), config)
    mesh = sharding.make_mesh(1, 2, 2)
    sampling = SamplingParams(max_new_tokens=132, stop_token_ids=(3,))
    prompts = [[1, 2, 5], [4, 9, 8, 7], [6], [7, 7], [2, 8, 1, 1, 3]]

    def sample():
        sampler = Sampler(
            config, mesh, sampling, 0, sampling_slots=4, cache_fraction=fraction, segment_tokens=44
        )
        return sampler(params, prompts, jax.random.split(jax.random.key(1), 5), num_samples=2)

    lost = []
    begin_again = Schedule.begin_again

    def counted(schedule, state, slot):
        lost.append(int(state.counts[slot]))
        begin_again(schedule, state, slot)

    monkeypatch.setattr(Schedule, "begin_again", counted)

    want = sample()
    choose_kernel(monkeypatch, name)
    monkeypatch.setattr("learner.sampling.sampler._PAGE", 128)
    monkeypatch.setattr("learner.decoder.decode_tpu._BLOCK_TOKENS", 128)
    assert choose_decoding(config).name == name
    got = sample()
    assert bool(lost) == (fraction < 1)
    assert got.lost.sum() == sum(lost)
    assert not want.lost.any()
    assert want.lengths.max() == 132
    assert want.lengths.min() < 100
    chex.assert_trees_all_equal(got.tokens, want.tokens)
    chex.assert_trees_all_equal(got.finish, want.finish)
    chex.assert_trees_all_close(got.logprobs, want.logprobs, atol=1e-4)


def test_blocks_and_pages_follow_from_bytes():
    """Of one, two and eight heads of 128 numbers in bfloat16."""
    one, two, eight = 256, 512, 2048
    assert [decode_tpu.page_tokens(4096, size) for size in (one, two, eight)] == [1024, 2048, 512]
    assert decode_tpu.page_tokens(700, one) == decode_tpu.block_tokens(768, one) == 768
    assert decode_tpu.block_tokens(4096, one) == 1024
    assert decode_tpu.block_tokens(1280, eight) == 256  # The largest part below a MiB.
    assert decode_tpu.block_tokens(96, one) == 96
    assert decode_tpu.page_tokens(4096, 1 << 20) == 128


@pytest.mark.slow
def test_a_measured_segment_decodes_in_every_slot(interpreted, monkeypatch, one_device):
    """Slots as `learner.plan.measure` fills them, with pages; and what it measures."""
    config = micro_model.config(
        head_dim=128,
        vocab_size=4096,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    training = GRPOConfig(
        prompts_per_step=4, group_size=2, micro_batch_size=2, max_new_tokens=140, sampling_slots=4
    )
    choose_kernel(monkeypatch, "flash")
    monkeypatch.setattr("learner.sampling.sampler._PAGE", 128)
    monkeypatch.setattr("learner.decoder.decode_tpu._BLOCK_TOKENS", 128)
    chip = Target.of_this_process().chip
    made = programs.compiled(config, training, one_device, 20, chip, {})
    made = measure.measure(made, config, training, one_device, 20)
    assert [program.name for program in made if not program.measured > 0] == []

    segment = next(program.executable for program in made if program.name == "segment")
    weights, prompts, cache, idle, floor = measure._zeros(segment, 0, 1, 2, 3, 5)
    full = measure._full(idle, 19, 140, cache.keys[0].shape[:2], 32)
    assert len(np.unique(full.pages)) == full.pages.size == 4 * 2
    _, after, tokens, _ = segment(weights, prompts, cache, full, None, floor)
    assert tokens.shape == (32, 2, 2)
    assert (np.asarray(after.counts) == 140).all()
    assert (np.asarray(after.finish) == FinishReason.LENGTH).all()


@pytest.mark.parametrize(
    ("name", "longest", "capacity"),
    [
        *(("flash", *each) for each in ((100, 128), (600, 640), (2500, 3072), (32768, 32768))),
        *(("cudnn", *each) for each in ((100, 128), (512, 512), (600, 1024), (4096, 4096))),
    ],
)
def test_with_a_kernel_there_is_one_capacity(monkeypatch, tiny_model, name, longest, capacity):
    choose_kernel(monkeypatch, name)
    config = dataclasses.replace(
        tiny_model, attention=name, head_dim=128, max_position_embeddings=2 * longest
    )
    sampler = Sampler(config, sharding.make_mesh(), SamplingParams(max_new_tokens=longest), 0)
    assert sampler.capacities == [capacity]


@pytest.mark.parametrize("name", MODULES)
def test_a_kernel_that_fails_or_differs_is_not_used(interpreted, monkeypatch, tiny_model, name):
    config = dataclasses.replace(tiny_model, head_dim=128)
    assert choose_decoding(config).name == "reference"
    kernel = MODULES[name].append_and_attend
    choose_kernel(monkeypatch, name)
    assert choose_decoding(config).name == name

    def broken(*args, **options):
        raise RuntimeError("Mosaic failed\nin many lines")

    def wrong(*args, **options):
        keys, values, out = kernel(*args, **options)
        return keys, values, out + 1

    for function, reason in ((broken, "RuntimeError: Mosaic failed"), (wrong, "differs from")):
        monkeypatch.setattr(MODULES[name], "append_and_attend", function)
        choose_decoding.cache_clear()
        chosen = choose_decoding(config)
        assert chosen.name == "reference"
        assert reason in chosen.reason
        assert "many lines" not in chosen.reason


def test_numbers_beyond_those_of_8_bits_are_the_largest():
    x = jnp.array([1000.0, -1000.0, 448.0, 0.3], jnp.bfloat16)
    held = attention.stored(x, "float8_e4m3fn")
    chex.assert_trees_all_equal(held.astype(jnp.float32), jnp.array([448.0, -448, 448, 0.3125]))
    chex.assert_trees_all_equal(attention.stored(x, x.dtype), x)


def test_the_kernel_of_gpus_needs_a_power_of_two(monkeypatch, tiny_model):
    choose_kernel(monkeypatch, "cudnn")
    chosen = choose_decoding(dataclasses.replace(tiny_model, head_dim=96))
    assert chosen.name == "reference"
    assert "power of two for head_dim, and this is 96" in chosen.reason
