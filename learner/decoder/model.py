"""The dense decoder: one `Block`, used by training (scanned) and by decoding.

Letters in shapes: B sequences, T tokens, D residual width, H query heads, K key/value heads,
R = H / K query heads per key/value head, h head width, V vocabulary, L layers.

Parameters are a plain nested dict of arrays. Those of the blocks are stacked over layers in
`params["layers"]`, so that training compiles one block; `learner.sampling.decoding` unstacks them.
A matrix of a block may have a low-rank adapter beside its "kernel": see `Projection`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from learner.decoder.attention import (
    KERNEL_RESULTS,
    LOG2_E,
    RESULTS,
    Segments,
    SharedPrompt,
    choose,
    heads_first_attention,
    self_attention,
)
from learner.decoder.config import DecoderConfig
from learner.decoder.rotary import normalize, rope_angles, rotate, whole_heads
from learner.devices import sharding

#: Weights from which products on CPUs gain by `transposed_matmul`, for up to so many rows.
LARGE, _FEW_ROWS = 1 << 18, 96

Params = dict[str, Any]
Attend = Callable[[Array, Array, Array], Array]

_POLICIES = jax.checkpoint_policies
# `DecoderConfig.remat` -> what `jax.checkpoint` may keep; "none" has no checkpoint.
_KEEP = {
    "dots": _POLICIES.save_from_both_policies(
        _POLICIES.dots_with_no_batch_dims_saveable, _POLICIES.save_only_these_names(KERNEL_RESULTS)
    ),
    "attention": _POLICIES.save_only_these_names(KERNEL_RESULTS, RESULTS),
    "outputs": _POLICIES.save_only_these_names("attention_output", "mlp_output"),
    "full": _POLICIES.nothing_saveable,
    "offload": _POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["block_input"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


# Modules ---------------------------------------------------------------------


class RMSNorm(nn.Module):
    """`normalize` with learned scales along an axis."""

    config: DecoderConfig
    axis: str

    @nn.compact
    def __call__(
        self, x: Array, function: Callable[[Array, Array, float], Array] = normalize
    ) -> Array:
        """`function` of x, the scales and epsilon: the norm, or a kernel that includes it."""
        scale = self.param(
            "scale",
            nn.with_logical_partitioning(nn.initializers.ones, (self.axis,)),
            (x.shape[-1],),
            jnp.dtype(self.config.param_dtype),
        )
        return function(x, scale, self.config.rms_norm_eps).astype(self.config.dtype)


class Projection(nn.Module):
    """A matrix; `shape` is (in, out) and `axes` its logical axes. With `bias` it has one.

    Its parts on the devices of `fsdp` are gathered first: left to itself, XLA multiplies them one
    after the other, which on TPUs accumulates the whole result in memory once for each part.

    If the parameters hold "a" [in, rank] and "b" [rank, out] beside the "kernel", their product is
    added to the matrix, as x W + (x A) B: neither W + A B nor its gradient is ever in memory.

    If they hold "transposed" [out, in] in place of the "kernel", `transposed_matmul` takes it.
    """

    config: DecoderConfig
    shape: tuple[int, int]
    axes: tuple[str, str]
    bias: bool = False

    @nn.compact
    def __call__(self, x: Array, product: Callable[[Array, Array], Array] = jnp.matmul) -> Array:
        """`product` of x [tokens, in] and the matrix."""
        c = self.config
        whole = tuple(None if axis == "embed" else axis for axis in self.axes)
        if self.has_variable("params", "transposed"):
            out = transposed_matmul(x, self.get_variable("params", "transposed"))
        else:
            normal = nn.initializers.normal(c.initializer_range)
            init = nn.with_logical_partitioning(normal, self.axes)
            matrix = self.param("kernel", init, self.shape, jnp.dtype(c.param_dtype))
            out = product(x, nn.with_logical_constraint(matrix.astype(c.dtype), whole))
        if self.bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
            bias = self.param("bias", zeros, self.shape[1:], jnp.dtype(c.param_dtype))
            out = out + bias.astype(c.dtype)
        if not self.has_variable("params", "a"):
            return out
        a, b = (self.get_variable("params", name).astype(c.dtype) for name in ("a", "b"))
        # `product` knows the order of heads: the input has them where the output is the residual.
        inner, outer = (product, jnp.matmul) if whole[1] is None else (jnp.matmul, product)
        return out + outer(inner(x, a), b)


class Attention(nn.Module):
    """Projections, norms of queries and keys if any, rotation; `attend` does the rest.

    In decoding `attend` does norms and rotation too, and takes [tokens, heads * h]. With
    `tpu_kernels` it is `heads_first_attention`, whose arguments `learner.decoder.heads_tpu` makes;
    `rope` is that of `whole_heads`.
    """

    config: DecoderConfig
    decoding: bool = False
    tpu_kernels: bool = False

    @nn.compact
    def __call__(self, x: Array, rope: tuple[Array, Array], attend: Attend) -> Array:
        """The layer's output, of the shape of x [..., hidden_size]."""
        c = self.config
        D, H, h = c.hidden_size, c.num_attention_heads, c.head_dim
        width = c.num_key_value_heads * h
        bias = c.architecture.qkv_bias
        q_proj = Projection(c, (D, H * h), ("embed", "heads"), bias, name="q_proj")
        k_proj = Projection(c, (D, width), ("embed", "kv_heads"), bias, name="k_proj")
        v_proj = Projection(c, (D, width), ("embed", "kv_heads"), bias, name="v_proj")
        o_proj = Projection(c, (H * h, D), ("heads", "embed"), name="o_proj")

        def norm(name: str) -> Callable[..., Array]:
            return RMSNorm(c, "head_dim", name=name) if c.architecture.qk_norm else lambda x: x

        q_norm, k_norm = norm("q_norm"), norm("k_norm")
        flat, lead = x.reshape(-1, D), x.shape[:-1]
        if self.tpu_kernels:
            from learner.decoder.heads_tpu import heads_first  # Imports Pallas for TPUs.

            def to_heads(x: Array, matrix: Array) -> Array:
                return jnp.einsum("btd,dnh->bnth", x, matrix.reshape(x.shape[-1], -1, h))

            def from_heads(x: Array, matrix: Array) -> Array:
                return jnp.einsum("bnth,nhd->btd", x, matrix.reshape(H, h, -1))

            cos, sin = rope
            order = functools.partial(heads_first, cos=cos, sin=sin)
            q, k = (project(flat).reshape(*lead, -1, h) for project in (q_proj, k_proj))
            q, k = q_norm(q, functools.partial(order, factor=h**-0.5 * LOG2_E)), k_norm(k, order)
            return o_proj(attend(q, k, v_proj(x, to_heads)), from_heads)
        q, k, v = (project(flat) for project in (q_proj, k_proj, v_proj))
        if self.decoding:
            return o_proj(attend(q, k, v)).reshape(x.shape)
        q, k, v = (n.reshape(*lead, -1, h) for n in (q, k, v))
        q, k = (rotate(n, rope, on_tpu(c)) for n in (q_norm(q), k_norm(k)))
        out = attend(q, k, v)
        return o_proj(out.reshape(-1, H * h)).reshape(x.shape)


