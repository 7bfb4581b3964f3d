"""Sampling of completions from the parameters that training updates, where they lie on the mesh.

There is no second engine that weights must be sent to. Every call makes a copy of its own for
decoding, layer by layer and in `config.dtype`, and drops it when it ends: that costs a pass over
the weights, and while the call runs the memory of one copy (2 bytes a parameter in bfloat16), which
is not split over `fsdp`.

`Sampler` takes any number of prompts, completes each `num_samples` times, and returns tokens, their
log-probabilities, and why each completion ended. The work is done by `learner.sampling.slots`. With
several processes each completions its share of the prompts, and all get all completions.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from learner.devices import distributed, sharding
from learner.qwen3 import placement
from learner.qwen3.config import Qwen3Config
from learner.qwen3.model import Params
from learner.sampling.distribution import SamplingParams
from learner.sampling.slots import FinishReason, Piece, SlotEngine, Work
from learner.sampling.stop_strings import StopStrings
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import geometric_bucket

__all__ = ["FinishReason", "Piece", "Sampler", "Samples", "SamplingParams"]

# Samples of a prompt that run side by side where not all completions find room at once. More of
# them read the prompt's cache less often; fewer leave less idle while the last one of them ends.
_SIDE_BY_SIDE = 4

_KEY_IMPL = "threefry2x32"


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
    """

    def __init__(
        self,
        config: Qwen3Config,
        mesh: Mesh,
        sampling: SamplingParams,
        pad_id: int,
        *,
        prompt_bucket_multiple: int = 32,
        max_rows: int = 512,
        segment_tokens: int = 32,
        vocab_size: int | None = None,
        text_of: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        """Prepare; nothing is compiled yet.

        Args:
            config: of the model; `config.dtype` is the dtype of decoding and of the cache.
            mesh: where the parameters live; rows are split over its `data` and `fsdp` axes.
            sampling: how to choose tokens, and when to end.
            pad_id: fills prompts and ended completions.
            prompt_bucket_multiple: prompts are padded to a multiple of at least this many tokens.
            max_rows: completions that run at a time; bounds the cache. Any number of completions
            may be
                asked for: the next begins where one has ended.
            segment_tokens: tokens that the device generates before the host looks again.
            vocab_size: ids from there on are never sampled (a tokenizer may know fewer ids than
                the model has rows); None allows all.
            text_of: text of token ids, special tokens written out; needed for `stop_strings`.

        Raises:
            ValueError: an argument is out of range.
        """
        placement.check(config, mesh)
        if not 0 <= pad_id < config.vocab_size:
            raise ValueError(f"pad_id is {pad_id}; it must be in [0, {config.vocab_size})")
        for name, value in (
            ("prompt_bucket_multiple", prompt_bucket_multiple),
            ("segment_tokens", segment_tokens),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if max_rows < sharding.num_row_shards(mesh):
            raise ValueError(
                f"max_rows is {max_rows}; it must be at least the number of row shards, "
                f"{sharding.num_row_shards(mesh)}"
            )
        if vocab_size is not None and not 0 < vocab_size <= config.vocab_size:
            raise ValueError(f"vocab_size is {vocab_size}; allowed are 1..{config.vocab_size}")
        limit = config.vocab_size if vocab_size is None else vocab_size
        for token in sampling.stop_token_ids:
            if not 0 <= token < limit:
                raise ValueError(
                    f"stop_token_ids has {token}, which is never sampled; allowed are "
                    f"0..{limit - 1}"
                )
        if sampling.max_new_tokens >= config.max_position_embeddings:
            raise ValueError(
                f"max_new_tokens is {sampling.max_new_tokens}; it must be less than "
                f"max_position_embeddings, {config.max_position_embeddings}"
            )
        stop_strings = None
        if sampling.stop_strings:
            if text_of is None:
                raise ValueError(f"stop_strings is {sampling.stop_strings}, but text_of is None")
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
            prompt_multiple=prompt_bucket_multiple,
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
            automaton: which tokens are allowed, from the first on; with `sampling.thinking`, from
                the end of thought on. None allows all.
            budgets: i32[len(prompts) * num_samples], the most tokens of each completion, each in
                1..max_new_tokens; None is max_new_tokens for all.

        Returns:
            len(prompts) * num_samples rows: all samples of prompt 0, then of prompt 1, ...

        Raises:
            ValueError: a prompt is empty, has an id outside the vocabulary, or leaves no room
                for `max_new_tokens`; keys and prompts differ in number; keys are not threefry;
                `num_samples` is less than 1; a budget or a token of the automaton is out of range.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; it must be at least 1")
        work = self._work(prompts, keys, num_samples, automaton, budgets)
        if not prompts:
            return self._samples(work, iter(()))
        decoding_copy = self.engine.decoding_copy(params)

        def sample(indices: np.ndarray) -> Samples:
            part = work.take(indices)
            return self._samples(part, self._run(decoding_copy, part))

        return distributed.sharded_map(sample, len(prompts))

    def _samples(self, work: Work, pieces: Iterator[Piece]) -> Samples:
        """Puts the pieces of all completions together."""
        count, M = work.budgets.size, self.sampling.max_new_tokens
        tokens = np.full((count, M), self.pad_id, np.int32)
        logprobs = np.zeros((count, M), np.float32)
        lengths, finish = np.zeros(count, np.int32), np.zeros(count, np.int32)
        for piece in pieces:
            end = piece.start + len(piece.tokens)
            tokens[piece.row, piece.start : end] = piece.tokens
            logprobs[piece.row, piece.start : end] = piece.logprobs
            lengths[piece.row] = end
            if piece.finish is not None:
                finish[piece.row] = piece.finish
        return Samples(tokens, logprobs, lengths, finish)

    def stream(
        self,
        params: Params,
        prompt: Sequence[int],
        key: Array,
        automaton: TokenAutomaton | None = None,
    ) -> Iterator[Piece]:
        """One completion, piece by piece as it is generated; the same tokens as `__call__` gives.

        Raises:
            ValueError: as `__call__`.
        """
        return self._pieces(params, self._work([prompt], key[None], 1, automaton))

    def pieces(
        self, params: Params, prompts: Sequence[Sequence[int]], keys: Array
    ) -> Iterator[Piece]:
        """One completion to every prompt, piece by piece as they are generated, for whoever keeps
        each completion as soon as it has ended; the same tokens as `__call__` gives.

        Raises:
            ValueError: as `__call__`.
        """
        return self._pieces(params, self._work(prompts, keys, 1))

    def lower(
        self, params: Params, num_prompts: int, num_samples: int, prompt_length: int
    ) -> dict[str, jax.stages.Lowered]:
        """The programs of a call, ready to compile without any arrays: `learner.plan`.

        Args:
            params: `jax.ShapeDtypeStruct`s with shardings.
            prompt_length: tokens of the longest prompt.
        """
        return self.engine.lower(params, prompt_length, *self._slots(num_prompts, num_samples))

    def _pieces(self, params: Params, work: Work) -> Iterator[Piece]:
        if not work.prompts:
            return iter(())
        return self._run(self.engine.decoding_copy(params), work)

    def _run(self, decoding_copy: Params, work: Work) -> Iterator[Piece]:
        slots, lanes = self._slots(len(work.prompts), work.num_samples)
        return self.engine.run(decoding_copy, work, slots, lanes)

    def _work(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Array,
        num_samples: int,
        automaton: TokenAutomaton | None = None,
        budgets: np.ndarray | None = None,
    ) -> Work:
        """Check everything."""
        if keys.shape != (len(prompts),):
            raise ValueError(f"keys have shape {keys.shape}; expected ({len(prompts)},)")
        if (impl := str(jax.random.key_impl(keys))) != _KEY_IMPL:
            raise ValueError(
                f"keys are of the implementation {impl!r}; it must be {_KEY_IMPL!r}: with others "
                "the numbers of one key depend on the keys drawn beside it"
            )
        self._check_prompts(prompts)
        return Work(
            prompts=prompts,
            key_data=np.asarray(jax.random.key_data(keys)),
            key_impl=jax.random.key_impl(keys),
            budgets=self._budgets(budgets, len(prompts), num_samples),
            automaton=self._automaton(automaton),
        )

    def _check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        longest = self.config.max_position_embeddings - self.sampling.max_new_tokens
        for index, prompt in enumerate(prompts):
            if not 1 <= len(prompt) <= longest:
                raise ValueError(
                    f"prompt {index} has {len(prompt)} tokens; allowed are 1..{longest} "
                    f"(max_position_embeddings {self.config.max_position_embeddings} less "
                    f"max_new_tokens {self.sampling.max_new_tokens})"
                )
            if not (min(prompt) >= 0 and max(prompt) < self.config.vocab_size):
                raise ValueError(
                    f"prompt {index} has ids {min(prompt)}..{max(prompt)}; allowed are "
                    f"0..{self.config.vocab_size - 1}"
                )

    def _budgets(
        self, budgets: np.ndarray | None, num_prompts: int, num_samples: int
    ) -> np.ndarray:
        shape, M = (num_prompts, num_samples), self.sampling.max_new_tokens
        if budgets is None:
            return np.full(shape, M, np.int32)
        budgets = np.asarray(budgets)
        if budgets.shape != (num_prompts * num_samples,):
            raise ValueError(
                f"budgets have shape {budgets.shape}; expected ({num_prompts * num_samples},)"
            )
        wrong = np.flatnonzero((budgets < 1) | (budgets > M) | (budgets != budgets.astype(int)))
        if wrong.size:
            raise ValueError(
                f"budgets[{wrong[0]}] is {budgets[wrong[0]]}; allowed are the integers 1..{M}"
            )
        return budgets.reshape(shape).astype(np.int32)

    def _automaton(self, automaton: TokenAutomaton | None) -> TokenAutomaton | None:
        """What the automaton and the limit on thinking demand together."""
        if automaton is not None:
            largest = int(np.max(np.asarray(automaton.tokens), initial=-1))
            if largest >= self.vocab_size:
                raise ValueError(
                    f"the automaton lists token {largest}; allowed are 0..{self.vocab_size - 1}"
                )
        thinking = self.sampling.thinking
        if thinking is None:
            return automaton
        if max(thinking.closing_ids) >= self.vocab_size:
            raise ValueError(
                f"closing_ids of thinking are {thinking.closing_ids}; allowed are "
                f"0..{self.vocab_size - 1}"
            )
        return TokenAutomaton.thinking(thinking, automaton)

    def _slots(self, num_prompts: int, num_samples: int) -> tuple[int, int]:
        """Slots and lanes of a call; of several processes those of one, for its prompts."""
        shards = sharding.num_row_shards(distributed.local_mesh(self.mesh))
        per_shard = self.max_rows // sharding.num_row_shards(self.mesh)
        return slots_and_lanes(num_prompts, num_samples, shards, per_shard)


def slots_and_lanes(
    num_prompts: int, num_samples: int, shards: int, per_shard: int
) -> tuple[int, int]:
    """Slots for prompts, few different numbers of them, and lanes in each; fills `per_shard`.

    As many slots as there are prompts, but no more than leave room for some samples of each side
    by side; then as many lanes as fit. Where all completions fit at once, slots are a power of two;
    elsewhere at most a quarter of them stays empty.

    Args:
        num_prompts, num_samples: what is asked for.
        shards: row shards; per_shard: completions that one of them runs at a time.
    """
    needed = -(-num_prompts // shards)
    crowded = needed * num_samples > per_shard
    lanes = num_samples
    if crowded:
        rounds = -(-num_samples // _SIDE_BY_SIDE)
        lanes = min(-(-num_samples // rounds), per_shard)
    slots = min(per_shard // lanes, geometric_bucket(needed, 1, 4 if crowded else 1))
    return shards * slots, min(num_samples, per_shard // slots)
