"""The reward as verl calls it.

`custom_reward_function` with path `pkg://mapf_jax.bridges.verl_reward` and name `compute_score`, or
`compute_scores` where the reward manager passes whole batches. Options go into its
`reward_kwargs`. `ground_truth` is a record as `formats` has it, as JSON text or as a mapping;
`mapf_jax export` writes it.

verl passes answers as text and scores them in several processes, so two things differ from this
project's trainer: the named tokenizer counts the tokens again (without the end token), and the
weights are constant, given by the option `short_fraction`. Without a tokenizer the length is
unknown, and the score is R_acc alone.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mapf_jax.answer_reward import RewardConfig
from mapf_jax.bridges.scoring import score


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
    """Scores of N answers, verified in one batch.

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
      ValueError: a ground truth is not an instance with its optimum.
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

    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    return functools.partial(tokenizer, add_special_tokens=False)
