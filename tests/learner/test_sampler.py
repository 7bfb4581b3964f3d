"""The sampler against torch's generation, the full forward pass, and exact distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import Qwen3Config as TorchConfig
from transformers import Qwen3ForCausalLM

from learner import sharding
from learner.logprobs import token_logprobs
from learner.qwen3 import model, weights
from learner.qwen3.config import Qwen3Config
from learner.sampler import Sampler, SamplingParams, draw, token_distribution

PAD = 0
RNG = np.random.default_rng(0)
PROMPTS = [list(map(int, RNG.integers(1, 96, n))) for n in (5, 1, 9, 13, 4)]
CONFIG = Qwen3Config(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=5e6,
    tie_word_embeddings=True,
    max_position_embeddings=64,
    initializer_range=0.3,
)
PARAMS = model.init_params(jax.random.key(0), CONFIG)


def one_device():
    return sharding.make_mesh(devices=jax.devices()[:1])


def sampler(mesh=None, *, prompt_bucket_multiple=8, max_rows=64, vocab_size=None, **sampling):
    sampling = SamplingParams(**({"max_new_tokens": 12} | sampling))
    return Sampler(
        CONFIG,
        mesh or one_device(),
        sampling,
        PAD,
        prompt_bucket_multiple=prompt_bucket_multiple,
        max_rows=max_rows,
        vocab_size=vocab_size,
    )


def keys(n, seed=1):
    return jax.random.split(jax.random.key(seed), n)


def test_greedy_equals_torch_generation(tmp_path):
    """Forty tokens, so that the cache grows twice; prompts of all lengths in one batch."""
    weights.save(tmp_path, PARAMS, CONFIG)
    reference = Qwen3ForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(reference.config, TorchConfig)
    got = sampler(temperature=0.0, max_new_tokens=40)(PARAMS, PROMPTS, keys(5))
    for prompt, row in zip(PROMPTS, got.tokens, strict=True):
        with torch.no_grad():
            want = reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=40,
            )
        np.testing.assert_array_equal(row, want[0, len(prompt) :].numpy())
    assert not got.stopped.any()
    assert (got.lengths == 40).all()


@pytest.mark.parametrize(("temperature", "vocab_size"), [(1.0, None), (0.7, 90)])
def test_logprobs_are_those_of_the_full_forward_pass(temperature, vocab_size):
    stop = (3, 7, 11, 12, 60, 61, 62)
    run = sampler(
        temperature=temperature, vocab_size=vocab_size, stop_token_ids=stop, max_new_tokens=36
    )
    got = run(PARAMS, PROMPTS, keys(5), num_samples=4)
    assert got.tokens.shape == got.logprobs.shape == (20, 36)
    assert got.stopped.any()
    for n in range(20):
        length = int(got.lengths[n])
        answer = got.tokens[n, :length]
        # Ends with the first stop token or at the budget, and holds nothing beyond.
        assert not np.isin(answer[:-1], stop).any()
        assert got.stopped[n] == np.isin(answer[-1], stop)
        assert got.stopped[n] or length == 36
        assert (got.tokens[n, length:] == PAD).all()
        assert (got.logprobs[n, length:] == 0).all()
        assert answer.max() < (vocab_size or 96)

    width = 13 + 36
    rows = np.full((20, width), PAD, np.int32)
    for n in range(20):
        whole = [*PROMPTS[n // 4], *got.tokens[n, : got.lengths[n]]]
        rows[n, : len(whole)] = whole
    positions = np.broadcast_to(np.arange(width, dtype=np.int32), rows.shape)
    ends = np.array([len(PROMPTS[n // 4]) + got.lengths[n] for n in range(20)])
    hidden = model.hidden_states(PARAMS, CONFIG, rows, positions, positions < ends[:, None])
    logp, _ = token_logprobs(
        hidden[:, :-1],
        model.unembedding(PARAMS, CONFIG),
        rows[:, 1:],
        temperature=temperature,
        vocab_size=vocab_size,
    )
    for n in range(20):
        start = len(PROMPTS[n // 4]) - 1
        want = logp[n, start : start + got.lengths[n]]
        np.testing.assert_allclose(got.logprobs[n, : got.lengths[n]], want, atol=1e-4)
    # The samples of one prompt differ.
    assert len({tuple(row) for row in got.tokens[:4]}) == 4


@pytest.mark.parametrize(
    ("axes", "temperature"),
    [({"data": 2, "fsdp": 4}, 0.0), ({"data": 2, "fsdp": 2, "tensor": 2}, 1.0)],
)
def test_eight_devices_give_the_tokens_of_one(axes, temperature):
    mesh = sharding.make_mesh(**axes)
    placed = jax.device_put(PARAMS, sharding.param_shardings(CONFIG, mesh))
    one = sampler(temperature=temperature)(PARAMS, PROMPTS, keys(5), num_samples=2)
    run = sampler(mesh, temperature=temperature)
    eight = run(placed, PROMPTS, keys(5), num_samples=2)
    np.testing.assert_array_equal(one.tokens, eight.tokens)
    np.testing.assert_allclose(one.logprobs, eight.logprobs, atol=1e-5)


def test_a_sample_depends_on_its_own_key_alone():
    """Other neighbours, other padding, other chunks: the same samples."""
    all_keys = keys(5)
    together = sampler()(PARAMS, PROMPTS, all_keys, num_samples=3)
    chunked = sampler(max_rows=6, prompt_bucket_multiple=16)
    apart = chunked(PARAMS, PROMPTS[::-1], all_keys[::-1], num_samples=2)
    for i in range(5):
        for g in range(2):
            a, b = 3 * i + g, 2 * (4 - i) + g
            np.testing.assert_array_equal(together.tokens[a], apart.tokens[b])
            np.testing.assert_allclose(together.logprobs[a], apart.logprobs[b], atol=1e-5)
    other = sampler()(PARAMS, PROMPTS, keys(5, seed=2), num_samples=3)
    assert (other.tokens != together.tokens).any(axis=1).all()


def test_batch_sizes_share_programs():
    run = sampler(max_rows=4, max_new_tokens=2, prompt_bucket_multiple=16)
    for n in (1, 2, 3, 4, 5):
        assert run(PARAMS, PROMPTS[:n], keys(n), num_samples=2).tokens.shape == (2 * n, 2)
    # One or two prompts at a time, all in one bucket of lengths.
    assert run._generate._cache_size() == 2
    assert run(PARAMS, [], keys(0), num_samples=2).tokens.shape == (0, 2)


# One token -------------------------------------------------------------------


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.6), (9, 0.8), (1, 1.0)])
def test_truncated_distribution_equals_the_definition(top_k, top_p):
    logits = RNG.normal(size=(6, 40)).astype(np.float32) * 2
    sampling = SamplingParams(max_new_tokens=1, temperature=0.8, top_k=top_k, top_p=top_p)
    got = np.exp(token_distribution(jnp.asarray(logits), sampling))
    for row, want_logits in zip(got, logits.astype(np.float64) / 0.8, strict=True):
        order = np.argsort(-want_logits)[: top_k or None]
        probs = np.exp(want_logits[order])
        probs /= probs.sum()
        kept = np.searchsorted(np.cumsum(probs), top_p) + 1 if top_p < 1 else len(order)
        want = np.zeros(40)
        want[order[:kept]] = probs[:kept] / probs[:kept].sum()
        np.testing.assert_allclose(row, want, atol=1e-5)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_draws_follow_the_distribution(size):
    """Pearson's chi-squared below its mean plus five standard deviations; zeros never drawn."""
    n = 40_000
    probs = RNG.dirichlet(np.ones(size)).astype(np.float32)
    probs[: size // 3] = 0
    probs /= probs.sum()
    logp = jnp.log(jnp.asarray(probs))
    tokens = jax.jit(draw)(keys(n), jnp.broadcast_to(logp, (n, size)))
    counts = np.bincount(np.asarray(tokens), minlength=size)
    possible = probs > 0
    assert counts[~possible].sum() == 0
    expected = n * probs[possible]
    chi2 = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = max(1, possible.sum() - 1)
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom)


