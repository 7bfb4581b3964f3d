"""Log-probabilities of tokens over a large vocabulary, without the whole array of logits."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from learner.devices import sharding

# Far below any logit; its exponential is 0, and dividing it by a temperature does not overflow.
_IMPOSSIBLE = -1e30
# The most logits, 128 MiB of them, that are kept for the backward pass.
_KEPT = 1 << 25
# The most chunks that are compiled one by one.
_UNROLLED = 8


def token_logprobs(
    hidden: Array,
    unembedding: Array,
    targets: Array,
    temperature: float = 1.0,
    chunk: int = 1024,
    vocab_size: int | None = None,
    entropy_gradient: bool = True,
    needed: Array | None = None,
) -> tuple[Array, Array]:
    """Log-probability of each target token, and the entropy of its distribution.

    The tokens are cut into chunks along their last axis, and the backward pass recomputes the
    logits of each chunk, so about `chunk` x V logits exist at a time on a device (at least one
    position of each of its sequences). Where no devices share the vocabulary, up to 2^25 logits of
    a device are kept instead.

    Under a mesh (`sharding.use`), which splits the sequences of the first axis over
    `sharding.BATCH_AXES`, each device computes with a part of the vocabulary. Axis `tensor`, which
    must divide V, splits it; `fsdp` splits these parts again, and its devices gather their
    sequences of a chunk. So no device has the whole matrix or its gradient, and gradients are
    reduced once, after the last chunk. If `fsdp` does not divide a part of the vocabulary, each of
    its devices computes with all of that part.

    Args:
        hidden: [..., T, D], final hidden states; their dtype is that of the matrix products.
        unembedding: [D, V].
        targets: i32[..., T], each in [0, V).
        temperature: divides the logits; positive.
        chunk: number of tokens whose logits may exist at once on a device.
        vocab_size: if given, ids from this one on are not part of the distribution (a tokenizer
            may know fewer ids than the model has).
        entropy_gradient: False if the entropies are only reported: no gradient then flows through
            them, and the backward pass has less to do.
        needed: bool[..., T], the tokens whose results count; those of others are finite and mean
            nothing, and are left out where that saves chunks. None for all.

    Returns:
        Log-probabilities f32[..., T] and entropies f32[..., T], both in nats.

    Raises:
        ValueError: the first axis does not divide over the mesh.
    """
    chex.assert_shape(targets, hidden.shape[:-1])
    chex.assert_shape(unembedding, (hidden.shape[-1], None))
    *lead, T, _ = hidden.shape
    mesh = jax.sharding.get_abstract_mesh()
    shards = 1
    if lead and not mesh.empty:
        sharding.check_batch_size("hidden.shape[0]", lead[0], mesh)
        shards = sharding.num_batch_shards(mesh)
    size = max(1, min(T, chunk // max(1, math.prod(lead) // shards)))
    count = -(-T // size)
    axis = len(lead)

    order = wanted = None
    # Devices that share the vocabulary exchange sums in every chunk. Under a condition XLA's CPU
    # client does not keep exchanges in order with others, and devices wait for each other for ever.
    shared = any(mesh.shape.get(axis, 1) > 1 for axis in ("fsdp", "tensor"))
    if needed is not None and count > 1 and not shared:
        order = jnp.argsort(~needed, axis=-1)  # Those that are needed come first.
        hidden = jnp.take_along_axis(hidden, order[..., None], axis=-2)
        targets = jnp.take_along_axis(targets, order, axis=-1)
        wanted = jnp.arange(count) * size < jnp.max(jnp.sum(needed, axis=-1))
    logits = math.prod(lead) // shards * count * size * unembedding.shape[1]
    keep = not shared and logits <= _KEPT

    def chunks(x: Array) -> Array:
        """[..., T, *rest] -> [count, ..., size, *rest]."""
        padded = jnp.pad(x, [(0, count * size - T if i == axis else 0) for i in range(x.ndim)])
        return jnp.moveaxis(padded.reshape(*lead, count, size, *x.shape[axis + 1 :]), axis, 0)

    def unchunk(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, axis).reshape(*lead, count * size)[..., :T]
        return x if order is None else jnp.take_along_axis(x, jnp.argsort(order), axis=-1)

    logp, entropy = _chunked(
        chunks(hidden),
        unembedding,
        wanted,
        chunks(targets),
        temperature,
        vocab_size,
        entropy_gradient,
        keep,
    )
    return unchunk(logp), unchunk(entropy)


def limit_vocabulary(logits: Array, vocab_size: int | None, first: Array | int = 0) -> Array:
    """Logits [..., V] that make ids from `vocab_size` on impossible; unchanged if it is None.

    Their logits are finite: the gradient of an entropy with infinite ones is NaN.

    Args:
        first: the id of the first logit.
    """
    size = logits.shape[-1]
    if vocab_size is None or (isinstance(first, int) and vocab_size >= first + size):
        return logits
    return jnp.where(first + jnp.arange(size) < vocab_size, logits, _IMPOSSIBLE)


# With l the logits, Z their log-sum-exp, p = exp(l - Z) and y the target: log p_y = l_y - Z and
# H = Z - sum(p l). Hence d log p_y / d l = onehot(y) - p and dH / d l = -p (l - Z + H). Written
# out because differentiating log_softmax makes several times as many passes over the logits.


_BATCH = P(None, sharding.BATCH_AXES)  # The first axis counts chunks.
_MATRIX = P("fsdp", "tensor")


def _on_devices(
    local: Callable[..., Any],
    out_specs: Any,
    hidden: Array,
    unembedding: Array,
    wanted: Array | None,
    *columns: Array,
) -> Any:
    """Run `local` on each device's sequences and part of the matrix; on all if nothing is split."""
    if columns[0].ndim < 3 or jax.sharding.get_abstract_mesh().empty:
        return local(hidden, unembedding, wanted, *columns)
    in_specs = (_BATCH, _MATRIX, P(), *[_BATCH] * len(columns))
    run = jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return run(hidden, unembedding, wanted, *columns)


