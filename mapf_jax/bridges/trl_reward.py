"""The reward as TRL's `GRPOTrainer` and `RLOOTrainer` call it (`reward_funcs=MapfReward()`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mapf_jax.answer_reward import RewardConfig, next_short_fraction
from mapf_jax.bridges.scoring import FIELDS, score


class MapfReward:
    """R = w_acc R_acc + w_len R_len of `mapf_jax.answer_reward` as a reward function.

    The data set needs the columns `map`, `starts`, `goals` and `cost`, as `mapf_jax export` writes
    them. All completions of a call are verified in one batch. The fractions of valid and optimal
    answers and the parts of the reward are logged.

    The weights follow the moving average `short_fraction` of the fraction of short answers, which
    every call updates after using it. Each process of a distributed run has its own, and a resumed
    run begins with the given one.
    """

    def __init__(self, config: RewardConfig | None = None, short_fraction: float = 0.0) -> None:
        self.config = config or RewardConfig()
        self.short_fraction = short_fraction
        self.__name__ = "mapf_reward"  # Its name in TRL's logs.

    def __call__(
        self,
        completions: Sequence[str] | Sequence[Sequence[Mapping[str, Any]]],
        completion_ids: Sequence[Sequence[int]],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Rewards of N completions.

        Args:
          completions: N texts, or N lists of chat messages.
          completion_ids: tokens of each, whose number is the length.
          log_metric: TRL's logger of one number.
          **columns: the data set's columns, N values each; others are ignored.

        Raises:
          ValueError: a column is missing or does not hold an instance with its optimum.
        """
        missing = [field for field in FIELDS if field not in columns]
        if missing:
            raise ValueError(f"columns: {missing} missing in the data set, needed: {FIELDS}")
        names = [field for field in ("id", *FIELDS) if field in columns]
        rows = zip(*(columns[name] for name in names), strict=True)
        records = [dict(zip(names, row, strict=True)) for row in rows]
        texts = [text_of(completion) for completion in completions]
        num_tokens = [len(ids) for ids in completion_ids]
        scores = score(records, texts, num_tokens, self.short_fraction, self.config)
        self.short_fraction = next_short_fraction(
            self.short_fraction, scores["num_tokens"], self.config
        )
        if log_metric is not None:
            for name in set(scores) - {"reward", "num_tokens"}:
                log_metric(name, float(np.mean(scores[name])))
        return scores["reward"].tolist()


def text_of(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a completion: itself, or the content of the last of its chat messages."""
    return completion if isinstance(completion, str) else completion[-1]["content"] or ""
