"""How the newest token of every sample meets its prompt and its own tokens, in caches.

Letters in shapes: P prompts, G samples of each, S the capacity for the own tokens of a sample, T
that for a prompt; H query heads, K key/value heads, R = H / K, h head width.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jax import Array

from learner.qwen3.attention import LANES, MASKED, Choice, choose, over_mesh, problem
from learner.qwen3.config import Qwen3Config

_IN_BOUNDS = "promise_in_bounds"
_AXES = ("batch", "activation", "kv_heads")

_product = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)


@functools.cache
def choose_decoding(config: Qwen3Config) -> Choice:
    """The implementation for a model, "kernel" or "reference", and why; the same on every call.

    The kernel is that of TPUs; it is first tried, as those of `learner.qwen3.attention` are.
    """
    if choose(config).name != "splash":
        return Choice("reference", "only TPUs have a kernel")
    if config.attention == "splash":
        return Choice("kernel", "the configuration asks for kernels of TPUs")
    K, H, h = config.num_key_value_heads, config.num_attention_heads, config.head_dim
    P, G, S = 1, 2, LANES
    rng = np.random.default_rng(0)
    new, prompts = [(P, G, H, h), (P, G, K, h), (P, G, K, h)], [(P, K, h, S), (P, K, S, h)]
    own = [(P, G, K, h, S), (P, G, K, S, h)]
    args = [rng.normal(size=x).astype(jnp.dtype(config.dtype)) for x in (*new, *prompts, *own)]
    mask, counts = np.ones((P, 1, 1, S), bool), np.array([[0, S // 2]], np.int32)
    if wrong := problem(
        functools.partial(cached_attention, kernel=True), cached_attention, [*args, mask, counts]
    ):
        return Choice("reference", f"the kernel of TPUs failed when tried: {wrong}")
    return Choice("kernel", "it agrees with the reference")


def cached_attention(
    q: Array,
    k: Array,
    v: Array,
    prompt_keys: Array,
    prompt_values: Array,
    keys: Array,
    values: Array,
    prompt_mask: Array,
    counts: Array,
    kernel: bool = False,
) -> tuple[Array, Array, Array]:
    """Put a token of each sample into its cache; attend to its prompt and its own tokens.

    All samples of a prompt meet its keys in one matrix product. There is one softmax over two
    arrays: their maxima and sums are combined, so that neither is copied.

    Args:
        q: [P, G, H, h].
        k, v: [P, G, K, h].
        prompt_keys: [P, K, h, T]; prompt_values: [P, K, T, h].
        keys: [P, G, K, h, S]; values: [P, G, K, S, h].
        prompt_mask: bool, broadcast to [P, K, G * R, T].
        counts: i32[P, G], own tokens before the new one, less than S.
        kernel: whether to use that of TPUs; S is a multiple of `LANES` then.

    Returns:
        Keys and values with the token in them, and [P, G, H, h] in the dtype of `q`. Scores and
        softmax are float32.
    """
    P, G, H, h = q.shape
    K = keys.shape[2]
    R = H // K

    def by_prompt(x: Array) -> Array:  # [P, G, K, R, n] -> [P, K, G * R, n]
        return x.transpose(0, 2, 1, 3, 4).reshape(P, K, G * R, -1)

    def by_sample(x: Array) -> Array:  # and back
        return x.reshape(P, K, G, R, -1).transpose(0, 2, 1, 3, 4)

    rows = q.reshape(P, G, K, R, h)
    shared = jnp.where(prompt_mask, _product(by_prompt(rows), prompt_keys) * h**-0.5, MASKED)
    shared_top = by_sample(jnp.max(shared, axis=-1, keepdims=True))
    if kernel:
        from learner.qwen3.decode_kernel import append_and_attend

        scaled = (rows * h**-0.5).astype(q.dtype)
        keys, values, out, own_top, total = over_mesh(
            append_and_attend, _AXES, scaled, k, v, keys, values, counts
        )
        top = jnp.maximum(own_top, shared_top)
        shrink = jnp.exp(own_top - top)
        out, total = shrink * out, shrink * total
    else:
        keys = over_mesh(functools.partial(_append, axis=-1), _AXES, keys, k, counts)
        values = over_mesh(functools.partial(_append, axis=-2), _AXES, values, v, counts)
        own_mask = jnp.arange(keys.shape[-1]) <= counts[..., None, None, None]
        own = jnp.where(own_mask, _product(rows, keys) * h**-0.5, MASKED)
        top = jnp.maximum(jnp.max(own, axis=-1, keepdims=True), shared_top)
        own = jnp.exp(own - top)
        total = jnp.sum(own, axis=-1, keepdims=True)
        out = _product(own.astype(values.dtype), values)
    shared = jnp.exp(shared - by_prompt(top))
    total += by_sample(jnp.sum(shared, axis=-1, keepdims=True))
    out += by_sample(_product(shared.astype(values.dtype), prompt_values))
    return keys, values, (out / total).astype(q.dtype).reshape(P, G, H, h)


def _append(cache: Array, new: Array, counts: Array, axis: int) -> Array:
    """Put [P, G, K, h] into place counts[P, G] of `axis` of a cache of samples."""
    P, G = counts.shape
    rows, columns = jnp.arange(P)[:, None], jnp.arange(G)
    places = cache.at[rows, columns, :, :, counts]
    if axis == -2:
        places = cache.at[rows, columns, :, counts]
    return places.set(new, mode=_IN_BOUNDS)
