"""Continuous decoding: any number of completions through a fixed number of slots.

The device holds P prompt slots and G sequence slots for each, one completion in a sequence slot. It
decodes in segments: one compiled loop over at most so many tokens, which ends early when enough
sequences have ended and others wait. Between segments the host takes the tokens, gives free
sequence slots the next sample of their prompt, and prompt slots whose sequences have all ended the
next prompt. So one long completion keeps one sequence slot busy and not the batch.

A completion depends on its prompt, its own key and its own tokens; not on its slot, its neighbours,
or the time it was started (beyond rounding, where shapes differ).

A call decodes with a copy of the parameters, made by `SlotEngine.decoding_copy` and gone with the
call: unstacked layers in `config.dtype`, whole on every device of `fsdp`. With several processes
each runs slots of its own on its own devices (`learner.devices.distributed` says why).

Everything that compiles has one of few shapes: P and G are fixed during a call, the capacity for
completions has two sizes for each power of two, that for prompts four, and prompts are prefilled in
powers of two.
"""

import collections
import dataclasses
import enum
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from learner.devices import distributed, sharding
from learner.qwen3 import model, placement
from learner.qwen3.config import Qwen3Config
from learner.qwen3.logprobs import limit_vocabulary
from learner.qwen3.model import Params
from learner.sampling import decoding
from learner.sampling.decoding import PromptCache, SampleCache
from learner.sampling.distribution import SamplingParams, draw, filter_logits, logprob, most_likely
from learner.sampling.stop_strings import StopStrings
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import geometric_bucket, pad_right

# Prompt tokens, padding included, that one row shard prefills at a time; bounds its activations.
_PREFILL_TOKENS = 1 << 14

# The capacity for prompts is a multiple of at least this many tokens.
_PROMPT_MULTIPLE = 32

# Where others wait, a segment ends when this fraction of the sequence slots is free.
_REFILL_FRACTION = 1 / 8

#: The implementation of keys: of others, one key's numbers depend on the keys drawn beside it.
KEY_IMPL = "threefry2x32"


class FinishReason(enum.IntEnum):
    """Why a completion ended.

    A stop token that is also the last of the budget, or that completes a stop string, counts as a
    stop token; a stop string that the last token of the budget completes, as a stop string.
    """

    LENGTH = 0  # its budget was spent
    STOP_TOKEN = 1
    AUTOMATON = 2  # a stop token where the automaton allowed nothing else
    STOP_STRING = 3


RUNNING = -1  # in the place of a FinishReason


class Chunk(NamedTuple):
    """What one segment added to one completion.

    Attributes:
        row: which completion, prompt-major.
        start: tokens it had before.
        tokens: i32[m]; logprobs: f32[m].
        finish: why it ended with them; None if it goes on.
    """

    row: int
    start: int
    tokens: np.ndarray
    logprobs: np.ndarray
    finish: FinishReason | None


