"""Training steps: the same on any mesh and micro-batch, exactly resumable, and they do learn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner import sharding, task
from learner.answers import answer_logprobs, pack_rows
from learner.checkpoints import Checkpoints
from learner.grpo import ObjectiveConfig
from learner.qwen3 import model
from learner.task import Scores, problem_indices
from learner.train_state import OptimizerConfig, abstract_train_state, create_train_state
from learner.trainer import GRPOConfig, GRPOTrainer
from learner.update import NonFiniteUpdateError

# A large eps keeps the step nearly linear in the gradient: AdamW's first step is otherwise the
# gradient's sign, which turns rounding around zero into whole steps.
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, eps=1e-3)
CONFIG = GRPOConfig(
    prompts_per_step=4,
    group_size=4,
    micro_batch_rows=8,
    max_new_tokens=4,
    optimizer=OPTIMIZER,
)


def run(config, model_config, mesh, tokenizer, params, letters, start=0, stop=1, **more):
    trainer = GRPOTrainer(config, model_config, mesh, tokenizer, **more)
    state = create_train_state(params, model_config, config.optimizer, mesh)
    return list(trainer.run(state, letters, jax.random.key(7), start, stop))


def host(tree):
    return jax.tree.map(np.asarray, tree)


def change(params, before):
    return np.concatenate(
        [
            (np.asarray(a) - b).ravel()
            for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(before), strict=True)
        ]
    )


def test_neither_mesh_nor_micro_batches_nor_packing_change_a_step(
    tiny_model, tiny_params, one_device, byte_tokenizer, letter_task
):
    before = host(tiny_params)
    config = dataclasses.replace(
        CONFIG, objective=ObjectiveConfig(kl_coef=0.1, loss_normalization="sequence")
    )
    reference = model.init_params(jax.random.key(5), tiny_model)
    meshes = {
        "one device, one micro-batch": (one_device, 16, 1),
        "2 x 2 x 2 devices, two micro-batches, shared prompts": (sharding.make_mesh(2, 2, 2), 4, 3),
    }
    results = {}
    for name, (mesh, rows, answers_per_row) in meshes.items():
        where = sharding.param_shardings(tiny_model, mesh)
        (result,) = run(
            dataclasses.replace(config, micro_batch_rows=rows, answers_per_row=answers_per_row),
            tiny_model,
            mesh,
            byte_tokenizer,
            jax.tree.map(jnp.array, before),
            dataclasses.replace(letter_task),
            reference_params=jax.device_put(reference, where),
        )
        results[name] = (result.metrics, change(result.state.params, before))
        for leaf, sharded in zip(
            jax.tree.leaves(result.state.params), jax.tree.leaves(where), strict=True
        ):
            assert leaf.sharding.is_equivalent_to(sharded, leaf.ndim)
    (metrics, moved), (other, other_moved) = results.values()
    assert np.abs(moved).max() > 1e-3
    assert metrics["kl_reference"] > 0
    np.testing.assert_allclose(other_moved, moved, rtol=1e-4, atol=2e-6)
    assert other.keys() == metrics.keys()
    for key in metrics:
        if not key.endswith("seconds"):
            np.testing.assert_allclose(other[key], metrics[key], rtol=2e-4, atol=1e-5, err_msg=key)


def test_sampled_logprobs_are_those_of_the_update(
    tiny_model, tiny_params, one_device, byte_tokenizer, letter_task
):
    config = dataclasses.replace(CONFIG, temperature=0.7)
    params = jax.tree.map(lambda x: 8 * x if x.ndim > 2 else x, tiny_params)  # Less uniform.
    (result,) = run(config, tiny_model, one_device, byte_tokenizer, params, letter_task)
    assert abs(result.metrics["ratio_max"] - 1) < 1e-4
    assert abs(result.metrics["ratio_min"] - 1) < 1e-4
    assert result.metrics["clip_low"] == result.metrics["clip_high"] == 0
    assert len(result.answers) == len(result.indices) == 16
    assert all(a.num_tokens <= 4 for a in result.answers)


def test_answer_logprobs_are_those_of_the_whole_softmax(tiny_model, tiny_params):
    rng = np.random.default_rng(0)

    def tokens(count):
        return rng.integers(0, 259, count).tolist()

    prompts = [tokens(n) for n in (3, 9, 5)]
    answers = [[tokens(n) for n in lengths] for lengths in ((4, 1), (6,), (2, 5, 3))]
    rows = pack_rows(prompts, answers, rows=4, answers_per_row=3, length=16, pad_id=256)
    logprobs, entropies = answer_logprobs(
        tiny_params, tiny_model, rows, 6, temperature=0.5, vocab_size=259
    )
    assert logprobs.shape == entropies.shape == (4, 3, 6)
    for i, (prompt, given) in enumerate(zip(prompts, answers, strict=True)):
        for a, answer in enumerate(given):
            # Each answer alone with its prompt.
            alone = jnp.array([[*prompt, *answer]])
            positions = jnp.arange(alone.shape[1])[None]
            logits = model.logits(tiny_params, tiny_model, alone, positions, positions >= 0)
            full = np.asarray(logits[0], np.float64)[:, :259] / 0.5
            full -= np.log(np.exp(full).sum(axis=1, keepdims=True))
            for t, token in enumerate(answer):
                predicted = full[len(prompt) + t - 1]
                np.testing.assert_allclose(logprobs[i, a, t], predicted[token], atol=2e-5)
                np.testing.assert_allclose(
                    entropies[i, a, t], -(np.exp(predicted) * predicted).sum(), atol=2e-5
                )
    assert np.isfinite(logprobs).all()
    assert np.isfinite(entropies).all()


@pytest.mark.parametrize("updates_per_step", [1, 2])
def test_resumed_run_is_bitwise_the_same(
    tiny_model, one_device, byte_tokenizer, letter_task, tmp_path, updates_per_step
):
    config = dataclasses.replace(
        CONFIG,
        updates_per_step=updates_per_step,
        optimizer=dataclasses.replace(OPTIMIZER, decay="linear", total_steps=20),
    )
    key = jax.random.key(7)

    def fresh():
        params = model.init_params(jax.random.key(0), tiny_model)
        return create_train_state(params, tiny_model, config.optimizer, one_device)

    trainer = GRPOTrainer(config, tiny_model, one_device, byte_tokenizer)
    with Checkpoints(tmp_path) as checkpoints:
        for result in trainer.run(fresh(), letter_task, key, 0, 4):
            if result.step == 1:
                checkpoints.save(2, result.state, {"task": letter_task.state()})
        whole = host(result.state)
        abstract = abstract_train_state(tiny_model, config.optimizer, one_device)
        state, metadata = checkpoints.restore(abstract)
    second_task = dataclasses.replace(letter_task, average=0.0)
    second_task.restore(metadata["task"])
    trainer = GRPOTrainer(config, tiny_model, one_device, byte_tokenizer)
    *_, result = trainer.run(state, second_task, key, 2, 4)
    assert whole.step == 4
    assert 4 * (updates_per_step - 1) < whole.updates <= 4 * updates_per_step
    jax.tree.map(np.testing.assert_array_equal, host(result.state), whole)


def test_reward_rises(tiny_model, tiny_params, one_device, byte_tokenizer, letter_task):
    config = dataclasses.replace(CONFIG, prompts_per_step=6, group_size=8, micro_batch_rows=16)
    results = run(config, tiny_model, one_device, byte_tokenizer, tiny_params, letter_task, stop=25)
    letters = [r.metrics["task/letters"] for r in results]
    assert np.mean(letters[:3]) < 0.2  # 26 of 259 ids are letters.
    assert np.mean(letters[-3:]) > 0.6
    assert results[-1].metrics["entropy"] < results[0].metrics["entropy"]


class OneSignalTask:
    """Only the problems named get rewards that differ within a group."""

    def __init__(self, with_signal):
        self.with_signal = with_signal

    def __len__(self):
        return 4

    def messages(self, index):
        return [{"role": "user", "content": str(index)}]

    def score(self, indices, answers):
        rewards = np.where(
            np.isin(indices, self.with_signal), np.arange(len(indices)) % 2, 0.5
        ).astype(np.float32)
        return Scores(rewards)

    def state(self):
        return {}

    def restore(self, state):
        pass


def test_task_protocol(letter_task):
    assert isinstance(letter_task, task.Task)
    assert isinstance(OneSignalTask(()), task.Task)


def test_step_without_signal_counts_but_changes_nothing(
    tiny_model, tiny_params, one_device, byte_tokenizer
):
    before = host(tiny_params)
    results = run(
        CONFIG, tiny_model, one_device, byte_tokenizer, tiny_params, OneSignalTask(()), stop=2
    )
    state = results[-1].state
    assert [r.metrics["signal_share"] for r in results] == [0, 0]
    assert [r.metrics["updates"] for r in results] == [0, 0]
    assert (int(state.step), int(state.updates)) == (2, 0)
    jax.tree.map(np.testing.assert_array_equal, host(state.params), before)


def test_dropped_groups_leave_the_normaliser(tiny_model, tiny_params, one_device, byte_tokenizer):
    before = host(tiny_params)
    norms, used = {}, {}
    for drop in (True, False):
        (result,) = run(
            dataclasses.replace(CONFIG, drop_no_signal=drop),
            tiny_model,
            one_device,
            byte_tokenizer,
            jax.tree.map(jnp.array, before),
            OneSignalTask((1, 2)),
        )
        assert result.metrics["signal_share"] == 0.5
        norms[drop] = result.metrics["grad_norm"]
        used[drop] = result.metrics["update_tokens"]
    # The same gradient, over the tokens of the rows that take part.
    np.testing.assert_allclose(norms[True] * used[True], norms[False] * used[False], rtol=1e-4)
    assert used[True] < used[False]


def test_non_finite_update_keeps_the_weights(
    tiny_model, tiny_params, one_device, byte_tokenizer, letter_task
):
    before = host(tiny_params)
    reference = jax.tree.map(lambda x: x * jnp.nan, tiny_params)
    with pytest.raises(NonFiniteUpdateError, match="step 0") as error:
        run(
            dataclasses.replace(CONFIG, objective=ObjectiveConfig(kl_coef=0.1)),
            tiny_model,
            one_device,
            byte_tokenizer,
            tiny_params,
            letter_task,
            reference_params=reference,
        )
    assert error.value.step == 0
    assert np.isnan(error.value.metrics["loss"])
    jax.tree.map(np.testing.assert_array_equal, host(error.value.state.params), before)
    assert int(error.value.state.step) == 0


def test_every_pass_holds_every_problem_once():
    key = jax.random.key(3)
    stream = np.concatenate([problem_indices(key, step, 4, 10) for step in range(10)])
    passes = stream.reshape(4, 10)
    for one in passes:
        assert sorted(one) == list(range(10))
    assert len({tuple(one) for one in passes}) == 4
    many = problem_indices(key, 1, 25, 10)  # A step of more than two passes.
    np.testing.assert_array_equal(many[:15], np.concatenate(passes)[25:])
    assert GRPOConfig(prompts_per_step=4, epochs=2).num_steps(10) == 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompts_per_step", 0),
        ("group_size", 1),
        ("epochs", 0.0),
        ("updates_per_step", 33),
        ("micro_batch_rows", 2.5),
        ("temperature", 0.0),
    ],
)
def test_bad_config_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}={value!r}.*allowed"):
        GRPOConfig(**{field: value})


def test_bad_combinations_are_named(tiny_model, tiny_params, one_device, byte_tokenizer):
    with pytest.raises(ValueError, match=r"micro_batch_rows=6.*multiples of 4"):
        GRPOTrainer(
            dataclasses.replace(CONFIG, micro_batch_rows=6),
            tiny_model,
            sharding.make_mesh(2, 2, 2),
            byte_tokenizer,
        )
    with pytest.raises(ValueError, match=r"kl_coef=0\.0"):
        GRPOTrainer(CONFIG, tiny_model, one_device, byte_tokenizer, tiny_params)
    with pytest.raises(ValueError, match="reference_params missing"):
        GRPOTrainer(
            dataclasses.replace(CONFIG, objective=ObjectiveConfig(kl_coef=0.1)),
            tiny_model,
            one_device,
            byte_tokenizer,
        )