class MLP(nn.Module):
    """The SwiGLU feed-forward layer (arXiv 2002.05202)."""

    config: DecoderConfig
    tpu_kernels: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """The layer's output, of the shape of x [..., hidden_size]."""
        c = self.config
        widen = (c.hidden_size, c.intermediate_size), ("embed", "mlp")
        flat = x.reshape(-1, c.hidden_size)
        gate = Projection(c, *widen, name="gate_proj")(flat)
        up = Projection(c, *widen, name="up_proj")(flat)
        if self.tpu_kernels:
            # Otherwise XLA recomputes the gated product, and both of its gradients, for every tile
            # of the matrix products that take them.
            gate, up = map(gradient_in_memory, (gate, up))
            hidden = jax.lax.optimization_barrier(nn.silu(gate) * up)
        else:
            hidden = nn.silu(gate) * up
        narrow = (c.intermediate_size, c.hidden_size), ("mlp", "embed")
        return Projection(c, *narrow, name="down_proj")(hidden).reshape(x.shape)


def on_tpu(config: DecoderConfig) -> bool:
    """Whether whole sequences go through the attention kernel of TPUs."""
    return choose(config).name == "flash"


def _orders_heads(config: DecoderConfig) -> bool:
    """Whether the kernel that writes heads before tokens can be used."""
    if not on_tpu(config) or not config.architecture.qk_norm:
        return False
    from learner.decoder import heads_tpu

    return heads_tpu.works(config)


