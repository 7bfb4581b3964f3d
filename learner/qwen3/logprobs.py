"""Log-probabilities of tokens over a large vocabulary, without the whole array of logits."""

import functools
import math
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from learner.devices import sharding

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
    logits of each chunk anew, so about `chunk` x V logits exist at a time on a device (at least one
    position of each of its rows).

    Under a mesh (`sharding.use`) every device works on its own rows of the first axis, which is
    split over `sharding.BATCH_AXES`, and sums up its own gradient of the matrix; these sums meet
    once, after the last chunk. The vocabulary stays split over the tensor axis, which divides V.

    Args:
        hidden: [..., T, D], final hidden states; their dtype is that of the matrix products.
        unembedding: [D, V].
        targets: i32[..., T], each in [0, V).
        temperature: divides the logits; positive.
        chunk: number of tokens whose logits may exist at once on a device.
        vocab_size: if given, ids from there on are no part of the distribution (a tokenizer may
            know fewer ids than the model has rows).
        entropy_gradient: False if the entropies are only reported: no gradient then flows through
            them, and the backward pass has less to do.

    Returns:
        Log-probabilities f32[..., T] and entropies f32[..., T], both in nats.

    Raises:
        ValueError: `temperature` or `chunk` is not positive, or the first axis does not divide over
            the mesh.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; it must be positive")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1")
    chex.assert_shape(targets, hidden.shape[:-1])
    chex.assert_shape(unembedding, (hidden.shape[-1], None))
    *lead, T, _ = hidden.shape
    shards = _row_shards() if lead else 1
    if lead and lead[0] % shards:
        raise ValueError(f"rows of hidden are {lead[0]}; allowed are multiples of {shards}")
    size = max(1, min(T, chunk // max(1, math.prod(lead) // shards)))
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


def limit_vocabulary(logits: Array, vocab_size: int | None, first: Array | int = 0) -> Array:
    """Logits [..., V] that make ids from `vocab_size` on impossible; unchanged if it is None.

    Their logit is finite, since the gradient of an entropy with infinite ones is not a number.

    Args:
        first: the id of the first logit.
    """
    size = logits.shape[-1]
    if vocab_size is None or (isinstance(first, int) and vocab_size >= first + size):
        return logits
    return jnp.where(first + jnp.arange(size) < vocab_size, logits, _IMPOSSIBLE)


# With l the logits, Z their log-sum-exp, p = exp(l - Z) and y the target: log p_y = l_y - Z and
# H = Z - sum(p l). Hence d log p_y / d l = onehot(y) - p and dH / d l = -p (l - Z + H). Written
# out because differentiating log_softmax passes several times more often over the logits.


def _row_shards() -> int:
    """Over how many devices rows are split where this is called."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else sharding.num_row_shards(mesh)


_ROWS = P(None, sharding.BATCH_AXES)  # The first axis counts chunks.
_MATRIX = P("fsdp", "tensor")


def _over_mesh(
    local: Callable[..., Any], in_specs: tuple[P, ...], out_specs: P | tuple[P, ...], split: bool
) -> Callable[..., Any]:
    """`local` on the rows of each device and its part of the vocabulary."""
    if not split:
        return local
    return jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _split(targets: Array) -> bool:
    """Whether there is a mesh, and rows to split over it, in targets [count, ..., size]."""
    return targets.ndim > 2 and not jax.sharding.get_abstract_mesh().empty


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


def _vocabulary_split(split: bool) -> bool:
    """Whether a device has a part of the vocabulary, where `local` of `_over_mesh` runs."""
    return split and jax.sharding.get_abstract_mesh().shape["tensor"] > 1


def _first(matrix: Array, split: bool) -> Array | int:
    """The id of the first column of a device's matrix [D, its part of V]."""
    return jax.lax.axis_index("tensor") * matrix.shape[-1] if _vocabulary_split(split) else 0


def _sums(parts: Any, split: bool) -> Any:
    """Sums over the vocabulary from those over the part of each device."""
    return jax.lax.psum(parts, "tensor") if _vocabulary_split(split) else parts


def _logits(
    hidden: Array, matrix: Array, temperature: float, vocab_size: int | None, first: Array | int
) -> Array:
    """f32[tokens, V] from hidden [..., D] and the matrix in its dtype, whose first id is given."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    logits = jnp.matmul(flat, matrix, preferred_element_type=jnp.float32)
    return limit_vocabulary(logits, vocab_size, first) / temperature


def _whole(part: Array, dtype: Any, split: bool) -> Array:
    """The matrix from one device's part of its rows, in the dtype of the products."""
    part = part.astype(dtype)
    return jax.lax.all_gather(part, "fsdp", axis=0, tiled=True) if split else part


def _forward(
    hidden: Array,
    unembedding: Array,
    targets: Array,
    temperature: float,
    vocab_size: int | None,
) -> tuple[Array, Array, Array]:
    split = _split(targets)

    def local(hidden: Array, part: Array, targets: Array) -> tuple[Array, Array, Array]:
        matrix = _whole(part, hidden.dtype, split)
        first = _first(matrix, split)

        def one(h: Array, target: Array) -> tuple[Array, Array, Array]:
            logits = _logits(h, matrix, temperature, vocab_size, first)
            highest = jnp.max(logits, axis=-1, keepdims=True)
            if _vocabulary_split(split):
                highest = jax.lax.pmax(highest, "tensor")
            powers = jnp.exp(logits - highest)
            column = target.reshape(-1, 1) - first
            here = (column >= 0) & (column < logits.shape[-1])
            chosen = jnp.take_along_axis(logits, jnp.where(here, column, 0), axis=-1)
            total, weighted, chosen = _sums(
                (
                    jnp.sum(powers, axis=-1),
                    jnp.sum(powers * logits, axis=-1),
                    jnp.where(here, chosen, 0.0)[:, 0],
                ),
                split,
            )
            mean = weighted / total
            normaliser = highest[:, 0] + jnp.log(total)
            shape = target.shape
            return (
                (chosen - normaliser).reshape(shape),
                (normaliser - mean).reshape(shape),
                normaliser.reshape(shape),
            )

        return jax.lax.map(lambda args: one(*args), (hidden, targets))

    run = _over_mesh(local, (_ROWS, _MATRIX, _ROWS), (_ROWS, _ROWS, _ROWS), split)
    return run(hidden, unembedding, targets)


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
    split = _split(targets)

    def local(hidden: Array, part: Array, *columns: Array) -> tuple[Array, Array]:
        matrix = _whole(part, hidden.dtype, split)
        first = _first(matrix, split)

        def one(total: Array, args: tuple[Array, ...]) -> tuple[Array, Array]:
            h, *columns = args
            target, z, ent, logp_bar, entropy_bar = (x.reshape(-1, 1) for x in columns)
            logits = _logits(h, matrix, temperature, vocab_size, first)
            log_p = logits - z
            factor = logp_bar
            if entropy_gradient:
                factor = factor + entropy_bar * (log_p + ent)
            onehot = first + jnp.arange(logits.shape[-1]) == target
            logits_bar = jnp.where(onehot, logp_bar, 0.0) - factor * jnp.exp(log_p)
            # In the dtype of the model, as every other matrix product of the backward pass.
            logits_bar = (logits_bar / temperature).astype(h.dtype)
            h_bar = jnp.matmul(logits_bar, matrix.T).reshape(h.shape)
            flat = h.reshape(-1, h.shape[-1])
            more = jnp.matmul(flat.T, logits_bar, preferred_element_type=total.dtype)
            return total + more, h_bar

        zeros = jnp.zeros_like(matrix, part.dtype)
        total, hidden_bar = jax.lax.scan(one, zeros, (hidden, *columns))
        hidden_bar = _sums(hidden_bar, split)
        if split:
            # Not over axes of one device: XLA runs such a sum and even copies for it.
            mesh = jax.sharding.get_abstract_mesh()
            if mesh.shape["fsdp"] > 1:
                total = jax.lax.psum_scatter(total, "fsdp", scatter_dimension=0, tiled=True)
            if mesh.shape["data"] > 1:
                total = jax.lax.psum(total, "data")
        return hidden_bar, total

    columns = (targets, normaliser, entropy, *cotangents)
    in_specs = (_ROWS, _MATRIX, *[_ROWS] * len(columns))
    run = _over_mesh(local, in_specs, (_ROWS, _MATRIX), split)
    return *run(hidden, unembedding, *columns), None


_chunked.defvjp(_chunked_forward, _chunked_backward)
