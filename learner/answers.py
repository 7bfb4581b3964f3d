"""Prompt and answer rows in fixed shapes, and the log-probabilities of their answer tokens.

The one forward pass that supervised training and GRPO share. A row is prompt, then answer, then
padding on the right. Only the positions that predict an answer token go through the vocabulary
projection.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.logprobs import token_logprobs
from learner.qwen3 import model
from learner.qwen3.config import Qwen3Config


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AnswerRows:
    """R rows of prompt and answer.

    Attributes:
      tokens: i32[R, T], prompt, answer, padding.
      prompt_lengths: i32[R], at least 1.
      answer_lengths: i32[R], stop token included; 0 in rows that only fill the shape.
    """

    tokens: jax.Array
    prompt_lengths: jax.Array
    answer_lengths: jax.Array


def pack_rows(
    prompts: Sequence[Sequence[int] | np.ndarray],
    answers: Sequence[Sequence[int] | np.ndarray],
    rows: int,
    length: int,
    pad_id: int,
) -> AnswerRows:
    """Rows as NumPy arrays of the shape asked for; missing rows have no answer.

    Args:
      prompts: token ids, at least one each.
      answers: as many, token ids with the stop token if there was one.
      rows: R, at least `len(prompts)`.
      length: T, at least the longest prompt and answer together.
      pad_id: what fills the rest.

    Raises:
      ValueError: a prompt is empty, or something does not fit.
    """
    if len(prompts) != len(answers) or len(prompts) > rows:
        raise ValueError(
            f"rows={rows}: cannot hold {len(prompts)} prompts with {len(answers)} answers"
        )
    tokens = np.full((rows, length), pad_id, np.int32)
    # A filler row still needs a token to attend to, so that nothing in it is undefined.
    prompt_lengths = np.ones(rows, np.int32)
    answer_lengths = np.zeros(rows, np.int32)
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        total = len(prompt) + len(answer)
        if not len(prompt):
            raise ValueError(f"prompts[{i}]: is empty, at least one token is needed")
        if total > length:
            raise ValueError(f"length={length}: row {i} takes {total} tokens")
        tokens[i, : len(prompt)] = prompt
        tokens[i, len(prompt) : total] = answer
        prompt_lengths[i], answer_lengths[i] = len(prompt), len(answer)
    return AnswerRows(tokens, prompt_lengths, answer_lengths)  # type: ignore[arg-type]


def answer_logprobs(
    params: Any,
    config: Qwen3Config,
    rows: AnswerRows,
    window: int,
    temperature: float = 1.0,
    vocab_size: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of the answer tokens, and entropies where they were predicted.

    Args:
      params: the model's parameters.
      config: the model.
      rows: R rows.
      window: M, at least the longest answer.
      temperature: the logits are divided by it, as in sampling.
      vocab_size: ids from there on, the pad id not among them, are no part of the distribution.

    Returns:
      f32[R, M] log-probabilities and f32[R, M] entropies in nats. Beyond a row's answer they
      are finite and mean nothing.
    """
    length = rows.tokens.shape[1]
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), rows.tokens.shape)
    valid = positions < (rows.prompt_lengths + rows.answer_lengths)[:, None]
    hidden = model.hidden_states(params, config, rows.tokens, positions, valid)
    # Token t of the answer stands at prompt_length + t and is predicted one position earlier.
    answer = rows.prompt_lengths[:, None] + jnp.arange(window, dtype=jnp.int32)[None, :]
    answer = jnp.minimum(answer, length - 1)
    targets = jnp.take_along_axis(rows.tokens, answer, axis=1)
    hidden = jnp.take_along_axis(hidden, (answer - 1)[:, :, None], axis=1)
    return token_logprobs(
        hidden,
        model.unembedding(params, config),
        targets,
        temperature=temperature,
        vocab_size=vocab_size,
    )
