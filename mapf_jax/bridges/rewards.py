"""Rewards in other trainers: records and texts in, rewards out, verified as one batch.

TRL's `GRPOTrainer` and `RLOOTrainer` take `reward_funcs=MapfReward()`.

verl takes the path `pkg://mapf_jax.bridges.rewards` of a `custom_reward_function` and the name
`compute_score`, or `compute_scores` where the reward manager passes whole batches. Options go into
its `reward_kwargs`. `ground_truth` is a record as `formats` has it, as JSON text or as a mapping;
`mapf_jax export` writes it. verl passes answers as text and scores them in several processes, so
two things differ from this project's trainer: the named tokenizer counts the tokens again (without
the end token), and the weights are constant, given by the option `short_fraction`. Without a
tokenizer the length is unknown, and the score is R_acc alone.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mapf_jax import formats
from mapf_jax.answer_reward import RewardConfig, answer_rewards, next_short_fraction
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
      ValueError: a record is not an instance or lacks its optimal cost, or a valid answer costs
        less, which proves the record wrong, whatever wrote the answer; the message names its id, or
        its place where it has none, and the field.
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
    if (gap < 0).any():
        i = int(np.argmin(gap))
        raise ValueError(
            f"{names[i]}: cost: {optimum[i]} is stored as the optimum, but an answer is valid and "
            f"costs {verdict.cost[i]}"
        )
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


class MapfReward:
    """R = w_acc R_acc + w_len R_len of `mapf_jax.answer_reward` as a reward function of TRL.

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
    ) -> list[float | None]:
        """Rewards of N completions, None for rows of another task.

        These are the rows where a needed column is None, NaN or empty, as data sets fill it.

        Args:
          completions: N texts, or N lists of chat messages; whatever else is read as no text.
          completion_ids: tokens of each, whose number is the length.
          log_metric: TRL's logger of one number.
          **columns: the data set's columns, N values each; others are ignored.

        Raises:
          ValueError: a column is missing or does not hold an instance with its optimum; a valid
            completion that costs less proves that.
        """
        missing = [field for field in FIELDS if field not in columns]
        if missing:
            raise ValueError(f"columns: {missing} missing in the data set, needed: {FIELDS}")
        names = [field for field in ("id", "status", *FIELDS) if field in columns]
        rows = zip(*(columns[name] for name in names), strict=True)
        records = [dict(zip(names, row, strict=True)) for row in rows]
        ours = [not any(_empty(record[field]) for field in FIELDS) for record in records]
        rewards: list[float | None] = [None] * len(records)
        if not any(ours):
            return rewards
        records = list(itertools.compress(records, ours))
        chosen: Iterable[Any] = itertools.compress(completions, ours)
        texts = [text_of(completion) for completion in chosen]
        num_tokens = [len(ids) for ids in itertools.compress(completion_ids, ours)]
        scores = score(records, texts, num_tokens, self.short_fraction, self.config)
        self.short_fraction = next_short_fraction(
            self.short_fraction, scores["num_tokens"], self.config
        )
        if log_metric is not None:
            for name in set(scores) - {"reward", "num_tokens"}:
                log_metric(name, float(np.mean(scores[name])))
        for place, reward in zip(np.flatnonzero(ours), scores["reward"].tolist(), strict=True):
            rewards[place] = reward
        return rewards


def text_of(completion: Any) -> str:
    """The text of a completion: itself, or the content of the last of its chat messages.

    Of content in parts it is the text of these. Where there is no message or no text, or what is
    there is none of these, it is empty.
    """
    if isinstance(completion, str):
        return completion
    message = completion
    if isinstance(completion, Sequence):
        message = completion[-1] if completion else None
    content = message.get("content") if isinstance(message, Mapping) else message
    parts = content if isinstance(content, Sequence) and not isinstance(content, str) else [content]
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def _empty(value: Any) -> bool:
    """Whether a column's value is what data sets hold in rows that lack it."""
    if isinstance(value, (float, np.floating)):
        return bool(np.isnan(value))
    return value is None or (hasattr(value, "__len__") and len(value) == 0)


def compute_scores(
    *,
    solution_strs: Sequence[str],
    ground_truths: Sequence[str | Mapping[str, Any]],
    tokenizer: str | None = None,
    short_fraction: float = 1.0,
    short_length: int = RewardConfig.short_length,
    long_length: int = RewardConfig.long_length,
    **ignored: Any,
) -> list[dict[str, float]]:
    """Scores of N answers as verl asks for them, verified in one batch.

    Args:
      solution_strs: N answers.
      ground_truths: N records with `map`, `starts`, `goals` and `cost`.
      tokenizer: folder or hub name of the policy's tokenizer, to count tokens; None: no length.
      short_fraction: fraction of short answers, which gives the weights; from 0.9 on they are
        (0.8, 0.2).
      short_length: L1, tokens up to which length costs nothing.
      long_length: L2, tokens from which length costs most.
      **ignored: whatever else verl passes, such as `data_sources` and `extra_infos`.

    Returns:
      For each answer `score`, `acc` (it is valid) and the parts of the score by name.

    Raises:
      ValueError: a ground truth is not an instance with its optimum; a valid answer that costs less
        proves that.
    """
    records = [json.loads(truth) if isinstance(truth, str) else truth for truth in ground_truths]
    num_tokens = [0] * len(records)
    if tokenizer is not None:
        encode = _tokenizer(tokenizer)
        num_tokens = [len(encode(text).input_ids) for text in solution_strs]
    config = RewardConfig(short_length, long_length)
    scores = score(records, solution_strs, num_tokens, short_fraction, config)
    total = scores["reward_accuracy" if tokenizer is None else "reward"]
    columns = {"score": total, "acc": scores["valid"], **scores}
    return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(total))]


def compute_score(
    *, solution_str: str, ground_truth: str | Mapping[str, Any], **options: Any
) -> dict[str, float]:
    """The score of one answer; options and result as of `compute_scores`."""
    (result,) = compute_scores(
        solution_strs=[solution_str], ground_truths=[ground_truth], **options
    )
    return result


@functools.cache
def _tokenizer(name: str) -> Any:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    return functools.partial(tokenizer, add_special_tokens=False)
