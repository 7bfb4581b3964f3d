"""Sampling of answers: prefill once per prompt, decode all its samples from a key/value cache.

The whole of one call on the device is one program: prefill, then a `while_loop` that ends as soon
as every row has met a stop token. The weights are those of training, on the same mesh; nothing is
copied to another engine.

What keeps the number of compiled programs small, and what a call may cost in padding:

* prompts are padded on the right to a multiple of `prompt_bucket_multiple` tokens;
* at most `max_rows` rows (prompts x samples) run at a time. A call with more is cut into chunks
  of equal size; the prompts of a smaller one are padded to a power of two times the number of row
  shards. Padding rows count as finished from the start.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from learner import sharding
from learner.logprobs import limit_vocabulary
from learner.qwen3 import model
from learner.qwen3.config import Qwen3Config
from learner.qwen3.model import KVCache, Params
from learner.tokens import bucket, pad_right

# Slots for generated tokens at first; doubled whenever they are full. Attention then reads at
# most twice the slots in use, for a number of compiled loops logarithmic in `max_new_tokens`.
_FIRST_SEGMENT = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens.

    Attributes:
        max_new_tokens: budget of one answer, the stop token included.
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keep only the k most likely tokens; 0 keeps all.
        top_p: keep only the smallest set of most likely tokens whose probability reaches p
            (nucleus sampling, arXiv 1904.09751), of what `top_k` left; 1 keeps all.
        stop_token_ids: an answer ends with the first of these.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}; it must be at least 0")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 0 (0 keeps all)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be in (0, 1]")


class Samples(NamedTuple):
    """Answers, on the host; N rows, prompt-major. M is `max_new_tokens`.

    Attributes:
        tokens: i32[N, M], the pad id after the end.
        logprobs: f32[N, M], in nats, of the distribution that was sampled from; 0 after the end.
            Greedy answers have those of the distribution at temperature 1.
        lengths: i32[N], number of generated tokens, the stop token included.
        stopped: bool[N], whether a stop token ended it; False means cut off by the budget.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    lengths: np.ndarray
    stopped: np.ndarray


# Choice of one token ---------------------------------------------------------


def token_distribution(logits: Array, sampling: SamplingParams) -> Array:
    """Log-probabilities f32[..., V] after temperature, top-k and top-p (in this order).

    Ties at the edge of top-k or top-p are all kept. Temperature 0 is treated as 1.
    """
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
    k = min(sampling.top_k, logits.shape[-1])
    if not k and sampling.top_p == 1.0:
        return jax.nn.log_softmax(logits)
    best = jax.lax.top_k(logits, k or logits.shape[-1])[0]
    edge = best[..., -1:]
    if sampling.top_p < 1.0:
        probs = jax.nn.softmax(best)
        inside = jnp.cumsum(probs, axis=-1) - probs < sampling.top_p
        edge = jnp.min(jnp.where(inside, best, jnp.inf), axis=-1, keepdims=True)
    return jax.nn.log_softmax(jnp.where(logits >= edge, logits, -jnp.inf))