@jax.custom_vjp
def gradient_in_memory(x: Array) -> Array:
    """The identity; its gradient is written to memory before it is used."""
    return x


gradient_in_memory.defvjp(
    lambda x: (x, None), lambda _, gradient: (jax.lax.optimization_barrier(gradient),)
)


class Block(nn.Module):
    """One pre-norm transformer block: x [..., D] -> [..., D].

    `attend(q, k, v)` is the attention: over the whole masked sequence in training, over a cache in
    decoding. Tokens are flattened to two dimensions for every matrix product: XLA's CPU backward
    pass of the three-dimensional form is 2.7 times slower. `decoding` means one token of each
    sample, `tpu_kernels` that kernels of TPUs do what is around the products; neither changes the
    result.
    """

    config: DecoderConfig
    decoding: bool = False
    tpu_kernels: bool = False

    @nn.compact
    def __call__(self, x: Array, rope: tuple[Array, Array], attend: Attend) -> Array:
        """x [..., hidden_size] after both layers, each added to what it reads."""
        c = self.config
        normed = RMSNorm(c, "norm", name="input_norm")(x)
        attention = Attention(c, self.decoding, self.tpu_kernels, name="attention")
        out = attention(normed, rope, attend)
        x = x + checkpoint_name(out, "attention_output")
        normed = RMSNorm(c, "norm", name="post_attention_norm")(x)
        return x + checkpoint_name(MLP(c, self.tpu_kernels, name="mlp")(normed), "mlp_output")


