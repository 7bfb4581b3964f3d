"""Prompts with completions in sequences of one prompt each, and their log-probabilities.

For supervised training and for the likelihood of given completions. A sequence is a prompt, then
one or more completions to it, then padding on the right. The completions do not see each other, so
a prompt goes through the model once for all completions in its sequence. Only the positions that
predict a completion token go through the vocabulary projection.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from learner.decoder import model
from learner.decoder.attention import SharedPrompt
from learner.decoder.config import DecoderConfig
from learner.decoder.logprobs import token_logprobs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """R sequences, each a prompt and up to A completions of at most M tokens.

    Attributes:
      tokens: i32[R, T], prompt, its completions one after another, padding.
      prompt_lengths: i32[R], at least 1.
      completion_lengths: i32[R, A], stop tokens included; 0 for an absent completion.
      prompt_capacity: static, slots that hold the longest prompt; only counts where A > 1.
      given: i32[R, A], tokens at the beginning of each completion that are the end of its own
        prompt, so that nothing predicts them; None for none.
      given_capacity: static, at least the largest of them.
      weights: f32[R, A, M], of the tokens in the loss.
    """

    tokens: Any
    prompt_lengths: Any
    completion_lengths: Any
    prompt_capacity: int = dataclasses.field(metadata={"static": True})
    given: Any = None
    given_capacity: int = dataclasses.field(default=0, metadata={"static": True})
    weights: Any = None


def pack_sequences(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[Sequence[int] | np.ndarray]],
    sequences: int,
    completions_per_sequence: int,
    length: int,
    pad_id: int,
    prompt_capacity: int,
) -> MicroBatch:
    """NumPy arrays of the given shape, without weights; surplus sequences have no completion.

    Args:
      prompts: token ids, at least one each.
      completions: for each prompt at most A completions, each token ids with the stop token if
        there was one.
      sequences: R, at least `len(prompts)`.
      completions_per_sequence: A.
      length: T, at least the longest prompt and its completions together.
      pad_id: what fills the rest.
      prompt_capacity: as in `MicroBatch`, from the longest prompt to T.

    Raises:
      ValueError: a prompt is empty.
    """
    tokens = np.full((sequences, length), pad_id, np.int32)
    # A filler sequence still needs a token to attend to, so that nothing in it is undefined.
    prompt_lengths = np.ones(sequences, np.int32)
    completion_lengths = np.zeros((sequences, completions_per_sequence), np.int32)
    for i, (prompt, given) in enumerate(zip(prompts, completions, strict=True)):
        if not len(prompt):
            raise ValueError(f"prompts[{i}]: is empty, at least one token is needed")
        sequence = np.concatenate([prompt, *given])
        tokens[i, : len(sequence)] = sequence
        prompt_lengths[i] = len(prompt)
        completion_lengths[i, : len(given)] = [len(completion) for completion in given]
    return MicroBatch(tokens, prompt_lengths, completion_lengths, prompt_capacity)


def completion_logprobs(
    params: Any,
    config: DecoderConfig,
    batch: MicroBatch,
    window: int,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of the completion tokens, and entropies where they were predicted.

    Args:
      batch: R sequences of A completions.
      window: M, at least the longest completion, its given tokens not counted.

    Returns:
      f32[R, A, M] log-probabilities and f32[R, A, M] entropies in nats. Beyond a completion they
      are finite and mean nothing.
    """
    chex.assert_rank([batch.tokens, batch.prompt_lengths, batch.completion_lengths], [2, 1, 2])
    count, length = batch.tokens.shape
    prompt = batch.prompt_lengths[:, None]
    ends = prompt + jnp.cumsum(batch.completion_lengths, axis=1)
    starts = ends - batch.completion_lengths

    slots = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), batch.tokens.shape)
    completion = jnp.sum(slots[:, :, None] >= ends[:, None, :], axis=2)  # A after the last one.
    # A single completion sees its whole sequence: causal attention without a mask.
    shared = None
    if starts.shape[1] > 1:
        shared = SharedPrompt(
            batch.prompt_lengths,
            starts,
            batch.completion_lengths,
            batch.prompt_capacity,
            min(window + batch.given_capacity, length),
        )
    start = jnp.take_along_axis(starts, jnp.minimum(completion, starts.shape[1] - 1), axis=1)
    positions = jnp.where(slots < prompt, slots, prompt + slots - start)
    hidden = model.hidden_states(params, config, batch.tokens, positions, shared)

    # Token t of a completion is at start + t, predicted by the token before it, or for the first
    # token by the last one of the prompt.
    times = jnp.broadcast_to(jnp.arange(window, dtype=jnp.int32), (*starts.shape, window))
    if batch.given is not None:
        times = times + batch.given[:, :, None]
    target = jnp.minimum(starts[:, :, None] + times, length - 1)
    source = jnp.where(times == 0, prompt[:, :, None] - 1, target - 1)
    target, source = (slot.reshape(count, -1) for slot in (target, source))
    logprobs, entropies = token_logprobs(
        jnp.take_along_axis(hidden, source[:, :, None], axis=1),
        model.unembedding(params, config),
        jnp.take_along_axis(batch.tokens, target, axis=1),
        entropy_gradient=False,
    )
    shape = (count, starts.shape[1], window)
    return logprobs.reshape(shape), entropies.reshape(shape)
