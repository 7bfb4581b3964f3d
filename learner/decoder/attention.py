"""Attention over whole sequences, for training and prefill, and the choice of its kernel.

The kernel of the platform is used where it applies (cuDNN on GPUs, `flash_tpu` on TPUs), else a
plain reference. All three compute causal attention of the last tokens of a sequence to the whole
sequence. Sequences are padded on the right, which needs no mask: a token never sees later ones. If
completions share the prompt of a sequence, each is cut out and put after the prompt, whose padding
is then masked (`SharedPrompt`); sequences of several prompts are masked (`Segments`).

Letters in shapes: B sequences, T tokens, Q of them with queries, H query heads, K key/value heads,
R = H / K query heads per key/value head, h head width.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from learner.checks import first_line
from learner.decoder.config import DecoderConfig

#: Finite, so that a query without any valid key (padding) gives finite, unused numbers.
MASKED = float(jnp.finfo(jnp.float32).min)

# The fewest queries in a block of the reference, whose scores are computed together, and the most
# bands of blocks. Bands leave out masked pairs of tokens; small blocks stay in a processor's cache.
_QUERY_BLOCK, _BANDS = 64, 8

#: Lanes of a TPU's vector unit: kernels work on tiles of a multiple of this many tokens.
LANES = 128
#: What queries are multiplied by for the kernel of TPUs, beside h^-1/2: its softmax has base 2.
LOG2_E = math.log2(math.e)
#: For policies of `jax.checkpoint`: what that kernel returns and its backward pass needs, and what
#: others return.
KERNEL_RESULTS, RESULTS = "attention_kernel", "attention"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedPrompt:
    """Sequences of a prompt followed by A completions that do not see each other.

    Attributes:
        prompt_lengths: i32[B]; a sequence begins with its prompt.
        starts, lengths: i32[B, A], slots of the completions, in order; a length may be 0.
        prompt_capacity: slots that hold the longest prompt, at most T.
        window: slots that hold the longest completion, at most T.
    """

    prompt_lengths: Array
    starts: Array
    lengths: Array
    prompt_capacity: int = dataclasses.field(metadata={"static": True})
    window: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments:
    """Sequences of several prompts, each followed by its completions, which do not see each other.

    Attributes:
        prompts: i32[B, T], for each token the number of the prompt that it is part of or completes.
        completions: i32[B, T], the number of a token's completion; 0 in prompts.
    """

    prompts: Array
    completions: Array

    def visible(self, queries: Array) -> Array:
        """bool[B, n, T]: whether a key is in the prompt or completion of a query, a slot i32[n]."""
        prompts, completions = self.prompts[:, None], self.completions[:, None]
        own = completions == self.completions[:, queries, None]
        return (prompts == self.prompts[:, queries, None]) & ((completions == 0) | own)

    def ends(self) -> Array:
        """i32[B, T]: a key at slot t is visible to the queries of slots t to ends - 1."""
        T = self.prompts.shape[1]

        def next_change(numbers: Array) -> Array:
            changes = jnp.pad(numbers[:, 1:] != numbers[:, :-1], ((0, 0), (0, 1)))
            places = jnp.where(changes, jnp.arange(1, T + 1), T)
            return jax.lax.cummin(places, axis=1, reverse=True)

        numbers = jnp.where(self.completions > 0, self.completions, -self.prompts)
        of_prompt = jnp.where(self.prompts > 0, next_change(self.prompts), jnp.arange(1, T + 1))
        return jnp.where(self.completions > 0, next_change(numbers), of_prompt).astype(jnp.int32)


# Choice ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Choice:
    """The implementation for causal attention, "reference", "cudnn" or "flash", and why."""

    name: str
    reason: str


@functools.cache
def choose(config: DecoderConfig, platform: str | None = None) -> Choice:
    """Choose the implementation for a model; the same choice on every call.

    A kernel is first compared with the reference on one short sequence, forwards and backwards. If
    it fails (an old driver, say), the reference is chosen.

    Args:
        platform: "cpu", "gpu" or "tpu"; None is JAX's default one.

    Raises:
        ValueError: `config.attention` asks for a kernel that does not support this model.
    """
    if config.attention != "auto":
        if config.attention != "reference" and (why := obstacle(config.attention, config)):
            raise ValueError(f"attention is {config.attention!r}, but {why}")
        return Choice(config.attention, "the configuration asks for it")
    platform = platform or jax.default_backend()
    name = {"gpu": "cudnn", "tpu": "flash"}.get(platform)
    if name is None:
        return Choice("reference", f"there is no kernel for platform {platform}")
    if why := obstacle(name, config):
        return Choice("reference", f"{name} does not apply: {why}")
    if wrong := _try(name, config):
        return Choice("reference", f"{name} failed when tried: {wrong}")
    return Choice(name, f"platform {platform} has it, and it agrees with the reference")


def obstacle(name: str, config: DecoderConfig) -> str | None:
    """Why a kernel does not support a model; None if it does."""
    if name == "cudnn":
        if config.dtype != "bfloat16":
            return f"it needs dtype 'bfloat16' and this is {config.dtype!r}"
        if config.head_dim % 8 or config.head_dim > 128:
            return f"it needs a head_dim that 8 divides, up to 128, and this is {config.head_dim}"
    if name == "flash" and config.head_dim % LANES:
        return f"it needs a head_dim that {LANES} divides, and this is {config.head_dim}"
    return None


def _try(name: str, config: DecoderConfig) -> str | None:
    """`problem` of a kernel, forwards and backwards.

    On whole sequences, on their last tokens, and with two prompts and a completion to each, where
    the kernel of TPUs has tiles to skip, to mask and to compute whole.
    """
    K = config.num_key_value_heads
    rng, tokens = np.random.default_rng(0), 5 * LANES
    qkv = [
        rng.normal(size=(1, tokens, heads, config.head_dim)).astype(jnp.dtype(config.dtype))
        for heads in (config.num_attention_heads, K, K)
    ]
    slots = np.arange(tokens, dtype=np.int32)[None]
    second = slots >= 2 * LANES
    valid, prompts = slots != LANES // 2, 1 + second.astype(np.int32)
    completions = np.where(slots - 2 * LANES * second > 8, prompts, 0)

    def both_ways(attend: Callable[..., Array], q: Array, k: Array, v: Array) -> Any:
        def outputs(q: Array, k: Array, v: Array) -> list[Array]:
            last = attend(q[:, LANES:], k, v, jnp.asarray(valid))
            segments = Segments(jnp.asarray(prompts), jnp.asarray(completions))
            return [attend(q, k, v), last, attend(q, k, v, segments)]

        out, vjp = jax.vjp(outputs, q, k, v)
        return [*out, *vjp([jnp.ones_like(x) for x in out])]

    return problem(
        functools.partial(both_ways, _KERNELS[name]), functools.partial(both_ways, _reference), qkv
    )


def problem(
    kernel: Callable[..., Any], reference: Callable[..., Any], args: Sequence[Any]
) -> str | None:
    """What is wrong with a kernel on this machine; None if nothing is.

    Args:
        kernel, reference: functions of `args` whose results should agree.
        args: NumPy arrays.
    """

    def run(function: Callable[..., Any]) -> list[np.ndarray]:
        # Compiled before it is called, which works while another program is traced too.
        out = jax.jit(function).lower(*args).compile()(*args)
        return [np.asarray(x, np.float32) for x in jax.tree.leaves(out)]

    try:
        got, want = run(kernel), run(reference)
    except Exception as error:  # Drivers and compilers may raise anything.
        return f"{type(error).__name__}: {first_line(error)[:200]}"
    for a, b in zip(got, want, strict=True):
        # A few units in the last place of bfloat16's eight bits.
        if not np.abs(a - b).max() <= 0.03 * max(1.0, np.abs(b).max()):
            return "its result differs from the reference"
    return None


# Whole sequences -------------------------------------------------------------


def self_attention(
    q: Array,
    k: Array,
    v: Array,
    implementation: str,
    layout: SharedPrompt | Segments | None = None,
) -> Array:
    """Causal grouped-query self-attention of whole sequences, which may be padded on the right.

    Args:
        q: [B, T, H, h]; k, v: [B, T, K, h] with H a multiple of K.
        implementation: `Choice.name`.
        layout: of sequences with more than a prompt and one completion to it.

    Returns:
        [B, T, H, h], in the dtype of `q`; finite and meaningless in the padding. Scores and softmax
        are float32.
    """
    if isinstance(layout, SharedPrompt):
        return _shared_attention(q, k, v, layout, implementation)
    return _attend(implementation, q, k, v, layout)


def _attend(
    implementation: str, q: Array, k: Array, v: Array, layout: Array | Segments | None = None
) -> Array:
    """Causal attention of the last Q tokens of sequences of T.

    Args:
        implementation: `Choice.name`.
        q: [B, Q, H, h]; k, v: [B, T, K, h].
        layout: which keys are valid, bool[B, T], those of the queries' own tokens among them; or,
            where Q is T, what the sequences hold.

    Returns:
        [B, Q, H, h].
    """
    if implementation == "flash":
        axes = ("batch", "length", "heads", "head_dim")
        return over_mesh(_KERNELS[implementation], axes, q, k, v, batched=(layout,))
    return checkpoint_name(_KERNELS[implementation](q, k, v, layout), RESULTS)


def _shared_attention(
    q: Array, k: Array, v: Array, layout: SharedPrompt, implementation: str
) -> Array:
    """`self_attention` of sequences whose completions share a prompt.

    Prompts attend to themselves. Each completion, cut out of its sequence, attends to its prompt
    and to itself. So nothing is computed for pairs of tokens of different completions, which are
    most pairs of a whole sequence.
    """
    B, T, H, h = q.shape
    A, P, M = layout.starts.shape[1], layout.prompt_capacity, layout.window
    slots, times = jnp.arange(T), jnp.arange(M)
    in_prompt = jnp.arange(P) < layout.prompt_lengths[:, None]

    def take(x: Array, index: Array) -> Array:  # [B, T, n, h], [B, m] -> [B, m, n, h]
        return jnp.take_along_axis(x, index[:, :, None, None], axis=1)

    prompts = self_attention(q[:, :P], k[:, :P], v[:, :P], implementation)

    index = jnp.minimum(layout.starts[:, :, None] + times, T - 1).reshape(B, A * M)

    def keys(x: Array) -> Array:  # Of the prompt and of a completion: [B * A, P + M, K, h].
        own = take(x, index).reshape(B, A, M, *x.shape[2:])
        shared = jnp.broadcast_to(x[:, None, :P], (B, A, P, *x.shape[2:]))
        return jnp.concatenate([shared, own], axis=2).reshape(B * A, P + M, *x.shape[2:])

    valid = jnp.broadcast_to(in_prompt[:, None], (B, A, P)).reshape(B * A, P)
    completions = _attend(
        implementation,
        take(q, index).reshape(B * A, M, H, h),
        keys(k),
        keys(v),
        jnp.pad(valid, ((0, 0), (0, M)), constant_values=True),
    ).reshape(B, A * M, H, h)

    # Back into sequences: each slot comes from its prompt or its completion.
    ends = layout.starts + layout.lengths
    completion = jnp.minimum(jnp.sum(slots[:, None] >= ends[:, None], axis=2), A - 1)
    time = slots - jnp.take_along_axis(layout.starts, completion, axis=1)
    place = jnp.where(
        slots < layout.prompt_lengths[:, None],
        slots,
        P + completion * M + jnp.clip(time, 0, M - 1),
    )
    return take(jnp.concatenate([prompts, completions], axis=1), place)


def _reference(q: Array, k: Array, v: Array, layout: Array | Segments | None = None) -> Array:
    """`_attend` for every platform and dtype, in bands of queries that see keys up to their ends.

    A band of one block keeps its probabilities for the backward pass. In long sequences a band has
    two blocks, one after the other, whose probabilities are recomputed: about a sixteenth of the
    scores exists at once, and a GPU has few kernels to launch.
    """
    B, Q, H, h = q.shape
    ahead = k.shape[1] - Q
    blocks = 1 if Q <= _QUERY_BLOCK * _BANDS else 2
    block = _QUERY_BLOCK * -(-Q // (_QUERY_BLOCK * _BANDS * blocks))

    def band(begin: int, end: int) -> Array:
        own, numbers = q[:, begin:end], jnp.arange(begin, end)
        keys, values, there = jax.tree.map(lambda x: x[:, : ahead + end], (k, v, layout))

        def attend(own: Array, numbers: Array) -> Array:
            visible = (jnp.arange(ahead + end) <= numbers[:, None] + ahead)[None]
            if there is not None:
                visible &= there.visible(numbers) if isinstance(there, Segments) else there[:, None]
            return _matrix_attention(own, keys, values, visible)

        if blocks == 1:
            return attend(own, numbers)
        count = -(-(end - begin) // block)
        padding = count * block - (end - begin)
        own = jnp.pad(own, ((0, 0), (0, padding), (0, 0), (0, 0)))
        # Queries of padding take the last slot: any slot that exists does.
        numbers = jnp.pad(numbers, (0, padding), mode="edge").reshape(count, block)
        own = jnp.moveaxis(own.reshape(B, count, block, H, h), 1, 0)
        out = jax.lax.map(lambda args: jax.checkpoint(attend)(*args), (own, numbers))
        return jnp.moveaxis(out, 0, 1).reshape(B, -1, H, h)[:, : end - begin]

    size = blocks * block
    bands = [band(begin, min(begin + size, Q)) for begin in range(0, Q, size)]
    return jnp.concatenate(bands, axis=1)


def _matrix_attention(q: Array, k: Array, v: Array, visible: Array) -> Array:
    """q [B, Q, H, h], k and v [B, T, K, h], visible bool[B or 1, Q, T] -> [B, Q, H, h].

    Scores are matrices of queries by keys from the first product to the second: an einsum may
    transpose them in between, which takes a CPU more time than it saves.
    """
    B, Q, H, h = q.shape
    K, R, T = k.shape[2], H // k.shape[2], k.shape[1]
    queries = q.reshape(B, Q, K, R, h).transpose(0, 2, 3, 1, 4).reshape(B, K, R * Q, h)
    scores = jnp.matmul(queries, k.transpose(0, 2, 3, 1), preferred_element_type=jnp.float32)
    # Scaled in float32, as cuDNN does: most widths have no exact scale in bfloat16. A mask is made
    # once to add it; to choose scores, XLA's CPU backend would compare slots again for every head.
    masks = jnp.where(visible, 0.0, MASKED)[:, None, None]
    probs = _softmax(scores.reshape(B, K, R, Q, T) * h**-0.5 + masks)
    probs = probs.astype(v.dtype).reshape(B, K, R * Q, T)
    out = jnp.matmul(probs, v.transpose(0, 2, 1, 3)).reshape(B, K, R, Q, h)
    return out.transpose(0, 3, 1, 2, 4).reshape(B, Q, H, h)


@jax.custom_vjp
def _softmax(x: Array) -> Array:
    """`jax.nn.softmax` over the last axis; its gradient goes through fewer arrays of this size."""
    powers = jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))
    return powers / jnp.sum(powers, axis=-1, keepdims=True)


def _softmax_forward(x: Array) -> tuple[Array, Array]:
    probs = _softmax(x)
    return probs, probs


def _softmax_backward(probs: Array, gradient: Array) -> tuple[Array]:
    return (probs * (gradient - jnp.sum(probs * gradient, axis=-1, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)


def _cudnn(q: Array, k: Array, v: Array, layout: Array | Segments | None = None) -> Array:
    """cuDNN's fused attention (bfloat16); it partitions itself over a mesh."""
    attend = functools.partial(jax.nn.dot_product_attention, q, k, v, implementation="cudnn")
    if layout is None:
        return attend(is_causal=True)
    Q, T = q.shape[1], k.shape[1]
    visible = layout.visible(jnp.arange(Q)) if isinstance(layout, Segments) else layout[:, None]
    return attend(mask=(jnp.tri(Q, T, T - Q, bool) & visible)[:, None])


