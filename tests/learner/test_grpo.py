"""The GRPO arithmetic against float64 NumPy written from the formulas, token by token."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.training import grpo

SEQUENCES, WINDOW = 6, 7
CONSTANT_LENGTH = 11  # Of "constant".
LENGTHS = np.array([7, 3, 1, 5, 0, 4])


@pytest.fixture(scope="module")
def sequences():
    rng = np.random.default_rng(0)
    shape = (SEQUENCES, WINDOW)
    logprobs = -rng.exponential(size=shape)
    return {
        "logprobs": logprobs,
        "sampled_logprobs": logprobs + rng.normal(scale=0.7, size=shape),
        "old_logprobs": logprobs + rng.normal(scale=0.5, size=shape),
        "reference_logprobs": -rng.exponential(size=shape),
        "entropies": rng.uniform(0.1, 2.0, size=shape),
        "advantages": np.array([1.3, -0.7, 0.4, -1.1, 0.9, -0.2]),
    }


def by_hand(config, sequences, logprobs, entropies, skip_sequences=(), frozen=None):
    """The objective as nested loops over completions and tokens, in float64.

    `frozen` are the log-probabilities that the k1 cost is computed from: those at the point where
    a derivative is taken, since the cost is a constant of the derivative.
    """
    frozen = logprobs if frozen is None else frozen
    completions = [i for i in range(SEQUENCES) if LENGTHS[i] > 0 and i not in skip_sequences]
    all_tokens = sum(LENGTHS[i] for i in completions)
    loss = 0.0
    names = ("entropy", "kl", "kl_reference", "clip_low", "clip_high", "clip_dual")
    sums = dict.fromkeys((*names, "importance_weight_mean"), 0.0)
    ratios, gaps = [], []
    for i in completions:
        n = LENGTHS[i]
        now, sampled = logprobs[i, :n], sequences["sampled_logprobs"][i, :n]
        corrected = config.importance_correction != "none"
        old = sequences["old_logprobs"][i, :n] if corrected else sampled
        for t in range(n):
            if config.ratio_level == "token":
                ratio = math.exp(now[t]) / math.exp(old[t])
            else:  # The likelihood ratio of the completion to the power 1 / length.
                ratio = (math.exp(now.sum()) / math.exp(old.sum())) ** (1 / n)
            trust = {
                "none": 1.0,
                "token": math.exp(old[t]) / math.exp(sampled[t]),
                "sequence": math.exp(old.sum()) / math.exp(sampled.sum()),
            }[config.importance_correction]
            if corrected:
                trust = min(trust, config.importance_cap)
            advantage = sequences["advantages"][i]
            kl = 0.0
            if config.kl_coef:
                q_over_p = math.exp(sequences["reference_logprobs"][i, t] - now[t])
                if config.kl_estimator == "k1":
                    kl = frozen[i, t] - sequences["reference_logprobs"][i, t]
                    advantage -= config.kl_coef * kl
                else:
                    kl = q_over_p - math.log(q_over_p) - 1
            clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
            gain = min(ratio * advantage, clipped * advantage)
            if config.dual_clip and advantage < 0:
                sums["clip_dual"] += gain < config.dual_clip * advantage
                gain = max(gain, config.dual_clip * advantage)
            token_loss = -trust * gain - config.entropy_coef * entropies[i, t]
            if config.kl_estimator == "k3":
                token_loss += config.kl_coef * kl
            loss += (
                token_loss
                / {
                    "token": all_tokens,
                    "sequence": n * len(completions),
                    "constant": len(completions) * CONSTANT_LENGTH,
                }[config.loss_normalization]
            )
            token_ratio = math.exp(now[t] - old[t])
            sums["entropy"] += entropies[i, t]
            sums["kl"] += token_ratio - math.log(token_ratio) - 1
            sums["kl_reference"] += kl
            sums["clip_low"] += advantage < 0 and ratio < 1 - config.clip_low
            sums["clip_high"] += advantage > 0 and ratio > 1 + config.clip_high
            sums["importance_weight_mean"] += trust
            gaps.append(abs(now[t] - sampled[t]))
            ratios.append(ratio)
    sums |= {"tokens": len(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    return loss, sums | {"mismatch_mean": sum(gaps), "mismatch_max": max(gaps)}


def ours(config, sequences, logprobs, entropies, mask):
    weights = grpo.token_weights(mask, config.loss_normalization, CONSTANT_LENGTH)

    def array(name):
        return jnp.asarray(sequences[name], jnp.float32)

    return grpo.objective(
        config,
        logprobs,
        entropies,
        array("sampled_logprobs"),
        array("advantages")[:, None],
        mask,
        weights,
        array("reference_logprobs") if config.kl_coef else None,
        None if config.importance_correction == "none" else array("old_logprobs"),
    )


# Every option against every ratio level and normaliser, and some together.
OPTIONS = {
    "plain": {},
    "symmetric clip": {"clip_high": 0.2},
    "dual clip": {"dual_clip": 1.5},
    "k3": {"kl_coef": 0.3},
    "k1": {"kl_coef": 0.3, "kl_estimator": "k1"},
    "entropy bonus": {"entropy_coef": 0.2},
    "token correction": {"importance_correction": "token", "importance_cap": 1.3},
    "sequence correction": {"importance_correction": "sequence", "importance_cap": 1.3},
    "all": {
        "dual_clip": 1.4,
        "kl_coef": 0.3,
        "kl_estimator": "k1",
        "entropy_coef": 0.2,
        "importance_correction": "token",
    },
}


@pytest.mark.parametrize("mask_truncated", [False, True])
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("loss_normalization", ["token", "sequence", "constant"])
@pytest.mark.parametrize("option", OPTIONS)
def test_objective_and_gradient(sequences, option, ratio_level, loss_normalization, mask_truncated):
    config = grpo.ObjectiveConfig(
        ratio_level=ratio_level,
        loss_normalization=loss_normalization,
        **({"clip_low": 0.2, "clip_high": 0.28} | OPTIONS[option]),
    )
    truncated = np.zeros(SEQUENCES, bool)
    truncated[[0, 5]] = mask_truncated
    mask = jnp.arange(WINDOW) < np.where(truncated, 0, LENGTHS)[:, None]
    skip = set(np.flatnonzero(truncated))
    point = np.stack([sequences["logprobs"], sequences["entropies"]])
    want, want_sums = by_hand(config, sequences, *point, skip)

    # Padding may hold garbage; it must reach neither loss nor gradient.
    now = jnp.where(mask, jnp.asarray(point, jnp.float32), 1e4)
    (loss, sums), gradient = jax.value_and_grad(
        lambda x: ours(config, sequences, *x, mask), has_aux=True
    )(now)

    np.testing.assert_allclose(loss, want, rtol=3e-5)
    assert sums.keys() == want_sums.keys()
    for name in sums:
        np.testing.assert_allclose(sums[name], want_sums[name], rtol=3e-5, err_msg=name)
    means = grpo.token_means(sums)
    assert means["tokens"] == want_sums["tokens"]
    np.testing.assert_allclose(means["kl"], want_sums["kl"] / want_sums["tokens"], rtol=3e-5)
    np.testing.assert_allclose(means["ratio_max"], want_sums["ratio_max"], rtol=3e-5)
    if not mask_truncated and ratio_level == "token":  # The data do exercise the bounds.
        assert sums["clip_low"] > 0
        assert sums["clip_high"] > 0
        assert (sums["clip_dual"] > 0) == bool(config.dual_clip)
    h = 1e-6
    numeric = np.zeros_like(point)
    for i, t in np.argwhere(np.asarray(mask)):
        for which in (0, 1):
            step = np.zeros_like(point)
            step[which, i, t] = h
            above, _ = by_hand(config, sequences, *(point + step), skip, frozen=point[0])
            below, _ = by_hand(config, sequences, *(point - step), skip, frozen=point[0])
            numeric[which, i, t] = (above - below) / (2 * h)
    np.testing.assert_allclose(gradient, numeric, atol=2e-6, rtol=1e-4)


def test_micro_batches_add_up(sequences):
    config = grpo.ObjectiveConfig(kl_coef=0.1)
    mask = jnp.arange(WINDOW) < LENGTHS[:, None]
    weights = grpo.token_weights(mask, "token")
    names = ("logprobs", "entropies", "sampled_logprobs")
    arrays = [jnp.asarray(sequences[name], jnp.float32) for name in names]
    advantages = jnp.asarray(sequences["advantages"], jnp.float32)[:, None]
    reference = jnp.asarray(sequences["reference_logprobs"], jnp.float32)
    loss, sums = grpo.objective(config, *arrays, advantages, mask, weights, reference)
    parts_loss, parts = 0.0, []
    for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
        part_loss, part_sums = grpo.objective(
            config,
            *(a[part] for a in arrays),
            advantages[part],
            mask[part],
            weights[part],
            reference[part],
        )
        parts_loss += part_loss
        parts.append(part_sums)
    parts = functools.reduce(grpo.merge_sums, parts, grpo.no_sums(sums))
    np.testing.assert_allclose(parts_loss, loss, rtol=1e-6)
    for got, want in zip(jax.tree.leaves(parts), jax.tree.leaves(sums), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", ["none", "token", "sequence"])
def test_completions_that_share_a_sequence_keep_their_own_sums(sequences, level, correction):
    """All of them in one sequence, as `completions` numbers their tokens, and each in its own."""
    config = grpo.ObjectiveConfig(
        ratio_level=level, importance_correction=correction, importance_cap=1.3, kl_coef=0.1
    )
    mask = jnp.arange(WINDOW) < jnp.asarray(LENGTHS)[:, None]
    names = ("sampled_logprobs", "reference_logprobs", "old_logprobs", "entropies")
    sampled, reference, old, entropies = (
        jnp.asarray(sequences[name], jnp.float32) for name in names
    )
    numbers = jnp.broadcast_to(jnp.arange(1, len(LENGTHS) + 1)[:, None], mask.shape)
    advantages = jnp.broadcast_to(
        jnp.asarray(sequences["advantages"], jnp.float32)[:, None], mask.shape
    )
    weights = grpo.token_weights(mask, "sequence")

    def loss(logprobs, shape, completions):
        args = (logprobs, entropies, sampled, advantages, mask, weights, reference, old)
        flat = (x.reshape(shape) for x in args)
        return grpo.objective(config, *flat, completions)

    logprobs = jnp.asarray(sequences["logprobs"], jnp.float32)
    both = jax.value_and_grad(loss, has_aux=True)
    want = both(logprobs, mask.shape, None)
    one_sequence = (1, mask.size)
    # The numbers of tokens go up to the length of the sequence; 0 is no completion.
    got = both(logprobs, one_sequence, numbers.reshape(one_sequence))
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)


def test_on_policy_gradient_is_that_of_reinforce(sequences):
    config = grpo.ObjectiveConfig()
    mask = jnp.arange(WINDOW) < LENGTHS[:, None]
    on_policy = sequences | {"sampled_logprobs": sequences["logprobs"]}
    logprobs, entropies = (
        jnp.asarray(sequences[k], jnp.float32) for k in ("logprobs", "entropies")
    )
    (_, sums), gradient = jax.value_and_grad(
        lambda x: ours(config, on_policy, x, entropies, mask), has_aux=True
    )(logprobs)
    want = np.where(mask, -sequences["advantages"][:, None] / LENGTHS.sum(), 0.0)
    np.testing.assert_allclose(gradient, want, rtol=1e-5)
    assert sums["kl"] == 0
    assert sums["ratio_min"] == sums["ratio_max"] == 1


def test_advantages():
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [0.1, 0.1, 0.1, 0.1], [0.9, 0.3, -0.5, 0.2]])
    signal = np.asarray(grpo.has_signal(jnp.asarray(rewards)))
    np.testing.assert_array_equal(signal, [True, False, True])
    plain = np.asarray(grpo.group_advantages(jnp.asarray(rewards, jnp.float32), "none"))
    others = np.asarray(grpo.group_advantages(jnp.asarray(rewards, jnp.float32), "leave_one_out"))
    scaled = np.asarray(grpo.group_advantages(jnp.asarray(rewards, jnp.float32), "group_std"))
    for p, group in enumerate(rewards):
        mean = sum(group) / 4
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / 4)
        want = [(r - mean) if signal[p] else 0.0 for r in group]
        np.testing.assert_allclose(plain[p], want, atol=1e-7)
        loo = [r - (sum(group) - r) / 3 if signal[p] else 0.0 for r in group]
        np.testing.assert_allclose(others[p], loo, atol=1e-6)
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
        ("dual_clip", 0.9),
        ("entropy_coef", math.nan),
        ("kl_estimator", "k2"),
        ("importance_correction", "all"),
        ("importance_cap", 0.0),
    ):
        with pytest.raises(ValueError, match=field) as error:
            grpo.ObjectiveConfig(**{field: value})
        assert repr(value) in str(error.value)
    zeros = jnp.zeros((1, 1))
    with pytest.raises(ValueError, match="reference_logprobs"):
        grpo.objective(grpo.ObjectiveConfig(kl_coef=0.1), *(zeros,) * 4, zeros == 0, zeros)
