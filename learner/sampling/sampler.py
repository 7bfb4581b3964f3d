"""Sampling of completions from the parameters that training updates, where they lie on the mesh.

`Sampler` takes any number of prompts, completes each `num_samples` times, and returns tokens, their
log-probabilities, and why each completion ended.

Continuous decoding: the device decodes in segments (`learner.sampling.slots`). Between them the
host takes the tokens and gives free sequence slots the next sample of their group's prompt, or of
the next prompt that waits, for which each group has a second prompt slot. So one long completion
holds up one sequence slot, but neither its group nor the batch.

There is no second engine to send weights to. A call decodes with a temporary copy of the
parameters: unstacked layers in `config.dtype`, on the same devices, arranged as a mesh for
decoding. An update is fastest if devices split sequences (`fsdp`), as it computes on many tokens at
a time; decoding is fastest if they split the model (`tensor`), as it reads all weights for each
token. So decoding folds `fsdp` into `tensor`, as far as heads and the devices of a process allow.
The copy costs a pass over the weights and, while the call runs, its memory. With several processes,
each samples its part of the prompts in slots of its own on its own devices
(`learner.devices.distributed` says why), and all get all completions.

Few shapes are compiled: numbers of slots are fixed during a call, the capacity for completions has
two sizes for each power of two, that for prompts four, and prompts are prefilled in powers of two.
With a kernel, which reads only what is filled, the cache consists of pages
(`learner.sampling.pages`): one program decodes, and it compiles while prompts are prefilled. The
capacity for prompts is then the largest so far.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from learner.decoder import model
from learner.decoder.attention import LANES
from learner.decoder.cached_attention import choose_decoding
from learner.decoder.config import DecoderConfig
from learner.decoder.model import Params, logical_axes
from learner.devices import distributed, draws, sharding
from learner.sampling import decoding, slots
from learner.sampling.decoding import Cache
from learner.sampling.distribution import SamplingParams
from learner.sampling.pages import Pages
from learner.sampling.slots import KEY_IMPL, RUNNING, FinishReason, Request, Schedule, Sequences
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import geometric_bucket, pad_right

# Prompt tokens, padding included, that one batch shard prefills at a time; bounds its activations.
_PREFILL_TOKENS = 1 << 14

# The capacity for prompts is a multiple of at least this many tokens.
_PROMPT_MULTIPLE = 32

# Most tokens of a page for GPUs, whose kernel reads less at a time.
_PAGE = 512

# Where others wait, a segment ends when this fraction of the sequence slots is free.
_REFILL_FRACTION = 1 / 8


class Chunk(NamedTuple):
    """What one segment added to one completion.

    Attributes:
        completion: which one, prompt-major.
        start: tokens it had before.
        tokens: i32[m].
        logprobs: f32[m].
        finish: why it ended with them; None if it goes on.
    """

    completion: int
    start: int
    tokens: np.ndarray
    logprobs: np.ndarray
    finish: FinishReason | None


class Samples(NamedTuple):
    """Completions, on the host; N of them, prompt-major. M is `max_new_tokens`.

    Attributes:
        tokens: i32[N, M], the pad id after the end.
        logprobs: f32[N, M], in nats, of the distribution that was sampled from; 0 after the end.
            Greedy completions have those of the distribution at temperature 1.
        lengths: i32[N], number of generated tokens, the stop token included.
        lost: i32[N], tokens generated in vain: the cache was full, and the completion began again.
        finish: i32[N], a `FinishReason` each.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    lengths: np.ndarray
    lost: np.ndarray
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
        config: of the model; `config.dtype` is the dtype of decoding, `config.kv_dtype` that of
            the cache.
        mesh: where the parameters live; sequences are split over its `data` and `fsdp` axes.
        sampling: how to choose tokens, and when to end.
        pad_id: fills prompts and ended completions.
        sampling_slots: completions that run at a time; bounds the cache. Any number of them may
            be asked for: the next begins where one has ended.
        cache_fraction: the cache's size where a kernel decodes, as a fraction of what
            `sampling_slots` completions of `max_new_tokens` need. Below 1, completions may have to
            wait, or lose their part of the cache and start over.
        segment_tokens: tokens that the device generates before it returns to the host.
        vocab_size: ids from there on are never sampled (a tokenizer may know fewer ids than the
            model has); None allows all.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        config: DecoderConfig,
        mesh: Mesh,
        sampling: SamplingParams,
        pad_id: int,
        *,
        sampling_slots: int = 512,
        cache_fraction: float = 1.0,
        segment_tokens: int = 32,
        vocab_size: int | None = None,
    ) -> None:
        limit = config.vocab_size if vocab_size is None else vocab_size
        longest = config.max_position_embeddings - 1
        own_mesh = decoding_mesh(config, mesh)
        for name, value, least, most in (
            ("vocab_size", limit, 1, config.vocab_size),
            ("pad_id", pad_id, 0, config.vocab_size - 1),
            ("segment_tokens", segment_tokens, 1, math.inf),
            ("sampling_slots", sampling_slots, sharding.num_batch_shards(own_mesh), math.inf),
            ("max_new_tokens", sampling.max_new_tokens, 1, longest),
            *(("stop_token_ids", token, 0, limit - 1) for token in sampling.stop_token_ids),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name}={value}: allowed are integers from {least} to {most}")
        if not 0 < cache_fraction <= 1:
            raise ValueError(f"cache_fraction={cache_fraction}: allowed are numbers in (0, 1]")
        self.config = config
        self.mesh = mesh
        self.sampling = sampling
        self.pad_id = pad_id
        self.sampling_slots = sampling_slots
        self.vocab_size = limit
        self.segment_tokens = min(segment_tokens, sampling.max_new_tokens)
        self._cache_fraction = cache_fraction
        self._prompt_capacity = 0
        self._compiled: dict[Any, Future[Callable[..., Any]]] = {}
        self._thread = ThreadPoolExecutor(1)
        self._batch_shards = sharding.num_batch_shards(own_mesh)
        self._local_mesh = distributed.local_mesh(own_mesh)
        self._split = sharding.batch_sharding(self._local_mesh)
        shared = _programs(config, own_mesh)
        self.prepare, self.new_cache, self.resize, self.prefill = shared
        self.segment = _segment(config, own_mesh, sampling, vocab_size, self.segment_tokens)

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
            len(prompts) * num_samples completions: all samples of prompt 0, then of prompt 1, ...

        Raises:
            ValueError: a prompt is empty, has an id outside the vocabulary, or is too long for
                `max_new_tokens` more; keys are not threefry; a budget or a token of the automaton
                is out of range; params are those of adapters alone.
            AssertionError: keys, budgets and prompts differ in number.
        """
        requests = self._requests(prompts, keys, num_samples, budgets)
        automaton = self._automaton(automaton)
        shape = (len(prompts) * num_samples, self.sampling.max_new_tokens)
        samples = Samples(
            tokens=np.full(shape, self.pad_id, np.int32),
            logprobs=np.zeros(shape, np.float32),
            lengths=np.zeros(shape[0], np.int32),
            lost=np.zeros(shape[0], np.int32),
            finish=np.full(shape[0], RUNNING, np.int32),
        )
        if not len(prompts):
            return samples
        decoding_copy = self._decoding_copy(params)

        def sample(indices: np.ndarray) -> Samples:
            """Fills in the completions to these prompts, and returns them."""
            here = slice(indices[0] * num_samples, (indices[-1] + 1) * num_samples)
            mine = Samples._make(array[here] for array in samples)
            own = [requests[i] for i in indices]
            for i, start, tokens, logprobs, finish in self._run(decoding_copy, own, automaton):
                end = start + len(tokens)
                if start < mine.lengths[i]:  # It began again.
                    mine.tokens[i], mine.logprobs[i] = self.pad_id, 0
                    mine.lost[i] += mine.lengths[i] - start
                mine.tokens[i, start:end] = tokens
                mine.logprobs[i, start:end] = logprobs
                mine.lengths[i] = end
                mine.finish[i] = RUNNING if finish is None else finish
            return mine

        return distributed.sharded_map(sample, len(prompts))

    def stream(
        self, params: Params, prompts: Sequence[Sequence[int]], keys: Array
    ) -> Iterator[Chunk]:
        """One completion to every prompt, in chunks as they are generated.

        The tokens, arguments and errors are those of `__call__`. With a `cache_fraction` below 1 a
        completion may lose its pages and begin again; its next chunk then starts at 0.
        """
        requests = self._requests(prompts, keys)
        return self._run(self._decoding_copy(params), requests, self._automaton())

    def lower(
        self, params: Params, num_prompts: int, num_samples: int, prompt_length: int
    ) -> dict[str, jax.stages.Lowered]:
        """The largest programs of a call, ready to compile without any arrays: `learner.plan`.

        Args:
            params: `jax.ShapeDtypeStruct`s with shardings.
            num_prompts: prompts of the call.
            num_samples: completions to each.
            prompt_length: tokens of the longest prompt.

        Returns:
            "prepare" (parameters for decoding), "prefill" of as many prompts as go together,
            "segment" with the capacity for the longest completions, and "resize" to that, if ever
            needed.
        """
        capacity = _capacity(prompt_length)
        smaller = self.capacities[:-1]
        groups, sequence_slots, prompt_slots = counts = self._slots(num_prompts, num_samples)
        pages = self._pages(groups, sequence_slots)
        batch = self._padded(min(groups, self._prefill_size(capacity)))

        def prefilled() -> Any:
            ids = jnp.zeros(batch, jnp.int32)
            idle = Sequences.idle(*counts, pages.per_sequence)
            return (jnp.zeros((batch, capacity), jnp.int32), ids), idle

        prompts, state = jax.jit(prefilled, out_shardings=self._split).eval_shape()
        prompt_cache = self.new_cache.eval_shape((groups, prompt_slots), capacity)
        cache = self.new_cache.eval_shape(*self._cache_shape(pages, (groups, sequence_slots)))
        whole = self.prepare.eval_shape(params)
        floor = jax.ShapeDtypeStruct((), jnp.int32)
        with sharding.use(self.mesh):
            programs = {"prepare": self.prepare.lower(params)}
        with sharding.use(self._local_mesh):
            programs |= {
                "prefill": self.prefill.lower(whole, prompt_cache, *prompts),
                "segment": self.segment.lower(whole, prompt_cache, cache, state, None, floor),
            }
            if smaller:
                cache = self.new_cache.eval_shape((groups, sequence_slots), smaller[-1])
                programs["resize"] = self.resize.lower(cache, self.capacities[-1])
        return programs

    @property
    def capacities(self) -> list[int]:
        """Tokens of a completion that a cache may hold; decoding is compiled for each in use."""
        longest = self.sampling.max_new_tokens
        if self._has_kernel:
            pages = self._pages(self._batch_shards, 1)
            return [pages.per_sequence * pages.size]
        return sorted({self._own_capacity(n + 1) for n in range(longest)})

    def memory(self, params: Params, num_prompts: int, num_samples: int) -> dict[str, int]:
        """Bytes of one device that a call takes besides the parameters and the prompts' cache.

        Args:
            params: may be `jax.ShapeDtypeStruct`s with shardings.
            num_prompts, num_samples: as of `lower`.

        Returns:
            "weights" for decoding, and "cache" at its full size.
        """
        counts = self._slots(-(-num_prompts // jax.process_count()), num_samples)[:2]
        shape = self._cache_shape(self._pages(*counts), counts)
        cache = self.new_cache.eval_shape(*shape)
        whole = self.prepare.eval_shape(params)
        return {"weights": sharding.device_bytes(whole), "cache": sharding.device_bytes(cache)}

    def _decoding_copy(self, params: Params) -> Params:
        """The parameters for `_run`; with several processes, all must call this."""
        if "embedding" not in params:
            raise ValueError(
                "params: 'embedding' is missing; allowed are the parameters of a whole model. The "
                "state of a trainer with adapters holds only theirs: pass `policy_params(state)`"
            )
        with sharding.use(self.mesh):
            return distributed.local_copy(self.prepare(params))

    def _run(
        self, params: Params, requests: Sequence[Request], automaton: TokenAutomaton | None
    ) -> Iterator[Chunk]:
        """Generate all completions; yields what each segment adds to each."""
        if not requests:
            return
        automaton = jax.device_put(automaton, sharding.replicated(self._local_mesh))
        num_samples = len(requests[0].budgets)
        groups, sequence_slots, prompt_slots = self._slots(len(requests), num_samples)
        prompt_capacity = _capacity(max(len(request.prompt) for request in requests))
        if self._has_kernel:
            prompt_capacity = max(prompt_capacity, self._prompt_capacity)
            self._prompt_capacity = prompt_capacity
        prompt_cache = self.new_cache((groups, prompt_slots), prompt_capacity)
        cache: Cache | None = None
        pages = self._pages(groups, sequence_slots)
        state = Sequences.idle(groups, sequence_slots, prompt_slots, pages.per_sequence)
        segment = self._segment(params, prompt_cache, state, automaton, pages)
        schedule = Schedule(requests, (groups, prompt_slots))
        while True:
            pages.release(state)
            prompt_cache = self._fill(params, prompt_cache, schedule.refill(state, pages.admits))
            for slot in pages.provide(state, self.segment_tokens):
                schedule.begin_again(state, slot)
            running = state.finish == RUNNING
            if not running.any():
                return
            most = np.minimum(state.counts + self.segment_tokens, state.budgets)
            needed = int(most[running].max())
            shape, wanted = self._cache_shape(pages, (groups, sequence_slots), needed)
            if cache is None:
                cache = self.new_cache(shape, wanted)
            elif not cache.capacity // 2 < wanted <= cache.capacity:
                cache = self.resize(cache, wanted)
            refill = max(1, int(_REFILL_FRACTION * running.size))
            floor = max(0, int(running.sum()) - refill) if schedule.waits else 0
            completions, starts = schedule.completions(state), state.counts
            with sharding.use(self._local_mesh):
                cache, *out = segment()(
                    params,
                    prompt_cache,
                    cache,
                    jax.device_put(state, self._split),
                    automaton,
                    np.int32(floor),
                )
            after, tokens, logprobs = jax.device_get(out)
            # The arrays that came from the device cannot be written to.
            state = jax.tree.map(np.array, after)
            for at in map(tuple, np.argwhere(running)):
                start, end = int(starts[at]), int(state.counts[at])
                finish = int(state.finish[at])
                yield Chunk(
                    completion=int(completions[at]),
                    start=start,
                    tokens=tokens[: end - start, *at],
                    logprobs=logprobs[: end - start, *at],
                    finish=None if finish == RUNNING else FinishReason(finish),
                )

    def _segment(
        self,
        params: Params,
        prompts: Cache,
        state: Sequences,
        automaton: TokenAutomaton | None,
        pages: Pages,
    ) -> Callable[[], Callable[..., Any]]:
        """A function that returns the compiled segment; with a kernel, compiling starts now."""
        if not self._has_kernel:
            return lambda: self.segment
        args = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            (params, prompts, jax.device_put(state, self._split), automaton),
        )
        cache = self.new_cache.eval_shape(*self._cache_shape(pages, state.last.shape))
        floor = jax.ShapeDtypeStruct((), jnp.int32)

        def compiled() -> Callable[..., Any]:
            params, prompts, state, automaton = args
            with sharding.use(self._local_mesh):
                lowered = self.segment.lower(params, prompts, cache, state, automaton, floor)
            return lowered.compile()

        shapes = tuple(x.shape for x in jax.tree.leaves((prompts.keys[0], state, automaton)))
        if shapes not in self._compiled:
            self._compiled[shapes] = self._thread.submit(compiled)
        return self._compiled[shapes].result

    def _fill(self, params: Params, cache: Cache, prompts: dict[int, Sequence[int]]) -> Cache:
        """Prefill the prompts of these slots."""
        places = list(prompts)
        while places:
            capacity = _capacity(max(len(prompts[slot]) for slot in places))
            largest = self._prefill_size(capacity)
            batch, places = places[:largest], places[largest:]
            size = self._padded(len(batch))
            padded = [prompts[slot][:-1] for slot in batch] + [[]] * (size - len(batch))
            tokens = pad_right(padded, capacity, self.pad_id)
            beyond = math.prod(cache.keys[0].shape[:2])
            at = np.full(size, beyond, np.int32)  # Padding lies there and is dropped.
            at[: len(batch)] = batch
            with sharding.use(self._local_mesh):
                placed = jax.device_put((tokens, at), self._split)
                cache = self.prefill(params, cache, *placed)
        return cache

    def _padded(self, count: int) -> int:
        """So many prompts, padded to a power of two on each shard."""
        shards = sharding.num_batch_shards(self._local_mesh)
        return shards << max(0, -(-count // shards) - 1).bit_length()

    def _prefill_size(self, capacity: int) -> int:
        """Prompts that are prefilled at a time with this capacity, a power of two on each shard."""
        per_shard = 1 << max(0, (_PREFILL_TOKENS // capacity).bit_length() - 1)
        return per_shard * sharding.num_batch_shards(self._local_mesh)

    def _requests(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Array,
        num_samples: int = 1,
        budgets: np.ndarray | None = None,
    ) -> list[Request]:
        """The arguments of a call, checked."""
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: allowed are integers from 1 up")
        draws.check("keys", keys)
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
        key_data = np.asarray(jax.random.key_data(keys))
        of_prompts = budgets.astype(np.int32).reshape(-1, num_samples)
        return [Request(*each) for each in zip(prompts, key_data, of_prompts, strict=True)]

    def _automaton(self, automaton: TokenAutomaton | None = None) -> TokenAutomaton | None:
        """The automaton behind the thinking budget, its tokens checked."""
        if self.sampling.thinking is not None:
            automaton = TokenAutomaton.thinking(self.sampling.thinking, automaton)
        last = -1 if automaton is None else int(np.max(np.asarray(automaton.tokens)))
        if last >= self.vocab_size:
            raise ValueError(
                f"automaton: demands token {last}; allowed are 0 to {self.vocab_size - 1}"
            )
        return automaton

    @property
    def _has_kernel(self) -> bool:
        return choose_decoding(self.config).name != "reference"

    def _own_capacity(self, tokens: int) -> int:
        """The capacity of a cache without pages for completions of up to `tokens` tokens."""
        return min(geometric_bucket(tokens, 32, 2), self.sampling.max_new_tokens)

    def _pages(self, groups: int, sequence_slots: int) -> Pages:
        """Pages for these slots of this process; without a kernel, none."""
        longest, config = self.sampling.max_new_tokens, self.config
        if choose_decoding(config).name == "flash":
            from learner.decoder import decode_tpu  # Imports Pallas for its platform.

            heads = config.num_key_value_heads // self._local_mesh.shape["tensor"]
            token_bytes = heads * config.head_dim * jnp.dtype(config.kv_dtype).itemsize
            size = decode_tpu.page_tokens(longest, token_bytes)
        else:
            size = min(_PAGE, -(-longest // LANES) * LANES)
        per_sequence = -(-longest // size) if self._has_kernel else 0
        shards = sharding.num_batch_shards(self._local_mesh)
        most = math.ceil(
            self._cache_fraction * per_sequence * (self.sampling_slots // self._batch_shards)
        )
        return Pages(groups, sequence_slots, shards, per_sequence, size, most)

    def _cache_shape(
        self, pages: Pages, slots: tuple[int, int], tokens: int | None = None
    ) -> tuple[tuple[int, int], int]:
        """What `new_cache` takes for the own tokens of completions; `tokens` None for the most."""
        if pages.per_sequence:
            return (sharding.num_batch_shards(self._local_mesh), pages.count), pages.size
        return slots, self._own_capacity(tokens or self.sampling.max_new_tokens)

    def _slots(self, num_prompts: int, num_samples: int) -> tuple[int, int, int]:
        """`slot_counts` of this process in a call, for its prompts."""
        shards = sharding.num_batch_shards(self._local_mesh)
        per_shard = self.sampling_slots // self._batch_shards
        return slots.slot_counts(num_prompts, num_samples, shards, per_shard)


def _capacity(prompt_length: int) -> int:
    """The cache's capacity for prompts; it does not hold a prompt's last token."""
    return geometric_bucket(prompt_length - 1, _PROMPT_MULTIPLE, 4)


def decoding_mesh(config: DecoderConfig, mesh: Mesh) -> Mesh:
    """The mesh of decoding: that of training with as much of `fsdp` as possible along `tensor`."""
    for times in range(mesh.shape["fsdp"], 1, -1):
        folded = sharding.folded(mesh, times)
        if folded is not None and model.undivided(config, folded) is None:
            return folded
    return mesh


# Samplers of one model share jitted functions: a run has several, and each would trace and compile
# the same ones again.
@functools.lru_cache(maxsize=8)
def _programs(config: DecoderConfig, mesh: Mesh) -> tuple[Any, Any, Any, Any]:
    """Parameters for decoding, a new cache, a cache of another size, and prefill, jitted."""
    slotted = _slotted(distributed.local_mesh(mesh))

    def prefill(params: Params, *args: Any) -> Cache:
        return decoding.prefill(params, config, *args)

    transpose = decoding.transposes(config, mesh.devices.flat[0].platform)
    return (
        jax.jit(
            functools.partial(decoding.decoding_params, config=config, transpose=transpose),
            out_shardings=_whole_weights(config, mesh, transpose),
        ),
        jax.jit(
            functools.partial(decoding.empty_cache, config),
            static_argnums=(0, 1),
            out_shardings=slotted,
        ),
        jax.jit(decoding.resize, static_argnums=1, out_shardings=slotted),
        jax.jit(prefill, donate_argnums=1, out_shardings=slotted),
    )


@functools.lru_cache(maxsize=16)
def _segment(
    config: DecoderConfig, mesh: Mesh, sampling: SamplingParams, vocab_size: int | None, steps: int
) -> Any:
    """`slots.segment`, jitted."""
    local_mesh = distributed.local_mesh(mesh)
    split = sharding.batch_sharding(local_mesh)
    per_step = NamedSharding(local_mesh, P(None, sharding.BATCH_AXES))
    return jax.jit(
        functools.partial(
            slots.segment, config=config, sampling=sampling, vocab_size=vocab_size, steps=steps
        ),
        donate_argnums=2,
        out_shardings=(_slotted(local_mesh), split, per_step, per_step),
    )


def _slotted(mesh: Mesh) -> NamedSharding:
    """Of caches: sequence slots over the batch axes, KV heads over `tensor`."""
    return NamedSharding(mesh, P(sharding.BATCH_AXES, None, "tensor"))


def _whole_weights(config: DecoderConfig, mesh: Mesh, transpose: bool) -> Params:
    """Shardings of the decoding parameters: whole on every `fsdp` device, split over `tensor`.

    Decoding reads all weights at every step; gathering them once is far cheaper than at each.
    """
    rules = [(name, None if axis == "fsdp" else axis) for name, axis in sharding.RULES]
    whole = nn.logical_to_mesh_sharding(logical_axes(config), mesh, rules)
    layer = jax.tree.map(lambda x: NamedSharding(mesh, P(*x.spec[1:])), whole["layers"])
    whole["layers"] = (layer,) * config.num_hidden_layers
    if not transpose:
        return whole
    return decoding.transposed(whole, lambda x: NamedSharding(mesh, P(*reversed(x.spec))))