def heads_first_attention(q: Array, k: Array, v: Array, segments: Segments | None = None) -> Array:
    """`self_attention` by the kernel of TPUs, in its own order.

    Args:
        q: [B, H, T, h], already times h^-1/2 log2(e); k, v: [B, K, T, h].
        segments: what sequences hold, if it is more than one prompt and a completion.

    Returns:
        [B, H, T, h].
    """
    kernel = functools.partial(_KERNELS["flash"], heads_first=True)
    return over_mesh(kernel, ("batch", "heads", "length", "head_dim"), q, k, v, batched=(segments,))


def _flash(
    q: Array,
    k: Array,
    v: Array,
    layout: Array | Segments | None = None,
    interpret: bool = False,
    heads_first: bool = False,
) -> Array:
    """`learner.decoder.flash_tpu`, of one device's sequences and heads.

    The kernel takes whole tiles: sequences are padded on the right, which no token of theirs sees,
    and keys and values on the left too, where no token sees the padding. It does not scale, so
    queries are scaled first, in their own dtype.

    `interpret` runs the kernel's steps one by one on any platform. With `heads_first`, arguments
    and result are those of `heads_first_attention`.
    """
    from learner.decoder.flash_tpu import flash_attention  # Imports Pallas for TPUs.

    if not heads_first:
        scaled = (q * (q.shape[-1] ** -0.5 * LOG2_E)).astype(q.dtype)
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (scaled, k, v))
        return _flash(q, k, v, layout, interpret, heads_first=True).transpose(0, 2, 1, 3)
    B, T, Q = k.shape[0], k.shape[2], q.shape[2]
    behind, before = -Q % LANES, (Q - T) % LANES
    q, k, v = (
        jnp.pad(x, ((0, 0), (0, 0), (left, behind), (0, 0)))
        for x, left in ((q, 0), (k, before), (v, before))
    )
    whole = k.shape[2]
    if isinstance(layout, Segments):
        ends = before + layout.ends()
    else:
        ends = jnp.full((B, T), whole) if layout is None else jnp.where(layout, whole, 0)
    ends = jnp.pad(ends, ((0, 0), (before, 0)))
    ends = jnp.pad(ends, ((0, 0), (0, behind)), constant_values=whole).astype(jnp.int32)
    return flash_attention(q, k, v, ends, KERNEL_RESULTS, interpret)[:, :, :Q]


