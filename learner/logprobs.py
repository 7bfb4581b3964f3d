"""Log-probabilities of tokens over a large vocabulary, without the whole array of logits."""

import math

import jax
import jax.numpy as jnp
from jax import Array

# Far below any logit; its exponential is 0, and dividing it by a temperature does not overflow.
_IMPOSSIBLE = -1e30


def token_logprobs(
    hidden: Array,
    unembedding: Array,
    targets: Array,
    temperature: float = 1.0,
    chunk: int = 1024,
    vocab_size: int | None = None,
) -> tuple[Array, Array]:
    """Log-probability of each target token, and the entropy of its distribution.

    The tokens are mapped in chunks along their last axis, and the backward pass recomputes each
    chunk, so about `chunk` x V logits exist at a time (at least one position of every row). The
    leading axes are never cut, so their sharding stays.

    Args:
        hidden: [..., T, D], final hidden states; their dtype is that of the matrix product.
        unembedding: [D, V].
        targets: i32[..., T], each in [0, V).
        temperature: divides the logits; positive.
        chunk: number of tokens whose logits may exist at once.
        vocab_size: if given, ids from there on are no part of the distribution (a tokenizer may
            know fewer ids than the model has rows).

    Returns:
        Log-probabilities f32[..., T] and entropies f32[..., T], both in nats.

    Raises:
        ValueError: `temperature` or `chunk` is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; it must be positive")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1")
    *lead, T, D = hidden.shape
    size = max(1, min(T, chunk // max(1, math.prod(lead))))
    count = -(-T // size)

    def chunks(x: Array) -> Array:
        """[..., T, *rest] -> [count, ..., size, *rest]."""
        axis = len(lead)
        padded = jnp.pad(x, [(0, count * size - T if i == axis else 0) for i in range(x.ndim)])
        return jnp.moveaxis(padded.reshape(*lead, count, size, *x.shape[axis + 1 :]), axis, 0)

    @jax.checkpoint
    def one(h: Array, target: Array) -> tuple[Array, Array]:
        # Cast here: the gradient of `unembedding` is then summed over chunks in its own dtype.
        logits = jnp.matmul(
            h.reshape(-1, D), unembedding.astype(h.dtype), preferred_element_type=jnp.float32
        )
        logits = limit_vocabulary(logits, vocab_size) / temperature
        logp = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logp, target.reshape(-1, 1), axis=-1)
        entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
        return chosen.reshape(target.shape), entropy.reshape(target.shape)

    def unchunk(x: Array) -> Array:
        return jnp.moveaxis(x, 0, len(lead)).reshape(*lead, count * size)[..., :T]

    logp, entropy = jax.lax.map(lambda args: one(*args), (chunks(hidden), chunks(targets)))
    return unchunk(logp), unchunk(entropy)


def limit_vocabulary(logits: Array, vocab_size: int | None) -> Array:
    """Logits [..., V] that make ids from `vocab_size` on impossible; unchanged if it is None.

    Their logit is finite, since the gradient of an entropy with infinite ones is not a number.
    """
    if vocab_size is None or vocab_size >= logits.shape[-1]:
        return logits
    return jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, _IMPOSSIBLE)
