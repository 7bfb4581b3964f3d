"""Training steps: the same on any mesh and micro-batch, exactly resumable, and they do learn."""

import contextlib
import dataclasses
import functools
import json
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forward_pass import flat

from learner import tokens
from learner.chat import Completion
from learner.decoder import model
from learner.devices import distributed, sharding
from learner.devices.chips import CHIPS
from learner.tokens import ThinkingBudget
from learner.training import lora, metrics
from learner.training import trainer as trainer_module
from learner.training.checkpoints import Checkpoints
from learner.training.grpo import ObjectiveConfig
from learner.training.lora import LoraConfig
from learner.training.metrics import MACHINE
from learner.training.rollout import Rollout
from learner.training.task import PromptTask, Scores, Task, prompt_indices
from learner.training.train_state import OptimizerConfig, abstract_train_state, create_train_state
from learner.training.trainer import GRPOConfig, GRPOTrainer
from learner.training.update import NonFiniteError

# A large eps keeps the step nearly linear in the gradient: AdamW's first step is otherwise the
# gradient's sign, which turns rounding around zero into whole steps.
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, eps=1e-3)
CONFIG = GRPOConfig(
    prompts_per_step=4,
    group_size=4,
    micro_batch_size=8,
    max_new_tokens=4,
    optimizer=OPTIMIZER,
)


def steps(where, config, params, task, stop=1, **more):
    """Results of the first steps; `where` is a model's configuration, a mesh and a tokenizer."""
    trainer = GRPOTrainer(config, *where, **more)
    state = trainer.init_state(params, jax.random.key(1))
    return list(trainer.run(state, task, jax.random.key(7), 0, stop))


@pytest.fixture
def run(tiny_model, one_device, byte_tokenizer):
    """`steps` of the tiny model on one device."""
    return functools.partial(steps, (tiny_model, one_device, byte_tokenizer))


def host(tree):
    return jax.tree.map(np.asarray, tree)


def change(params, before):
    return flat(params) - flat(before)


SEQUENCES = 16


def one_step(start, mesh, sequences, **options):
    """One step with all terms of the loss; at most `sequences` go through the model at a time."""
    model_config, tokenizer, task, before, reference = start
    config = dataclasses.replace(
        CONFIG,
        objective=ObjectiveConfig(kl_coef=0.1, loss_normalization="sequence", entropy_coef=0.01),
        degenerate_groups="keep",
        micro_batch_size=sequences,
        **options,
    )
    where = model.param_shardings(model_config, mesh)
    frozen = jax.device_put(reference, where)
    params = jax.tree.map(jnp.array, before)
    (result,) = steps((model_config, mesh, tokenizer), config, params, task(), frozen_params=frozen)
    return result


@pytest.fixture(scope="module")
def start(tiny_model, byte_tokenizer, make_letter_task):
    weights = [host(model.init_params(jax.random.key(seed), tiny_model)) for seed in (0, 5)]
    return tiny_model, byte_tokenizer, make_letter_task, *weights


@pytest.fixture(scope="module")
def plain_step(start, one_device):
    """Metrics and change of weights of a step on one device, all sequences at once."""
    result = one_step(start, one_device, SEQUENCES)
    moved = change(result.state.params, start[3])
    assert np.abs(moved).max() > 1e-3
    assert result.metrics["kl_reference"] > 0
    return result.metrics, moved


