"""Sequence slots on the device: their state, and the compiled segment that decodes in all of them.

Each of P groups has G sequence slots and C prompt slots. A sequence slot holds one completion to
one of the prompts of its group. A segment is a loop over a fixed number of tokens, which ends early
when enough sequences have ended and others wait; between segments the host refills the free slots.
"""

import collections
import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from learner.decoder import model, rotary
from learner.decoder.config import DecoderConfig
from learner.decoder.logprobs import limit_vocabulary
from learner.decoder.model import Params
from learner.sampling import decoding
from learner.sampling.decoding import Cache
from learner.sampling.distribution import SamplingParams, draw, filter_logits, logprob, most_likely
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import geometric_bucket

#: The PRNG of keys: with others, what one key draws depends on the keys drawn beside it.
KEY_IMPL = "threefry2x32"

# Samples of a prompt that run side by side where not all completions fit at once. With more of them
# the prompt's cache is read less often, but more slots idle while long completions hold both
# prompts of a group.
_SIDE_BY_SIDE = 4

# Prompt slots of a group where prompts wait: samples of the next prompt begin while the last ones
# of the prompt before still run.
_PROMPTS = 2


class FinishReason(enum.IntEnum):
    """Why a completion ended.

    A stop token that is also the last of the budget counts as a stop token.
    """

    LENGTH = 0  # its budget was spent
    STOP_TOKEN = 1


RUNNING = -1  #: In the place of a `FinishReason`.


class Request(NamedTuple):
    """One prompt and what to generate for it, one completion for each budget.

    Attributes:
        prompt: token ids, at least one.
        key_data: u32[2], raw data of the prompt's PRNG key.
        budgets: i32[num_samples], the most tokens of each completion, at least 1.
    """

    prompt: Sequence[int]
    key_data: np.ndarray
    budgets: np.ndarray


class Sequences(NamedTuple):
    """The state of every sequence slot: NumPy arrays on the host between segments."""

    last: Any  # i32[P, G], newest token; the prompt's last one at first
    counts: Any  # i32[P, G], tokens generated
    budgets: Any  # i32[P, G]
    samples: Any  # i32[P, G], number of the sample, folded into its prompt's key
    parents: Any  # i32[P, G], slot of its prompt in the group, less than C
    states: Any  # i32[P, G], of the automaton
    finish: Any  # i32[P, G], a FinishReason, or RUNNING
    prompt_lengths: Any  # i32[P, C], without their last tokens; 0 where no sample needs the prompt
    key_data: Any  # u32[P, G, 2], of their prompts
    pages: Any  # i32[P, G, n], of the cache, that hold their tokens; n is 0 without a kernel

    @classmethod
    def idle(cls, groups: int, sequence_slots: int, prompt_slots: int, pages: int = 0) -> Self:
        """Slots without a completion, for completions of up to `pages` pages."""
        per_sequence = [np.zeros((groups, sequence_slots), np.int32) for _ in range(7)]
        lengths = np.zeros((groups, prompt_slots), np.int32)
        key_data = np.zeros((groups, sequence_slots, 2), np.uint32)
        table = np.zeros((groups, sequence_slots, pages), np.int32)
        return cls._make([*per_sequence, lengths, key_data, table])

    def start(self, slot: tuple[int, int], request: Request, sample: int, parent: int) -> None:
        """Begin a completion in a sequence slot; writes into the host's arrays."""
        self.last[slot] = request.prompt[-1]
        self.counts[slot] = 0
        self.budgets[slot] = request.budgets[sample]
        self.samples[slot] = sample
        self.parents[slot] = parent
        self.states[slot] = 0
        self.finish[slot] = RUNNING
        self.key_data[slot] = request.key_data


