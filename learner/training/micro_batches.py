"""The completions of a rollout in rows, and the rows in micro-batches of few shapes."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from learner.training.completion_rows import CompletionRows, pack_rows
from learner.training.grpo_config import GRPOConfig
from learner.training.rollout import Rollout


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """R rows of A completions of at most M tokens; supervised training needs the first two fields.

    Attributes:
      rows: prompts and completions.
      weights: f32[R, A, M], of the tokens in the loss.
      sampled_logprobs: f32[R, A, M], the sampler's.
      advantages: f32[R, A].
      old_logprobs: f32[R, A, M] by the trainer, or None where the sampler's or the current ones
        stand for them.
    """

    rows: CompletionRows
    weights: Any
    sampled_logprobs: Any = None
    advantages: Any = None
    old_logprobs: Any = None


def micro_batches(
    config: GRPOConfig,
    batch: Rollout,
    chosen: np.ndarray,
    advantages: np.ndarray,
    weights: np.ndarray,
    pad_id: int,
) -> Iterator[MicroBatch]:
    """The chosen completions in rows, sorted by length, `micro_batch_rows` at a time.

    Args:
      batch: N completions.
      chosen: i64[n], ascending numbers of those to use.
      advantages: f32[N].
      weights: f32[N, M], of all completions of the update together, whatever the cuts.
    """
    group, width = chosen // config.group_size, config.completions_per_row
    rows = [
        of_prompt[first : first + width]
        for of_prompt in (chosen[group == prompt] for prompt in range(len(batch.prompts)))
        for first in range(0, len(of_prompt), width)
    ]

    def prompt(row: np.ndarray) -> Any:
        return batch.prompts[row[0] // config.group_size]

    totals = np.array([len(prompt(row)) + batch.lengths[row].sum() for row in rows])
    order = np.argsort(totals, kind="stable")
    for first in range(0, len(rows), config.micro_batch_rows):
        part = order[first : first + config.micro_batch_rows]
        some = [rows[i] for i in part]
        longest = max(int(batch.lengths[row].max()) for row in some)
        length, window = config.row_shape(int(totals[part].max()), longest)
        # Index N stands for a completion that is not there.
        index = np.full((config.micro_batch_rows, width), len(batch.lengths))
        for i, row in enumerate(some):
            index[i, : len(row)] = row

        def gather(values: np.ndarray, index: np.ndarray = index) -> Any:
            return np.concatenate([values, np.zeros_like(values[:1])])[index]

        prompts = [prompt(row) for row in some]
        yield MicroBatch(
            rows=pack_rows(
                prompts,
                [[batch.tokens[i, : batch.lengths[i]] for i in row] for row in some],
                config.micro_batch_rows,
                width,
                length,
                pad_id,
                config.prompt_capacity(length, max(map(len, prompts))),
            ),
            sampled_logprobs=gather(batch.logprobs[:, :window]),
            advantages=gather(advantages),
            weights=gather(weights[:, :window]),
        )