@pytest.mark.parametrize(
    ("layout", "accumulation"),
    [
        ((2, 2, 2), 4),
        pytest.param((8, 1, 1), 2, marks=pytest.mark.slow),
        pytest.param((1, 8, 1), 2, marks=pytest.mark.slow),
        pytest.param((1, 1, 2), 4, marks=pytest.mark.slow),
        pytest.param((2, 2, 2), 1, marks=pytest.mark.slow),
    ],
)
def test_a_step_is_the_same_on_any_layout(start, plain_step, layout, accumulation):
    """Data, fsdp, tensor, and mixed; the 16 sequences at once or in micro-batches.

    AdamW's epsilon is large here, so a weight moves in proportion to its gradient: the tolerance
    is that of the gradient, 1e-4 of itself or 2e-6 of a step of 1e-2. The tiny model has two
    key/value heads, so its tensor axis ends at 2.
    """
    metrics, moved = plain_step
    mesh = sharding.make_mesh(*layout)
    result = one_step(start, mesh, SEQUENCES // accumulation)
    np.testing.assert_allclose(change(result.state.params, start[3]), moved, rtol=1e-4, atol=2e-6)
    where = model.param_shardings(start[0], mesh)
    for leaf, sharded in zip(
        jax.tree.leaves(result.state.params), jax.tree.leaves(where), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(sharded, leaf.ndim)
    assert result.metrics.keys() == metrics.keys()
    for key in metrics:
        if not key.startswith(MACHINE):
            np.testing.assert_allclose(
                result.metrics[key], metrics[key], rtol=2e-4, atol=1e-5, err_msg=key
            )


@pytest.mark.parametrize("rank", [0, 2])
def test_memory_is_what_lies_on_a_device(tiny_model, tiny_params, byte_tokenizer, rank):
    """Of adapters too, with their base, which is the reference as well, and moments in 8 bits."""
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    config = GRPOConfig(
        max_new_tokens=40,
        sampling_slots=64,
        prompts_per_step=8,
        group_size=4,
        lora=LoraConfig(rank=rank),
        objective=ObjectiveConfig(kl_coef=0.1 if rank else 0.0),
        optimizer=OptimizerConfig(moment_dtype="int8" if rank else "float32"),
    )
    params = distributed.put(tiny_params, model.param_shardings(tiny_model, mesh))
    frozen = params if rank else None
    trainer = GRPOTrainer(config, tiny_model, mesh, byte_tokenizer, frozen)
    state = trainer.init_state(params, jax.random.key(0))

    def on_first_device(tree):
        return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))

    memory = trainer.memory()
    assert memory["state"] == on_first_device((state, frozen))
    assert memory["gradients"] == on_first_device(state.params)
    # 32 completions, over all devices.
    c, longest = tiny_model, trainer.sampler.capacities[-1]
    numbers = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * longest * 32
    assert memory["cache"] == 4 * numbers / 8
    assert longest >= 40


def test_memory_counts_gradients_in_32_bits(tiny_model, one_device, byte_tokenizer):
    """As they add up, whatever the parameters are."""
    counted = []
    for dtype in ("float32", "float16"):
        config = dataclasses.replace(tiny_model, param_dtype=dtype)
        trainer = GRPOTrainer(GRPOConfig(max_new_tokens=40), config, one_device, byte_tokenizer)
        counted.append(trainer.memory()["gradients"])
    assert counted[0] == counted[1] > 0


def test_nothing_is_traced_after_the_first_step(
    tiny_model, tiny_params, one_device, byte_tokenizer, letter_task
):
    """With one width of sequences; each further width is compiled when it first occurs."""
    config = dataclasses.replace(CONFIG, degenerate_groups="keep")
    trainer = GRPOTrainer(config, tiny_model, one_device, byte_tokenizer)
    state = trainer.init_state(tiny_params, jax.random.key(1))
    traced = []

    def listen(event, duration, **_):
        if event.endswith("jaxpr_trace_duration"):
            traced.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    counts = []
    for result in trainer.run(state, letter_task, jax.random.key(7), 0, 5):
        assert result.metrics["updates"] == 1
        counts.append(len(traced))
    assert counts[0] > 0
    assert counts[1:] == [counts[0]] * 4


def test_sampled_logprobs_are_those_of_the_update(run, tiny_params, letter_task):
    config = dataclasses.replace(CONFIG, temperature=0.7, micro_batch_size=16)
    params = jax.tree.map(lambda x: 8 * x if x.ndim > 2 else x, tiny_params)  # Less uniform.
    (result,) = run(config, params, letter_task)
    assert abs(result.metrics["ratio_max"] - 1) < 1e-4
    assert abs(result.metrics["ratio_min"] - 1) < 1e-4
    assert result.metrics["clip_low"] == result.metrics["clip_high"] == 0
    assert len(result.completions) == len(result.indices) == 16
    assert all(a.num_tokens <= 4 for a in result.completions)


