"""The distribution that the next token is drawn from, and the draw.

Logits are masked, divided by the temperature, and cut by top-k, top-p and min-p, in this order;
what is left is renormalised. Log-probabilities that the sampler returns are those of the result.
"""

import dataclasses
import math
import operator

import chex
import jax
import jax.numpy as jnp
from jax import Array

from learner import checks
from learner.tokens import ThinkingBudget

# Tokens of a block of the vocabulary in `draw`: the lanes of a TPU's vector unit.
_BLOCK = 128
# A lower temperature may be 0 in float32.
_COLDEST = 1e-30
# Below this temperature the maximum is subtracted before the division: afterwards, as the softmax
# does it, the rounding error of a large quotient would exceed the differences of the others.
_COLD = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens, and when a completion ends.

    Attributes:
        max_new_tokens: budget of one completion, the stop token included.
        temperature: divides the logits; 0 takes the most likely token, else at least 1e-30.
        top_k: keep only the k most likely tokens; 0 keeps all.
        top_p: keep only the smallest set of most likely tokens whose probability reaches p
            (nucleus sampling, arXiv 1904.09751), of what `top_k` left; 1 keeps all.
        min_p: keep only tokens at least this fraction as likely as the most likely one (arXiv
            2407.01082); 0 keeps all.
        stop_token_ids: a completion ends with the first of these.
        thinking: how long a completion may think, and how it is made to end; None sets no limit.

    Raises:
        ValueError: a field is out of its range.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    thinking: ThinkingBudget | None = None

    def __post_init__(self) -> None:
        try:
            stops = tuple(map(operator.index, self.stop_token_ids))
        except TypeError as error:
            given = checks.shortened(self.stop_token_ids)
            raise ValueError(f"stop_token_ids={given}: allowed are lists of integers") from error
        object.__setattr__(self, "stop_token_ids", stops)
        checks.integers(self, max_new_tokens=1, top_k=0)
        checks.not_negative(self, "temperature")
        if 0 < self.temperature < _COLDEST:
            raise ValueError(
                f"temperature={self.temperature}: allowed are 0 and numbers from {_COLDEST:g} up"
            )
        checks.fractions(self, "top_p", "min_p")
        if not self.top_p:
            raise ValueError("top_p=0: allowed are numbers in (0, 1]")
        if self.thinking is not None:
            needed = self.thinking.max_tokens + len(self.thinking.closing_ids)
            if needed >= self.max_new_tokens:
                raise ValueError(
                    f"max_new_tokens={self.max_new_tokens}: more than {needed} are needed, for "
                    "thinking and the tokens that end it"
                )


def filter_logits(logits: Array, sampling: SamplingParams) -> Array:
    """Logits f32[..., V] of the distribution to draw from; excluded tokens have -inf.

    Tokens tied at the edge of top-k or top-p are all kept. Temperature 0 is treated as 1.
    """
    chex.assert_type(logits, float)
    if 0 < sampling.temperature < _COLD:
        logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
    edge = None
    k = min(sampling.top_k, logits.shape[-1])
    if k:
        best = jax.lax.top_k(logits, k)[0]
        edge = best[..., -1:]
        if sampling.top_p < 1.0:
            probs = jax.nn.softmax(best)
            inside = jnp.cumsum(probs, axis=-1) - probs < sampling.top_p
            edge = jnp.min(jnp.where(inside, best, best[..., :1]), axis=-1, keepdims=True)
    elif sampling.top_p < 1.0:
        edge = _nucleus_edge(logits, sampling.top_p)
    if sampling.min_p > 0:
        least = jnp.max(logits, axis=-1, keepdims=True) + math.log(sampling.min_p)
        edge = least if edge is None else jnp.maximum(edge, least)
    return logits if edge is None else jnp.where(logits >= edge, logits, -jnp.inf)