_KERNELS: dict[str, Callable[..., Array]] = {
    "reference": _reference,
    "cudnn": _cudnn,
    "flash": _flash,
}


def stored(x: Array, dtype: Any) -> Array:
    """Keys or values [...] in the dtype of a KV cache.

    In 8 bits, those beyond the largest number (448 in float8_e4m3fn) become it; a bare conversion
    would make them NaN.
    """
    if jnp.dtype(dtype).itemsize == 1:
        most = float(jnp.finfo(dtype).max)
        x = jnp.clip(x, -most, most)
    return x.astype(dtype)


def over_mesh(
    function: Callable[..., Any],
    axes: Sequence[str],
    *args: Array,
    batched: Sequence[Any] = (),
    whole: Sequence[Array] = (),
    out_axes: Sequence[str] | None = None,
) -> Any:
    """Run a function that knows no mesh on each device, with the device's own sequences and heads.

    Otherwise XLA would first gather the function's inputs for all sequences on every device.

    Args:
        axes: logical axes of `args` and of the result.
        batched: further arguments, split along their first axis only.
        whole: further arguments, not split.
        out_axes: logical axes of the result, if they differ.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function(*args, *batched, *whole)
    first, heads, out_specs = map(nn.logical_to_mesh_axes, (axes[:1], axes, out_axes or axes))
    specs = (heads,) * len(args) + (first,) * len(batched) + (PartitionSpec(),) * len(whole)
    run = jax.shard_map(function, in_specs=specs, out_specs=out_specs, check_vma=False)
    return run(*args, *batched, *whole)