def _is_split(axis: str) -> bool:
    """Whether `local` of `_on_devices` sees one part of several along a mesh axis.

    Not along an axis of one device: XLA would run a sum over it, and even copy for it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return axis in mesh.manual_axes and mesh.shape[axis] > 1


class _Columns(NamedTuple):
    """A device's part of the vocabulary.

    Attributes:
        matrix: [D, columns], in the dtype of the products.
        first: the id of the first column.
        axes: mesh axes that split the vocabulary; sequences are gathered along `fsdp` if it is in
            them.
    """

    matrix: Array
    first: Array | int
    axes: tuple[str, ...]

    @classmethod
    def of(cls, part: Array, dtype: Any) -> "_Columns":
        """From the stored part of the matrix, [D over fsdp, V over tensor]."""
        matrix = part.astype(dtype)
        axes = tuple(axis for axis in ("tensor",) if _is_split(axis))
        if _is_split("fsdp") and part.shape[1] % jax.lax.axis_size("fsdp") == 0:
            axes += ("fsdp",)
            matrix = jax.lax.all_to_all(matrix, "fsdp", 1, 0, tiled=True)
        elif _is_split("fsdp"):
            matrix = jax.lax.all_gather(matrix, "fsdp", axis=0, tiled=True)
        number = jax.lax.axis_index(axes) if axes else 0
        return cls(matrix, number * matrix.shape[1], axes)

    def sum(self, parts: Any) -> Any:
        """The sum over the vocabulary."""
        return jax.lax.psum(parts, self.axes) if self.axes else parts

    def gathered(self, own: Any) -> Any:
        """Gather [tokens, ...] from all devices that share a vocabulary."""
        if "fsdp" not in self.axes:
            return own
        return jax.tree.map(lambda x: jax.lax.all_gather(x, "fsdp", axis=0, tiled=True), own)

    def own_part(self, gathered: Array) -> Array:
        """The inverse of `gathered`."""
        if "fsdp" not in self.axes:
            return gathered
        size = gathered.shape[0] // jax.lax.axis_size("fsdp")
        return jax.lax.dynamic_slice_in_dim(gathered, jax.lax.axis_index("fsdp") * size, size)

    def own_sum(self, gathered: Array) -> Array:
        """`own_part` of the sum over the vocabulary."""
        if "fsdp" in self.axes:
            gathered = jax.lax.psum_scatter(gathered, "fsdp", scatter_dimension=0, tiled=True)
        return jax.lax.psum(gathered, "tensor") if "tensor" in self.axes else gathered

    def gradient(self, total: Array) -> Array:
        """The gradient of the stored part, from that of `matrix` over this device's tokens."""
        if "fsdp" in self.axes:
            total = jax.lax.all_to_all(total, "fsdp", 0, 1, tiled=True)
        elif _is_split("fsdp"):
            total = jax.lax.psum_scatter(total, "fsdp", scatter_dimension=0, tiled=True)
        return jax.lax.psum(total, "data") if _is_split("data") else total