def _nucleus_edge(logits: Array, top_p: float) -> Array:
    """The largest edge f32[..., 1] at which tokens with logits >= edge weigh at least top_p.

    Bisection over all float32 numbers: 32 sums over the vocabulary are much faster than sorting
    it, on accelerators above all. The bits of floats, read as integers, have the floats' order
    once those of negative numbers are flipped.
    """

    def flip(bits: Array) -> Array:
        return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)

    ordered = flip(jax.lax.bitcast_convert_type(logits, jnp.int32))
    highest = jnp.max(ordered, axis=-1, keepdims=True)
    probs = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    wanted = top_p * jnp.sum(probs, axis=-1, keepdims=True)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # those from `low` up suffice, those from `high` up do not
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        mass = jnp.sum(jnp.where(ordered >= middle, probs, 0.0), axis=-1, keepdims=True)
        enough = mass >= wanted
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    lowest = jnp.full_like(highest, jnp.iinfo(jnp.int32).min)
    edge, _ = jax.lax.fori_loop(0, 32, halve, (lowest, highest + 1))
    # The search may stop between two logits, even at bits that are not a number.
    inside = jnp.where(ordered >= edge, ordered, highest)
    return jax.lax.bitcast_convert_type(flip(jnp.min(inside, axis=-1, keepdims=True)), jnp.float32)


def most_likely(logits: Array) -> Array:
    """The first token i32[...] with the largest logit of f32[..., V]; the last one if any is NaN.

    `argmax` as two plain reductions: XLA's CPU backend takes ten times as long to reduce pairs.
    """
    V = logits.shape[-1]
    best = jnp.max(logits, axis=-1, keepdims=True)
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.min(jnp.where(logits == best, ids, V - 1), axis=-1)


def logprob(logits: Array, token: Array) -> Array:
    """Log-probability f32[...] of token i32[...] under logits f32[..., V]."""
    chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def draw(keys: Array, logits: Array) -> Array:
    """One token i32[...] per distribution by inversion of the cumulative distribution.

    It takes one random number for each. A Gumbel draw (`jax.random.categorical`) takes V, on a CPU
    about as long as a decoding step of a small model. The cumulative sum has two levels, blocks
    and within the block, so that its rounding error grows more slowly than with V. Where the
    vocabulary is split over a mesh, each part has blocks of its own, and only their sums and the
    block that is hit are exchanged. Tokens of probability 0 are never drawn.

    Args:
        keys: PRNG keys [...].
        logits: f32[..., V], some finite in each.
    """
    *lead, V = logits.shape
    parts = jax.sharding.get_abstract_mesh().shape.get("tensor", 1)
    parts = parts if V % parts == 0 else 1
    size = V // parts
    blocks = -(-size // _BLOCK)
    padding = [(0, 0)] * (len(lead) + 1) + [(0, blocks * _BLOCK - size)]
    probs = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    probs = jnp.pad(probs.reshape(*lead, parts, size), padding)
    probs = probs.reshape(*lead, parts * blocks, _BLOCK)
    uniform = jax.vmap(jax.random.uniform)(keys.reshape(-1)).reshape(lead)

    block, rest = _invert(jnp.sum(probs, axis=-1), uniform)
    within = jnp.take_along_axis(probs, block[..., None, None], axis=-2)[..., 0, :]
    position, _ = _invert(within, rest)
    return block // blocks * size + block % blocks * _BLOCK + position


def _invert(weights: Array, uniform: Array) -> tuple[Array, Array]:
    """The index in weights [..., n] at which the cumulative fraction exceeds uniform in [0, 1).

    Also returns how far into that weight the uniform number fell, itself a number in [0, 1).
    Some weight of each distribution must be positive; an index whose weight is zero is never
    returned.
    """
    ends = jnp.cumsum(weights, axis=-1)
    threshold = (uniform * ends[..., -1])[..., None]
    # Sums of different prefixes may be rounded differently: ends can rise, or fall, where the
    # weight is zero, and the last end need not be the largest.
    positive = weights > 0
    hit = (ends > threshold) & positive
    last = weights.shape[-1] - 1 - jnp.argmax(positive[..., ::-1], axis=-1)
    index = jnp.where(jnp.any(hit, axis=-1), jnp.argmax(hit, axis=-1), last)
    weight = jnp.take_along_axis(weights, index[..., None], axis=-1)
    end = jnp.take_along_axis(ends, index[..., None], axis=-1)
    rest = 1.0 - (end - threshold) / weight
    return index.astype(jnp.int32), jnp.clip(rest[..., 0], 0.0, 1.0 - 2.0**-24)