def test_resumed_run_is_bitwise_the_same(
    tiny_model, one_device, byte_tokenizer, letter_task, tmp_path
):
    config = dataclasses.replace(
        CONFIG,
        updates_per_step=2,
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
    assert 4 < whole.updates <= 8
    jax.tree.map(np.testing.assert_array_equal, host(result.state), whole)


def test_reward_rises(run, tiny_params, letter_task):
    results = run(CONFIG, tiny_params, letter_task, stop=32)
    letters = [r.metrics["task/letters"] for r in results]
    assert np.mean(letters[:3]) < 0.2  # 26 of 259 ids are letters.
    assert np.mean(letters[-3:]) > 0.6
    assert results[-1].metrics["entropy"] < results[0].metrics["entropy"]


class OneSignalTask(Task):
    """Only the problems named get rewards that differ within a group."""

    def __init__(self, with_signal):
        self.with_signal = with_signal

    def __len__(self):
        return 4

    def messages(self, index):
        return [{"role": "user", "content": str(index)}]

    def score(self, indices, completions):
        rewards = np.where(
            np.isin(indices, self.with_signal), np.arange(len(indices)) % 2, 0.5
        ).astype(np.float32)
        return Scores(rewards)


def test_task_protocol(letter_task):
    assert isinstance(letter_task, Task)


def test_step_without_signal_counts_but_changes_nothing(run, tiny_params):
    before = host(tiny_params)
    results = run(CONFIG, tiny_params, OneSignalTask(()), stop=2)
    state = results[-1].state
    assert [r.metrics["nondegenerate_fraction"] for r in results] == [0, 0]
    assert [r.metrics["updates"] for r in results] == [0, 0]
    assert (int(state.step), int(state.updates)) == (2, 0)
    jax.tree.map(np.testing.assert_array_equal, host(state.params), before)


class LuckyTask(OneSignalTask):
    """Groups of the problems in `with_signal` have a signal; notes every list that it scores."""

    def __init__(self, with_signal):
        super().__init__(with_signal)
        self.scored = []

    def __len__(self):
        return 40

    def score(self, indices, completions):
        self.scored.append(np.unique(indices))
        return super().score(indices, completions)


def test_groups_without_signal_are_drawn_anew(tiny_model, one_device, byte_tokenizer):
    key = jax.random.key(7)
    config = dataclasses.replace(CONFIG, degenerate_groups="resample", max_resamples=3)
    task = LuckyTask(range(0, 40, 2))
    trainer = GRPOTrainer(config, tiny_model, one_device, byte_tokenizer)

    def from_the_beginning(stop):
        params = model.init_params(jax.random.key(0), tiny_model)
        params = jax.tree.map(lambda x: 8 * x if x.ndim > 2 else x, params)  # Less uniform.
        state = trainer.init_state(params, jax.random.key(1))
        return list(trainer.run(state, task, key, 0, stop))

    results = from_the_beginning(6)
    scored = iter(task.scored)
    for result in results:
        first = next(scored)
        np.testing.assert_array_equal(  # Redrawing leaves the stream of problems as it is.
            np.sort(first), np.sort(prompt_indices(key, result.step, 4, 40))
        )
        drawn = [first]
        while sum(int((part % 2 == 0).sum()) for part in drawn) < 4 and len(drawn) < 4:
            drawn.append(next(scored))
        found = sum(int((part % 2 == 0).sum()) for part in drawn)
        metrics = result.metrics
        assert metrics["draws"] == len(drawn)
        assert metrics["groups_used"] == min(found, 4)
        assert metrics["nondegenerate_fraction"] == found / (4 * len(drawn))
        assert len(result.completions) == len(result.indices) == 16 * len(drawn)
        # Completions are trained on with the prompts that they were sampled for.
        assert abs(metrics["ratio_max"] - 1) < 1e-4
    assert next(scored, None) is None
    assert max(result.metrics["draws"] for result in results) > 1
    # The same again from the middle: resamples depend on the step alone.
    *_, half = from_the_beginning(3)
    *_, last = trainer.run(half.state, LuckyTask(range(0, 40, 2)), key, 3, 6)
    jax.tree.map(np.testing.assert_array_equal, host(last.state), host(results[-1].state))


@pytest.mark.parametrize("updates_per_step", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_importance_correction(run, tiny_params, letter_task, updates_per_step):
    """The sampler agrees here, so the correction changes nothing, whichever way old is found."""
    before = host(tiny_params)
    moved = []
    for correction in ("none", "token"):
        config = dataclasses.replace(
            CONFIG,
            updates_per_step=updates_per_step,
            degenerate_groups="keep",
            objective=ObjectiveConfig(importance_correction=correction),
        )
        params = jax.tree.map(jnp.array, before)
        task = dataclasses.replace(letter_task)
        (result,) = run(config, params, task)
        moved.append(change(result.state.params, before))
        assert result.metrics["mismatch_max"] < 1e-4
        np.testing.assert_allclose(result.metrics["importance_weight_mean"], 1, atol=1e-4)
        assert result.metrics["updates"] == updates_per_step
        if updates_per_step == 2:  # Old stays what it was when the weights have moved.
            assert result.metrics["ratio_max"] > 1 + 1e-3
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-3, atol=5e-6)


def test_adapters(tiny_model, one_device, byte_tokenizer, letter_task):
    """They start as the base, learn, leave the base alone, resume, and merge for export."""
    base = model.init_params(jax.random.key(0), tiny_model)
    # Fresh embeddings give logits near 0 whatever the blocks do.
    base = {**base, "embedding": 20 * base["embedding"]}
    before = host(base)
    config = dataclasses.replace(
        CONFIG,
        micro_batch_size=16,
        lora=LoraConfig(rank=4, targets=("q_proj", "up_proj", "down_proj")),
        objective=ObjectiveConfig(kl_coef=1e-3),
    )
    trainer = GRPOTrainer(config, tiny_model, one_device, byte_tokenizer, base)
    state = trainer.init_state(base, jax.random.key(1))
    merged = host(lora.merge(trainer.policy_params(state)))
    jax.tree.map(np.testing.assert_array_equal, merged, before)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert count == 2 * 4 * ((32 + 32) + (32 + 64) + (64 + 32))
    assert sum(leaf.size for leaf in jax.tree.leaves(state.opt_state)) < 2 * count + 8
    results = list(trainer.run(state, letter_task, jax.random.key(7), 0, 25))
    assert results[0].metrics["kl_reference"] < 1e-6
    letters = [result.metrics["task/letters"] for result in results]
    assert letters[0] < 0.1
    assert letters[-1] > 0.6
    jax.tree.map(np.testing.assert_array_equal, host(base), before)

    state = results[-1].state
    merged = host(lora.merge(trainer.policy_params(state)))
    pair = host(state.params)["layers"]["mlp"]["up_proj"]
    scale = config.lora.alpha / config.lora.rank
    np.testing.assert_allclose(
        merged["layers"]["mlp"]["up_proj"]["kernel"],
        before["layers"]["mlp"]["up_proj"]["kernel"] + scale * (pair["a"] @ pair["b"]),
        atol=1e-5,
    )
    np.testing.assert_array_equal(
        merged["layers"]["mlp"]["gate_proj"]["kernel"],
        before["layers"]["mlp"]["gate_proj"]["kernel"],
    )


@pytest.mark.slow
def test_adapters_on_a_mesh(start, one_device):
    model_config, tokenizer, task, before, _ = start
    config = dataclasses.replace(CONFIG, lora=LoraConfig(rank=2))
    moved = []
    for mesh in (one_device, sharding.make_mesh(2, 2, 2)):
        base = jax.device_put(before, model.param_shardings(model_config, mesh))
        where = (model_config, mesh, tokenizer)
        *_, result = steps(where, config, base, task(), stop=2, frozen_params=base)
        trained = lora.init(jax.random.fold_in(jax.random.key(1), 3), config.lora, model_config)
        moved.append(change(result.state.params, host(trained)))
    assert np.abs(moved[0]).max() > 1e-3
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-3, atol=5e-6)