def draw(keys: Array, logp: Array) -> Array:
    """One token per row by inversion of the cumulative distribution; needs one uniform per row.

    A Gumbel draw (`jax.random.categorical`) needs V random numbers per row, which on a CPU takes
    about as long as a decoding step of a small model. The cumulative sum has two levels, blocks
    and within the block, so that its rounding error grows with the root of V only. Tokens of
    probability 0 are never drawn.

    Args:
        keys: PRNG keys [...]; logp: f32[..., V], normalised.

    Returns:
        i32[...].
    """
    *lead, V = logp.shape
    width = max(1, round(V**0.5))
    blocks = -(-V // width)
    padding = [(0, 0)] * len(lead) + [(0, blocks * width - V)]
    probs = jnp.pad(jnp.exp(logp), padding).reshape(*lead, blocks, width)
    uniform = jax.vmap(jax.random.uniform)(keys.reshape(-1)).reshape(lead)

    block, rest = _invert(jnp.sum(probs, axis=-1), uniform)
    within = jnp.take_along_axis(probs, block[..., None, None], axis=-2)[..., 0, :]
    position, _ = _invert(within, rest)
    return block * width + position


def _invert(weights: Array, uniform: Array) -> tuple[Array, Array]:
    """The index in weights [..., n] at which the cumulative share exceeds uniform in [0, 1).

    Also returns how far into that weight the uniform number fell, itself a number in [0, 1).
    """
    ends = jnp.cumsum(weights, axis=-1)
    # A uniform number is at most 1 - 2^-24, so the threshold stays below the last end.
    threshold = (uniform * ends[..., -1])[..., None]
    # The first end above the threshold: it exceeds its predecessor, so its weight is not zero.
    index = jnp.argmax(ends > threshold, axis=-1)
    weight = jnp.take_along_axis(weights, index[..., None], axis=-1)
    end = jnp.take_along_axis(ends, index[..., None], axis=-1)
    rest = 1.0 - (end - threshold) / weight
    return index.astype(jnp.int32), jnp.clip(rest[..., 0], 0.0, 1.0 - 2.0**-24)


# Decoding --------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Rows:
    """What has been generated for P prompts x G samples. `last` is the newest token."""

    tokens: Array  # i32[P, G, M]
    logprobs: Array  # f32[P, G, M]
    lengths: Array  # i32[P, G]
    stopped: Array  # bool[P, G]
    done: Array  # bool[P, G]: stopped, or a row of padding
    last: Array  # i32[P, G]


def _choose(
    rows: _Rows,
    logits: Array,
    keys: Array,
    step: Array,
    sampling: SamplingParams,
    pad_id: int,
) -> _Rows:
    """Choose token number `step` of every row from its logits f32[P, G or 1, V]."""
    logp = token_distribution(logits, sampling)
    logp = jnp.broadcast_to(logp, (*keys.shape, logp.shape[-1]))
    if sampling.temperature == 0:
        token = jnp.argmax(logp, axis=-1).astype(jnp.int32)
    else:
        at_step = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, step)))(keys)
        token = draw(at_step, logp)
    chosen = jnp.take_along_axis(logp, token[..., None], axis=-1)[..., 0]
    token = jnp.where(rows.done, pad_id, token)
    chosen = jnp.where(rows.done, 0.0, chosen)
    stop = jnp.isin(token, jnp.array(sampling.stop_token_ids, jnp.int32)) & ~rows.done
    return _Rows(
        tokens=jax.lax.dynamic_update_index_in_dim(rows.tokens, token, step, axis=2),
        logprobs=jax.lax.dynamic_update_index_in_dim(rows.logprobs, chosen, step, axis=2),
        lengths=rows.lengths + ~rows.done,
        stopped=rows.stopped | stop,
        done=rows.done | stop,
        last=token,
    )


def _generate(
    params: Params,
    tokens: Array,
    lengths: Array,
    keys: Array,
    present: Array,
    num_samples: int,
    *,
    config: Qwen3Config,
    sampling: SamplingParams,
    pad_id: int,
    vocab_size: int | None,
    place: Callable[[Params], Params],
) -> tuple[Array, Array, Array, Array]:
    """Answers to P prompts: tokens i32[P, T], lengths i32[P], keys [P], present bool[P]."""
    P_, G, M = tokens.shape[0], num_samples, sampling.max_new_tokens
    params = place(model.unstack(params, config))
    keys = jax.vmap(lambda key: jax.vmap(lambda g: jax.random.fold_in(key, g))(jnp.arange(G)))(keys)

    def choose(rows: _Rows, hidden: Array, step: Array) -> _Rows:
        logits = limit_vocabulary(model.output_logits(params, config, hidden), vocab_size)
        return _choose(rows, logits, keys, step, sampling, pad_id)

    absent = jnp.broadcast_to(~present[:, None], (P_, G))
    rows = _Rows(
        tokens=jnp.full((P_, G, M), pad_id, jnp.int32),
        logprobs=jnp.zeros((P_, G, M), jnp.float32),
        lengths=jnp.zeros((P_, G), jnp.int32),
        stopped=jnp.zeros((P_, G), bool),
        done=absent,
        last=jnp.zeros((P_, G), jnp.int32),
    )
    cache, hidden = model.prefill(params, config, tokens, lengths, G)
    rows = choose(rows, hidden[:, None], jnp.int32(0))

    # Token number `step` needs the tokens before it in the cache: `step` slots.
    def body(carry: tuple[Array, _Rows, KVCache]) -> tuple[Array, _Rows, KVCache]:
        step, rows, cache = carry
        cache, hidden = model.decode_step(params, config, cache, rows.last, step - 1)
        return step + 1, choose(rows, hidden, step), cache

    def unfinished(carry: tuple[Array, _Rows, KVCache]) -> Array:
        step, rows, cache = carry
        return (step <= cache.capacity) & ~jnp.all(rows.done)

    carry = (jnp.int32(1), rows, cache)
    for capacity in _capacities(M - 1):
        step, rows, cache = carry
        carry = jax.lax.while_loop(unfinished, body, (step, rows, model.grow(cache, capacity)))
    rows = carry[1]
    return rows.tokens, rows.logprobs, rows.lengths, rows.stopped