class Decoder(nn.Module):
    """Tokens to final hidden states. `__call__` also makes the output matrix, if it is untied."""

    config: DecoderConfig

    @nn.compact
    def __call__(
        self, tokens: Array, positions: Array, layout: SharedPrompt | Segments | None = None
    ) -> Array:
        """See `hidden_states`."""
        c = self.config
        normal, dtype = nn.initializers.normal(c.initializer_range), jnp.dtype(c.param_dtype)
        rows = nn.with_logical_partitioning(normal, ("vocab", "embed"))
        embedding = self.param("embedding", rows, (c.vocab_size, c.hidden_size), dtype)
        if not c.tie_word_embeddings:
            columns = nn.with_logical_partitioning(normal, ("embed", "vocab"))
            self.param("unembedding", columns, (c.hidden_size, c.vocab_size), dtype)
        rope = _angles(positions, c)
        attend: Attend
        # Completions that share a prompt are cut out of their sequences first.
        if isinstance(layout, SharedPrompt) or not _orders_heads(c):
            tpu_kernels, name = False, choose(c).name
            attend = functools.partial(self_attention, implementation=name, layout=layout)
        else:
            tpu_kernels, rope = True, whole_heads(rope)
            attend = functools.partial(heads_first_attention, segments=layout)

        def body(block: Block, x: Array, _: None) -> tuple[Array, None]:
            x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
            return block(checkpoint_name(x, "block_input"), rope, attend), None

        if c.remat != "none":
            body = nn.remat(body, prevent_cse=False, policy=_KEEP[c.remat])

        layers = nn.scan(
            body,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=c.num_hidden_layers,
            unroll=min(c.scan_unroll, c.num_hidden_layers),
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        block = Block(c, tpu_kernels=tpu_kernels, name="layers")
        x, _ = layers(block, embed_split(embedding, tokens, c), None)
        return RMSNorm(c, "norm", name="final_norm")(x)


def _angles(positions: Array, config: DecoderConfig) -> tuple[Array, Array]:
    """`rope_angles` of whole sequences [B, T], once for all layers.

    Where layers are unrolled, XLA's CPU backend would fuse the cosines and sines into each of them,
    and compute them there for every head; it fuses nothing into a loop.
    """
    B, T = positions.shape
    angles = functools.partial(rope_angles, config=config)

    def looped(positions: Array) -> tuple[Array, Array]:
        halves = jax.lax.map(angles, jnp.moveaxis(positions.reshape(B, 2, -1), 1, 0))
        cos, sin = (jnp.moveaxis(x, 0, 1).reshape(B, T, 1, -1) for x in halves)
        return cos, sin

    if T % 2:
        return angles(positions)
    return jax.lax.platform_dependent(positions, cpu=looped, default=angles)


def embed(embedding: Array, tokens: Array, config: DecoderConfig) -> Array:
    """Rows of the embedding [V, D] for tokens i32[...]: [..., D] in `config.residual_dtype`."""
    # Whole rows on every device: a lookup in split rows would have to move the activations.
    rows = nn.with_logical_constraint(embedding, ("vocab", "activation"))
    return jnp.take(rows, tokens, axis=0).astype(config.residual_dtype)


def embed_split(embedding: Array, tokens: Array, config: DecoderConfig) -> Array:
    """`embed` for training, where `fsdp` splits both the tokens and the width D.

    Each device looks up its part of the width for all tokens of its group; then the group exchanges
    parts of the width for tokens. So no device holds the whole embedding, neither in float32 nor as
    a gradient. Only activations move, of far fewer tokens than the vocabulary has.
    """
    tokens = nn.with_logical_constraint(tokens, ("data_batch", "length"))
    x = jnp.take(embedding, tokens, axis=0).astype(config.residual_dtype)
    x = nn.with_logical_constraint(x, ("data_batch", "length", "embed"))
    return nn.with_logical_constraint(x, ("batch", "length", "activation"))


def transposed_matmul(x: Array, matrix: Array, dtype: Any = None) -> Array:
    """x [n, in] times the transpose of a matrix [out, in]: [n, out], in `dtype` if given.

    XLA's CPU backend multiplies few rows by a large matrix up to twice as fast if the matrix is the
    left factor; the barriers keep it from exchanging the factors again.
    """
    multiply = functools.partial(jnp.matmul, preferred_element_type=dtype)
    barrier = jax.lax.optimization_barrier

    def plain(x: Array, matrix: Array) -> Array:
        return multiply(x, matrix.T)

    def turned(x: Array, matrix: Array) -> Array:
        return barrier(multiply(matrix, barrier(x.T))).T

    if not 1 < len(x) <= _FEW_ROWS or matrix.size < LARGE:
        return plain(x, matrix)
    return jax.lax.platform_dependent(x, matrix, cpu=turned, default=plain)


def merged(layers: Params, dtype: str | None = None) -> Params:
    """Parameters of one block, or of stacked blocks, with each adapter added to its matrix.

    A sum is rounded once, to `dtype` or that of its matrix; what has no adapter stays as it is.
    """
    if "a" in layers:
        kernel = layers["kernel"]
        total = kernel.astype(jnp.float32) + jnp.matmul(layers["a"], layers["b"])
        others = {name: x for name, x in layers.items() if name not in ("a", "b")}
        return others | {"kernel": total.astype(dtype or kernel.dtype)}
    return {k: merged(v, dtype) if isinstance(v, dict) else v for k, v in layers.items()}


# Whole sequences -------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=1)
def init_params(key: Array, config: DecoderConfig) -> Params:
    """Fresh parameters: normal with `initializer_range`, norms one. No partitioning boxes."""
    return nn.meta.unbox(_boxed_init(key, config))


def _boxed_init(key: Array, config: DecoderConfig) -> Params:
    one = jnp.zeros((1, 1), jnp.int32)
    # Kernels refuse such a short sequence, and the parameters do not depend on them.
    return Decoder(dataclasses.replace(config, attention="reference")).init(key, one, one)["params"]


@functools.cache
def abstract_params(config: DecoderConfig) -> Params:
    """The parameters as a tree of `jax.ShapeDtypeStruct`; takes no memory."""
    return jax.eval_shape(functools.partial(init_params, config=config), jax.random.key(0))


def logical_axes(config: DecoderConfig) -> Params:
    """The tree of the parameters, with a `PartitionSpec` of logical axis names for every array."""
    boxed = jax.eval_shape(functools.partial(_boxed_init, config=config), jax.random.key(0))
    return nn.get_partition_spec(boxed)


# Dimensions of the model, and the mesh axis that splits each.
_SPLIT = (
    ("num_attention_heads", "tensor"),
    ("num_key_value_heads", "tensor"),
    ("intermediate_size", "tensor"),
    ("vocab_size", "tensor"),
    ("hidden_size", "fsdp"),
)


def undivided(config: DecoderConfig, mesh: Mesh) -> tuple[str, str] | None:
    """A dimension of the model that does not divide over its mesh axis, and the axis; or None."""
    for field, axis in _SPLIT:
        if getattr(config, field) % mesh.shape[axis]:
            return field, axis
    return None


def check_mesh(config: DecoderConfig, mesh: Mesh) -> None:
    """Raise `ValueError` if a dimension of the model does not divide over its mesh axis."""
    if found := undivided(config, mesh):
        field, axis = found
        value = getattr(config, field)
        common = math.gcd(*(getattr(config, name) for name, other in _SPLIT if other == axis))
        allowed = [n for n in range(1, min(common, 64) + 1) if common % n == 0]
        raise ValueError(
            f"{field} is {value}, which mesh axis {axis}={mesh.shape[axis]} does not divide; "
            f"allowed sizes of {axis}: {allowed}"
        )


def param_shardings(config: DecoderConfig, mesh: Mesh) -> dict[str, Any]:
    """The tree of the parameters, with a `NamedSharding` for every array.

    Raises:
        ValueError: a dimension does not divide over its mesh axis.
    """
    check_mesh(config, mesh)
    return nn.logical_to_mesh_sharding(logical_axes(config), mesh, sharding.RULES)


def hidden_states(
    params: Params,
    config: DecoderConfig,
    tokens: Array,
    positions: Array,
    layout: SharedPrompt | Segments | None = None,
) -> Array:
    """Final hidden states of whole sequences, after the last norm (the training path).

    A slot sees the slots up to itself, so sequences may be padded on the right. Several completions
    to one prompt may share a sequence without seeing each other.

    Args:
        tokens: i32[B, T], each in [0, V); positions: i32[B, T].
        layout: of sequences with more than a prompt and one completion to it.

    Returns:
        [B, T, D] in `config.dtype`; meaningless in the padding.
    """
    chex.assert_rank(tokens, 2)
    chex.assert_equal_shape([tokens, jnp.asarray(positions)])
    return Decoder(config).apply({"params": params}, tokens, positions, layout)


def unembedding(params: Params, config: DecoderConfig) -> Array:
    """The output projection [D, V] in the dtype of the parameters, tied or not."""
    return params["embedding"].T if config.tie_word_embeddings else params["unembedding"]


def output_logits(params: Params, config: DecoderConfig, hidden: Array) -> Array:
    """Final hidden states [..., D] -> logits f32[..., V].

    Parameters that are not tied may hold "head" [V, D] in place of "unembedding".
    """
    flat = hidden.reshape(-1, hidden.shape[-1])
    name = "embedding" if config.tie_word_embeddings else "head"
    if name in params:
        logits = transposed_matmul(flat, params[name].astype(hidden.dtype), jnp.float32)
    else:
        matrix = params["unembedding"].astype(hidden.dtype)
        logits = jnp.matmul(flat, matrix, preferred_element_type=jnp.float32)
    return logits.reshape(*hidden.shape[:-1], -1)