def test_dropped_groups_leave_the_normaliser(run, tiny_params, monkeypatch):
    monkeypatch.setattr(metrics.Chip, "of", lambda device: CHIPS["h200"])
    before = host(tiny_params)
    norms, used, flops = {}, {}, {}
    for drop in (True, False):
        config = dataclasses.replace(CONFIG, degenerate_groups="drop" if drop else "keep")
        (result,) = run(config, jax.tree.map(jnp.array, before), OneSignalTask((1, 2)))
        assert result.metrics["nondegenerate_fraction"] == 0.5
        norms[drop] = result.metrics["grad_norm"]
        used[drop] = result.metrics["update_tokens"]
        seconds, mfu = (result.metrics[f"machine/update_{x}"] for x in ("seconds", "mfu"))
        flops[drop] = mfu * seconds * CHIPS["h200"].flops
    assert flops[True] == pytest.approx(flops[False] / 2, rel=0.2)  # One group of two.
    # The same gradient, over the tokens of the sequences that take part.
    np.testing.assert_allclose(norms[True] * used[True], norms[False] * used[False], rtol=1e-4)
    assert used[True] < used[False]


def test_what_ends_a_thought_is_not_in_the_loss(
    tiny_model, tiny_params, one_device, byte_tokenizer, monkeypatch
):
    budget = ThinkingBudget(max_tokens=2, closing_ids=(7, 9))
    monkeypatch.setattr(tokens, "thinking_budget", lambda *_: budget)
    config = dataclasses.replace(CONFIG, max_new_tokens=8, thinking_tokens=2)
    trainer = GRPOTrainer(config, tiny_model, one_device, byte_tokenizer)
    rng = np.random.default_rng(0)
    sampled = rng.integers(20, 90, (16, 8)).astype(np.int32)
    thoughts = [(30, 31, 7, 9), (9, 32, 7, 9), (33, 9, 34, 35), (30, 31, 7, 9)]
    sampled[:, :4] = thoughts * 4
    lengths = np.array([8, 5, 6, 3] * 4, np.int32)  # The last was cut off while it was ended.
    forced = np.zeros((16, 8), bool)
    forced[0::4, 2:4] = forced[3::4, 2:4] = True
    inside = np.arange(8) < lengths[:, None]

    def updated(logprobs):
        batch = Rollout(
            indices=np.arange(4),
            prompts=[[10, 11]] * 4,
            tokens=sampled,
            logprobs=logprobs.astype(np.float32),
            lengths=lengths,
            lost=np.zeros_like(lengths),
            truncated=lengths == 8,
            completions=[Completion("", 1, False)] * 16,
            rewards=np.array([0, 1, 1, 0] * 4, np.float32),
        )
        state = trainer.init_state(jax.tree.map(jnp.array, tiny_params), jax.random.key(0))
        (result,), state = trainer.update(state, batch)
        return float(result.sums["tokens"]), change(state.params, host(tiny_params))

    logprobs = rng.uniform(-6, -5, (16, 8))
    count, moved = updated(logprobs)
    assert count == (inside & ~forced).sum() == 76
    assert np.array_equal(updated(np.where(forced, 0.0, logprobs))[1], moved)
    assert not np.array_equal(updated(np.where(forced, logprobs, logprobs - 0.1))[1], moved)


