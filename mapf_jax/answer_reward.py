"""The reward of a text answer, from the verifier's verdict and the answer's length.

The formulas are those of "From Trainee to Trainer" (arXiv 2606.17682), as secondary sources state
them. They are not the simulator's rewards of moves (`env.RewardWeights`).
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from mapf_jax.types import Verdict


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """What the publication's reward leaves open, and its two lengths.

    Attributes:
      short_length: L1, response tokens up to which length costs nothing.
      long_length: L2 > L1, response tokens from which length costs most.
      average_decay: decay in [0, 1) of the moving average of the fraction of short responses; the
        publication gives none.
    """

    short_length: int = 1500
    long_length: int = 4096
    average_decay: float = 0.9

    def __post_init__(self) -> None:
        if self.short_length < 1:
            raise ValueError(f"short_length={self.short_length}: allowed are integers from 1 up")
        if self.long_length <= self.short_length:
            raise ValueError(
                f"long_length={self.long_length}: allowed are integers above "
                f"short_length={self.short_length}"
            )
        if not (math.isfinite(self.average_decay) and 0 <= self.average_decay < 1):
            raise ValueError(f"average_decay={self.average_decay}: allowed are numbers in [0, 1)")


def accuracy_reward(verdict: Verdict, optimum: np.ndarray) -> np.ndarray:
    """R_acc, f32[N]: 0 if a check fails, else 1 - 0.7 c / c_max for a gap c up to c_max, then 0.3.

    c_max is twice the optimum.
    """
    gap = np.asarray(verdict.gap, np.float32)
    largest = 2.0 * np.asarray(optimum, np.float32)
    reward = np.where(gap <= largest, 1.0 - 0.7 * gap / np.maximum(largest, 1.0), 0.3)
    return np.where(np.asarray(verdict.valid), reward, 0.0).astype(np.float32)


def length_reward(num_tokens: np.ndarray, config: RewardConfig) -> np.ndarray:
    """R_len, f32[N]: 0 up to L1, falling linearly to -1 at L2, then -1."""
    over = np.asarray(num_tokens, np.float32) - config.short_length
    return -np.clip(over / (config.long_length - config.short_length), 0.0, 1.0)


def reward_weights(short_fraction: float) -> tuple[float, float]:
    """(w_acc, w_len) for the moving average of the fraction of responses of at most L1 tokens.

    (0.5, 0.5) below 0.5, then linearly to (0.8, 0.2) at 0.9, then held.
    """
    accuracy = 0.5 + 0.3 * min(max((short_fraction - 0.5) / 0.4, 0.0), 1.0)
    return accuracy, 1.0 - accuracy


def next_short_fraction(
    short_fraction: float, num_tokens: np.ndarray, config: RewardConfig
) -> float:
    """The moving average `short_fraction` after N >= 1 responses of `num_tokens` i[N]."""
    decay = config.average_decay
    short = float(np.mean(np.asarray(num_tokens) <= config.short_length))
    return decay * short_fraction + (1 - decay) * short


class AnswerRewards(NamedTuple):
    """Rewards of N answers, and their parts.

    Attributes:
      total: f32[N], w_acc * accuracy + w_len * length.
      accuracy: f32[N], R_acc.
      length: f32[N], R_len.
      accuracy_weight: w_acc; w_len is 1 - w_acc.
    """

    total: np.ndarray
    accuracy: np.ndarray
    length: np.ndarray
    accuracy_weight: float


def answer_rewards(
    verdict: Verdict,
    optimum: np.ndarray,
    num_tokens: np.ndarray,
    short_fraction: float,
    config: RewardConfig,
) -> AnswerRewards:
    """R = w_acc R_acc + w_len R_len of N answers.

    Args:
      verdict: batch shape [N], with the gaps.
      optimum: i[N], optimal sum of costs.
      num_tokens: i[N], tokens of each answer.
      short_fraction: moving average of the fraction of short responses, before these.
      config: the reward.
    """
    accuracy, length = accuracy_reward(verdict, optimum), length_reward(num_tokens, config)
    w_accuracy, w_length = reward_weights(short_fraction)
    return AnswerRewards(w_accuracy * accuracy + w_length * length, accuracy, length, w_accuracy)