def _capacities(total: int) -> list[int]:
    """Cache sizes to go through: doubling, up to `total` slots."""
    sizes: list[int] = []
    size = _FIRST_SEGMENT
    while size < total:
        sizes.append(size)
        size *= 2
    return [*sizes, total] if total else []


class Sampler:
    """Samples answers to prompts, all with the same `SamplingParams`.

    Holds only static things and one jitted function: parameters, prompts and keys are arguments,
    so new weights need no hand-over.
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
        vocab_size: int | None = None,
    ) -> None:
        """Prepare; nothing is compiled yet.

        Args:
            config: of the model; `config.dtype` is the dtype of decoding.
            mesh: where the parameters live; rows are split over its `data` and `fsdp` axes.
            sampling: how to choose tokens.
            pad_id: fills prompts and ended answers.
            prompt_bucket_multiple: prompts are padded to a multiple of this many tokens.
            max_rows: rows (prompts x samples) that run at a time; bounds the cache.
            vocab_size: ids from there on are never sampled (a tokenizer may know fewer ids than
                the model has rows); None allows all.

        Raises:
            ValueError: an argument is out of range.
        """
        sharding.check(config, mesh)
        if not 0 <= pad_id < config.vocab_size:
            raise ValueError(f"pad_id is {pad_id}; it must be in [0, {config.vocab_size})")
        if prompt_bucket_multiple < 1:
            raise ValueError(
                f"prompt_bucket_multiple is {prompt_bucket_multiple}; it must be at least 1"
            )
        if max_rows < sharding.num_row_shards(mesh):
            raise ValueError(
                f"max_rows is {max_rows}; it must be at least the number of row shards, "
                f"{sharding.num_row_shards(mesh)}"
            )
        if vocab_size is not None and not 0 < vocab_size <= config.vocab_size:
            raise ValueError(f"vocab_size is {vocab_size}; allowed are 1..{config.vocab_size}")
        if sampling.max_new_tokens >= config.max_position_embeddings:
            raise ValueError(
                f"max_new_tokens is {sampling.max_new_tokens}; it must be less than "
                f"max_position_embeddings, {config.max_position_embeddings}"
            )
        self.config = config
        self.mesh = mesh
        self.sampling = sampling
        self.pad_id = pad_id
        self.prompt_bucket_multiple = prompt_bucket_multiple
        self.max_rows = max_rows
        rows = sharding.batch_sharding(mesh)
        self._generate = jax.jit(
            functools.partial(
                _generate,
                config=config,
                sampling=sampling,
                pad_id=pad_id,
                vocab_size=vocab_size,
                place=functools.partial(_gather_fsdp, config=config, mesh=mesh),
            ),
            static_argnums=5,
            in_shardings=(sharding.param_shardings(config, mesh), rows, rows, rows, rows),
            out_shardings=rows,
        )

    def __call__(
        self,
        params: Params,
        prompts: Sequence[Sequence[int]],
        keys: Array,
        num_samples: int = 1,
    ) -> Samples:
        """Sample `num_samples` answers to every prompt.

        A sample depends on its prompt, on `fold_in(keys[prompt], sample)` and, per token, on
        the position folded into that; not on what else is in the batch (beyond rounding).

        Args:
            params: stacked, as everywhere; placed by `param_shardings(config, mesh)`.
            prompts: token ids, each prompt at least one.
            keys: PRNG keys [len(prompts)].

        Returns:
            len(prompts) * num_samples rows: all samples of prompt 0, then of prompt 1, ...

        Raises:
            ValueError: a prompt is empty, has an id outside the vocabulary, or leaves no room
                for `max_new_tokens`; keys and prompts differ in number; `num_samples` is not
                in 1..max_rows / row shards.
        """
        shards = sharding.num_row_shards(self.mesh)
        if keys.shape != (len(prompts),):
            raise ValueError(f"keys have shape {keys.shape}; expected ({len(prompts)},)")
        if not 1 <= num_samples <= self.max_rows // shards:
            raise ValueError(
                f"num_samples is {num_samples}; allowed are 1..{self.max_rows // shards} "
                f"(max_rows {self.max_rows} over {shards} row shards)"
            )
        self._check_prompts(prompts)
        chunk = self._chunk_size(len(prompts), num_samples)
        parts = [
            self._run(params, prompts[start : start + chunk], keys[start : start + chunk], chunk,
                      num_samples)
            for start in range(0, len(prompts), chunk)
        ]  # fmt: skip
        M = self.sampling.max_new_tokens
        return Samples(
            *(
                np.concatenate([np.asarray(part[i]) for part in parts])
                if parts
                else np.zeros(shape, dtype)
                for i, (shape, dtype) in enumerate(
                    (((0, M), np.int32), ((0, M), np.float32), ((0,), np.int32), ((0,), bool))
                )
            )
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

    def _chunk_size(self, num_prompts: int, num_samples: int) -> int:
        """Prompts per device program: fixed for large calls, a power of two for small ones."""
        shards = sharding.num_row_shards(self.mesh)
        largest = self.max_rows // (num_samples * shards)
        needed = -(-num_prompts // shards)
        return shards * min(largest, 1 << max(0, needed - 1).bit_length())

    def _run(
        self,
        params: Params,
        prompts: Sequence[Sequence[int]],
        keys: Array,
        size: int,
        num_samples: int,
    ) -> list[np.ndarray]:
        """Run at most `size` prompts, padded to exactly that many; drop the padding again."""
        count = len(prompts)
        longest = bucket(max(len(prompt) for prompt in prompts), self.prompt_bucket_multiple)
        tokens, lengths = pad_right(prompts, longest, self.pad_id)
        fill = np.minimum(np.arange(size), count - 1)  # padding repeats the last prompt
        present = np.arange(size) < count
        rows = jax.device_put(
            (tokens[fill], lengths[fill], keys[fill], present), sharding.batch_sharding(self.mesh)
        )
        with sharding.use(self.mesh):
            out = self._generate(params, *rows, num_samples)
        return [np.asarray(x)[:count].reshape(-1, *x.shape[2:]) for x in out]


def _gather_fsdp(params: Params, *, config: Qwen3Config, mesh: Mesh) -> Params:
    """Whole weights on every `fsdp` device for decoding (still split over `tensor`).

    Decoding reads all weights at every step; gathering them once is far cheaper than at each.
    """

    def without_fsdp(stacked: NamedSharding, drop: int) -> NamedSharding:
        axes = [None if axis == "fsdp" else axis for axis in stacked.spec]
        return NamedSharding(mesh, P(*axes[drop:]))

    tree = sharding.param_shardings(config, mesh)
    layer = jax.tree.map(lambda s: without_fsdp(s, 1), tree["layers"])
    target = {name: jax.tree.map(lambda s: without_fsdp(s, 0), tree[name]) for name in tree}
    return jax.lax.with_sharding_constraint(
        params, {**target, "layers": (layer,) * config.num_hidden_layers}
    )