def test_a_certain_token_is_always_drawn_in_a_large_vocabulary():
    logp = jnp.full((200, 5000), -jnp.inf).at[jnp.arange(200), jnp.arange(200) * 25].set(0.0)
    np.testing.assert_array_equal(draw(keys(200), logp), np.arange(200) * 25)


# Refusals --------------------------------------------------------------------


def test_prompts_that_do_not_fit_are_refused_by_number():
    run = sampler(max_new_tokens=32)
    run(PARAMS, [[1] * 32], keys(1))
    with pytest.raises(ValueError, match=r"prompt 1 has 33 tokens; allowed are 1\.\.32"):
        run(PARAMS, [[1], [1] * 33], keys(2))
    with pytest.raises(ValueError, match="prompt 0 has 0 tokens"):
        run(PARAMS, [[]], keys(1))
    with pytest.raises(ValueError, match=r"prompt 1 has ids 1\.\.96; allowed are 0\.\.95"):
        run(PARAMS, [[1], [96, 1]], keys(2))
    with pytest.raises(ValueError, match=r"keys have shape \(3,\); expected \(1,\)"):
        run(PARAMS, [[1]], keys(3))
    with pytest.raises(ValueError, match=r"num_samples is 65; allowed are 1\.\.64"):
        run(PARAMS, [[1]], keys(1), num_samples=65)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_new_tokens", 0), ("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.1)],
)
def test_sampling_params_are_checked(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        SamplingParams(**({"max_new_tokens": 1} | {field: value}))


def test_sampler_arguments_are_checked():
    with pytest.raises(ValueError, match="vocab_size is 97"):
        sampler(vocab_size=97)
    with pytest.raises(ValueError, match=r"max_rows is 4.*row shards, 8"):
        sampler(sharding.make_mesh(data=8), max_rows=4)
    with pytest.raises(ValueError, match="max_new_tokens is 64"):
        sampler(max_new_tokens=64)