def test_a_state_is_whole_while_completions_are_sampled(
    tiny_model, tiny_params, one_device, byte_tokenizer, letter_task
):
    trainer = GRPOTrainer(CONFIG, tiny_model, one_device, byte_tokenizer)
    before = trainer.init_state(jax.tree.map(jnp.array, tiny_params), jax.random.key(1))
    entered = []

    @contextlib.contextmanager
    def stopped_at_the_second_step():
        entered.append(True)
        yield
        if len(entered) == 2:
            raise KeyboardInterrupt

    steps = trainer.run(
        before, letter_task, jax.random.key(7), 0, 3, sampling=stopped_at_the_second_step
    )
    first = next(steps)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert int(first.state.step) == 1
    after = trainer.step(first.state, letter_task, jax.random.key(7), 1).state
    assert int(after.step) == 2


def test_non_finite_update_keeps_the_weights(
    run, tiny_params, byte_tokenizer, letter_task, tmp_path
):
    before = host(tiny_params)
    reference = jax.tree.map(lambda x: x * jnp.nan, tiny_params)
    objective = ObjectiveConfig(kl_coef=0.1)
    config = dataclasses.replace(CONFIG, objective=objective, micro_batch_size=16)
    with pytest.raises(NonFiniteError, match="step 0: loss nan") as error:
        run(config, tiny_params, letter_task, frozen_params=reference)
    assert error.value.step == 0
    assert np.isnan(error.value.metrics["loss"])
    jax.tree.map(np.testing.assert_array_equal, host(error.value.state.params), before)
    assert int(error.value.state.step) == 0
    error.value.rollout.save(tmp_path / "batch")
    saved = np.load(tmp_path / "batch" / "arrays.npz")
    lines = (tmp_path / "batch" / "texts.jsonl").read_text().splitlines()
    for line, ids, length, reward in zip(
        map(json.loads, lines), saved["tokens"], saved["lengths"], saved["rewards"], strict=True
    ):
        assert line["text"] == byte_tokenizer.decode(ids[:length], skip_special_tokens=True)
        assert line["reward"] == reward
    assert saved["tokens"].shape == saved["logprobs"].shape == (16, 4)


