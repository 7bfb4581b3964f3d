"""Scores of answers for any trainer: records and texts in, rewards out, verified as one batch."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mapf_jax import formats
from mapf_jax.answer_reward import RewardConfig, answer_rewards
from mapf_jax.padding import WIDTHS, stack_padded
from mapf_jax.text import plans_from_texts
from mapf_jax.types import INFINITE_COST

#: What a record must hold for its answers to be scored.
FIELDS = ("map", "starts", "goals", "cost")


def score(
    records: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    num_tokens: Sequence[int],
    short_fraction: float,
    config: RewardConfig,
) -> dict[str, np.ndarray]:
    """Scores `texts[i]` as the answer to `records[i]`, all in one batch.

    Args:
      records: N records as `formats` has them, of which `FIELDS` are read; N >= 1.
      texts: N answers, whatever they hold.
      num_tokens: tokens of each answer.
      short_fraction: moving average of the fraction of short answers, which fixes the weights.
      config: the reward.

    Returns:
      Columns of N numbers: `reward` and its parts `reward_accuracy` and `reward_length`, the
      `weight_accuracy` of the first part, `valid` (all eight checks hold), `optimal` (valid and of
      the optimal cost) and `num_tokens`.

    Raises:
      ValueError: a record is not an instance or lacks its optimal cost; the message names its id,
        or its place where it has none, and the field.
    """
    names = [str(record.get("id", f"record {i}")) for i, record in enumerate(records)]
    optimum = np.empty(len(records), np.int64)
    instances = []
    for i, (record, name) in enumerate(zip(records, names, strict=True)):
        instances.append(formats.instance_from_record({**record, "id": name}, name))
        cost = formats.optimum_from_record(record, name)
        if cost is None:
            raise ValueError(f"{name}: cost: missing, the reward needs the optimum")
        optimum[i] = cost
    # Few widths, so that batches of different lakes share compiled programs.
    batch = stack_padded(instances, WIDTHS)
    verdict = formats.verify_in_blocks(batch, plans_from_texts(texts, batch.starts.shape[-2]))
    gap = np.where(verdict.valid, np.asarray(verdict.cost) - optimum, INFINITE_COST)
    verdict = dataclasses.replace(verdict, gap=gap)
    rewards = answer_rewards(verdict, optimum, np.asarray(num_tokens), short_fraction, config)
    return {
        "reward": rewards.total,
        "reward_accuracy": rewards.accuracy,
        "reward_length": rewards.length,
        "weight_accuracy": np.full(len(records), rewards.accuracy_weight),
        "valid": np.asarray(verdict.valid),
        "optimal": gap == 0,
        "num_tokens": np.asarray(num_tokens),
    }
