"""The GRPO arithmetic against float64 NumPy written from the formulas, token by token."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner import grpo

ROWS, WINDOW = 6, 7
LENGTHS = np.array([7, 3, 1, 5, 0, 4])


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    shape = (ROWS, WINDOW)
    return {
        "logprobs": -rng.exponential(size=shape),
        "old_logprobs": -rng.exponential(size=shape),
        "reference_logprobs": -rng.exponential(size=shape),
        "entropies": rng.uniform(0.1, 2.0, size=shape),
        "advantages": np.array([1.3, -0.7, 0.4, -1.1, 0.9, -0.2]),
    }


def loss_by_hand(config, rows, logprobs, skip_rows=()):
    """The objective as nested loops over answers and tokens, in float64."""
    answers = [i for i in range(ROWS) if LENGTHS[i] > 0 and i not in skip_rows]
    all_tokens = sum(LENGTHS[i] for i in answers)
    loss, sums = 0.0, {"entropy": 0.0, "kl_old": 0.0, "clip_low": 0, "clip_high": 0}
    ratios = []
    for i in answers:
        n, advantage = LENGTHS[i], rows["advantages"][i]
        old, now = rows["old_logprobs"][i, :n], logprobs[i, :n]
        for t in range(n):
            if config.ratio_level == "token":
                ratio = math.exp(now[t]) / math.exp(old[t])
            else:  # The likelihood ratio of the answer to the power 1 / length.
                ratio = (math.exp(now.sum()) / math.exp(old.sum())) ** (1 / n)
            clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
            token_loss = -min(ratio * advantage, clipped * advantage)
            if config.kl_coef:
                q_over_p = math.exp(rows["reference_logprobs"][i, t] - now[t])
                token_loss += config.kl_coef * (q_over_p - math.log(q_over_p) - 1)
            loss += (
                token_loss
                / {
                    "token": all_tokens,
                    "sequence": n * len(answers),
                    "constant": len(answers) * config.constant_length,
                }[config.loss_normalization]
            )
            token_ratio = math.exp(now[t] - old[t])
            sums["entropy"] += rows["entropies"][i, t]
            sums["kl_old"] += token_ratio - math.log(token_ratio) - 1
            sums["clip_low"] += advantage < 0 and ratio < 1 - config.clip_low
            sums["clip_high"] += advantage > 0 and ratio > 1 + config.clip_high
            ratios.append(ratio)
    sums |= {"tokens": len(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    return loss, sums


def ours(config, rows, logprobs, mask):
    weights = grpo.token_weights(mask, config.loss_normalization, config.constant_length)
    return grpo.objective(
        config,
        logprobs,
        *(
            jnp.asarray(rows[name], jnp.float32)
            for name in ("entropies", "old_logprobs", "advantages")
        ),
        mask,
        weights,
        jnp.asarray(rows["reference_logprobs"], jnp.float32) if config.kl_coef else None,
    )


@pytest.mark.parametrize("mask_truncated", [False, True])
@pytest.mark.parametrize(
    ("ratio_level", "loss_normalization", "kl_coef"),
    itertools.product(("token", "sequence"), ("token", "sequence", "constant"), (0.0, 0.3)),
)
def test_objective_and_gradient(rows, ratio_level, loss_normalization, kl_coef, mask_truncated):
    config = grpo.ObjectiveConfig(
        ratio_level=ratio_level,
        loss_normalization=loss_normalization,
        kl_coef=kl_coef,
        constant_length=11,
        clip_low=0.2,
        clip_high=0.28,
    )
    truncated = np.zeros(ROWS, bool)
    truncated[[0, 5]] = mask_truncated
    mask = grpo.answer_mask(jnp.asarray(LENGTHS), WINDOW, jnp.asarray(truncated))
    skip = set(np.flatnonzero(truncated))
    want, want_sums = loss_by_hand(config, rows, rows["logprobs"], skip)

    logprobs = jnp.asarray(rows["logprobs"], jnp.float32)
    # Padding may hold garbage; it must reach neither loss nor gradient.
    logprobs = jnp.where(mask, logprobs, 1e4)
    (loss, sums), gradient = jax.value_and_grad(
        lambda x: ours(config, rows, x, mask), has_aux=True
    )(logprobs)

    np.testing.assert_allclose(loss, want, rtol=2e-5)
    for name, value in want_sums.items():
        np.testing.assert_allclose(getattr(sums, name), value, rtol=2e-5, err_msg=name)
    if not mask_truncated:
        assert sums.clip_low > 0  # The data do exercise both bounds.
        assert sums.clip_high > 0
    h = 1e-6
    numeric = np.zeros((ROWS, WINDOW))
    for i, t in np.argwhere(np.asarray(mask)):
        step = np.zeros((ROWS, WINDOW))
        step[i, t] = h
        numeric[i, t] = (
            loss_by_hand(config, rows, rows["logprobs"] + step, skip)[0]
            - loss_by_hand(config, rows, rows["logprobs"] - step, skip)[0]
        ) / (2 * h)
    np.testing.assert_allclose(gradient, numeric, atol=2e-6, rtol=1e-4)


def test_micro_batches_add_up(rows):
    config = grpo.ObjectiveConfig(kl_coef=0.1)
    mask = grpo.answer_mask(jnp.asarray(LENGTHS), WINDOW)
    weights = grpo.token_weights(mask, "token")
    arrays = [jnp.asarray(rows[k], jnp.float32) for k in ("logprobs", "entropies", "old_logprobs")]
    advantages = jnp.asarray(rows["advantages"], jnp.float32)
    reference = jnp.asarray(rows["reference_logprobs"], jnp.float32)
    loss, sums = grpo.objective(config, *arrays, advantages, mask, weights, reference)
    parts_loss, parts = 0.0, grpo.ObjectiveSums.zero()
    for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
        part_loss, part_sums = grpo.objective(
            config,
            *(a[part] for a in arrays),
            advantages[part],
            mask[part],
            weights[part],
            reference[part],
        )
        parts_loss, parts = parts_loss + part_loss, parts.merge(part_sums)
    np.testing.assert_allclose(parts_loss, loss, rtol=1e-6)
    for got, want in zip(jax.tree.leaves(parts), jax.tree.leaves(sums), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_on_policy_gradient_is_that_of_reinforce(rows):
    config = grpo.ObjectiveConfig()
    mask = grpo.answer_mask(jnp.asarray(LENGTHS), WINDOW)
    on_policy = rows | {"old_logprobs": rows["logprobs"]}
    logprobs = jnp.asarray(rows["logprobs"], jnp.float32)
    (_, sums), gradient = jax.value_and_grad(
        lambda x: ours(config, on_policy, x, mask), has_aux=True
    )(logprobs)
    want = np.where(mask, -rows["advantages"][:, None] / LENGTHS.sum(), 0.0)
    np.testing.assert_allclose(gradient, want, rtol=1e-5)
    assert sums.kl_old == 0
    assert sums.ratio_min == sums.ratio_max == 1


def test_advantages():
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [0.1, 0.1, 0.1, 0.1], [0.9, 0.3, -0.5, 0.2]])
    signal = np.asarray(grpo.has_signal(jnp.asarray(rewards)))
    np.testing.assert_array_equal(signal, [True, False, True])
    plain = np.asarray(grpo.group_advantages(jnp.asarray(rewards, jnp.float32), "none"))
    scaled = np.asarray(grpo.group_advantages(jnp.asarray(rewards, jnp.float32), "group_std"))
    for p, group in enumerate(rewards):
        mean = sum(group) / 4
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / 4)
        want = [(r - mean) if signal[p] else 0.0 for r in group]
        np.testing.assert_allclose(plain[p], want, atol=1e-7)
        np.testing.assert_allclose(scaled[p], np.array(want) / (std + 1e-6), rtol=1e-5)
    assert not plain[1].any()
    assert not scaled[1].any()


def test_bad_options_are_named():
    for field, value in (
        ("clip_low", -0.1),
        ("clip_high", math.inf),
        ("kl_coef", -1.0),
        ("ratio_level", "word"),
        ("loss_normalization", "mean"),
        ("advantage_normalization", "batch"),
        ("constant_length", 0),
    ):
        with pytest.raises(ValueError, match=field) as error:
            grpo.ObjectiveConfig(**{field: value})
        assert repr(value) in str(error.value)
    zeros = jnp.zeros((1, 1))
    with pytest.raises(ValueError, match="reference_logprobs"):
        grpo.objective(
            grpo.ObjectiveConfig(kl_coef=0.1),
            *(zeros,) * 3,
            zeros[0],
            zeros == 0,
            zeros,
        )
