"""Group relative policy optimisation as pure functions of arrays.

P prompts with G sampled completions each are N = P * G completions; one takes at most M tokens.
Every normaliser is turned into one array of token weights that is computed over the whole global
batch (`token_weights`). The objective is then a weighted sum, so neither micro-batching nor
sharding can change it.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, get_args

import chex
import jax
import jax.numpy as jnp

from learner import checks

AdvantageNormalization = Literal["group_std", "none", "leave_one_out"]
RatioLevel = Literal["token", "sequence"]
LossNormalization = Literal["token", "sequence", "constant"]
KLEstimator = Literal["k1", "k3"]
ImportanceCorrection = Literal["none", "token", "sequence"]

Sums = dict[str, jax.Array]
"""Statistics of a loss over its tokens, each f32[]; they add up by `merge_sums`."""

# Keeps the division finite; a group without any spread has advantage 0 anyway.
_STD_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """Which surrogate objective is maximised.

    Attributes:
      advantage_normalization: "group_std" divides by the group's standard deviation
        (DeepSeekMath, arXiv 2402.03300); "none" only subtracts the group's mean (Dr. GRPO,
        arXiv 2503.20783); "leave_one_out" subtracts the mean of the other completions (RLOO,
        arXiv 2402.14740).
      ratio_level: importance ratios for each "token" (GRPO) or for the whole "sequence" (GSPO,
        arXiv 2507.18071, equations 5 and 7; its clip range is far smaller, about 3e-4).
      clip_low: a ratio below 1 - clip_low gains nothing more; in [0, 1].
      clip_high: a ratio above 1 + clip_high gains nothing more; equal to `clip_low` is PPO's clip
        (arXiv 1707.06347), larger is "clip-higher" (DAPO, arXiv 2503.14476).
      dual_clip: with a negative advantage, a ratio above this bound counts no more than the bound
        (dual-clip PPO, arXiv 1912.09729, where it is c, about 3); above 1, or 0 for off.
      loss_normalization: "token" is the mean over all completion tokens of the global batch (DAPO),
        "sequence" the mean over completions of each completion's token mean (DeepSeekMath),
        "constant" the sum over tokens divided by completions * `max_new_tokens` (Dr. GRPO).
      kl_coef: weight of the KL divergence to a reference model. At 0 no reference model is
        needed, nor held.
      kl_estimator: "k3" adds the estimate to the loss (DeepSeekMath, equation 4). "k1" takes
        log policy - log reference of each token off that token's advantage, as a cost: in the
        loss its gradient would be zero on average (arXiv 2506.09477).
      entropy_coef: weight of the policy's entropy, which is added to what is maximised (A3C,
        arXiv 1602.01783).
      importance_correction: weighs the policy term by the truncated importance ratio between the
        trainer's log-probabilities before the first update and the sampler's own, where rounding
        or another program makes them differ: for each "token" or for the whole "sequence" (the
        product over its tokens), cut off at `importance_cap`, without gradient (truncated
        importance sampling: Ionides 2008; for the train-inference mismatch Yao et al. 2025, "Your
        efficient RL framework secretly brings you off-policy RL training"). With "none" the
        sampler's log-probabilities are taken for those of the old policy.
      importance_cap: largest weight of the correction, > 0.

    Raises:
      ValueError: a field is out of its range.
    """

    advantage_normalization: AdvantageNormalization = "group_std"
    ratio_level: RatioLevel = "token"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    loss_normalization: LossNormalization = "token"
    kl_coef: float = 0.0
    kl_estimator: KLEstimator = "k3"
    entropy_coef: float = 0.0
    importance_correction: ImportanceCorrection = "none"
    importance_cap: float = 2.0

    def __post_init__(self) -> None:
        checks.choices(
            self,
            advantage_normalization=get_args(AdvantageNormalization),
            ratio_level=get_args(RatioLevel),
            loss_normalization=get_args(LossNormalization),
            kl_estimator=get_args(KLEstimator),
            importance_correction=get_args(ImportanceCorrection),
        )
        checks.fractions(self, "clip_low")
        checks.not_negative(self, "clip_high", "kl_coef", "entropy_coef", "dual_clip")
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"dual_clip={self.dual_clip!r}: allowed are 0 and numbers above 1")
        checks.positive(self, "importance_cap")


def merge_sums(a: Sums, b: Sums) -> Sums:
    """The sums of two disjoint sets of completions; `_min` and `_max` end names of extremes."""
    how = {"_min": jnp.minimum, "_max": jnp.maximum}
    return {name: how.get(name[-4:], jnp.add)(a[name], b[name]) for name in a}


def no_sums(names: Iterable[str]) -> Sums:
    """The identity of `merge_sums`: the sums of no completions, each f32[].

    Args:
      names: of the sums.
    """
    start = {"_min": jnp.inf, "_max": -jnp.inf}
    return {name: jnp.float32(start.get(name[-4:], 0.0)) for name in names}


def token_means(sums: Sums) -> dict[str, float]:
    """Numbers for the log: sums over the number of tokens; `tokens` and extremes as they are."""
    count = max(float(sums["tokens"]), 1.0)
    return {
        name: float(value) / (1.0 if name.endswith(("tokens", "_min", "_max")) else count)
        for name, value in sums.items()
    }


def group_advantages(
    rewards: jax.Array, normalization: AdvantageNormalization = "group_std"
) -> jax.Array:
    """Advantages relative to the other completions to the same prompt.

    A_i = r_i - mean(r), and with "group_std" that divided by (std(r) + 1e-6), where mean and
    (population) standard deviation run over the group (DeepSeekMath, arXiv 2402.03300, section
    4.1.2). Without division: Dr. GRPO, arXiv 2503.20783, which shows that the division favours
    groups that are nearly all right or nearly all wrong. "leave_one_out": r_i minus the mean over
    the G - 1 others, which is G / (G - 1) * (r_i - mean(r)) (RLOO, arXiv 2402.14740): an unbiased
    baseline, for it does not depend on completion i.

    Args:
      rewards: f32[P, G], G at least 2.

    Returns:
      f32[P, G]; exactly 0 in groups whose rewards are all equal.
    """
    chex.assert_rank(rewards, 2)
    centered = rewards - jnp.mean(rewards, axis=1, keepdims=True)
    # The mean of G equal numbers may be off by a rounding, which the division would blow up.
    centered = jnp.where(has_signal(rewards)[:, None], centered, 0.0)
    if normalization == "none":
        return centered
    if normalization == "leave_one_out":
        group = rewards.shape[1]
        return centered * (group / (group - 1))
    return centered / (jnp.std(rewards, axis=1, keepdims=True) + _STD_EPSILON)


def has_signal(rewards: chex.Array) -> Any:
    """bool[P]: which groups of f32[P, G] are non-degenerate, their rewards not all equal.

    Dynamic sampling keeps only these (DAPO, arXiv 2503.14476, section 3.2).
    """
    return rewards.max(axis=1) > rewards.min(axis=1)


def token_weights(
    mask: jax.Array, normalization: LossNormalization = "token", constant_length: int = 1
) -> jax.Array:
    """The weight of every token in the loss, from the mask of the WHOLE global batch.

    With m the mask, "token": m / sum(m) (DAPO, arXiv 2503.14476, equation 8). "sequence":
    m_i / (sum(m_i) * completions) (DeepSeekMath, arXiv 2402.03300, equation 3). "constant":
    m / (completions * constant_length) (Dr. GRPO, arXiv 2503.20783). Completions without any token
    are not counted.

    Args:
      mask: bool[N, M].
      constant_length: tokens, for "constant".

    Returns:
      f32[N, M]; the loss is the sum of weight times token loss.
    """
    chex.assert_rank(mask, 2)
    mask_float = mask.astype(jnp.float32)
    lengths = jnp.sum(mask_float, axis=1)
    count = jnp.maximum(jnp.sum(lengths > 0), 1)
    if normalization == "token":
        return mask_float / jnp.maximum(jnp.sum(lengths), 1.0)
    if normalization == "sequence":
        return mask_float / (jnp.maximum(lengths, 1.0)[:, None] * count)
    return mask_float / (count * constant_length)


def k3(log_ratio: jax.Array) -> jax.Array:
    """The estimator exp(x) - x - 1 of KL(p || q) with x = log q - log p at a sample of p.

    Unbiased, never negative, of low variance (Schulman, "Approximating KL divergence", 2020,
    where it is k3 and -x is k1; DeepSeekMath, arXiv 2402.03300, equation 4).
    """
    return jnp.expm1(log_ratio) - log_ratio


def _sums(values: jax.Array, completions: jax.Array | None) -> jax.Array:
    """The sum over each token's completion, f32[..., M]; see `objective`."""
    if completions is None:
        total = jnp.sum(values, axis=-1, keepdims=True)
        return jnp.broadcast_to(total, values.shape)
    flat, size = completions.reshape(-1, completions.shape[-1]), completions.shape[-1]

    def of_sequence(values: jax.Array, numbers: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(values, numbers, num_segments=size + 1)[numbers]

    return jax.vmap(of_sequence)(values.reshape(flat.shape), flat).reshape(values.shape)


def _importance_weights(
    config: ObjectiveConfig,
    old_logprobs: jax.Array,
    sampled_logprobs: jax.Array,
    mask: jax.Array,
    completions: jax.Array | None,
) -> jax.Array:
    """Truncated importance weights of the tokens, f32[..., M]; see `importance_correction`.

    With x = old_logprobs - sampled_logprobs: min(exp(x), cap) for each "token",
    min(exp(sum of x over the completion), cap) for a "sequence", 1 for "none".
    """
    if config.importance_correction == "none":
        return jnp.ones_like(sampled_logprobs)
    log_ratio = jnp.where(mask, old_logprobs - sampled_logprobs, 0.0)
    if config.importance_correction == "sequence":
        log_ratio = _sums(log_ratio, completions)
    # The logarithm is cut, not the ratio: the exponential of a long completion's sum may overflow.
    return jnp.exp(jnp.minimum(log_ratio, jnp.log(config.importance_cap)))


def objective(
    config: ObjectiveConfig,
    logprobs: jax.Array,
    entropies: jax.Array,
    sampled_logprobs: jax.Array,
    advantages: jax.Array,
    mask: jax.Array,
    weights: jax.Array,
    reference_logprobs: jax.Array | None = None,
    old_logprobs: jax.Array | None = None,
    completions: jax.Array | None = None,
) -> tuple[jax.Array, Sums]:
    """The clipped surrogate loss of some completions, and what to report of it.

    With x = logprobs - old_logprobs, the ratio r is exp(x) for each token, or exp(mean of x over
    the completion) for all tokens of it (GSPO). With A the advantage (less the k1 cost, if that is
    chosen) a token gains S = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), and with dual clip
    and A < 0 max(S, dual_clip * A). Its loss is
    -w S + kl_coef * k3(reference - now) - entropy_coef * entropy, where w is 1 or the truncated
    importance weight, and the loss is the sum of weight times token loss.

    Args:
      logprobs: f32[..., M] of the completion tokens under the current policy; differentiated.
      entropies: f32[..., M] of the current policy in nats; differentiated if they count.
      sampled_logprobs: f32[..., M], as the sampler reported them.
      advantages: f32[..., M], or f32[..., 1] for one a completion.
      mask: bool[..., M], tokens that take part; the other entries may hold anything finite.
      weights: f32[..., M] from `token_weights` over the whole global batch.
      reference_logprobs: f32[..., M] under the reference model; needed if `config.kl_coef` > 0.
      old_logprobs: f32[..., M] by the trainer under the policy that sampled, for an
        `importance_correction`; without one the sampler's stand for them. None: it is the current
        policy that sampled.
      completions: i32[..., M], from 0 to M, the number of each token's completion where the last
        axis has several; None where it is one.

    Returns:
      The loss f32[], and sums over the tokens that take part.

      * tokens: their number.
      * entropy: the policy's entropies, in nats.
      * kl: k3 estimates of KL(old policy || current policy), in nats.
      * kl_reference: estimates of KL(current policy || reference), in nats.
      * clip_low, clip_high, clip_dual: tokens whose gradient that bound stopped.
      * mismatch_mean, mismatch_max: |current - sampler's log-probability|, in nats. In the first
        update on some completions the weights are those that sampled, and this is the sampler's
        error.
      * importance_weight_mean: the truncated importance weights.
      * ratio_min, ratio_max: the importance ratios, +inf and -inf without tokens.

    Raises:
      ValueError: `reference_logprobs` is needed and missing.
    """
    chex.assert_equal_shape([logprobs, entropies, sampled_logprobs, mask, weights])
    chex.assert_shape(advantages, (*logprobs.shape[:-1], None))
    if config.kl_coef > 0 and reference_logprobs is None:
        raise ValueError(f"kl_coef={config.kl_coef}: needs reference_logprobs, got None")
    if config.importance_correction == "none":
        old_logprobs = sampled_logprobs
    elif old_logprobs is None:
        old_logprobs = jax.lax.stop_gradient(logprobs)
    # Before any exp: what stands in padding must neither overflow nor reach the gradient.
    log_ratio = jnp.where(mask, logprobs - old_logprobs, 0.0)
    token_log_ratio = log_ratio
    if config.ratio_level == "sequence":
        lengths = jnp.maximum(_sums(mask.astype(log_ratio.dtype), completions), 1)
        log_ratio = _sums(log_ratio, completions) / lengths
    ratio = jnp.exp(log_ratio)
    advantage = jnp.broadcast_to(advantages, ratio.shape)
    kl_reference = jnp.zeros_like(ratio)
    if reference_logprobs is not None:
        over_reference = jnp.where(mask, logprobs - reference_logprobs, 0.0)
        if config.kl_estimator == "k1":
            kl_reference = jax.lax.stop_gradient(over_reference)
            advantage = advantage - config.kl_coef * kl_reference
        else:
            kl_reference = k3(-over_reference)

    low, high = 1.0 - config.clip_low, 1.0 + config.clip_high
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    beyond = jnp.zeros_like(mask)
    if config.dual_clip:
        beyond = (ratio > config.dual_clip) & (advantage < 0)
        gain = jnp.where(advantage < 0, jnp.maximum(gain, config.dual_clip * advantage), gain)
    trust = jax.lax.stop_gradient(
        _importance_weights(config, old_logprobs, sampled_logprobs, mask, completions)
    )
    loss = -trust * gain
    if config.kl_estimator == "k3":
        loss = loss + config.kl_coef * kl_reference
    if config.entropy_coef:
        loss = loss - config.entropy_coef * jnp.where(mask, entropies, 0.0)
    gap = jnp.abs(jnp.where(mask, logprobs - sampled_logprobs, 0.0))

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(mask, values, 0.0), dtype=jnp.float32)

    sums = {
        "tokens": total(jnp.ones_like(ratio)),
        "entropy": total(entropies),
        "kl": total(k3(token_log_ratio)),
        "kl_reference": total(kl_reference),
        "clip_low": total((ratio < low) & (advantage < 0)),
        "clip_high": total((ratio > high) & (advantage > 0)),
        "clip_dual": total(beyond),
        "mismatch_mean": total(gap),
        "mismatch_max": jnp.max(jnp.where(mask, gap, -jnp.inf)),
        "importance_weight_mean": total(trust),
        "ratio_min": jnp.min(jnp.where(mask, ratio, jnp.inf)),
        "ratio_max": jnp.max(jnp.where(mask, ratio, -jnp.inf)),
    }
    return jnp.sum(weights * loss), jax.lax.stop_gradient(sums)
