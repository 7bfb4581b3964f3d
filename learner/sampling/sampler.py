"""Sampling of completions from the parameters that training updates, where they lie on the mesh.

There is no second engine that weights must be sent to. Every call makes a copy of its own for
decoding, layer by layer and in `config.dtype`, and drops it when it ends: that costs a pass over
the weights, and while the call runs the memory of one copy (2 bytes a parameter in bfloat16), which
is not split over `fsdp`.

`Sampler` takes any number of prompts, completes each `num_samples` times, and returns tokens, their
log-probabilities, and why each completion ended. The work is done by `learner.sampling.slots`. Of
several processes each samples for its part of the prompts, and all get all completions.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import chex
import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from learner.devices import distributed, sharding
from learner.qwen3 import placement
from learner.qwen3.config import Qwen3Config
from learner.qwen3.model import Params
from learner.sampling.distribution import SamplingParams
from learner.sampling.slots import KEY_IMPL, Chunk, FinishReason, SlotEngine, Work
from learner.sampling.stop_strings import StopStrings
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import geometric_bucket

__all__ = ["Chunk", "FinishReason", "Sampler", "Samples", "SamplingParams"]

# Samples of a prompt that run side by side where not all completions fit at once. More of them
# read the prompt's cache less often; fewer leave less idle while the last one of them ends.
_SIDE_BY_SIDE = 4


class Samples(NamedTuple):
    """Completions, on the host; N rows, prompt-major. M is `max_new_tokens`.

    Attributes:
        tokens: i32[N, M], the pad id after the end.
        logprobs: f32[N, M], in nats, of the distribution that was sampled from; 0 after the end.
            Greedy completions have those of the distribution at temperature 1.
        lengths: i32[N], number of generated tokens, the stop token included.
        finish: i32[N], a `FinishReason` each.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    lengths: np.ndarray
    finish: np.ndarray

    @property
    def stopped(self) -> np.ndarray:
        """bool[N], whether the completion came to an end; False means cut off by its budget."""
        return self.finish != FinishReason.LENGTH