@dataclasses.dataclass(frozen=True)
class Work:
    """Completions to generate: `num_samples` for each of N prompts.

    Attributes:
        prompts: token ids, at least one each.
        key_data: u32[N, 2], raw data of one PRNG key a prompt.
        budgets: i32[N, num_samples], tokens of each completion, from 1 up.
        automaton: which tokens are allowed; None allows all.
    """

    prompts: Sequence[Sequence[int]]
    key_data: np.ndarray
    budgets: np.ndarray
    automaton: TokenAutomaton | None = None

    @property
    def num_samples(self) -> int:
        """Completions to each prompt."""
        return self.budgets.shape[1]

    def take(self, indices: np.ndarray) -> "Work":
        """The work on some of the prompts, i64[n]."""
        return dataclasses.replace(
            self,
            prompts=[self.prompts[i] for i in indices],
            key_data=self.key_data[indices],
            budgets=self.budgets[indices],
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sequences:
    """The state of every sequence slot: NumPy arrays on the host between segments."""

    last: Any  # i32[P, G], newest token; the prompt's last one at first
    counts: Any  # i32[P, G], tokens generated
    budgets: Any  # i32[P, G]
    samples: Any  # i32[P, G], number of the sample, folded into its prompt's key
    states: Any  # i32[P, G], of the automaton
    finish: Any  # i32[P, G], a FinishReason, or RUNNING
    key_data: Any  # u32[P, 2]

    @classmethod
    def idle(cls, prompt_slots: int, sequence_slots: int) -> Self:
        """Slots without a completion."""
        per_sequence = [field.name for field in dataclasses.fields(cls)][:-1]
        shape = (prompt_slots, sequence_slots)
        return cls(
            **{name: np.zeros(shape, np.int32) for name in per_sequence},
            key_data=np.zeros((prompt_slots, 2), np.uint32),
        )

    def start(self, work: Work, slot: tuple[int, int], prompt: int, sample: int) -> None:
        """Begin a completion in a sequence slot; writes into the host's arrays."""
        self.last[slot] = work.prompts[prompt][-1]
        self.counts[slot] = 0
        self.budgets[slot] = work.budgets[prompt, sample]
        self.samples[slot] = sample
        self.states[slot] = 0
        self.finish[slot] = RUNNING
        self.key_data[slot[0]] = work.key_data[prompt]


_Carry = tuple[Array, SampleCache, Sequences, Array, Array]


def _segment(
    params: Params,
    prompts: PromptCache,
    cache: SampleCache,
    sequences: Sequences,
    automaton: TokenAutomaton | None,
    floor: Array,
    *,
    config: Qwen3Config,
    sampling: SamplingParams,
    vocab_size: int | None,
    steps: int,
) -> tuple[SampleCache, Sequences, Array, Array]:
    """At most `steps` tokens in every running sequence; fewer once only `floor` are running.

    Returns:
        The cache, the sequences, and what was generated: tokens i32[steps, P, G] and
        log-probabilities f32[steps, P, G], of which each sequence's first ones count, as many as
        its count rose by.
    """
    capacity = cache.keys[0].shape[-1]
    rope = decoding.rope_table(config, prompts, cache)
    fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))
    keys = fold(jax.random.wrap_key_data(sequences.key_data, impl=KEY_IMPL), sequences.samples)
    stops = jnp.array(sampling.stop_token_ids, jnp.int32)

    def unfinished(carry: _Carry) -> Array:
        step, _, sequences, _, _ = carry
        return (step < steps) & (jnp.sum(sequences.finish == RUNNING) > floor)

    def body(carry: _Carry) -> _Carry:
        step, cache, sequences, tokens, logprobs = carry
        running = sequences.finish == RUNNING
        # Ended sequences write over a place that only they read.
        places = jnp.minimum(sequences.counts, capacity - 1)
        cache, hidden = decoding.decode_step(
            params, config, prompts, cache, rope, sequences.last, places
        )
        logits = limit_vocabulary(model.output_logits(params, config, hidden), vocab_size)
        if automaton is not None:
            logits = automaton.mask(sequences.states, logits)
        logits = filter_logits(logits, sampling)
        if sampling.temperature == 0:
            token = most_likely(logits)
        else:
            token = draw(jax.vmap(jax.vmap(jax.random.fold_in))(keys, sequences.counts), logits)
        counts = sequences.counts + 1
        stop = jnp.isin(token, stops)
        finish = jnp.where(counts >= sequences.budgets, FinishReason.LENGTH, RUNNING)
        finish = jnp.where(stop, FinishReason.STOP_TOKEN, finish)
        states = sequences.states
        if automaton is not None:
            final = automaton.final(sampling.stop_token_ids)[states]
            finish = jnp.where(stop & final, FinishReason.AUTOMATON, finish)
            states = automaton.advance(states, token)
        sequences = dataclasses.replace(
            sequences,
            last=jnp.where(running, token, sequences.last),
            counts=jnp.where(running, counts, sequences.counts),
            states=jnp.where(running, states, sequences.states),
            finish=jnp.where(running, finish, sequences.finish),
        )
        put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=step, axis=0)
        return step + 1, cache, sequences, put(tokens, token), put(logprobs, logprob(logits, token))

    shape = (steps, *sequences.last.shape)
    empty = (jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
    carry = (jnp.int32(0), cache, sequences, *empty)
    return jax.lax.while_loop(unfinished, body, carry)[1:]


class SlotEngine:
    """The compiled functions for one model, mesh and way of sampling; holds no other state."""

    def __init__(
        self,
        config: Qwen3Config,
        mesh: Mesh,
        sampling: SamplingParams,
        pad_id: int,
        *,
        steps: int,
        vocab_size: int | None,
        stop_strings: StopStrings | None,
    ) -> None:
        """Prepare; nothing is compiled yet. Arguments are those of `Sampler`."""
        self._config = config
        self._whole_mesh = mesh
        self._mesh = mesh = distributed.local_mesh(mesh)
        self._pad_id = pad_id
        self._steps = steps
        self._longest = sampling.max_new_tokens
        self._stop_strings = stop_strings
        self._rows = sharding.batch_sharding(mesh)
        per_step = NamedSharding(mesh, P(None, sharding.BATCH_AXES))
        prompts, samples = cache_shardings(mesh)
        self.prepare = jax.jit(
            functools.partial(decoding.decoding_params, config=config),
            in_shardings=(placement.param_shardings(config, self._whole_mesh),),
            out_shardings=_whole_rows(config, self._whole_mesh),
        )
        self.new_prompts = jax.jit(
            functools.partial(decoding.prompt_cache, config),
            static_argnums=(0, 1),
            out_shardings=prompts,
        )
        self.new_samples = jax.jit(
            functools.partial(decoding.sample_cache, config),
            static_argnums=(0, 1, 2),
            out_shardings=samples,
        )
        self.resize = jax.jit(decoding.resize, static_argnums=1, out_shardings=samples)

        def prefill(params: Params, *args: Any) -> PromptCache:
            return decoding.prefill(params, config, *args)

        self.prefill = jax.jit(prefill, donate_argnums=1, out_shardings=prompts)
        self.segment = jax.jit(
            functools.partial(
                _segment, config=config, sampling=sampling, vocab_size=vocab_size, steps=steps
            ),
            donate_argnums=2,
            out_shardings=(samples, self._rows, per_step, per_step),
        )

    def decoding_copy(self, params: Params) -> Params:
        """The parameters for `run`; with several processes all of them have to call this.

        Args:
            params: stacked, placed by `param_shardings`.
        """
        with sharding.use(self._whole_mesh):
            return distributed.local_copy(self.prepare(params))

    def run(
        self, params: Params, work: Work, prompt_slots: int, sequence_slots: int
    ) -> Iterator[Chunk]:
        """Generate all completions; yields what each segment adds to each.

        Args:
            params: of `decoding_copy`.
            work: what to generate.
            prompt_slots: P, a multiple of the row shards of this process.
            sequence_slots: G.
        """
        automaton = jax.device_put(work.automaton, sharding.replicated(self._mesh))
        # Longest first: prompts that are prefilled together are of similar length.
        waiting = collections.deque(
            sorted(range(len(work.prompts)), key=lambda i: -len(work.prompts[i]))
        )
        prompt_cache = self.new_prompts(prompt_slots, _capacity(len(work.prompts[waiting[0]])))
        cache: SampleCache | None = None
        capacity = 0
        state = Sequences.idle(prompt_slots, sequence_slots)
        owner = np.full(prompt_slots, -1)  # the prompt in each slot
        begun = np.full(prompt_slots, work.num_samples)  # its samples that have been started
        texts: dict[tuple[int, int], list[int]] = {}  # of sequences, for stop strings
        while True:
            ended = (begun == work.num_samples) & (state.finish != RUNNING).all(axis=1)
            fresh = [int(slot) for slot in np.flatnonzero(ended)[: len(waiting)]]
            for index in fresh:
                owner[index], begun[index] = waiting.popleft(), 0
            prompt_cache = self._fill(params, prompt_cache, work, owner, fresh)
            for row, column in np.argwhere(state.finish != RUNNING):
                if begun[row] < work.num_samples:
                    state.start(work, (row, column), owner[row], begun[row])
                    texts[row, column] = []
                    begun[row] += 1
            running = state.finish == RUNNING
            if not running.any():
                return
            needed = int(np.minimum(state.counts + self._steps, state.budgets)[running].max())
            wanted = min(geometric_bucket(needed, 32, 2), self._longest)
            if cache is None:
                cache, capacity = self.new_samples(prompt_slots, sequence_slots, wanted), wanted
            elif wanted > capacity or wanted <= capacity // 2:
                cache, capacity = self.resize(cache, wanted), wanted
            more = bool(waiting) or bool((begun < work.num_samples).any())
            refill = max(1, int(_REFILL_FRACTION * running.size))
            floor = max(0, int(running.sum()) - refill) if more else 0
            starts = state.counts
            with sharding.use(self._mesh):
                cache, *out = self.segment(
                    params,
                    prompt_cache,
                    cache,
                    jax.device_put(state, self._rows),
                    automaton,
                    np.int32(floor),
                )
            after, tokens, logprobs = jax.device_get(out)
            # The arrays that came from the device cannot be written to.
            state = jax.tree.map(np.array, after)
            for row, column in np.argwhere(running):
                slot = row, column
                start, end = int(starts[slot]), int(state.counts[slot])
                new = tokens[: end - start, row, column]
                if self._stop_strings is not None:
                    texts[slot] += new.tolist()
                    cut = self._stop_strings.cut(texts[slot], start)
                    by_token = state.finish[slot] in (
                        FinishReason.STOP_TOKEN,
                        FinishReason.AUTOMATON,
                    )
                    if cut is not None and not (by_token and cut == end):
                        end = cut
                        state.finish[slot] = FinishReason.STOP_STRING
                finish = int(state.finish[slot])
                yield Chunk(
                    row=int(owner[row]) * work.num_samples + int(state.samples[slot]),
                    start=start,
                    tokens=new[: end - start],
                    logprobs=logprobs[: end - start, row, column],
                    finish=None if finish == RUNNING else FinishReason(finish),
                )

    def lower(
        self, params: Params, prompt_length: int, prompt_slots: int, sequence_slots: int
    ) -> dict[str, jax.stages.Lowered]:
        """The largest programs of `run`, ready to compile without any arrays.

        Args:
            params: `jax.ShapeDtypeStruct`s with shardings.
            prompt_length: tokens of the longest prompt.
            prompt_slots: as in `run`.
            sequence_slots: as in `run`.

        Returns:
            "prepare" (parameters for decoding), "prefill" of as many prompts as go together,
            "segment" with the capacity for the longest completions, and "resize" to that, if ever
            needed.
        """
        config, longest = self._config, self._longest
        in_prompts, in_samples = cache_shardings(self._mesh)
        capacity = _capacity(prompt_length)
        shards = sharding.num_row_shards(self._mesh)
        batch = min(prompt_slots, _prefill_size(capacity) * shards)
        ids = jax.ShapeDtypeStruct((batch, capacity), jnp.int32)
        rows = _placed((ids, ids.update(shape=(batch,)), ids.update(shape=(batch,))), self._rows)
        prompts = _placed(
            jax.eval_shape(lambda: decoding.prompt_cache(config, prompt_slots, capacity)),
            in_prompts,
        )
        state = _placed(
            jax.eval_shape(lambda: Sequences.idle(prompt_slots, sequence_slots)), self._rows
        )

        def samples(capacity: int) -> Any:
            shape = (prompt_slots, sequence_slots, capacity)
            return _placed(
                jax.eval_shape(lambda: decoding.sample_cache(config, *shape)), in_samples
            )

        with sharding.use(self._whole_mesh):
            prepare = self.prepare.lower(params)
        whole = _placed(prepare.out_info, _whole_rows(config, self._mesh))
        floor = jax.ShapeDtypeStruct((), jnp.int32)
        with sharding.use(self._mesh):
            programs = {
                "prepare": prepare,
                "prefill": self.prefill.lower(whole, prompts, *rows),
                "segment": self.segment.lower(whole, prompts, samples(longest), state, None, floor),
            }
            smaller = [n for n in range(1, longest) if geometric_bucket(n, 32, 2) == n]
            if smaller:
                programs["resize"] = self.resize.lower(samples(smaller[-1]), longest)
        return programs

    def _fill(
        self,
        params: Params,
        cache: PromptCache,
        work: Work,
        owner: np.ndarray,
        fresh: Sequence[int],
    ) -> PromptCache:
        """Prefill the prompts that `owner` has put into the slots `fresh`."""
        shards = sharding.num_row_shards(self._mesh)
        while fresh:
            capacity = _capacity(max(len(work.prompts[owner[slot]]) for slot in fresh))
            largest = _prefill_size(capacity) * shards
            batch, fresh = fresh[:largest], fresh[largest:]
            size = shards << max(0, -(-len(batch) // shards) - 1).bit_length()
            prompts = [work.prompts[owner[slot]][:-1] for slot in batch]
            padded = prompts + [[]] * (size - len(batch))
            tokens, lengths = pad_right(padded, capacity, self._pad_id)
            slots = np.full(size, len(owner), np.int32)  # those beyond the last are dropped
            slots[: len(batch)] = batch
            with sharding.use(self._mesh):
                cache = self.prefill(
                    params, cache, *jax.device_put((tokens, lengths, slots), self._rows)
                )
        return cache


def _capacity(prompt_length: int) -> int:
    """Tokens that the cache holds of a prompt; its last token is not part of it."""
    return geometric_bucket(prompt_length - 1, _PROMPT_MULTIPLE, 4)


def _prefill_size(capacity: int) -> int:
    """Prompts of so many tokens that one row shard prefills at a time, a power of two."""
    return 1 << max(0, (_PREFILL_TOKENS // capacity).bit_length() - 1)


def _placed(shapes: Any, where: Any) -> Any:
    """`jax.ShapeDtypeStruct`s with the shardings of a tree that may be a prefix of theirs."""
    return jax.tree.map(
        lambda sharding, part: jax.tree.map(lambda x: x.update(sharding=sharding), part),
        where,
        shapes,
    )


def cache_shardings(mesh: Mesh) -> tuple[Any, Any]:
    """Shardings of a `PromptCache` and of a `SampleCache`: rows, and heads over `tensor`."""
    heads: Any = NamedSharding(mesh, P(sharding.BATCH_AXES, "tensor"))
    sample_heads: Any = NamedSharding(mesh, P(sharding.BATCH_AXES, None, "tensor"))
    lengths: Any = sharding.batch_sharding(mesh)
    return PromptCache(heads, heads, lengths), SampleCache(sample_heads, sample_heads)


def _whole_rows(config: Qwen3Config, mesh: Mesh) -> Params:
    """Shardings of the decoding parameters: whole on every `fsdp` device, split over `tensor`.

    Decoding reads all weights at every step; gathering them once is far cheaper than at each.
    """

    def without_fsdp(stacked: NamedSharding, drop: int) -> NamedSharding:
        axes = [None if axis == "fsdp" else axis for axis in stacked.spec]
        return NamedSharding(mesh, P(*axes[drop:]))

    tree = placement.param_shardings(config, mesh)
    layer = jax.tree.map(lambda s: without_fsdp(s, 1), tree["layers"])
    whole = {name: jax.tree.map(lambda s: without_fsdp(s, 0), tree[name]) for name in tree}
    return {**whole, "layers": (layer,) * config.num_hidden_layers}