class Schedule:
    """Which sample runs in which slot, on the host.

    Args:
        requests: at least one, all with equally many samples.
        slots: (P, C).
    """

    def __init__(self, requests: Sequence[Request], slots: tuple[int, int]) -> None:
        self._requests = requests
        self._num_samples = len(requests[0].budgets)
        # Longest first: prompts that are prefilled together are of similar length.
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt))
        self._waiting = collections.deque(order)
        self._lengths = np.array([len(request.prompt) - 1 for request in requests], np.int32)
        self._owners = np.full(slots, -1)  # the request in each prompt slot
        self._next = np.full(slots, self._num_samples)  # its next sample to begin
        # Prompt slot and sample of those that begin once more, by group.
        self._again = [collections.deque[tuple[int, int]]() for _ in range(slots[0])]

    @property
    def waits(self) -> bool:
        """Whether a sample has not begun, or has to begin again."""
        following = bool((self._next < self._num_samples).any())
        return bool(self._waiting) or following or any(self._again)

    def completions(self, state: Sequences) -> np.ndarray:
        """i64[P, G], number of the completion running in each sequence slot, prompt-major."""
        owners = np.take_along_axis(self._owners, state.parents, axis=1)
        return owners * self._num_samples + state.samples

    def begin_again(self, state: Sequences, slot: tuple[int, int]) -> None:
        """Give up the sample in a sequence slot; `refill` begins it anew. Changes the state."""
        self._again[slot[0]].append((int(state.parents[slot]), int(state.samples[slot])))
        state.finish[slot] = FinishReason.LENGTH  # Anything but RUNNING is free.

    def refill(
        self, state: Sequences, admits: Callable[[Sequences, int], bool]
    ) -> dict[int, Sequence[int]]:
        """Begin samples in free sequence slots; changes the state.

        Args:
            state: of all slots.
            admits: whether the cache takes one more sample in a group, given the state so far.

        Returns:
            The prompts to prefill, by prompt slot of all P * C.
        """
        prompts: dict[int, Sequence[int]] = {}
        free = state.finish != RUNNING
        # Groups with the most free slots first: a prompt's samples should run side by side.
        for group in map(int, np.argsort(-free.sum(axis=1), kind="stable")):
            following, owners, again = self._next[group], self._owners[group], self._again[group]
            for column in map(int, np.flatnonzero(free[group])):
                if not admits(state, group):
                    break
                if again:
                    parent, sample = again.popleft()
                    state.start((group, column), self._requests[owners[parent]], sample, parent)
                    continue
                if following.min() == self._num_samples:
                    needed = state.parents[group][state.finish[group] == RUNNING]
                    unused = np.setdiff1d(np.arange(following.size), needed)
                    if not (unused.size and self._waiting):
                        break
                    parent = int(unused[0])
                    owners[parent] = self._waiting.popleft()
                    following[parent] = 0
                    prompts[group * following.size + parent] = self._requests[owners[parent]].prompt
                parent = int(np.argmin(following))
                sample = int(following[parent])
                state.start((group, column), self._requests[owners[parent]], sample, parent)
                following[parent] = sample + 1
        # Kernels skip prompts without a running sample.
        children = state.parents[..., None] == np.arange(self._owners.shape[1])
        read = (children & (state.finish == RUNNING)[..., None]).any(axis=1)
        state.prompt_lengths[:] = np.where(read, self._lengths[self._owners], 0)
        return prompts


_Carry = tuple[Array, Cache, Sequences, Array, Array]


