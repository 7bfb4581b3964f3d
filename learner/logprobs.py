"""Log-probabilities of tokens over a large vocabulary, without the whole array of logits."""

import functools
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
    entropy_gradient: bool = True,
) -> tuple[Array, Array]:
    """Log-probability of each target token, and the entropy of its distribution.

    The tokens are cut into chunks along their last axis, and the backward pass computes the
    logits of each chunk anew, so about `chunk` x V logits exist at a time (at least one position
    of every row). The leading axes are never cut, so their sharding stays.

    Args:
        hidden: [..., T, D], final hidden states; their dtype is that of the matrix products.
        unembedding: [D, V].
        targets: i32[..., T], each in [0, V).
        temperature: divides the logits; positive.
        chunk: number of tokens whose logits may exist at once.
        vocab_size: if given, ids from there on are no part of the distribution (a tokenizer may
            know fewer ids than the model has rows).
        entropy_gradient: False if the entropies are only reported: no gradient then flows through
            them, and the backward pass has less to do.

    Returns:
        Log-probabilities f32[..., T] and entropies f32[..., T], both in nats.

    Raises:
        ValueError: `temperature` or `chunk` is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; it must be positive")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1")
    *lead, T, _ = hidden.shape
    size = max(1, min(T, chunk // max(1, math.prod(lead))))
    count = -(-T // size)
    axis = len(lead)

    def chunks(x: Array) -> Array:
        """[..., T, *rest] -> [count, ..., size, *rest]."""
        padded = jnp.pad(x, [(0, count * size - T if i == axis else 0) for i in range(x.ndim)])
        return jnp.moveaxis(padded.reshape(*lead, count, size, *x.shape[axis + 1 :]), axis, 0)

    def unchunk(x: Array) -> Array:
        return jnp.moveaxis(x, 0, axis).reshape(*lead, count * size)[..., :T]

    logp, entropy = _chunked(
        chunks(hidden), unembedding, chunks(targets), temperature, vocab_size, entropy_gradient
    )
    return unchunk(logp), unchunk(entropy)


def limit_vocabulary(logits: Array, vocab_size: int | None) -> Array:
    """Logits [..., V] that make ids from `vocab_size` on impossible; unchanged if it is None.

    Their logit is finite, since the gradient of an entropy with infinite ones is not a number.
    """
    if vocab_size is None or vocab_size >= logits.shape[-1]:
        return logits
    return jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, _IMPOSSIBLE)


# With l the logits, Z their log-sum-exp, p = exp(l - Z) and y the target: log p_y = l_y - Z and
# H = Z - sum(p l). Hence d log p_y / d l = onehot(y) - p and dH / d l = -p (l - Z + H). Written
# out because differentiating log_softmax passes several times more often over the logits.


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _chunked(
    hidden: Array,
    unembedding: Array,
    targets: Array,
    temperature: float,
    vocab_size: int | None,
    entropy_gradient: bool,
) -> tuple[Array, Array]:
    """hidden [count, ..., size, D], targets i32[count, ..., size] -> two f32[count, ..., size]."""
    logp, entropy, _ = _forward(hidden, unembedding, targets, temperature, vocab_size)
    return logp, entropy


def _logits(hidden: Array, matrix: Array, temperature: float, vocab_size: int | None) -> Array:
    """f32[tokens, V] from hidden [..., D] and the matrix in its dtype."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    logits = jnp.matmul(flat, matrix, preferred_element_type=jnp.float32)
    return limit_vocabulary(logits, vocab_size) / temperature


def _forward(
    hidden: Array,
    unembedding: Array,
    targets: Array,
    temperature: float,
    vocab_size: int | None,
) -> tuple[Array, Array, Array]:
    matrix = unembedding.astype(hidden.dtype)

    def one(h: Array, target: Array) -> tuple[Array, Array, Array]:
        logits = _logits(h, matrix, temperature, vocab_size)
        highest = jnp.max(logits, axis=-1, keepdims=True)
        powers = jnp.exp(logits - highest)
        total = jnp.sum(powers, axis=-1)
        mean = jnp.sum(powers * logits, axis=-1) / total
        normaliser = highest[:, 0] + jnp.log(total)
        chosen = jnp.take_along_axis(logits, target.reshape(-1, 1), axis=-1)[:, 0]
        shape = target.shape
        return (
            (chosen - normaliser).reshape(shape),
            (normaliser - mean).reshape(shape),
            normaliser.reshape(shape),
        )

    return jax.lax.map(lambda args: one(*args), (hidden, targets))


def _chunked_forward(
    hidden: Array,
    unembedding: Array,
    targets: Array,
    temperature: float,
    vocab_size: int | None,
    entropy_gradient: bool,
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    logp, entropy, normaliser = _forward(hidden, unembedding, targets, temperature, vocab_size)
    return (logp, entropy), (hidden, unembedding, targets, normaliser, entropy)


def _chunked_backward(
    temperature: float,
    vocab_size: int | None,
    entropy_gradient: bool,
    saved: tuple[Array, ...],
    cotangents: tuple[Array, Array],
) -> tuple[Array, Array, None]:
    hidden, unembedding, targets, normaliser, entropy = saved
    matrix = unembedding.astype(hidden.dtype)

    def one(total: Array, args: tuple[Array, ...]) -> tuple[Array, Array]:
        h, *columns = args
        target, z, ent, logp_bar, entropy_bar = (x.reshape(-1, 1) for x in columns)
        logits = _logits(h, matrix, temperature, vocab_size)
        log_p = logits - z
        factor = logp_bar
        if entropy_gradient:
            factor = factor + entropy_bar * (log_p + ent)
        onehot = jnp.arange(logits.shape[-1]) == target
        logits_bar = jnp.where(onehot, logp_bar, 0.0) - factor * jnp.exp(log_p)
        # In the dtype of the model, as every other matrix product of the backward pass.
        logits_bar = (logits_bar / temperature).astype(h.dtype)
        h_bar = jnp.matmul(logits_bar, matrix.T).reshape(h.shape)
        flat = h.reshape(-1, h.shape[-1])
        more = jnp.matmul(flat.T, logits_bar, preferred_element_type=total.dtype)
        return total + more, h_bar

    zeros = jnp.zeros_like(unembedding)
    columns = (targets, normaliser, entropy, *cotangents)
    unembedding_bar, hidden_bar = jax.lax.scan(one, zeros, (hidden, *columns))
    return hidden_bar, unembedding_bar, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
