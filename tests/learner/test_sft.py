"""Supervised training: what is encoded, what the loss is, and that it falls."""

import dataclasses

import forward_pass
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner import tokens
from learner.decoder import model
from learner.devices import sharding
from learner.training import sft
from learner.training.sft import Example, SFTConfig, SFTTrainer, encode_examples, make_batch
from learner.training.train_state import OptimizerConfig, create_train_state

CONFIG = SFTConfig(
    batch_size=6,
    micro_batch_size=4,
    length_multiple=16,
    max_completion_tokens=8,
    optimizer=OptimizerConfig(learning_rate=1e-2, eps=1e-3),
)


@pytest.fixture(scope="module")
def examples(byte_tokenizer):
    pairs = [("say a", "aaa"), ("say bc", "bc"), ("z?", "zzzzz"), ("q", "q"), ("12", "3456")]
    chats = [
        ([{"role": "user", "content": question}], completion) for question, completion in pairs
    ]
    return encode_examples(byte_tokenizer, chats)


def test_encoding(byte_tokenizer, examples):
    stop = byte_tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert examples[1].completion[-1] == stop
    assert tokens.decode(byte_tokenizer, examples[1].completion) == "bc"
    text = byte_tokenizer.decode(examples[1].prompt)
    assert text == "<|im_start|>user\nsay bc<|im_end|>\n<|im_start|>assistant\n"


def test_loss_is_the_token_mean_over_the_whole_batch(
    tiny_model, tiny_params, one_device, byte_tokenizer, examples
):
    losses = []
    # Padding on the right does not reach the tokens before it in a causal model.
    ids = tokens.pad_right([e.prompt + e.completion for e in examples], 64, 256)
    positions = jnp.broadcast_to(jnp.arange(64), ids.shape)
    forward = jax.jit(forward_pass.logits, static_argnums=1)
    logits = forward(tiny_params, tiny_model, ids, positions)
    for i, example in enumerate(examples):
        logp = np.asarray(logits[i], np.float64)
        logp -= np.log(np.exp(logp).sum(axis=1, keepdims=True))
        start = len(example.prompt)
        losses += [-logp[start + t - 1, token] for t, token in enumerate(example.completion)]
    before = jax.tree.map(np.asarray, tiny_params)

    moved = []
    for mesh, sequences in ((one_device, 2), (sharding.make_mesh(2, 2), 4)):
        trainer = SFTTrainer(
            dataclasses.replace(CONFIG, micro_batch_size=sequences), tiny_model, mesh, pad_id=256
        )
        params = jax.tree.map(jnp.array, before)
        state = create_train_state(params, tiny_model, CONFIG.optimizer, mesh)
        state, metrics = trainer.step(state, examples)
        np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)
        assert metrics["completion_tokens"] == len(losses)
        moved.append(forward_pass.flat(state.params) - forward_pass.flat(before))
    assert np.abs(moved[0]).max() > 1e-3
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-4, atol=2e-6)


def test_prompts_that_begin_alike_go_through_the_model_together(
    tiny_model, tiny_params, one_device, monkeypatch
):
    """One for all that share a beginning; loss and gradients are those of separate sequences."""
    rng = np.random.default_rng(0)

    def ids(n):
        return tuple(rng.integers(3, 250, size=n).tolist())

    beginning = ids(40)
    # One prompt is no more than the beginning; the third of three micro-batches is not full.
    examples = [Example(beginning + ids(n), ids((8, 1, 5)[n % 3])) for n in range(9)]
    before = jax.tree.map(np.asarray, tiny_params)

    def step(mesh, worth):
        monkeypatch.setattr(sft, "_WORTH_SHARING", worth)
        trainer = SFTTrainer(CONFIG, tiny_model, mesh, pad_id=256)
        params = jax.tree.map(jnp.array, before)
        state = create_train_state(params, tiny_model, CONFIG.optimizer, mesh)
        state, metrics = trainer.step(state, examples)
        moved = jax.tree.map(lambda new, old: np.asarray(new) - old, state.params, before)
        return metrics, moved

    expected, apart = step(one_device, 0.0)
    assert [len(batch.tokens) for batch in make_batch(examples, CONFIG, 256)] == [4] * 3
    for mesh, shards in ((one_device, 1), (sharding.make_mesh(2), 2)):
        metrics, together = step(mesh, 0.9)
        sequences = [len(batch.tokens) for batch in make_batch(examples, CONFIG, 256, shards)]
        assert sequences == [shards] * 3
        for name in ("loss", "entropy", "grad_norm", "completion_tokens"):
            np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-5, err_msg=name)
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(apart), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


def test_loss_falls_and_resumes(tiny_model, one_device, examples):
    key = jax.random.key(0)

    def fresh():
        params = model.init_params(jax.random.key(1), tiny_model)
        return create_train_state(params, tiny_model, CONFIG.optimizer, one_device)

    trainer = SFTTrainer(CONFIG, tiny_model, one_device, pad_id=256)
    losses = []
    for result in trainer.run(fresh(), examples, key, 0, 60):
        losses.append(result.metrics["loss"])
    assert losses[0] > 5  # log(264) is 5.58.
    assert losses[-1] < 0.5 * losses[0]

    *_, half = trainer.run(fresh(), examples, key, 0, 3)
    *_, result = trainer.run(half.state, examples, key, 3, 6)
    np.testing.assert_array_equal(result.metrics["loss"], losses[5])


def test_bad_input_is_named(tiny_model, examples):
    with pytest.raises(ValueError, match="batch_size=0"):
        SFTConfig(batch_size=0)
    with pytest.raises(ValueError, match=r"max_completion_tokens=8.*9 tokens"):
        make_batch([Example((1,), (2,) * 9)], CONFIG, pad_id=0)
    with pytest.raises(ValueError, match="examples"):
        make_batch([], CONFIG, pad_id=0)
    with pytest.raises(ValueError, match=r"micro_batch_size=4.*multiples of 8"):
        SFTTrainer(CONFIG, tiny_model, sharding.make_mesh(data=2, fsdp=4), pad_id=0)
    with pytest.raises(ValueError, match=r"prompts\[0\]"):
        make_batch([Example((), (2,))], CONFIG, pad_id=0)
    trainer = SFTTrainer(CONFIG, tiny_model, sharding.make_mesh(devices=jax.devices()[:1]), 0)
    for bad, said in (
        (Example((1, 264), (2,)), r"examples\[1\]: has ids 1 to 264; allowed are 0 to 263"),
        (Example((1,), (-7,)), r"examples\[1\]: has ids -7 to 1"),
        (Example((), (2,)), r"examples\[1\]: its prompt is empty"),
        (Example((1,) * tiny_model.max_position_embeddings, (2,)), r"\(max_position_embeddings\)"),
    ):
        with pytest.raises(ValueError, match=said):
            trainer.step(None, [Example((1,), (2,)), bad])
    with pytest.raises(ValueError, match="no completion has a token"):
        trainer.step(None, [Example((1,), ())])
