"""The sampler against the full forward pass, and itself run otherwise."""

import dataclasses
import math

import chex
import forward_pass
import jax
import micro_model
import numpy as np
import pytest
from scipy.special import log_softmax

from learner.decoder import model
from learner.devices import sharding
from learner.sampling import decoding
from learner.sampling import sampler as sampler_module
from learner.sampling.sampler import FinishReason, Sampler, SamplingParams, decoding_mesh
from learner.sampling.slots import RUNNING, slot_counts
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import ThinkingBudget

PAD = 0
RNG = np.random.default_rng(0)
PROMPTS = [list(map(int, RNG.integers(1, 96, n))) for n in (5, 1, 9, 13, 4)]
CONFIG = micro_model.config(
    intermediate_size=48, rope_theta=5e6, max_position_embeddings=96, initializer_range=0.3
)
PARAMS = model.init_params(jax.random.key(0), CONFIG)


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch):
    """Prompts of a few tokens have several capacities."""
    monkeypatch.setattr("learner.sampling.sampler._PROMPT_MULTIPLE", 8)


def one_device():
    return sharding.make_mesh(devices=jax.devices()[:1])


def sampler(mesh=None, **arguments):
    names = ("sampling_slots", "segment_tokens", "vocab_size")
    options = {name: arguments.pop(name) for name in names if name in arguments}
    sampling = SamplingParams(**({"max_new_tokens": 12} | arguments))
    return Sampler(
        CONFIG, mesh or one_device(), sampling, PAD, **({"sampling_slots": 64} | options)
    )


def keys(n, seed=1):
    return jax.random.split(jax.random.key(seed), n)