def _logits(
    hidden: Array, matrix: Array, temperature: float, vocab_size: int | None, first: Array | int
) -> Array:
    """f32[tokens, V] from hidden [..., D] and a matrix of its dtype, whose first id is `first`."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    logits = jnp.matmul(flat, matrix, preferred_element_type=jnp.float32)
    return limit_vocabulary(logits, vocab_size, first) / temperature


def _if(wanted: Array | None, one: Callable[..., Any], none: Callable[..., Any], *args: Any) -> Any:
    """`one` of the arguments for a chunk that is wanted, else `none`; None means that all are."""
    return one(*args) if wanted is None else jax.lax.cond(wanted, one, none, *args)


def _unroll(count: int, keep: bool) -> int:
    """Chunks in the body of a loop: few kept ones need no loop.

    It would gather their logits in one array, which XLA first fills with zeros.
    """
    return count if keep and count <= _UNROLLED else 1


def _forward(
    hidden: Array,
    unembedding: Array,
    wanted: Array | None,
    targets: Array,
    temperature: float,
    vocab_size: int | None,
    entropy_gradient: bool,
    keep: bool,
) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    """hidden [count, ..., size, D], wanted bool[count], targets i32[count, ..., size] -> two
    f32[count, ..., size]."""

    def local(
        hidden: Array, part: Array, wanted: Array | None, targets: Array
    ) -> tuple[Array, ...]:
        columns = _Columns.of(part, hidden.dtype)
        first = columns.first

        def one(h: Array, target: Array) -> tuple[Array, ...]:
            h, target = columns.gathered((h, target))
            logits = _logits(h, columns.matrix, temperature, vocab_size, first)
            highest = jnp.max(logits, axis=-1, keepdims=True)
            if columns.axes:
                highest = jax.lax.pmax(highest, columns.axes)
            powers = jnp.exp(logits - highest)
            column = target.reshape(-1, 1) - first
            here = (column >= 0) & (column < logits.shape[-1])
            chosen = jnp.take_along_axis(logits, jnp.where(here, column, 0), axis=-1)
            total, weighted, chosen = columns.sum(
                (
                    jnp.sum(powers, axis=-1),
                    jnp.sum(powers * logits, axis=-1),
                    jnp.where(here, chosen, 0.0)[:, 0],
                )
            )
            normaliser = highest[:, 0] + jnp.log(total)
            results = (chosen - normaliser, normaliser - weighted / total, normaliser)
            own = (columns.own_part(x.reshape(target.shape)) for x in results)
            return *own, *([logits.reshape(*target.shape, -1)] if keep else [])

        def none(h: Array, target: Array) -> tuple[Array, ...]:
            kept = [jnp.zeros((*target.shape, part.shape[1]), jnp.float32)] if keep else []
            return *[jnp.zeros(target.shape, jnp.float32)] * 3, *kept

        _, found = jax.lax.scan(
            lambda _, args: (None, _if(args[0], one, none, *args[1:])),
            None,
            (wanted, hidden, targets),
            unroll=_unroll(len(hidden), keep),
        )
        return found

    arguments = hidden, unembedding, wanted, targets
    logp, entropy, normaliser, *kept = _on_devices(local, (_BATCH,) * (3 + keep), *arguments)
    return (logp, entropy), (*arguments, normaliser, entropy, kept)


def _backward(
    temperature: float,
    vocab_size: int | None,
    entropy_gradient: bool,
    keep: bool,
    saved: tuple[Any, ...],
    cotangents: tuple[Array, Array],
) -> tuple[Array, Array, None, None]:
    def local(
        hidden: Array, part: Array, wanted: Array | None, *of_tokens: Array
    ) -> tuple[Array, Array]:
        columns = _Columns.of(part, hidden.dtype)
        matrix, first = columns.matrix, columns.first

        def one(total: Array, *args: Array) -> tuple[Array, Array]:
            h, target, z, ent, logp_bar, entropy_bar, *kept = columns.gathered(args)
            of_tokens = target, z, ent, logp_bar, entropy_bar
            target, z, ent, logp_bar, entropy_bar = (x.reshape(-1, 1) for x in of_tokens)
            if kept:
                logits = kept[0].reshape(-1, kept[0].shape[-1])
            else:
                logits = _logits(h, matrix, temperature, vocab_size, first)
            log_p = logits - z
            factor = logp_bar
            if entropy_gradient:
                factor = factor + entropy_bar * (log_p + ent)
            onehot = first + jnp.arange(logits.shape[-1]) == target
            logits_bar = jnp.where(onehot, logp_bar, 0.0) - factor * jnp.exp(log_p)
            # In the dtype of the model, like every other matrix product of the backward pass.
            logits_bar = (logits_bar / temperature).astype(h.dtype)
            h_bar = jnp.matmul(logits_bar, matrix.T).reshape(h.shape)
            flat = h.reshape(-1, h.shape[-1])
            more = jnp.matmul(flat.T, logits_bar, preferred_element_type=total.dtype)
            return total + more, columns.own_sum(h_bar)

        def none(total: Array, h: Array, *_: Array) -> tuple[Array, Array]:
            return total, jnp.zeros_like(h)

        total, hidden_bar = jax.lax.scan(
            lambda total, args: _if(args[0], one, none, total, *args[1:]),
            jnp.zeros_like(matrix, part.dtype),
            (wanted, hidden, *of_tokens),
            unroll=_unroll(len(hidden), keep),
        )
        return hidden_bar, columns.gradient(total)

    *before, kept = saved
    return *_on_devices(local, (_BATCH, _MATRIX), *before, *cotangents, *kept), None, None


_chunked = jax.custom_vjp(lambda *arguments: _forward(*arguments)[0], nondiff_argnums=(4, 5, 6, 7))
_chunked.defvjp(_forward, _backward)
