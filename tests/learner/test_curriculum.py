"""Which prompts a step trains on: against plain loops, against frequencies, and in training."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.decoder import model
from learner.training import curriculum as curricula
from learner.training.checkpoints import Checkpoints
from learner.training.curriculum import (
    STALENESS,
    CurriculumConfig,
    PromptScores,
    replay_indices,
    replay_probabilities,
)
from learner.training.metrics import MACHINE
from learner.training.rollout import Rollout
from learner.training.task import Scores, Task, prompt_indices
from learner.training.train_state import OptimizerConfig, abstract_train_state
from learner.training.trainer import GRPOConfig, GRPOTrainer

REPLAY = CurriculumConfig(method="replay")


def plain_probabilities(beta, rho, scores, steps, now):
    """Prioritized level replay level by level, as its paper writes it; levels without a step are
    those that have not been seen."""
    seen = [i for i, step in enumerate(steps) if step >= 0]
    weight = {}
    for i in seen:
        rank = 1 + sum(scores[j] > scores[i] or (scores[j] == scores[i] and j < i) for j in seen)
        weight[i] = (1 / rank) ** (1 / beta)
    stale = {i: now - steps[i] for i in seen}
    return [
        (1 - rho) * weight[i] / sum(weight.values()) + rho * stale[i] / sum(stale.values())
        if i in weight
        else 0.0
        for i in range(len(scores))
    ]


@st.composite
def known_prompts(draw):
    """Scores with ties and steps below 10, of at least one prompt."""
    size = draw(st.sampled_from([1, 6, 25]))  # Few shapes to compile for.
    steps = draw(st.lists(st.integers(-1, 9), min_size=size, max_size=size))
    values = st.sampled_from([0.0, 0.05, 0.1875, 0.25])
    scores = draw(st.lists(values, min_size=size, max_size=size))
    return PromptScores(np.array(scores), np.array(steps))


@given(known_prompts(), st.floats(0.05, 5))
def test_probabilities_are_those_of_prioritized_level_replay(known, beta):
    config = dataclasses.replace(REPLAY, temperature=beta)
    found = replay_probabilities(config, known, 10)
    expected = plain_probabilities(beta, STALENESS, known.scores.tolist(), known.steps.tolist(), 10)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)
    if (known.steps >= 0).any():
        assert found.sum() == pytest.approx(1)


@settings(max_examples=50)
@given(known_prompts(), st.integers(1, 12), st.floats(0, 1), st.integers(0, 99))
def test_a_step_holds_replayed_and_new_prompts(known, count, fraction, seed):
    config = dataclasses.replace(REPLAY, replay_fraction=fraction)
    key, size = jax.random.key(seed), len(known.steps)
    chosen = replay_indices(config, key, 10, count, known)
    np.testing.assert_array_equal(chosen, replay_indices(config, key, 10, count, known))
    assert chosen.shape == (count,)
    assert chosen.dtype == np.int64
    first = chosen[: min(count, size)]
    assert len(set(first)) == len(first)
    np.testing.assert_array_equal(chosen, [first[i % len(first)] for i in range(count)])
    new = [i for i in first if known.steps[i] < 0]
    unseen = [i for i in prompt_indices(key, 0, size, size) if known.steps[i] < 0]
    assert new == unseen[: len(new)]
    wanted = round(fraction * count)
    replayed, answered = len(first) - len(new), size - len(unseen)
    if replayed < wanted:
        assert replayed == answered
    if replayed > wanted:  # No new ones are left.
        assert len(new) == len(unseen)


def test_draws_follow_the_probabilities():
    known = PromptScores(np.array([0.1, 0.25, 0.0, 0.2, 0.0]), np.array([8, 5, 9, 0, -1]))
    config = dataclasses.replace(REPLAY, replay_fraction=1.0, temperature=1.0)
    expected = plain_probabilities(1.0, 0.3, known.scores, known.steps, 10)
    keys = jax.random.split(jax.random.key(1), 2000)
    drawn = np.array([replay_indices(config, key, 10, 2, known) for key in keys])
    found = np.bincount(drawn[:, 0], minlength=5) / len(drawn)
    np.testing.assert_allclose(found, expected, atol=4 * 0.5 / len(drawn) ** 0.5)
    # The second is drawn from what the first has left.
    left = [sum(p * q / (1 - p) for p in expected if p != q) for q in expected]
    found = np.bincount(drawn[:, 1], minlength=5) / len(drawn)
    np.testing.assert_allclose(found, left, atol=4 * 0.5 / len(drawn) ** 0.5)


def test_probabilities_too_small_for_a_float_are_replayed_all_the_same(monkeypatch):
    monkeypatch.setattr(curricula, "STALENESS", 0.0)
    known = PromptScores(np.arange(6.0), np.array([0, 0, 0, 0, -1, -1]))
    config = CurriculumConfig("replay", replay_fraction=1.0, temperature=1e-4)
    chosen = replay_indices(config, jax.random.key(0), 1, 4, known)
    assert chosen[0] == 3
    assert set(chosen) == {0, 1, 2, 3}


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.0]), min_size=3, max_size=3), min_size=1)
)
def test_learnability_is_the_variance_of_a_group(groups):
    rewards = np.array(groups, np.float32)
    rollout = Rollout(*[None] * 7, completions=[None] * rewards.size, rewards=rewards.reshape(-1))
    rollout = dataclasses.replace(rollout, prompts=[[0]] * len(groups))
    expected = [sum((r - sum(g) / 3) ** 2 for r in g) / 3 for g in rewards.tolist()]
    np.testing.assert_allclose(rollout.learnability, expected, atol=1e-12)
    assert all(rollout.learnability[i] == 0 for i, g in enumerate(groups) if len(set(g)) == 1)


class Ladder(Task):
    """40 prompts; k of a group of 4 completions to prompt i are worth 1, k = i % 5, so that the
    score of a group is known beforehand."""

    def __init__(self):
        self.seen = []

    def __len__(self):
        return 40

    def messages(self, index):
        return [{"role": "user", "content": "abcdefgh"[index % 8]}]

    def score(self, indices, completions):
        self.seen.append(indices[::4].tolist())
        return Scores(np.array([i % 4 < p % 5 for i, p in enumerate(indices)], np.float32))


SCORES = [0, 3 / 16, 1 / 4, 3 / 16, 0]
CONFIG = GRPOConfig(
    prompts_per_step=4,
    group_size=4,
    micro_batch_size=8,
    max_new_tokens=4,
    optimizer=OptimizerConfig(learning_rate=1e-2),
)


def start(curriculum, tiny_model, mesh, tokenizer):
    trainer = GRPOTrainer(
        dataclasses.replace(CONFIG, curriculum=curriculum), tiny_model, mesh, tokenizer
    )
    params = model.init_params(jax.random.key(0), tiny_model)
    return trainer, trainer.init_state(params, jax.random.key(1))


def numbers(result):
    return {k: v for k, v in result.metrics.items() if not k.startswith(MACHINE)}


def test_the_most_learnable_candidates_are_trained_on(tiny_model, one_device, byte_tokenizer):
    curriculum = CurriculumConfig("learnability", candidates=3)
    trainer, state = start(curriculum, tiny_model, one_device, byte_tokenizer)
    updated = []
    update = trainer.update
    trainer.update = lambda state, batch: updated.append(batch) or update(state, batch)
    task, key = Ladder(), jax.random.key(7)
    results = list(trainer.run(state, task, key, 0, 3))
    assert trainer.config.num_steps(len(task)) == 4  # Candidates count: a pass of 40 by 12.
    for result, batch in zip(results, updated, strict=True):
        drawn = prompt_indices(key, result.step, 12, 40)
        best = sorted(drawn, key=lambda i: -SCORES[i % 5])[:4]
        assert sorted(batch.indices) == sorted(best)
        assert result.metrics["draws"] == 3
        assert len(result.completions) == 48
        assert result.prompt_scores is None
        assert abs(result.metrics["ratio_max"] - 1) < 1e-4  # The very completions, on-policy.
    assert [i for step in task.seen for i in step] == prompt_indices(key, 0, 36, 40).tolist()


def test_replay_goes_on_from_a_checkpoint(tiny_model, one_device, byte_tokenizer, tmp_path):
    curriculum = CurriculumConfig("replay", temperature=0.1)
    key, task = jax.random.key(7), Ladder()
    trainer, state = start(curriculum, tiny_model, one_device, byte_tokenizer)
    whole = []
    with Checkpoints(tmp_path) as checkpoints:
        for result in trainer.run(state, task, key, 0, 6):
            whole.append(numbers(result))
            if result.step == 2:
                checkpoints.save(3, result.state, {"prompt_scores": result.prompt_scores.to_dict()})
        abstract = abstract_train_state(tiny_model, CONFIG.optimizer, one_device)
        state, metadata = checkpoints.restore(abstract)
    assert [figures["replayed_fraction"] for figures in whole] == [0, *[0.5] * 5]
    for number in range(1, 6):  # Two have been answered before, and two have not.
        before = {i for step in task.seen[:number] for i in step}
        assert sum(i in before for i in task.seen[number]) == 2

    second = Ladder()
    trainer, _ = start(curriculum, tiny_model, one_device, byte_tokenizer)
    known = PromptScores.from_dict(metadata["prompt_scores"])
    resumed = list(trainer.run(state, second, key, 3, 6, prompt_scores=known))
    assert second.seen == task.seen[3:]
    assert [numbers(result) for result in resumed] == whole[3:]
    last = resumed[-1].prompt_scores
    np.testing.assert_array_equal(last.steps, result.prompt_scores.steps)
    expected = [SCORES[i % 5] if step >= 0 else 0 for i, step in enumerate(last.steps)]
    np.testing.assert_allclose(last.scores, expected)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "accel"),
        ("candidates", 1),
        ("replay_fraction", 1.5),
        ("temperature", 0.0),
    ],
)
def test_bad_config_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}={value!r}.*allowed"):
        CurriculumConfig(**{field: value})


@pytest.mark.parametrize("method", ["learnability", "replay"])
def test_resampling_excludes_a_curriculum(method):
    with pytest.raises(ValueError, match=f"degenerate_groups='resample': .*{method}.*'drop'"):
        GRPOConfig(degenerate_groups="resample", curriculum=CurriculumConfig(method))
