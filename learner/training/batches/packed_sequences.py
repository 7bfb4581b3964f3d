"""Sequences that hold completions to several prompts, and the log-probabilities of their tokens.

A sequence consists of parts and padding; a part is a prompt followed by one or more completions to
it. A completion sees its own prompt and itself, as if it stood alone. Everything is an array of
tokens: what a completion has once, each of its tokens has.

Supervised training and the likelihood of given completions have one part in each sequence, so that
attention can leave out what completions do not see of each other (`SharedPrompt`).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from learner.decoder import model
from learner.decoder.attention import Segments, SharedPrompt
from learner.decoder.config import DecoderConfig
from learner.decoder.logprobs import token_logprobs
from learner.training.batches import packing
from learner.training.rollout import Rollout


class OnePart(NamedTuple):
    """Bounds of sequences that consist of one part each.

    Attributes:
      completions: of a part, at most. The others only count if this is above 1.
      prompt_capacity: slots that hold the longest prompt.
      window: slots that hold the longest completion.
    """

    completions: int
    prompt_capacity: int
    window: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedSequences:
    """R sequences of T tokens; all arrays are [R, T].

    Attributes:
      tokens: i32.
      positions: i32, in the prompt, and for a completion after it.
      prompts: i32, the number of the token's part in its sequence, from 1; 0 in the padding.
      completions: i32, the number of the token's completion in its sequence, from 1; 0 in prompts
        and in the padding.
      sources: i32, the slot that predicts a token of a completion; 0 elsewhere.
      weights: f32, of the token in the loss; 0 of those that are not in it.
      sampled_logprobs: f32, the sampler's.
      advantages: f32.
      old_logprobs: f32, the trainer's before the first update of the step; None where the sampler's
        or the current ones are used for them.
      one_part: static, if no sequence has more than one part.
    """

    tokens: Any
    positions: Any
    prompts: Any
    completions: Any
    sources: Any
    weights: Any
    sampled_logprobs: Any
    advantages: Any
    old_logprobs: Any = None
    one_part: OnePart | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )

    @classmethod
    def empty(cls, sequences: int, length: int, pad_id: int) -> "PackedSequences":
        """Sequences of padding, as NumPy arrays to write into."""
        integers = [np.zeros((sequences, length), np.int32) for _ in range(4)]
        floats = [np.zeros((sequences, length), np.float32) for _ in range(3)]
        return cls(np.full((sequences, length), pad_id, np.int32), *integers, *floats)

    @classmethod
    def of_parts(
        cls,
        parts: Sequence[tuple[Sequence[int], Sequence[np.ndarray]]],
        sequences: int,
        length: int,
        pad_id: int,
        bounds: OnePart,
    ) -> tuple["PackedSequences", list[list[slice]]]:
        """Sequences of one part each, a prompt and its completions; surplus ones are empty.

        Returns:
          The sequences, whose weights are 0, and the slots of each part's completions.

        Raises:
          ValueError: a prompt is empty; the message has its number.
        """
        batch = dataclasses.replace(cls.empty(sequences, length, pad_id), one_part=bounds)
        for i, (prompt, _) in enumerate(parts):
            if not len(prompt):
                raise ValueError(f"prompts[{i}]: is empty, at least one token is needed")
        return batch, [batch.add(i, 0, *part)[1] for i, part in enumerate(parts)]

    def layout(self) -> Segments | SharedPrompt | None:
        """What tokens see, for attention; None if that is all before them in their sequence."""
        if self.one_part is None:
            return Segments(self.prompts, self.completions)
        count, *sizes = self.one_part
        if count == 1:
            return None
        prompts = jnp.sum((self.prompts > 0) & (self.completions == 0), axis=1)
        own = self.completions[:, :, None] == jnp.arange(1, count + 1)
        lengths = jnp.sum(own, axis=1)
        starts = prompts[:, None] + jnp.cumsum(lengths, axis=1) - lengths
        return SharedPrompt(prompts, starts, lengths, *sizes)

    def add(
        self, sequence: int, begin: int, prompt: Sequence[int], completions: Sequence[np.ndarray]
    ) -> tuple[int, list[slice]]:
        """Writes a part into a sequence; the numbers of parts and completions go on.

        Args:
          sequence: its number.
          begin: its first free slot.
          prompt: token ids, at least one.
          completions: token ids of each.

        Returns:
          The next free slot, and the slots of each completion.

        Raises:
          ValueError: the prompt is empty.
        """
        if not len(prompt):
            raise ValueError("a prompt is empty, at least one token is needed")
        end = begin + len(prompt)
        self.tokens[sequence, begin:end] = prompt
        self.positions[sequence, begin:end] = np.arange(len(prompt))
        last, first, slots = end - 1, begin, []
        number = int(self.completions[sequence].max())
        for completion in completions:
            begin, end, number = end, end + len(completion), number + 1
            slots.append(slice(begin, end))
            self.tokens[sequence, begin:end] = completion
            self.positions[sequence, begin:end] = np.arange(len(completion)) + len(prompt)
            self.completions[sequence, begin:end] = number
            self.sources[sequence, begin:end] = [last, *range(begin, end - 1)][: len(completion)]
        self.prompts[sequence, first:end] = self.prompts[sequence].max() + 1
        return end, slots


def micro_batches(
    batch: Rollout,
    chosen: np.ndarray,
    advantages: np.ndarray,
    weights: np.ndarray,
    shapes: Sequence[packing.Shape],
    pad_id: int,
) -> Iterator[PackedSequences]:
    """Packs the chosen completions.

    Args:
      batch: N completions of at most M tokens.
      chosen: i64[n], ascending numbers of those to use.
      advantages: f32[N].
      weights: f32[N, M], computed over all completions of the update.
      shapes: of `packing.shapes`.
    """
    group = chosen // batch.group_size
    prompts = np.array(list(map(len, batch.prompts)))[group]
    lengths = batch.lengths[chosen].astype(np.int64)
    for (sequences, length), contents in packing.pack(prompts, lengths, group, shapes):
        packed = PackedSequences.empty(sequences, length, pad_id)
        for sequence, parts in enumerate(contents):
            begin = 0
            for numbers in parts:
                own = chosen[numbers]
                completions = [batch.tokens[i, : batch.lengths[i]] for i in own]
                prompt = batch.prompts[own[0] // batch.group_size]
                begin, slots = packed.add(sequence, begin, prompt, completions)
                for i, there in zip(own, slots, strict=True):
                    packed.weights[sequence, there] = weights[i, : batch.lengths[i]]
                    packed.sampled_logprobs[sequence, there] = batch.logprobs[i, : batch.lengths[i]]
                    packed.advantages[sequence, there] = advantages[i]
        yield packed


def packed_logprobs(
    params: Any,
    config: DecoderConfig,
    batch: PackedSequences,
    temperature: float = 1.0,
    vocab_size: int | None = None,
    entropy_gradient: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of tokens with a weight, and entropies where they were predicted.

    Args:
      temperature: the logits are divided by it, as in sampling.
      vocab_size: ids from there on, the pad id not among them, are no part of the distribution.
      entropy_gradient: whether gradients flow through the entropies.

    Returns:
      f32[R, T] log-probabilities and f32[R, T] entropies in nats. Those of other tokens are finite
      and mean nothing.
    """
    chex.assert_equal_shape([batch.tokens, batch.positions, batch.sources])
    hidden = model.hidden_states(params, config, batch.tokens, batch.positions, batch.layout())
    return token_logprobs(
        jnp.take_along_axis(hidden, batch.sources[:, :, None], axis=1),
        model.unembedding(params, config),
        batch.tokens,
        temperature=temperature,
        vocab_size=vocab_size,
        entropy_gradient=entropy_gradient,
        needed=batch.weights > 0,
    )