class BrokenTask(Task):
    """The letter task until it returns a reward that is not a number."""

    def __init__(self, inner, fails_at):
        self.inner, self.left = inner, fails_at

    def __len__(self):
        return len(self.inner)

    def messages(self, index):
        return self.inner.messages(index)

    def score(self, indices, completions):
        scores = self.inner.score(indices, completions)
        self.left -= 1
        if self.left < 0:
            scores.rewards[3] = np.inf
        return scores


def test_a_reward_that_is_not_finite_stops_the_run(run, tiny_params, letter_task):
    task = BrokenTask(letter_task, fails_at=2)
    with pytest.raises(NonFiniteError, match="step 2: a reward is not finite") as error:
        run(CONFIG, tiny_params, task, stop=4)
    assert int(error.value.state.step) == 2
    assert np.isinf(error.value.rollout.rewards[3])
    params = jax.tree.map(lambda x: x * jnp.nan, host(error.value.state.params))
    with pytest.raises(NonFiniteError, match="step 0: a log-probability of the sampler"):
        run(CONFIG, params, letter_task)


def test_a_prompt_that_is_too_long_is_named_by_its_number_in_the_task(run, tiny_params):
    task = PromptTask(["short", "short", "long" * 50], lambda *_: 1.0)
    config = dataclasses.replace(CONFIG, prompts_per_step=1)
    with pytest.raises(ValueError, match=r"^prompts \[2\] of the task: prompts\[0\]: has 219"):
        run(config, tiny_params, task, stop=3)


def test_a_list_of_rewards_is_refused_by_name(run, tiny_params, letter_task):
    class OfNumbers(BrokenTask):
        def score(self, indices, completions):
            return [1.0] * len(completions)

    with pytest.raises(ValueError, match="score: the task returned a list, not `Scores`"):
        run(CONFIG, tiny_params, OfNumbers(letter_task, 0))


def test_a_trainer_of_a_folder_takes_a_mesh_and_dtypes(one_device):
    model, compute = "experiments/models/sums", {"dtype": "bfloat16", "remat": "full"}
    key = jax.random.key(0)
    trainer, state = GRPOTrainer.from_pretrained(model, CONFIG, key, one_device, **compute)
    assert trainer.sampler.config.dtype == "bfloat16"
    assert {leaf.sharding.mesh for leaf in jax.tree.leaves(state)} == {one_device}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}


def test_any_figure_that_is_not_finite_stops_the_run(run, tiny_params, letter_task):
    class NoFigure(BrokenTask):
        def score(self, indices, completions):
            scores = self.inner.score(indices, completions)
            return dataclasses.replace(scores, metrics={"letters": 0.5, "share": float("nan")})

    with pytest.raises(NonFiniteError, match="step 0: task/share nan is not finite") as error:
        run(CONFIG, tiny_params, NoFigure(letter_task, 0))
    assert "weights were left" not in str(error.value)  # The update itself was finite.
    assert int(error.value.state.updates) == 1
    assert np.isfinite(error.value.metrics["loss"])