def forward_logits(samples, group):
    """Logits f32[N, M, V] that the training path gives for every sampled token; and those [V].

    Token m of a completion is predicted at slot m of the result.
    """
    N, M = samples.tokens.shape
    width = max(map(len, PROMPTS)) + M
    sequences = np.full((N, width), PAD, np.int32)
    starts = np.array([len(PROMPTS[n // group]) for n in range(N)])
    for n in range(N):
        whole = [*PROMPTS[n // group], *samples.tokens[n, : samples.lengths[n]]]
        sequences[n, : len(whole)] = whole
    positions = np.broadcast_to(np.arange(width, dtype=np.int32), sequences.shape)
    forward = jax.jit(forward_pass.logits, static_argnums=1)
    logits = np.asarray(forward(PARAMS, CONFIG, sequences, positions))
    at = np.minimum(starts[:, None] - 1 + np.arange(M), width - 1)
    return np.take_along_axis(logits, at[..., None], axis=1)


def assert_logprobs(samples, logits):
    """The reported log-probabilities are those of the softmax of `logits` [N, M, V]."""
    exact = log_softmax(logits.astype(np.float64), axis=-1)
    want = np.take_along_axis(exact, samples.tokens[..., None], axis=-1)[..., 0]
    used = np.arange(samples.tokens.shape[1]) < samples.lengths[:, None]
    np.testing.assert_allclose(samples.logprobs[used], want[used], atol=1e-4)
    assert (samples.logprobs[~used] == 0).all()
    assert (samples.tokens[~used] == PAD).all()


@pytest.mark.parametrize(
    ("temperature", "vocab_size", "sampling_slots"), [(1.0, None, 64), (0.7, 90, 6), (0.0, None, 3)]
)
def test_logprobs_are_those_of_the_full_forward_pass(temperature, vocab_size, sampling_slots):
    """In one batch, and refilled through few slots."""
    stop = (3, 7, 11, 12, 60, 61, 62)
    run = sampler(
        temperature=temperature,
        vocab_size=vocab_size,
        sampling_slots=sampling_slots,
        stop_token_ids=stop,
        max_new_tokens=36,
    )
    got = run(PARAMS, PROMPTS, keys(5), num_samples=4)
    assert got.tokens.shape == got.logprobs.shape == (20, 36)
    assert got.stopped.any()
    logits = forward_logits(got, 4)[..., :vocab_size] / (temperature or 1)
    assert_logprobs(got, logits)
    for n in range(20):
        length = int(got.lengths[n])
        completion = got.tokens[n, :length]
        # Ends with the first stop token or at the budget.
        assert not np.isin(completion[:-1], stop).any()
        assert got.finish[n] == (
            FinishReason.STOP_TOKEN if np.isin(completion[-1], stop) else FinishReason.LENGTH
        )
        assert got.stopped[n] or length == 36
        assert completion.max() < (vocab_size or 96)
    # The samples of one prompt differ, unless they are greedy.
    assert len({tuple(sequence) for sequence in got.tokens[:4]}) == (4 if temperature else 1)


@pytest.mark.parametrize(
    ("axes", "temperature"),
    [({"data": 2, "fsdp": 4}, 0.0), ({"data": 2, "fsdp": 2, "tensor": 2}, 1.0)],
)
def test_eight_devices_give_the_tokens_of_one(axes, temperature):
    mesh = sharding.make_mesh(**axes)
    placed = jax.device_put(PARAMS, model.param_shardings(CONFIG, mesh))
    one = sampler(temperature=temperature)(PARAMS, PROMPTS, keys(5), num_samples=2)
    run = sampler(mesh, temperature=temperature)
    eight = run(placed, PROMPTS, keys(5), num_samples=2)
    np.testing.assert_array_equal(one.tokens, eight.tokens)
    np.testing.assert_allclose(one.logprobs, eight.logprobs, atol=1e-5)


@pytest.fixture
def large(monkeypatch):
    """Sets from how many weights on matrices are transposed; nothing traced before counts."""

    def change(weights):
        monkeypatch.setattr(model, "LARGE", weights)
        sampler_module._programs.cache_clear()
        sampler_module._segment.cache_clear()

    yield change
    change(1 << 18)


@pytest.mark.parametrize("rows", [1, 5, 200])
@pytest.mark.parametrize("weights", [0, 1 << 18])
def test_a_product_with_a_transposed_matrix(large, rows, weights):
    large(weights)
    x, matrix = RNG.normal(size=(rows, 7)), RNG.normal(size=(11, 7))
    product = jax.jit(lambda *args: model.transposed_matmul(*args))  # Traced anew.
    x, matrix = np.float32(x), np.float32(matrix)
    np.testing.assert_allclose(product(x, matrix), x @ matrix.T, atol=1e-5)
    turned = "optimization_barrier" in product.lower(x, matrix).as_text()
    assert turned == (rows == 5 and weights == 0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("axes", [{}, {"fsdp": 2, "tensor": 2}])
def test_transposed_matrices_give_the_same_completions(large, tied, axes):
    """As CPUs decode with larger models."""
    config = dataclasses.replace(CONFIG, tie_word_embeddings=tied)
    mesh = sharding.make_mesh(**axes, devices=jax.devices()[: math.prod(axes.values())])
    params = jax.device_put(
        model.init_params(jax.random.key(0), config), model.param_shardings(config, mesh)
    )
    shapes, results = [], []
    for least in (1 << 18, 0):
        large(least)
        own = Sampler(config, mesh, SamplingParams(max_new_tokens=12), PAD)
        ((name, matrix),) = own.prepare(params)["layers"][0]["mlp"]["up_proj"].items()
        assert name == ("kernel" if least else "transposed")
        shapes.append(matrix.sharding.shard_shape(matrix.shape))
        results.append(own(params, PROMPTS, keys(5), 2))
    plain, transposed = results
    assert shapes[0] == shapes[1][::-1] == (32, 48 // axes.get("tensor", 1))
    np.testing.assert_array_equal(transposed.tokens, plain.tokens)
    np.testing.assert_allclose(transposed.logprobs, plain.logprobs, atol=1e-5)


@pytest.mark.parametrize(
    ("axes", "decoding"),
    [
        ({"data": 2, "fsdp": 4}, (2, 2, 2)),  # Two key/value heads.
        ({"data": 2, "fsdp": 2}, (2, 1, 2)),
        ({"fsdp": 2, "tensor": 2}, (1, 2, 2)),
        ({"data": 8}, (8, 1, 1)),
    ],
)
def test_decoding_splits_the_model_where_updates_split_sequences(axes, decoding):
    mesh = sharding.make_mesh(**axes)
    assert decoding_mesh(CONFIG, mesh).devices.shape == decoding
    placed = jax.device_put(PARAMS, model.param_shardings(CONFIG, mesh))
    kernel = sampler(mesh).prepare(placed)["layers"][0]["mlp"]["down_proj"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape)[0] == kernel.shape[0] // decoding[2]
    np.testing.assert_array_equal(kernel, PARAMS["layers"]["mlp"]["down_proj"]["kernel"][0])


@pytest.mark.parametrize(
    "otherwise",
    [{"sampling_slots": 1}, {"sampling_slots": 7, "segment_tokens": 1}, {"sampling_slots": 200}],
)
def test_a_sample_depends_on_its_own_key_alone(otherwise):
    """Other neighbours, slots, padding and order of refilling: the same samples.

    The tokens are equal; log-probabilities may differ in rounding, since a matrix product may sum
    in another order where its other dimension differs.
    """
    stop = tuple(range(0, 96, 9))
    all_keys = keys(5)
    together = sampler(stop_token_ids=stop)(PARAMS, PROMPTS, all_keys, num_samples=3)
    assert len(set(together.lengths)) > 4
    apart = sampler(stop_token_ids=stop, **otherwise)(
        PARAMS, PROMPTS[::-1], all_keys[::-1], num_samples=2
    )
    for i in range(5):
        for g in range(2):
            a, b = 3 * i + g, 2 * (4 - i) + g
            np.testing.assert_array_equal(together.tokens[a], apart.tokens[b])
            np.testing.assert_allclose(together.logprobs[a], apart.logprobs[b], atol=1e-5)
            assert together.finish[a] == apart.finish[b]


@pytest.mark.parametrize(
    ("sampling_slots", "shards", "prompts", "samples", "slots"),
    [
        (512, 1, 32, 32, (32, 16, 1)),  # all sequences run, though not all completions fit
        (64, 1, 4, 32, (4, 16, 1)),
        (512, 1, 33, 32, (40, 12, 1)),
        (512, 1, 1000, 32, (128, 4, 2)),  # prompts wait
        (512, 8, 32, 32, (32, 16, 1)),
        (512, 8, 500, 6, (168, 3, 2)),
        (512, 1, 5, 8, (8, 8, 1)),  # all completions at once
        (512, 1, 300, 1, (512, 1, 1)),
        (3, 1, 1, 32, (1, 3, 1)),
        (1, 1, 7, 7, (1, 1, 1)),
    ],
)
def test_completions_that_run_at_a_time(sampling_slots, shards, prompts, samples, slots):
    assert slot_counts(prompts, samples, shards, sampling_slots // shards) == slots


def test_slots_are_used_whatever_is_asked_for():
    """Never more than `sampling_slots`, and at most a quarter of what could run is left idle."""
    for prompts in range(1, 600, 7):
        for samples in (1, 2, 3, 4, 8, 16, 32, 100, 600):
            groups, sequence_slots, _ = slot_counts(prompts, samples, 1, 512)
            assert groups * sequence_slots <= 512
            busy = min(prompts, groups) * sequence_slots
            assert busy > 0.7 * min(512, prompts * samples), (prompts, samples)


def test_a_long_completion_keeps_only_its_own_slot_busy():
    """Two groups of four; every prompt has one completion as long as its other three together."""
    budgets = np.tile([4, 24, 8, 12], 16)
    run = sampler(sampling_slots=8, max_new_tokens=24, segment_tokens=4)
    segments, segment = [], run.segment

    def counting(params, prompts, cache, state, automaton, floor):
        segments.append(np.asarray(state.finish) == RUNNING)
        return segment(params, prompts, cache, state, automaton, floor)

    run.segment = counting
    prompts = [PROMPTS[n % 5] for n in range(16)]
    got = run(PARAMS, prompts, keys(16), num_samples=4, budgets=budgets)
    np.testing.assert_array_equal(got.lengths, budgets)
    # Where a group waits for the last completion of its prompt, half of all steps are idle.
    assert np.mean(segments) > 0.85
    whole = sampler(max_new_tokens=24)(PARAMS, prompts, keys(16), num_samples=4, budgets=budgets)
    np.testing.assert_array_equal(got.tokens, whole.tokens)
    np.testing.assert_allclose(got.logprobs, whole.logprobs, atol=1e-5)


def test_no_prompts_give_no_samples():
    assert sampler()(PARAMS, [], keys(0), 2).tokens.shape == (0, 12)


def test_other_keys_give_other_samples():
    one, other = (sampler()(PARAMS, PROMPTS, keys(5, seed=seed)) for seed in (1, 2))
    assert (one.tokens != other.tokens).any(axis=1).all()


def test_few_programs_serve_all_calls(monkeypatch):
    """Two capacities for completions, two for prompts, prompts by 1, 2 and 4; then no trace."""

    def allow(**traces):
        for name, most in traces.items():
            limited = chex.assert_max_traces(functions[name], most)
            monkeypatch.setattr(decoding, name, limited)

    functions = {name: getattr(decoding, name) for name in ("decode_step", "prefill")}
    allow(decode_step=2, prefill=6)
    sampler_module._programs.cache_clear()  # Other tests' programs do not count.
    options = {"stop_token_ids": (5, 6, 7), "max_new_tokens": 40, "segment_tokens": 8}
    run = sampler(sampling_slots=4, **options)
    for seed in range(4):
        run(PARAMS, PROMPTS[seed:] * 3, keys(15 - 3 * seed, seed=seed))
    allow(decode_step=0, prefill=0)
    run(PARAMS, PROMPTS * 3, keys(15, seed=0))
    run(jax.tree.map(lambda x: x * 1.0, PARAMS), PROMPTS[1:] * 3, keys(12, seed=1))
    # Samplers with the same options share their programs, those with others do not.
    sampler(sampling_slots=4, **options)(PARAMS, PROMPTS * 3, keys(15, seed=0))
    with pytest.raises(AssertionError, match="traced"):
        sampler(sampling_slots=4, temperature=0.7, **options)(PARAMS, PROMPTS * 3, keys(15, seed=0))


@pytest.mark.parametrize("sampling_slots", [3, 64])
def test_samples_share_the_prefill_of_their_prompt(sampling_slots):
    run = sampler(sampling_slots=sampling_slots, stop_token_ids=(5, 6, 7))
    prefilled = []

    def counting(params, cache, tokens, slots):
        used = np.asarray(slots) < np.prod(cache.keys[0].shape[:2])
        prefilled.extend(np.sum(np.asarray(tokens)[used] != PAD, axis=1).tolist())
        return prefill(params, cache, tokens, slots)

    prefill, run.prefill = run.prefill, counting
    got = run(PARAMS, PROMPTS, keys(5), num_samples=7)
    assert len(got.tokens) == 35
    # Every prompt once, without its last token: that is the first one which samples decode.
    assert sorted(prefilled) == sorted(len(prompt) - 1 for prompt in PROMPTS)


def test_hundreds_of_completions_through_few_slots():
    prompts = [PROMPTS[n % 5][: 1 + n % 4] for n in range(300)]
    budgets = RNG.integers(1, 5, 600)
    few, many = (sampler(sampling_slots=slots, max_new_tokens=4) for slots in (24, 1024))
    got = few(PARAMS, prompts, keys(300), num_samples=2, budgets=budgets)
    want = many(PARAMS, prompts, keys(300), num_samples=2, budgets=budgets)
    np.testing.assert_array_equal(got.lengths, budgets)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-5)


def test_bfloat16_log_probabilities_are_near_those_of_float32():
    """Eight bits of mantissa in activations and cache; logits and their softmax are float32."""
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    run = Sampler(config, one_device(), SamplingParams(max_new_tokens=24), PAD)
    got = run(PARAMS, PROMPTS, keys(5), num_samples=4)
    exact = log_softmax(forward_logits(got, 4).astype(np.float64), axis=-1)
    want = np.take_along_axis(exact, got.tokens[..., None], axis=-1)[..., 0]
    gap = np.abs(got.logprobs - want)
    assert 1e-4 < gap.mean() < 0.04
    assert gap.max() < 0.4


# Ends of completions --------------------------------------------------------------


@pytest.mark.parametrize("sampling_slots", [2, 64])
def test_all_stop_at_the_first_token(sampling_slots):
    got = sampler(sampling_slots=sampling_slots, stop_token_ids=tuple(range(96)))(
        PARAMS, PROMPTS, keys(5)
    )
    assert (got.lengths == 1).all()
    assert (got.finish == FinishReason.STOP_TOKEN).all()
    free = sampler()(PARAMS, PROMPTS, keys(5))
    np.testing.assert_array_equal(got.tokens[:, 0], free.tokens[:, 0])
    np.testing.assert_allclose(got.logprobs[:, 0], free.logprobs[:, 0], atol=1e-5)


def test_budgets_cut_the_very_same_completions():
    budgets = np.array([1, 12, 5, 2, 11, 1, 3, 12, 7, 9])
    free = sampler()(PARAMS, PROMPTS, keys(5), 2)
    got = sampler(sampling_slots=2, segment_tokens=4)(PARAMS, PROMPTS, keys(5), 2, budgets=budgets)
    np.testing.assert_array_equal(got.lengths, budgets)
    assert (got.finish == FinishReason.LENGTH).all()
    for n, budget in enumerate(budgets):
        np.testing.assert_array_equal(got.tokens[n, :budget], free.tokens[n, :budget])
        assert (got.tokens[n, budget:] == PAD).all()


def test_an_automaton_masks_on_the_device():
    """Digits, at most two at a time, between commas; a comma may also be followed by the end."""
    digits, comma, end = list(range(40, 50)), 10, 11
    automaton = TokenAutomaton.create(
        tokens=[
            digits,
            [*digits[:9], comma],
            [comma] + [-1] * 9,
            [*digits[:9], end],
            [end] + [-1] * 9,
        ],
        targets=[[1] * 10, [2] * 9 + [3], [3] + [0] * 9, [4] * 9 + [0], [0] * 10],
    )
    forced = set()
    for sampling_slots in (64, 3):
        got = sampler(stop_token_ids=(end,), sampling_slots=sampling_slots)(
            PARAMS, PROMPTS, keys(5), 6, automaton=automaton
        )
        mask = np.full((30, 12, 96), -np.inf)
        for n in range(30):
            state = 0
            for m in range(got.lengths[n]):
                listed = automaton.tokens[state].tolist()
                mask[n, m, [token for token in listed if token >= 0]] = 0
                before, state = state, automaton.targets[state][listed.index(got.tokens[n, m])]
            if got.tokens[n, got.lengths[n] - 1] == end:
                assert got.finish[n] == FinishReason.STOP_TOKEN
                forced.add(before == 4)
            else:
                assert got.finish[n] == FinishReason.LENGTH
        assert_logprobs(got, np.maximum(forward_logits(got, 6) + mask, -1e30))
    assert forced == {False, True}


def test_thinking_is_ended_within_its_budget():
    """The closing tokens have probability one; what follows has the model's own."""
    think_end, closing = 20, (33, 34, 20)
    thinking = ThinkingBudget(max_tokens=5, closing_ids=closing)
    got = sampler(max_new_tokens=16, thinking=thinking, sampling_slots=4)(
        PARAMS, PROMPTS, keys(5), 4
    )
    free = sampler(max_new_tokens=16)(PARAMS, PROMPTS, keys(5), 4)
    np.testing.assert_array_equal(got.tokens[:, :5], free.tokens[:, :5])
    ended = (got.tokens[:, :5] == think_end).any(axis=1)
    assert not ended.all()
    np.testing.assert_array_equal(got.tokens[ended], free.tokens[ended])
    np.testing.assert_array_equal(got.tokens[~ended, 5:8], [closing] * (~ended).sum())
    assert (got.logprobs[~ended, 5:8] == 0).all()
    logits = forward_logits(got, 4)
    for n in np.flatnonzero(~ended):
        for m, token in enumerate(closing, start=5):
            logits[n, m] = np.where(np.arange(96) == token, 0, -1e30)
    assert_logprobs(got, logits)


def test_streaming_gives_the_same_completion():
    run = sampler(segment_tokens=5, stop_token_ids=(5, 6))
    whole = run(PARAMS, PROMPTS[:1], keys(1))
    chunks = list(run.stream(PARAMS, PROMPTS[:1], keys(1)))
    assert [chunk.finish is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    streamed = np.concatenate([chunk.tokens for chunk in chunks])
    np.testing.assert_array_equal(streamed, whole.tokens[0, : whole.lengths[0]])


# Refusals ---------------------------------------------------------------------


def test_prompts_that_do_not_fit_are_refused_by_number():
    run = sampler(max_new_tokens=64)
    run(PARAMS, [[1] * 32], keys(1), budgets=np.array([1]))
    with pytest.raises(ValueError, match=r"prompts\[1\]: has 33 tokens; allowed are 1 to 32"):
        run(PARAMS, [[1], [1] * 33], keys(2))
    with pytest.raises(ValueError, match=r"prompts\[0\]: has 0 tokens"):
        run(PARAMS, [[]], keys(1))
    with pytest.raises(ValueError, match=r"prompts\[1\]: has ids 1 to 96; allowed are 0 to 95"):
        run(PARAMS, [[1], [96, 1]], keys(2))
    with pytest.raises(AssertionError, match="has shape"):
        run(PARAMS, [[1]], keys(3))
    with pytest.raises(ValueError, match=r"keys: an array of uint32, allowed are keys of jax\.ran"):
        run(PARAMS, [[1]], jax.random.PRNGKey(0)[None])
    with pytest.raises(ValueError, match="keys=rbg: allowed is threefry"):
        run(PARAMS, [[1]], jax.random.split(jax.random.key(0, impl="rbg"), 1))
    with pytest.raises(ValueError, match="num_samples=0"):
        run(PARAMS, [[1]], keys(1), num_samples=0)
    with pytest.raises(ValueError, match=r"'embedding' is missing; .* `policy_params\(state\)`"):
        run({"layers": PARAMS["layers"]}, [[1]], keys(1))


def test_budgets_and_automata_that_do_not_fit_are_refused():
    run = sampler(vocab_size=90)
    with pytest.raises(AssertionError, match="has shape"):
        run(PARAMS, [[1]], keys(1), budgets=np.array([1, 2]))
    for value in (0, 13):
        with pytest.raises(ValueError, match=rf"budgets={value}: .* 1 to 12"):
            run(PARAMS, [[1]], keys(1), budgets=np.array([value]))
    with pytest.raises(ValueError, match="automaton: demands token 90; allowed are 0 to 89"):
        run(PARAMS, [[1]], keys(1), automaton=TokenAutomaton.create([[90]], [[0]]))
    with pytest.raises(ValueError, match="max_new_tokens=8: more than 8 are needed"):
        SamplingParams(max_new_tokens=8, thinking=ThinkingBudget(5, (0, 2, 1)))


def test_sampler_arguments_are_checked():
    with pytest.raises(ValueError, match="vocab_size=97"):
        sampler(vocab_size=97)
    with pytest.raises(ValueError, match=r"sampling_slots=4: .* from 8"):
        sampler(sharding.make_mesh(data=8), sampling_slots=4)
    with pytest.raises(ValueError, match=r"stop_token_ids=90: .* from 0 to 89"):
        sampler(vocab_size=90, stop_token_ids=(3, 90))
    with pytest.raises(ValueError, match="max_new_tokens=96"):
        sampler(max_new_tokens=96)
    with pytest.raises(ValueError, match="segment_tokens=0"):
        sampler(segment_tokens=0)
