"""From chats to completions, for training, validation, design and benchmarks alike."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from learner import tokens
from learner.chat import Completion, Message
from learner.decoder.config import DecoderConfig
from learner.devices import distributed
from learner.sampling.sampler import FinishReason, Sampler, Samples, SamplingParams
from learner.sampling.token_automaton import TokenAutomaton

# Folded into a call's key for the keys of endings. Not the number of any chat: with threefry,
# `split(key, n)[i]` is `fold_in(key, i)`.
_ENDINGS = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a completion that stopped too early is finished.

    Attributes:
      trigger: token ids that every completion must contain; appended where they are missing.
      automaton: which tokens may follow them.
      max_new_tokens: budget of what follows, stop token included.
    """

    trigger: tuple[int, ...]
    automaton: TokenAutomaton
    max_new_tokens: int


class Completer:
    """Completes chats with one way of sampling; compiled once for each shape.

    Attributes:
      sampler: the sampler of the completions.

    Args:
      model_config: the model.
      mesh: where parameters and sequences live.
      tokenizer: of `transformers`, with a chat template.
      sampling: how tokens are chosen; its stop tokens are replaced by the tokenizer's.
      sampling_slots: completions sampled at a time; bounds the memory of the key/value cache.
      thinking: let the chat template open the model's thinking.
      automaton: which tokens a completion may have; None allows all.
      ending: how completions are finished that a stop token ended before their trigger.
      segment_tokens: tokens that the device generates before it returns to the host.
      cache_fraction: of the samplers, see `Sampler`.

    Raises:
      ValueError: `thinking` with a chat template for which no model thinks.
    """

    def __init__(
        self,
        model_config: DecoderConfig,
        mesh: Mesh,
        tokenizer: Any,
        sampling: SamplingParams,
        sampling_slots: int,
        thinking: bool = False,
        automaton: TokenAutomaton | None = None,
        ending: Ending | None = None,
        segment_tokens: int = 32,
        cache_fraction: float = 1.0,
    ) -> None:
        if thinking:
            tokens.check_thinking(tokenizer)
        sampling = dataclasses.replace(sampling, stop_token_ids=tokens.stop_token_ids(tokenizer))

        def sampler(sampling: SamplingParams) -> Sampler:
            return Sampler(
                model_config,
                mesh,
                sampling,
                tokens.pad_id(tokenizer),
                sampling_slots=sampling_slots,
                cache_fraction=cache_fraction,
                segment_tokens=segment_tokens,
                vocab_size=min(tokens.vocab_size(tokenizer), model_config.vocab_size),
            )

        self._tokenizer = tokenizer
        self._thinking = thinking
        self._automaton = automaton
        self._ending = ending
        self._longest_prompt = model_config.max_position_embeddings - sampling.max_new_tokens
        self.sampler = sampler(sampling)
        if ending is not None:
            self._finisher = sampler(
                dataclasses.replace(sampling, max_new_tokens=ending.max_new_tokens, thinking=None)
            )

    def __call__(
        self, params: Any, chats: Sequence[Sequence[Message]], key: jax.Array, count: int = 1
    ) -> list[Completion]:
        """`count` completions to each chat: all to the first, then all to the second, ..."""
        prompts, samples = self._sample(params, chats, key, count)
        ids, truncated = _ids(samples)
        if self._ending is None:
            return self._decode(ids, truncated)
        trigger = list(self._ending.trigger)
        early = [i for i, one in enumerate(ids) if not (truncated[i] or _contains(one, trigger))]
        for i in early:
            ids[i] = [*ids[i][:-1], *trigger]
        if early:
            ends = self._finisher(
                params,
                [[*prompts[i // count], *ids[i]] for i in early],
                # Keys depend on the number of the completion, not on which others stopped early.
                jax.vmap(jax.random.fold_in, (None, 0))(
                    jax.random.fold_in(key, _ENDINGS), np.array(early)
                ),
                automaton=self._ending.automaton,
            )
            for i, one, cut in zip(early, *_ids(ends), strict=True):
                ids[i], truncated[i] = ids[i] + one, cut
        return self._decode(ids, truncated)

    def sample(
        self, params: Any, chats: Sequence[Sequence[Message]], key: jax.Array, count: int = 1
    ) -> tuple[list[list[int]], Samples, list[Completion]]:
        """As `__call__` without `ending`: prompts' token ids, samples, and completions."""
        prompts, samples = self._sample(params, chats, key, count)
        return prompts, samples, self._decode(*_ids(samples))

    def stream(
        self, params: Any, chats: Sequence[Sequence[Message]], keys: jax.Array
    ) -> Iterator[tuple[int, Completion]]:
        """One completion to each chat: (number of the chat, completion) as soon as it has ended.

        It depends on its chat and its key alone, beyond rounding, not on `automaton` or `ending`.

        Args:
          params: of the model.
          chats: N of them.
          keys: PRNG keys [N].
        """
        ids: list[list[int]] = [[] for _ in chats]
        prompts = self.encode(chats)
        for chunk in self.sampler.stream(params, prompts, keys):
            ids[chunk.completion][chunk.start :] = chunk.tokens.tolist()  # It may start over.
            if chunk.finish is not None:
                one, ids[chunk.completion] = ids[chunk.completion], []
                truncated = chunk.finish == FinishReason.LENGTH
                yield chunk.completion, self._completion(one, truncated)

    def fits(self, chat: Sequence[Message]) -> bool:
        """Whether the model's window holds a chat and the longest completion to it."""
        return len(self.encode([chat])[0]) <= self._longest_prompt

    def encode(self, chats: Sequence[Sequence[Message]]) -> list[list[int]]:
        """Token ids of prompts."""
        return tokens.encode_chats(self._tokenizer, chats, self._thinking)

    @functools.cached_property
    def _opening(self) -> str:
        """The beginning of a completion that the chat template writes for the model."""
        opened = tokens.opens_thought(self._tokenizer, self._thinking)
        return f"{tokens.THINK_BEGIN}\n" if opened else ""

    def _sample(
        self, params: Any, chats: Sequence[Sequence[Message]], key: jax.Array, count: int
    ) -> tuple[list[list[int]], Samples]:
        prompts = self.encode(chats)
        keys = jax.random.split(key, len(prompts))
        return prompts, self.sampler(params, prompts, keys, count, automaton=self._automaton)

    def _decode(self, ids: list[list[int]], truncated: list[bool]) -> list[Completion]:
        return distributed.sharded_map(
            lambda indices: [self._completion(ids[i], truncated[i]) for i in indices], len(ids)
        )

    def _completion(self, ids: list[int], truncated: bool) -> Completion:
        text = self._opening + tokens.decode(self._tokenizer, ids)
        return Completion(text, len(ids), truncated)


def _ids(samples: Samples) -> tuple[list[list[int]], list[bool]]:
    """The tokens of each completion, and whether its budget ended it."""
    ids = [one[:n].tolist() for one, n in zip(samples.tokens, samples.lengths, strict=True)]
    return ids, (~samples.stopped).tolist()


def _contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[i : i + len(part)] == part for i in range(len(ids) - len(part) + 1))