class Sampler:
    """Samples completions to prompts, all with the same `SamplingParams`.

    Holds only static things and jitted functions: parameters, prompts and keys are arguments, so
    a call after an update samples from the updated parameters.

    Args:
        config: of the model; `config.dtype` is the dtype of decoding and of the cache.
        mesh: where the parameters live; rows are split over its `data` and `fsdp` axes.
        sampling: how to choose tokens, and when to end.
        pad_id: fills prompts and ended completions.
        max_rows: completions that run at a time; bounds the cache. Any number of completions may
            be asked for: the next begins where one has ended.
        segment_tokens: tokens that the device generates before the host looks again.
        vocab_size: ids from there on are never sampled (a tokenizer may know fewer ids than the
            model has rows); None allows all.
        text_of: text of token ids, special tokens written out; needed for `stop_strings`.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        config: Qwen3Config,
        mesh: Mesh,
        sampling: SamplingParams,
        pad_id: int,
        *,
        max_rows: int = 512,
        segment_tokens: int = 32,
        vocab_size: int | None = None,
        text_of: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        placement.check(config, mesh)
        limit = config.vocab_size if vocab_size is None else vocab_size
        longest = config.max_position_embeddings - 1
        for name, value, least, most in (
            ("vocab_size", limit, 1, config.vocab_size),
            ("pad_id", pad_id, 0, config.vocab_size - 1),
            ("segment_tokens", segment_tokens, 1, math.inf),
            ("max_rows", max_rows, sharding.num_row_shards(mesh), math.inf),
            ("max_new_tokens", sampling.max_new_tokens, 1, longest),
            *(("stop_token_ids", token, 0, limit - 1) for token in sampling.stop_token_ids),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name}={value}: allowed are integers from {least} to {most}")
        stop_strings = None
        if sampling.stop_strings:
            if text_of is None:
                raise ValueError(f"stop_strings={sampling.stop_strings}: they need text_of")
            stop_strings = StopStrings(sampling.stop_strings, text_of)
        self.config = config
        self.mesh = mesh
        self.sampling = sampling
        self.pad_id = pad_id
        self.max_rows = max_rows
        self.vocab_size = limit
        self.engine = SlotEngine(
            config,
            mesh,
            sampling,
            pad_id,
            steps=min(segment_tokens, sampling.max_new_tokens),
            vocab_size=vocab_size,
            stop_strings=stop_strings,
        )

    def __call__(
        self,
        params: Params,
        prompts: Sequence[Sequence[int]],
        keys: Array,
        num_samples: int = 1,
        *,
        automaton: TokenAutomaton | None = None,
        budgets: np.ndarray | None = None,
    ) -> Samples:
        """Sample `num_samples` completions to every prompt.

        A sample depends on its prompt, on `fold_in(keys[prompt], sample)` and, per token, on
        the position folded into that; not on what else is asked for, nor on slots or the order
        in which completions run (beyond rounding, where shapes differ).

        Args:
            params: stacked, as everywhere; placed by `param_shardings(config, mesh)`.
            prompts: token ids, each prompt at least one.
            keys: PRNG keys [len(prompts)], threefry.
            num_samples: completions to each prompt, at least 1.
            automaton: which tokens are allowed, from the first on; with `sampling.thinking`, from
                the end of thought on. None allows all.
            budgets: i32[len(prompts) * num_samples], the most tokens of each completion, each in
                1..max_new_tokens; None is max_new_tokens for all.

        Returns:
            len(prompts) * num_samples rows: all samples of prompt 0, then of prompt 1, ...

        Raises:
            ValueError: a prompt is empty, has an id outside the vocabulary, or is too long for
                `max_new_tokens` more; keys are not threefry; a budget or a token of the automaton
                is out of range.
            AssertionError: keys, budgets and prompts differ in number.
        """
        work = self._work(prompts, keys, num_samples, automaton, budgets)
        if not prompts:
            return self._collect(work, iter(()))
        decoding_copy = self.engine.decoding_copy(params)

        def sample(indices: np.ndarray) -> Samples:
            part = work.take(indices)
            return self._collect(part, self._run(decoding_copy, part))

        return distributed.sharded_map(sample, len(prompts))

    def stream(
        self,
        params: Params,
        prompts: Sequence[Sequence[int]],
        keys: Array,
        automaton: TokenAutomaton | None = None,
    ) -> Iterator[Chunk]:
        """One completion to every prompt, in chunks as they are generated.

        The tokens, arguments and errors are those of `__call__`.
        """
        work = self._work(prompts, keys, 1, automaton)
        if not prompts:
            return iter(())
        return self._run(self.engine.decoding_copy(params), work)

    def lower(
        self, params: Params, num_prompts: int, num_samples: int, prompt_length: int
    ) -> dict[str, jax.stages.Lowered]:
        """The programs of a call, ready to compile without any arrays: `learner.plan`.

        Args:
            params: `jax.ShapeDtypeStruct`s with shardings.
            num_prompts: prompts of the call.
            num_samples: completions to each.
            prompt_length: tokens of the longest prompt.
        """
        return self.engine.lower(params, prompt_length, *self._slots(num_prompts, num_samples))

    def _run(self, decoding_copy: Params, work: Work) -> Iterator[Chunk]:
        return self.engine.run(
            decoding_copy, work, *self._slots(len(work.prompts), work.num_samples)
        )

    def _collect(self, work: Work, chunks: Iterator[Chunk]) -> Samples:
        """The chunks of all completions together."""
        count, M = work.budgets.size, self.sampling.max_new_tokens
        tokens = np.full((count, M), self.pad_id, np.int32)
        logprobs = np.zeros((count, M), np.float32)
        lengths, finish = np.zeros(count, np.int32), np.zeros(count, np.int32)
        for chunk in chunks:
            end = chunk.start + len(chunk.tokens)
            tokens[chunk.row, chunk.start : end] = chunk.tokens
            logprobs[chunk.row, chunk.start : end] = chunk.logprobs
            lengths[chunk.row] = end
            if chunk.finish is not None:
                finish[chunk.row] = chunk.finish
        return Samples(tokens, logprobs, lengths, finish)

    def _work(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Array,
        num_samples: int,
        automaton: TokenAutomaton | None = None,
        budgets: np.ndarray | None = None,
    ) -> Work:
        """Checks everything."""
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: allowed are integers from 1 up")
        chex.assert_shape(keys, (len(prompts),))
        if (impl := str(jax.random.key_impl(keys))) != KEY_IMPL:
            raise ValueError(
                f"keys={impl}: allowed is {KEY_IMPL}; with others the numbers of one key depend on "
                "the keys drawn beside it"
            )
        M, V = self.sampling.max_new_tokens, self.config.vocab_size
        longest = self.config.max_position_embeddings - M
        for index, prompt in enumerate(prompts):
            if not 1 <= len(prompt) <= longest:
                raise ValueError(
                    f"prompts[{index}]: has {len(prompt)} tokens; allowed are 1 to {longest} "
                    f"(max_position_embeddings less max_new_tokens={M})"
                )
            if not (min(prompt) >= 0 and max(prompt) < V):
                raise ValueError(
                    f"prompts[{index}]: has ids {min(prompt)} to {max(prompt)}; allowed are "
                    f"0 to {V - 1}"
                )
        count = len(prompts) * num_samples
        budgets = np.full(count, M) if budgets is None else np.asarray(budgets)
        chex.assert_shape(budgets, (count,))
        wrong = np.flatnonzero((budgets < 1) | (budgets > M) | (budgets != budgets.astype(int)))
        if wrong.size:
            raise ValueError(f"budgets={budgets[wrong[0]]}: allowed are integers from 1 to {M}")
        return Work(
            prompts=prompts,
            key_data=np.asarray(jax.random.key_data(keys)),
            budgets=budgets.reshape(-1, num_samples).astype(np.int32),
            automaton=self._automaton(automaton),
        )

    def _automaton(self, automaton: TokenAutomaton | None) -> TokenAutomaton | None:
        """What the automaton and the limit on thinking demand together."""
        thinking = self.sampling.thinking
        demanded = [] if automaton is None else [int(np.max(np.asarray(automaton.tokens)))]
        demanded += [] if thinking is None else thinking.closing_ids
        if max(demanded, default=0) >= self.vocab_size:
            raise ValueError(
                f"automaton: demands token {max(demanded)}; allowed are 0 to {self.vocab_size - 1}"
            )
        return automaton if thinking is None else TokenAutomaton.thinking(thinking, automaton)

    def _slots(self, num_prompts: int, num_samples: int) -> tuple[int, int]:
        """`slot_counts` of a call; of several processes those of one, for its prompts."""
        shards = sharding.num_row_shards(distributed.local_mesh(self.mesh))
        per_shard = self.max_rows // sharding.num_row_shards(self.mesh)
        return slot_counts(num_prompts, num_samples, shards, per_shard)


def slot_counts(num_prompts: int, num_samples: int, shards: int, per_shard: int) -> tuple[int, int]:
    """Prompt slots, few different numbers of them, and sequence slots in each.

    As many prompt slots as there are prompts, but no more than let some samples of each run side
    by side; then as many sequence slots as fit into `per_shard`. Where all completions fit at once,
    prompt slots are a power of two; elsewhere at most a quarter of them stays empty.

    Args:
        num_prompts: of the call.
        num_samples: completions to each.
        shards: row shards.
        per_shard: completions that one of them runs at a time.
    """
    needed = -(-num_prompts // shards)
    crowded = needed * num_samples > per_shard
    side_by_side = num_samples
    if crowded:
        rounds = -(-num_samples // _SIDE_BY_SIDE)
        side_by_side = min(-(-num_samples // rounds), per_shard)
    prompts = min(per_shard // side_by_side, geometric_bucket(needed, 1, 4 if crowded else 1))
    return shards * prompts, min(num_samples, per_shard // prompts)