def segment(
    params: Params,
    prompts: Cache,
    cache: Cache,
    sequences: Sequences,
    automaton: TokenAutomaton | None,
    floor: Array,
    *,
    config: DecoderConfig,
    sampling: SamplingParams,
    vocab_size: int | None,
    steps: int,
) -> tuple[Cache, Sequences, Array, Array]:
    """Decode up to `steps` tokens in every running sequence; stop once only `floor` are running.

    Returns:
        The cache, the sequences, and what was generated: tokens i32[steps, P, G] and
        log-probabilities f32[steps, P, G]. Of each sequence, the first ones are valid, as many as
        its count rose by.
    """
    # Made once: in every step, XLA's CPU backend would fuse the cosines and sines into every layer
    # and compute them there for every head, a twentieth of the time of a small model.
    own = cache.capacity * max(1, sequences.pages.shape[-1])
    rope = rotary.rope_angles(jnp.arange(prompts.capacity + own), config)
    fold = jax.vmap(jax.vmap(jax.random.fold_in))
    keys = fold(jax.random.wrap_key_data(sequences.key_data, impl=KEY_IMPL), sequences.samples)
    stops = jnp.array(sampling.stop_token_ids, jnp.int32)

    def unfinished(carry: _Carry) -> Array:
        step, _, sequences, _, _ = carry
        return (step < steps) & (jnp.sum(sequences.finish == RUNNING) > floor)

    def body(carry: _Carry) -> _Carry:
        step, cache, sequences, tokens, logprobs = carry
        running = sequences.finish == RUNNING
        # An ended sequence writes to its place 0, or that of the idle page, which nothing else
        # reads, and reads no further.
        places = jnp.where(running, sequences.counts, 0)
        cache, hidden = decoding.decode_step(
            params,
            config,
            prompts,
            sequences.prompt_lengths,
            sequences.parents,
            cache,
            rope,
            sequences.last,
            places,
            sequences.pages if sequences.pages.shape[-1] else None,
        )
        logits = limit_vocabulary(model.output_logits(params, config, hidden), vocab_size)
        if automaton is not None:
            logits = automaton.mask(sequences.states, logits)
        logits = filter_logits(logits, sampling)
        if sampling.temperature == 0:
            token = most_likely(logits)
        else:
            token = draw(fold(keys, sequences.counts), logits)
        counts = sequences.counts + 1
        stop = jnp.isin(token, stops)
        finish = jnp.where(counts >= sequences.budgets, FinishReason.LENGTH, RUNNING)
        finish = jnp.where(stop, FinishReason.STOP_TOKEN, finish)
        states = sequences.states
        if automaton is not None:
            states = automaton.advance(states, token)
        sequences = sequences._replace(
            last=jnp.where(running, token, sequences.last),
            counts=jnp.where(running, counts, sequences.counts),
            states=jnp.where(running, states, sequences.states),
            finish=jnp.where(running, finish, sequences.finish),
        )
        put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=step, axis=0)
        return step + 1, cache, sequences, put(tokens, token), put(logprobs, logprob(logits, token))

    shape = (steps, *sequences.last.shape)
    empty = (jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
    return jax.lax.while_loop(unfinished, body, (jnp.int32(0), cache, sequences, *empty))[1:]


def slot_counts(
    num_prompts: int, num_samples: int, shards: int, per_shard: int
) -> tuple[int, int, int]:
    """P, G and C, few different ones, to compile less.

    As many groups as there are prompts, but no more than let some samples of each run side by side;
    then as many sequence slots as fit into `per_shard`. Where all completions fit at once, groups
    are a power of two; elsewhere at most a quarter of them stays empty. A group has a second prompt
    slot where prompts wait for one.

    Args:
        num_prompts: of the call.
        num_samples: completions to each.
        shards: batch shards.
        per_shard: completions that one of them runs at a time.
    """
    needed = -(-num_prompts // shards)
    crowded = needed * num_samples > per_shard
    side_by_side = num_samples
    if crowded:
        rounds = -(-num_samples // _SIDE_BY_SIDE)
        side_by_side = min(-(-num_samples // rounds), per_shard)
    groups = min(per_shard // side_by_side, geometric_bucket(needed, 1, 4 if crowded else 1))
    sequence_slots = min(num_samples, per_shard // groups)
    prompt_slots = _PROMPTS if needed > groups and sequence_slots > 1 else 1
    return shards * groups, sequence_slots, prompt_slots