def test_every_pass_holds_every_problem_once():
    key = jax.random.key(3)
    stream = np.concatenate([prompt_indices(key, step, 4, 10) for step in range(10)])
    passes = stream.reshape(4, 10)
    for one in passes:
        assert sorted(one) == list(range(10))
    assert len({tuple(one) for one in passes}) == 4
    many = prompt_indices(key, 1, 25, 10)  # A step of more than two passes.
    np.testing.assert_array_equal(many[:15], np.concatenate(passes)[25:])
    assert GRPOConfig(prompts_per_step=4, epochs=2).num_steps(10) == 5
    with pytest.raises(ValueError, match=r"^0 prompts: a task of 1 or more is needed"):
        prompt_indices(key, 0, 4, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompts_per_step", 0),
        ("group_size", 1),
        ("epochs", 0.0),
        ("updates_per_step", 33),
        ("micro_batch_size", 2.5),
        ("temperature", 0.0),
        ("mask_truncated", "no"),
        ("degenerate_groups", "redo"),
        ("max_resamples", 0),
        ("profile_steps", 3),
        ("profile_steps", "3"),
        ("profile_steps", "5:3"),
    ],
)
def test_bad_config_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}={value!r}.*allowed"):
        GRPOConfig(**{field: value})


def test_bad_combinations_are_named(tiny_model, tiny_params, one_device, byte_tokenizer):
    with pytest.raises(ValueError, match=r"micro_batch_size=6.*multiples of 4"):
        GRPOTrainer(
            dataclasses.replace(CONFIG, micro_batch_size=6),
            tiny_model,
            sharding.make_mesh(2, 2, 2),
            byte_tokenizer,
        )
    with pytest.raises(ValueError, match=r"frozen_params given.*kl_coef=0\.0, lora\.rank=0"):
        GRPOTrainer(CONFIG, tiny_model, one_device, byte_tokenizer, tiny_params)
    with pytest.raises(ValueError, match="frozen_params missing"):
        GRPOTrainer(
            dataclasses.replace(CONFIG, objective=ObjectiveConfig(kl_coef=0.1)),
            tiny_model,
            one_device,
            byte_tokenizer,
        )


def test_trainers_of_one_model_and_configuration_share_their_programs(
    monkeypatch, run, tiny_params, letter_task
):
    traced, packed_logprobs = [], trainer_module.packed_logprobs

    def counting(params, config, batch, **options):
        traced.append(options["temperature"])
        return packed_logprobs(params, config, batch, **options)

    monkeypatch.setattr(trainer_module, "packed_logprobs", counting)
    found = []
    for temperature in (0.87, 0.87, 0.88):
        config = dataclasses.replace(CONFIG, temperature=temperature)
        (result,) = run(config, jax.tree.map(jnp.copy, tiny_params), letter_task)
        found.append((result.metrics["loss"], len(traced)))
    assert found[0] == found[1]
    assert found[1][1] < found[2][1]


class Recorded:
    """A jitted function that keeps the program of each call."""

    def __init__(self, function):
        self.function, self.programs = function, []

    def __getattr__(self, name):
        return getattr(self.function, name)

    def __call__(self, *args):
        self.programs.append(self.function.lower(*args).as_text())
        return self.function(*args)


def test_the_programs_of_an_update_compile_ahead(
    monkeypatch, tiny_model, tiny_params, byte_tokenizer, letter_task
):
    """What compiles while the first completions are sampled is what the update then runs."""
    mesh = sharding.make_mesh(data=1, fsdp=2, tensor=2)
    params = distributed.put(tiny_params, model.param_shardings(tiny_model, mesh))
    trainer = GRPOTrainer(CONFIG, tiny_model, mesh, byte_tokenizer)
    trainer._compiles_ahead = True
    state = trainer.init_state(params, jax.random.key(1))
    updater = trainer._programs.update
    gradients, optimizer = Recorded(updater._accumulate), Recorded(updater._apply)
    monkeypatch.setattr(updater, "_accumulate", gradients)
    monkeypatch.setattr(updater, "_apply", optimizer)
    waited, wait = [], futures.wait
    monkeypatch.setattr(futures, "wait", lambda these: (waited.extend(these), wait(these)))
    next(trainer.run(state, letter_task, jax.random.key(7), 0, 1))
    assert [future.exception(timeout=0) for future in waited] == [None]
    assert trainer._ahead is None
    prompt = len(trainer._completer.encode([letter_task.messages(0)])[0])
    ahead = trainer.lower_update(prompt)
    of_shapes = [trainer._lower_update(shape) for shape in trainer._sequence_shapes(prompt)]
    assert gradients.programs
    assert {*gradients.programs} <= {x["gradients"].as_text() for x in of_shapes}
    assert optimizer.programs == [ahead["optimizer"].as_text()]
