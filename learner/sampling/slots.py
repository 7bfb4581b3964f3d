"""Continuous decoding: any number of completions through a fixed number of slots.

The device holds P slots for prompts and G lanes in each, one completion a lane. It decodes in
segments: one compiled loop over at most so many tokens, which ends early when enough lanes have
ended and others wait. Between segments the host takes the tokens, gives ended lanes the next sample
of their prompt, and gives slots whose lanes have all ended the next prompt. So one long completion
keeps one lane busy and not the batch.

A completion depends on its prompt, its own key and its own tokens; not on its slot, its neighbours,
or the time it was started (beyond rounding, where shapes differ).

A call decodes with a copy of the parameters, made by `SlotEngine.decoding_copy` and gone with the
call: unstacked layers in `config.dtype`, whole on every device of `fsdp`. With several processes
each runs slots of its own on its own devices (`learner.devices.distributed` says why).

Everything that compiles has one of few shapes: P and G are fixed during a call, the room for
completions has two sizes an octave, that for prompts four, and prompts are prefilled in powers of
two.
"""

import collections
import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
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

# Where others wait, a segment ends when this share of the lanes has ended.
_REFILL_SHARE = 1 / 8


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


class Piece(NamedTuple):
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
        key_data: u32[N, ...], raw data of one PRNG key a prompt; key_impl: what kind it is.
        budgets: i32[N, num_samples], tokens of each completion, from 1 up.
        automaton: which tokens are allowed; None allows all.
    """

    prompts: Sequence[Sequence[int]]
    key_data: np.ndarray
    key_impl: Any
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
class Lanes:
    """The state of every lane: NumPy arrays on the host between segments."""

    last: Any  # i32[P, G], newest token; the prompt's last one at first
    counts: Any  # i32[P, G], tokens generated
    budgets: Any  # i32[P, G]
    samples: Any  # i32[P, G], number of the sample, folded into its prompt's key
    states: Any  # i32[P, G], of the automaton
    finish: Any  # i32[P, G], a FinishReason, or RUNNING
    key_data: Any  # u32[P, ...]

    @classmethod
    def idle(cls, slots: int, lanes: int, key_data: np.ndarray) -> Self:
        """Lanes without a completion, with room for keys like `key_data` [N, ...]."""
        keys = np.zeros((slots, *key_data.shape[1:]), key_data.dtype)
        fields = [field.name for field in dataclasses.fields(cls)]
        zeros = {name: np.zeros((slots, lanes), np.int32) for name in fields}
        return cls(**zeros | {"key_data": keys})


def _segment(
    params: Params,
    prompts: PromptCache,
    cache: SampleCache,
    lanes: Lanes,
    automaton: TokenAutomaton | None,
    floor: Array,
    key_impl: Any,
    *,
    config: Qwen3Config,
    sampling: SamplingParams,
    vocab_size: int | None,
    steps: int,
) -> tuple[SampleCache, Lanes, Array, Array]:
    """At most `steps` tokens in every running lane; fewer once only `floor` lanes are running.

    Returns:
        The cache, the lanes, and what was generated: tokens i32[steps, P, G] and log-probabilities
        f32[steps, P, G], of which each lane's first ones count, as many as its count rose by.
    """
    room = cache.keys[0].shape[-1]
    rope = decoding.rope_table(config, prompts, cache)
    fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))
    keys = fold(jax.random.wrap_key_data(lanes.key_data, impl=key_impl), lanes.samples)
    stops = jnp.array(sampling.stop_token_ids, jnp.int32)

    def unfinished(carry: tuple[Array, SampleCache, Lanes, Array, Array]) -> Array:
        step, _, lanes, _, _ = carry
        return (step < steps) & (jnp.sum(lanes.finish == RUNNING) > floor)

    def body(
        carry: tuple[Array, SampleCache, Lanes, Array, Array],
    ) -> tuple[Array, SampleCache, Lanes, Array, Array]:
        step, cache, lanes, tokens, logprobs = carry
        running = lanes.finish == RUNNING
        # Ended lanes write over a slot that only they read.
        slots = jnp.minimum(lanes.counts, room - 1)
        cache, hidden = decoding.decode_step(
            params, config, prompts, cache, rope, lanes.last, slots
        )
        logits = limit_vocabulary(model.output_logits(params, config, hidden), vocab_size)
        if automaton is not None:
            logits = automaton.mask(lanes.states, logits)
        logits = filter_logits(logits, sampling)
        if sampling.temperature == 0:
            token = most_likely(logits)
        else:
            token = draw(jax.vmap(jax.vmap(jax.random.fold_in))(keys, lanes.counts), logits)
        counts = lanes.counts + 1
        stop = jnp.isin(token, stops)
        finish = jnp.where(counts >= lanes.budgets, FinishReason.LENGTH, RUNNING)
        finish = jnp.where(stop, FinishReason.STOP_TOKEN, finish)
        states = lanes.states
        if automaton is not None:
            final = automaton.final(sampling.stop_token_ids)[states]
            finish = jnp.where(stop & final, FinishReason.AUTOMATON, finish)
            states = automaton.advance(states, token)
        lanes = dataclasses.replace(
            lanes,
            last=jnp.where(running, token, lanes.last),
            counts=jnp.where(running, counts, lanes.counts),
            states=jnp.where(running, states, lanes.states),
            finish=jnp.where(running, finish, lanes.finish),
        )
        put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=step, axis=0)
        return step + 1, cache, lanes, put(tokens, token), put(logprobs, logprob(logits, token))

    shape = (steps, *lanes.last.shape)
    empty = (jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
    carry = (jnp.int32(0), cache, lanes, *empty)
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
        prompt_multiple: int,
        steps: int,
        vocab_size: int | None,
        stop_strings: StopStrings | None,
    ) -> None:
        """Prepare; nothing is compiled yet. Arguments are those of `Sampler`."""
        self._config = config
        self._whole_mesh = mesh
        self._mesh = mesh = distributed.local_mesh(mesh)
        self._pad_id = pad_id
        self._prompt_multiple = prompt_multiple
        self._steps = steps
        self._longest = sampling.max_new_tokens
        self._stop_strings = stop_strings
        self._rows = sharding.batch_sharding(mesh)
        per_step = NamedSharding(mesh, P(None, sharding.BATCH_AXES))
        prompts, samples = cache_shardings(mesh)
        on_mesh = functools.partial(_on_mesh, mesh)
        self.prepare = _on_mesh(
            self._whole_mesh,
            jax.jit(
                functools.partial(decoding.decoding_params, config=config),
                in_shardings=(placement.param_shardings(config, self._whole_mesh),),
                out_shardings=_whole_rows(config, self._whole_mesh),
            ),
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

        self.prefill = on_mesh(jax.jit(prefill, donate_argnums=1, out_shardings=prompts))
        self.segment = on_mesh(
            jax.jit(
                functools.partial(
                    _segment, config=config, sampling=sampling, vocab_size=vocab_size, steps=steps
                ),
                donate_argnums=2,
                static_argnums=6,
                out_shardings=(samples, self._rows, per_step, per_step),
            )
        )

    def decoding_copy(self, params: Params) -> Params:
        """The parameters for `run`; with several processes all of them have to call this.

        Args:
            params: stacked, placed by `param_shardings`.
        """
        return distributed.local_copy(self.prepare(params))

    def run(self, params: Params, work: Work, slots: int, lanes: int) -> Iterator[Piece]:
        """Generate all completions; yields what each segment adds to each.

        Args:
            params: of `decoding_copy`.
            slots: P, a multiple of the row shards of this process.
            lanes: G.
        """
        automaton = jax.device_put(work.automaton, sharding.replicated(self._mesh))
        # Longest first: prompts that are prefilled together are of similar length.
        waiting = collections.deque(
            sorted(range(len(work.prompts)), key=lambda i: -len(work.prompts[i]))
        )
        prompt_cache = self.new_prompts(slots, self._room(work.prompts[waiting[0]]))
        cache: SampleCache | None = None
        room = 0
        state = Lanes.idle(slots, lanes, work.key_data)
        owner = np.full(slots, -1)  # the prompt in each slot
        begun = np.full(slots, work.num_samples)  # its samples that have been started
        completions: list[list[list[int]]] = [[[] for _ in range(lanes)] for _ in range(slots)]
        while True:
            free = np.flatnonzero(
                (begun == work.num_samples) & (state.finish != RUNNING).all(axis=1)
            )
            fresh = [int(slot) for slot in free[: len(waiting)]]
            for slot in fresh:
                owner[slot], begun[slot] = waiting.popleft(), 0
            prompt_cache = self._fill(params, prompt_cache, work, owner, fresh)
            for slot, lane in np.argwhere(state.finish != RUNNING):
                if begun[slot] < work.num_samples:
                    _start(state, work, slot, lane, owner[slot], begun[slot])
                    completions[slot][lane] = []
                    begun[slot] += 1
            running = state.finish == RUNNING
            if not running.any():
                return
            needed = int(np.minimum(state.counts + self._steps, state.budgets)[running].max())
            wanted = min(geometric_bucket(needed, 32, 2), self._longest)
            if cache is None:
                cache, room = self.new_samples(slots, lanes, wanted), wanted
            elif wanted > room or wanted <= room // 2:
                cache, room = self.resize(cache, wanted), wanted
            more = bool(waiting) or bool((begun < work.num_samples).any())
            refill = max(1, int(_REFILL_SHARE * running.size))
            floor = max(0, int(running.sum()) - refill) if more else 0
            before = state
            cache, *out = self.segment(
                params,
                prompt_cache,
                cache,
                jax.device_put(state, self._rows),
                automaton,
                np.int32(floor),
                work.key_impl,
            )
            after, tokens, logprobs = jax.device_get(out)
            # The arrays that came from the device cannot be written to.
            state = jax.tree.map(np.array, after)
            for slot, lane in np.argwhere(running):
                start, end = int(before.counts[slot, lane]), int(state.counts[slot, lane])
                new = tokens[: end - start, slot, lane]
                if self._stop_strings is not None:
                    completion = completions[slot][lane]
                    completion += new.tolist()
                    cut = self._stop_strings.cut(completion, start)
                    ended = state.finish[slot, lane] in (
                        FinishReason.STOP_TOKEN,
                        FinishReason.AUTOMATON,
                    )
                    if cut is not None and not (ended and cut == end):
                        end = cut
                        state.finish[slot, lane] = FinishReason.STOP_STRING
                finish = int(state.finish[slot, lane])
                yield Piece(
                    row=int(owner[slot]) * work.num_samples + int(state.samples[slot, lane]),
                    start=start,
                    tokens=new[: end - start],
                    logprobs=logprobs[: end - start, slot, lane],
                    finish=None if finish == RUNNING else FinishReason(finish),
                )

    def lower(
        self, params: Params, prompt_length: int, slots: int, lanes: int
    ) -> dict[str, jax.stages.Lowered]:
        """The largest programs of `run`, ready to compile without any arrays.

        Args:
            params: `jax.ShapeDtypeStruct`s with shardings.
            prompt_length: tokens of the longest prompt.
            slots, lanes: as in `run`.

        Returns:
            "prepare" (parameters for decoding), "prefill" of as many prompts as go together,
            "segment" with room for the longest completions, and "resize" to that, if ever needed.
        """

        def program(function: Any, *args: Any) -> Any:
            jitted: Any = inspect.unwrap(function, stop=lambda f: hasattr(f, "lower"))
            with sharding.use(self._mesh):
                return jitted.lower(*args)

        config, longest = self._config, self._longest
        in_prompts, in_samples = cache_shardings(self._mesh)
        room = geometric_bucket(prompt_length - 1, self._prompt_multiple, 4)
        prompts = _placed(
            jax.eval_shape(lambda: decoding.prompt_cache(config, slots, room)), in_prompts
        )

        def samples(room: int) -> Any:
            cache = jax.eval_shape(lambda: decoding.sample_cache(config, slots, lanes, room))
            return _placed(cache, in_samples)

        prepare = program(self.prepare, params)
        whole = _placed(prepare.out_info, _whole_rows(config, self._mesh))
        state = jax.eval_shape(lambda: Lanes.idle(slots, lanes, np.zeros((1, 2), np.uint32)))
        shards = sharding.num_row_shards(self._mesh)
        batch = min(slots, _prefill_size(room) * shards)
        ids = jax.ShapeDtypeStruct((batch, room), jnp.int32)
        rows = _placed((ids, ids.update(shape=(batch,)), ids.update(shape=(batch,))), self._rows)
        programs = {
            "prepare": prepare,
            "prefill": program(self.prefill, whole, prompts, *rows),
            "segment": program(
                self.segment,
                whole,
                prompts,
                samples(longest),
                _placed(state, self._rows),
                None,
                jax.ShapeDtypeStruct((), jnp.int32),
                jax.random.key_impl(jax.random.key(0)),
            ),
        }
        smaller = [n for n in range(1, longest) if geometric_bucket(n, 32, 2) == n]
        if smaller:
            programs["resize"] = program(self.resize, samples(smaller[-1]), longest)
        return programs

    def _room(self, prompt: Sequence[int]) -> int:
        return geometric_bucket(len(prompt) - 1, self._prompt_multiple, 4)

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
            room = self._room(max((work.prompts[owner[slot]] for slot in fresh), key=len))
            largest = _prefill_size(room) * shards
            batch, fresh = fresh[:largest], fresh[largest:]
            size = shards << max(0, -(-len(batch) // shards) - 1).bit_length()
            prompts = [work.prompts[owner[slot]][:-1] for slot in batch]
            tokens, lengths = pad_right(prompts + [[]] * (size - len(batch)), room, self._pad_id)
            slots = np.full(size, len(owner), np.int32)  # those beyond the last are dropped
            slots[: len(batch)] = batch
            cache = self.prefill(
                params, cache, *jax.device_put((tokens, lengths, slots), self._rows)
            )
        return cache


def _prefill_size(room: int) -> int:
    """Prompts of `room` tokens that one row shard prefills at a time, a power of two."""
    return 1 << max(0, (_PREFILL_TOKENS // room).bit_length() - 1)


def _placed(shapes: Any, where: Any) -> Any:
    """`jax.ShapeDtypeStruct`s with the shardings of a tree that may be a prefix of theirs."""
    return jax.tree.map(
        lambda sharding, part: jax.tree.map(lambda x: x.update(sharding=sharding), part),
        where,
        shapes,
    )


def _start(state: Lanes, work: Work, slot: int, lane: int, prompt: int, sample: int) -> None:
    """Begin a completion in a lane; writes into the host's arrays."""
    at = (slot, lane)
    values = (
        (state.last, work.prompts[prompt][-1]),
        (state.counts, 0),
        (state.budgets, work.budgets[prompt, sample]),
        (state.samples, sample),
        (state.states, 0),
        (state.finish, RUNNING),
    )
    for array, value in values:
        array[at] = value
    state.key_data[slot] = work.key_data[prompt]


def _on_mesh(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, traced and run with the mesh and the rules for activations."""

    @functools.wraps(function)
    def inside(*args: Any) -> Any:
        with sharding.use(mesh):
            return function(*args)

    return inside


def cache_shardings(mesh: Mesh) -> tuple[Any, Any]:
    """Shardings of a `PromptCache` and of a `SampleCache`: rows, and heads over `tensor`."""
    heads: Any = NamedSharding(mesh, P(sharding.BATCH_AXES, "tensor"))
    lane_heads: Any = NamedSharding(mesh, P(sharding.BATCH_AXES, None, "tensor"))
    lengths: Any = sharding.batch_sharding(mesh)
    return PromptCache(heads, heads, lengths), SampleCache(lane_heads, lane_heads)


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
