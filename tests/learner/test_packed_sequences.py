import functools

import forward_pass
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.decoder.logprobs import token_logprobs
from learner.training import grpo, lora
from learner.training.batches import packed_sequences
from learner.training.batches.packed_sequences import (
    PackedSequences,
    micro_batches,
    packed_logprobs,
)
from learner.training.rollout import Rollout

GROUP, BUDGET = 3, 24


def rollout(seed=0):
    """Four prompts with three completions each, of very different lengths."""
    rng = np.random.default_rng(seed)
    lengths = np.array([24, 1, 7, 3, 3, 12, 20, 2, 24, 5, 9, 1])
    count = len(lengths)
    return Rollout(
        indices=np.arange(4),
        prompts=[rng.integers(0, 250, n).tolist() for n in (3, 9, 5, 1)],
        tokens=rng.integers(0, 250, (count, BUDGET)).astype(np.int32),
        logprobs=rng.normal(-5.5, 0.3, (count, BUDGET)).astype(np.float32),
        lengths=lengths,
        lost=np.zeros(count, int),
        truncated=np.zeros(count, bool),
        completions=[None] * count,
        rewards=rng.random(count).astype(np.float32),
    )


def packed(batch, shapes, chosen, each_alone=False):
    used = np.zeros((len(batch.lengths), BUDGET), bool)
    used[chosen] = (np.arange(BUDGET) < batch.lengths[:, None])[chosen]
    used[:, 4] = False  # A token in the middle that the model did not choose.
    weights = np.asarray(grpo.token_weights(jnp.asarray(used), "sequence"))
    advantages = np.asarray(grpo.group_advantages(batch.groups, "none")).reshape(-1)
    parts = chosen[:, None] if each_alone else [chosen]
    return [
        sequences
        for part in parts
        for sequences in micro_batches(batch, part, advantages, weights, shapes, 256)
    ]


@pytest.mark.parametrize(
    ("shapes", "rank", "correction"),
    [
        ([(4, 40), (2, 40)], 0, "token"),
        ([(2, 96)], 2, "sequence"),
        pytest.param([(2, 96)], 0, "token", marks=pytest.mark.slow),
        pytest.param([(4, 40), (2, 40)], 2, "sequence", marks=pytest.mark.slow),
    ],
)
def test_packing_changes_neither_loss_nor_gradient(
    tiny_model, tiny_params, shapes, rank, correction, monkeypatch
):
    """Beside each completion alone: all terms of the loss, one group partly left out."""
    batch, chosen = rollout(), np.array([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11])
    config = grpo.ObjectiveConfig(
        kl_coef=0.1,
        entropy_coef=0.01,
        ratio_level="sequence" if correction == "sequence" else "token",
        importance_correction=correction,
        importance_cap=1.2,
    )
    adapters = lora.LoraConfig(rank=rank)
    frozen = jax.tree.map(lambda x: 1.1 * x, tiny_params)
    trained = tiny_params
    if rank:
        trained = lora.init(jax.random.key(0), adapters, tiny_model)
        trained = jax.tree.map(lambda x: x + 0.02, trained)  # Fresh ones change nothing.

    def loss(trained, sequences):
        policy = lora.attach(frozen, trained, adapters)
        forward = functools.partial(
            packed_logprobs, config=tiny_model, batch=sequences, temperature=0.7
        )
        logprobs, entropies = forward(policy, entropy_gradient=True)
        return grpo.objective(
            config,
            logprobs,
            entropies,
            sequences.sampled_logprobs,
            sequences.advantages,
            sequences.weights > 0,
            sequences.weights,
            forward(frozen)[0],
            sequences.old_logprobs,
            sequences.completions,
        )

    both = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def total(batches):
        parts = [both(trained, jax.tree.map(jnp.asarray, one)) for one in batches]
        sums = functools.reduce(grpo.merge_sums, [sums for (_, sums), _ in parts])
        gradient = jax.tree.map(lambda *x: sum(x), *[gradient for _, gradient in parts])
        return sum(value for (value, _), _ in parts), sums, gradient

    alone = packed(batch, [(1, 40)], chosen, each_alone=True)
    together = packed(batch, shapes, chosen)
    assert len(alone) == len(chosen)
    assert len(together) < 4
    assert max(one.prompts.max() for one in together) > 1
    assert max(one.completions.max() for one in together) > 2
    want = total(alone)
    # Its chunks end within completions, and some have none.
    few = functools.partial(token_logprobs, chunk=8)
    monkeypatch.setattr(packed_sequences, "token_logprobs", few)
    got = total(together)
    assert float(want[1]["tokens"]) == batch.lengths[chosen].sum() - 7
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-6)


def test_logprobs_are_those_of_the_whole_softmax(tiny_model, tiny_params):
    batch = rollout()
    (sequences,) = packed(batch, [(2, 96)], np.arange(12))
    computed = jax.jit(packed_logprobs, static_argnums=(1, 3, 4))
    logprobs, entropies = computed(tiny_params, tiny_model, sequences, 0.5, 259)
    assert np.isfinite(logprobs).all()
    assert np.isfinite(entropies).all()
    found = []
    forward = jax.jit(forward_pass.logits, static_argnums=1)
    for sequence, number in (
        (r, n) for r in range(2) for n in range(1, sequences.completions[r].max() + 1)
    ):
        there = np.flatnonzero(sequences.completions[sequence] == number)
        prompt = sequences.sources[sequence, there[0]] + 1
        part = (sequences.prompts[sequence] == sequences.prompts[sequence, there[0]]) & (
            sequences.completions[sequence] == 0
        )
        begin = np.flatnonzero(part)[0]
        whole = [*sequences.tokens[sequence, begin:prompt], *sequences.tokens[sequence, there]]
        np.testing.assert_array_equal(
            sequences.positions[sequence, there], np.arange(len(whole))[-len(there) :]
        )
        padded = jnp.array([whole + [256] * (40 - len(whole))])
        logits = forward(tiny_params, tiny_model, padded, jnp.arange(40)[None])
        full = np.asarray(logits[0, : len(whole)], np.float64)[:, :259] / 0.5
        full -= np.log(np.exp(full).sum(axis=1, keepdims=True))
        predicted = full[len(whole) - len(there) - 1 : -1]
        chosen = np.take_along_axis(predicted, sequences.tokens[sequence, there][:, None], 1)[:, 0]
        np.testing.assert_allclose(logprobs[sequence, there], chosen, atol=2e-5)
        entropy = -(np.exp(predicted) * predicted).sum(axis=1)
        np.testing.assert_allclose(entropies[sequence, there], entropy, atol=2e-5)
        found.append(tuple(whole))
    want = [
        (*batch.prompts[i // GROUP], *batch.tokens[i, : batch.lengths[i]].tolist())
        for i in range(12)
    ]
    assert sorted(found) == sorted(want)


def test_an_empty_prompt_is_named():
    sequences = PackedSequences.empty(1, 8, 0)
    with pytest.raises(ValueError, match="prompt is empty"):
        sequences.add(0, 0, [], [np.zeros(2, np.int32)])
