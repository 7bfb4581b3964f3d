"""Group relative policy optimisation as pure functions of arrays.

P prompts with G sampled answers each are N = P * G rows; an answer takes at most M tokens. Every
normaliser is turned into one array of token weights that is computed over the whole global batch
(`token_weights`). The objective is then a weighted sum, so neither micro-batching nor sharding
can change it.
"""

import dataclasses
import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp

AdvantageNormalization = Literal["group_std", "none"]
RatioLevel = Literal["token", "sequence"]
LossNormalization = Literal["token", "sequence", "constant"]

# Keeps the division finite; a group without any spread has advantage 0 anyway.
_STD_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """Which surrogate objective is maximised.

    Attributes:
      advantage_normalization: "group_std" divides by the group's standard deviation
        (DeepSeekMath, arXiv 2402.03300); "none" only subtracts the group's mean (Dr. GRPO,
        arXiv 2503.20783).
      ratio_level: importance ratios for each "token" (GRPO) or for the whole "sequence" (GSPO,
        arXiv 2507.18071, equations 5 and 7; its clip range is far smaller, about 3e-4).
      clip_low: a ratio below 1 - clip_low gains nothing more; in [0, 1].
      clip_high: a ratio above 1 + clip_high gains nothing more; larger than `clip_low` is
        "clip-higher" (DAPO, arXiv 2503.14476).
      loss_normalization: "token" is the mean over all answer tokens of the global batch (DAPO),
        "sequence" the mean over answers of each answer's token mean (DeepSeekMath), "constant"
        the sum over tokens divided by answers * `constant_length` (Dr. GRPO).
      constant_length: the fixed length of "constant", in tokens; not used otherwise.
      kl_coef: weight of the KL divergence to a reference model (k3 estimator). At 0 no reference
        model is needed, nor held.

    Raises:
      ValueError: a field is out of its range.
    """

    advantage_normalization: AdvantageNormalization = "group_std"
    ratio_level: RatioLevel = "token"
    clip_low: float = 0.2
    clip_high: float = 0.28
    loss_normalization: LossNormalization = "token"
    constant_length: int = 1024
    kl_coef: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("advantage_normalization", get_args(AdvantageNormalization)),
            ("ratio_level", get_args(RatioLevel)),
            ("loss_normalization", get_args(LossNormalization)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed are {allowed}")
        if not 0.0 <= self.clip_low <= 1.0:
            raise ValueError(f"clip_low={self.clip_low!r}: allowed are numbers in [0, 1]")
        for name in ("clip_high", "kl_coef"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name}={value!r}: allowed are finite numbers from 0 up")
        if not (isinstance(self.constant_length, int) and self.constant_length >= 1):
            raise ValueError(
                f"constant_length={self.constant_length!r}: allowed are integers from 1 up"
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ObjectiveSums:
    """What the objective reports, in a form that adds up over micro-batches.

    All are f32[]. `tokens` counts the answer tokens that take part; the other sums run over them.

    Attributes:
      tokens: number of tokens.
      entropy: sum of the policy's entropies, in nats.
      kl_old: sum of k3 estimates of KL(sampling policy || current policy), in nats.
      kl_reference: sum of k3 estimates of KL(current policy || reference), in nats.
      clip_low: tokens whose gradient the lower clip bound stopped.
      clip_high: tokens whose gradient the upper clip bound stopped.
      ratio_min: smallest importance ratio, +inf without tokens.
      ratio_max: largest importance ratio, -inf without tokens.
    """

    tokens: jax.Array
    entropy: jax.Array
    kl_old: jax.Array
    kl_reference: jax.Array
    clip_low: jax.Array
    clip_high: jax.Array
    ratio_min: jax.Array
    ratio_max: jax.Array

    @classmethod
    def zero(cls) -> "ObjectiveSums":
        """The neutral element of `merge`."""
        zero = jnp.zeros((), jnp.float32)
        return cls(zero, zero, zero, zero, zero, zero, zero + jnp.inf, zero - jnp.inf)

    def merge(self, other: "ObjectiveSums") -> "ObjectiveSums":
        """The sums of two disjoint sets of rows together."""
        return ObjectiveSums(
            tokens=self.tokens + other.tokens,
            entropy=self.entropy + other.entropy,
            kl_old=self.kl_old + other.kl_old,
            kl_reference=self.kl_reference + other.kl_reference,
            clip_low=self.clip_low + other.clip_low,
            clip_high=self.clip_high + other.clip_high,
            ratio_min=jnp.minimum(self.ratio_min, other.ratio_min),
            ratio_max=jnp.maximum(self.ratio_max, other.ratio_max),
        )


def group_advantages(
    rewards: jax.Array, normalization: AdvantageNormalization = "group_std"
) -> jax.Array:
    """Advantages relative to the other answers to the same prompt.

    A_i = r_i - mean(r), and with "group_std" that divided by (std(r) + 1e-6), where mean and
    (population) standard deviation run over the group (DeepSeekMath, arXiv 2402.03300, section
    4.1.2). Without division: Dr. GRPO, arXiv 2503.20783, which shows that the division favours
    groups that are nearly all right or nearly all wrong.

    Args:
      rewards: f32[P, G].
      normalization: "group_std" or "none".

    Returns:
      f32[P, G]; exactly 0 in groups whose rewards are all equal.
    """
    centered = rewards - jnp.mean(rewards, axis=1, keepdims=True)
    # The mean of G equal numbers may be off by a rounding, which the division would blow up.
    centered = jnp.where(has_signal(rewards)[:, None], centered, 0.0)
    if normalization == "none":
        return centered
    return centered / (jnp.std(rewards, axis=1, keepdims=True) + _STD_EPSILON)


def has_signal(rewards: jax.Array) -> jax.Array:
    """Which groups teach anything: those whose rewards are not all equal.

    Dynamic sampling keeps only these (DAPO, arXiv 2503.14476, section 3.2).

    Args:
      rewards: f32[P, G].

    Returns:
      bool[P].
    """
    return jnp.max(rewards, axis=1) > jnp.min(rewards, axis=1)


def answer_mask(lengths: jax.Array, window: int, truncated: jax.Array | None = None) -> jax.Array:
    """Which tokens of the answer window take part in the loss.

    Args:
      lengths: i32[...], answer tokens incl. the stop token.
      window: M, the width of the answer window.
      truncated: bool[...] answers to leave out as a whole (overlong filtering, DAPO,
        arXiv 2503.14476, section 3.4), or None to leave out none.

    Returns:
      bool[..., M].
    """
    mask = jnp.arange(window) < lengths[..., None]
    return mask if truncated is None else mask & ~truncated[..., None]


def token_weights(
    mask: jax.Array, normalization: LossNormalization = "token", constant_length: int = 1
) -> jax.Array:
    """The weight of every token in the loss, from the mask of the WHOLE global batch.

    With m the mask, "token": m / sum(m) (DAPO, arXiv 2503.14476, equation 8). "sequence":
    m_i / (sum(m_i) * rows) (DeepSeekMath, arXiv 2402.03300, equation 3). "constant":
    m / (rows * constant_length) (Dr. GRPO, arXiv 2503.20783). Rows without any token are not
    counted as rows.

    Args:
      mask: bool[N, M].
      normalization: one of the three.
      constant_length: tokens, for "constant".

    Returns:
      f32[N, M]; the loss is the sum of weight times token loss.
    """
    mask_float = mask.astype(jnp.float32)
    lengths = jnp.sum(mask_float, axis=1)
    rows = jnp.maximum(jnp.sum(lengths > 0), 1)
    if normalization == "token":
        return mask_float / jnp.maximum(jnp.sum(lengths), 1.0)
    if normalization == "sequence":
        return mask_float / (jnp.maximum(lengths, 1.0)[:, None] * rows)
    return mask_float / (rows * constant_length)


def k3(log_ratio: jax.Array) -> jax.Array:
    """The estimator exp(x) - x - 1 of KL(p || q) with x = log q - log p at a sample of p.

    Unbiased, never negative, of low variance (Schulman, "Approximating KL divergence", 2020,
    where it is k3; DeepSeekMath, arXiv 2402.03300, equation 4).
    """
    return jnp.expm1(log_ratio) - log_ratio


def objective(
    config: ObjectiveConfig,
    logprobs: jax.Array,
    entropies: jax.Array,
    old_logprobs: jax.Array,
    advantages: jax.Array,
    mask: jax.Array,
    weights: jax.Array,
    reference_logprobs: jax.Array | None = None,
) -> tuple[jax.Array, ObjectiveSums]:
    """The clipped surrogate loss of some answers, and what to report of it.

    With x = logprobs - old_logprobs, the ratio is exp(x) for each token, or exp(mean of x over
    the answer) for all tokens of it (GSPO). A token's loss is
    -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) + kl_coef * k3(reference - now),
    and the loss is the sum of weight times token loss.

    Args:
      config: the options.
      logprobs: f32[..., M] of the answer tokens under the current policy; differentiated.
      entropies: f32[..., M] of the current policy in nats; only reported.
      old_logprobs: f32[..., M] under the policy that sampled.
      advantages: f32[...], one an answer.
      mask: bool[..., M], tokens that take part; the other entries may hold anything finite.
      weights: f32[..., M] from `token_weights` over the whole global batch.
      reference_logprobs: f32[..., M] under the reference model; needed if `config.kl_coef` > 0.

    Returns:
      The loss f32[] and the sums.

    Raises:
      ValueError: `config.kl_coef` > 0 without `reference_logprobs`.
    """
    if config.kl_coef > 0 and reference_logprobs is None:
        raise ValueError(f"kl_coef={config.kl_coef}: needs reference_logprobs, got None")
    # Before any exp: what stands in padding must neither overflow nor reach the gradient.
    log_ratio = jnp.where(mask, logprobs - old_logprobs, 0.0)
    token_log_ratio = log_ratio
    if config.ratio_level == "sequence":
        lengths = jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
        mean = jnp.sum(log_ratio, axis=-1, keepdims=True) / lengths
        log_ratio = jnp.broadcast_to(mean, log_ratio.shape)
    ratio = jnp.exp(log_ratio)
    advantage = advantages[..., None]
    low, high = 1.0 - config.clip_low, 1.0 + config.clip_high
    loss = -jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    kl_reference = jnp.zeros_like(loss)
    if reference_logprobs is not None:
        kl_reference = k3(jnp.where(mask, reference_logprobs - logprobs, 0.0))
        loss = loss + config.kl_coef * kl_reference

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(mask, values, 0.0), dtype=jnp.float32)

    sums = ObjectiveSums(
        tokens=total(jnp.ones_like(ratio)),
        entropy=total(entropies),
        kl_old=total(k3(token_log_ratio)),
        kl_reference=total(kl_reference),
        clip_low=total((ratio < low) & (advantage < 0)),
        clip_high=total((ratio > high) & (advantage > 0)),
        ratio_min=jnp.min(jnp.where(mask, ratio, jnp.inf)),
        ratio_max=jnp.max(jnp.where(mask, ratio, -jnp.inf)),
    )
    return jnp.sum(weights * loss), jax.lax.stop_gradient(sums)
