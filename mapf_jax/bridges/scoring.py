"""Answers of any trainer judged together: records and texts in, rewards out."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mapf_jax import formats
from mapf_jax.answer_reward import AnswerRewards, RewardConfig, answer_rewards
from mapf_jax.padding import pad_instance, stack_padded
from mapf_jax.solver.batch import WIDTHS
from mapf_jax.text import plans_from_texts
from mapf_jax.types import INFINITE_COST

#: What a record must hold for its answers to be judged.
FIELDS = ("map", "starts", "goals", "cost")


@dataclasses.dataclass(frozen=True)
class Scores:
    """Judgements on N answers.

    Attributes:
      rewards: the reward of each, and what it is made of.
      valid: bool[N], all eight checks hold.
      optimal: bool[N], valid and of the optimal cost.
      num_tokens: i64[N], tokens of each answer.
    """

    rewards: AnswerRewards
    valid: np.ndarray
    optimal: np.ndarray
    num_tokens: np.ndarray

    def components(self, index: int) -> dict[str, float]:
        """What the reward of one answer is made of, by name, for logs."""
        return {
            "reward_accuracy": float(self.rewards.accuracy[index]),
            "reward_length": float(self.rewards.length[index]),
            "valid": float(self.valid[index]),
            "optimal": float(self.optimal[index]),
            "num_tokens": float(self.num_tokens[index]),
        }


def score(
    records: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    num_tokens: Sequence[int],
    short_fraction: float,
    config: RewardConfig,
) -> Scores:
    """Judges `texts[i]` as the answer to `records[i]`, all in one batch.

    Args:
      records: N records as `formats` has them, of which `FIELDS` are read; N >= 1.
      texts: N answers, whatever they hold.
      num_tokens: tokens of each answer.
      short_fraction: moving average of the share of short answers, which fixes the weights.
      config: the reward.

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
    batch = stack_padded(instances)
    # Few widths, so that batches of different lakes share compiled programs.
    width, agents = batch.blocked.shape[-1], batch.starts.shape[-2]
    batch = pad_instance(batch, next((w for w in WIDTHS if w >= width), width), agents)
    verdict = formats.judge(batch, plans_from_texts(texts, agents))
    valid = np.asarray(verdict.valid)
    gap = np.where(valid, np.asarray(verdict.cost) - optimum, INFINITE_COST)
    verdict = dataclasses.replace(verdict, gap=gap)
    tokens = np.asarray(num_tokens, np.int64)
    rewards = answer_rewards(verdict, optimum, tokens, short_fraction, config)
    return Scores(rewards, valid, valid & (gap == 0), tokens)


def text_of(completion: Any) -> str:
    """The text of a completion: itself, or the content of the last of its chat messages.

    A content in parts, as some chat formats have it, gives the text of its parts.
    """
    if isinstance(completion, str):
        return completion
    content = _content(completion[-1]) if completion else None
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part["text"] for part in content if part.get("type") == "text")


def _content(message: Any) -> Any:
    """Messages are mappings in some libraries and objects in others."""
    return message.get("content") if isinstance(message, Mapping) else message.content
