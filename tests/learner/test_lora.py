"""Adapters in the projections, against the plain formula with merged matrices."""

import dataclasses
import functools
import re

import chex
import forward_pass
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.decoder import heads_tpu, model, rotary
from learner.decoder.attention import LOG2_E, self_attention
from learner.sampling.decoding import decoding_params
from learner.training import lora
from learner.training.lora import LoraConfig

LORA = LoraConfig(rank=3, alpha=12.0)
TOKENS = np.random.default_rng(0).integers(0, 264, (2, 23))
POSITIONS = np.broadcast_to(np.arange(23), TOKENS.shape)


@pytest.fixture(scope="module")
def start(tiny_model):
    """Base and adapters, none of them zero."""
    base = model.init_params(jax.random.key(0), tiny_model)
    fresh = lora.init(jax.random.key(1), LORA, tiny_model)
    rng = np.random.default_rng(1)
    return base, jax.tree.map(lambda x: x + jnp.float32(0.1) * rng.normal(size=x.shape), fresh)


def by_hand(base, adapters):
    """W + alpha / rank A B of every matrix, in NumPy."""
    out = jax.tree.map(np.asarray, base)
    for module, matrices in adapters["layers"].items():
        for name, pair in matrices.items():
            a, b = (np.asarray(pair[key], np.float64) for key in ("a", "b"))
            kernel = out["layers"][module][name]["kernel"] + 4.0 * np.einsum("lir,lro->lio", a, b)
            out["layers"][module][name] = {"kernel": kernel.astype(np.float32)}
    return out


def loss(params, config):
    logits = forward_pass.logits(params, config, TOKENS, POSITIONS)
    return jnp.sum(jnp.sin(jnp.arange(logits.size).reshape(logits.shape)) * logits), logits


@pytest.mark.parametrize("remat", ["none", "full"])
def test_logits_and_gradients_are_those_of_the_merged_model(tiny_model, start, remat):
    """By the chain rule the gradients are s G B^T and s A^T G, G that of the merged matrix."""
    base, adapters = start
    config = dataclasses.replace(tiny_model, remat=remat)
    merged = by_hand(base, adapters)

    def of_adapters(adapters):
        return loss(lora.attach(base, adapters, LORA), config)

    gradients, got = jax.grad(of_adapters, has_aux=True)(adapters)
    whole, want = jax.grad(loss, has_aux=True)(merged, config)
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
    plain = forward_pass.logits(base, config, TOKENS, POSITIONS)
    assert np.abs(got - plain).max() > 0.1 * np.abs(want).max()
    for module, matrices in gradients["layers"].items():
        for name, pair in matrices.items():
            ours = adapters["layers"][module][name]
            g = np.asarray(whole["layers"][module][name]["kernel"])
            a = 4.0 * np.einsum("lio,lro->lir", g, ours["b"])
            b = 4.0 * np.einsum("lir,lio->lro", ours["a"], g)
            np.testing.assert_allclose(pair["a"], a, atol=1e-4 * np.abs(a).max(), err_msg=name)
            np.testing.assert_allclose(pair["b"], b, atol=1e-4 * np.abs(b).max(), err_msg=name)


@pytest.mark.slow
def test_heads_before_tokens_change_nothing(tiny_model, start, monkeypatch):
    """The order of the kernel of TPUs, which projections with adapters write and read too."""
    base, adapters = start
    layer = jax.tree.map(lambda x: x[0], lora.attach(base, adapters, LORA)["layers"])
    x = jax.random.normal(jax.random.key(2), (2, 23, tiny_model.hidden_size))
    rope = rotary.rope_angles(jnp.asarray(POSITIONS), tiny_model)
    attend = functools.partial(self_attention, implementation="reference")

    def heads_first(q, k, v):
        scaled = q * (tiny_model.head_dim**0.5 / LOG2_E)  # Which the kernel leaves out.
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (scaled, k, v))
        return attend(q, k, v).transpose(0, 2, 1, 3)

    def run(tpu_kernels):
        block = model.Block(tiny_model, tpu_kernels=tpu_kernels)
        of_order = (rotary.whole_heads(rope), heads_first) if tpu_kernels else (rope, attend)

        def total(layer, x):
            return jnp.sum(jnp.sin(block.apply({"params": layer}, x, *of_order)))

        return jax.value_and_grad(total, argnums=(0, 1))(layer, x)

    kernel = functools.partial(heads_tpu.heads_first, interpret=True)
    monkeypatch.setattr(heads_tpu, "heads_first", kernel)
    chex.assert_trees_all_close(run(True), run(False), atol=1e-4, rtol=1e-4)


def test_decoding_and_exported_matrices_are_the_merged_ones(tiny_model, start):
    base, adapters = start
    attached, want = lora.attach(base, adapters, LORA), by_hand(base, adapters)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), lora.merge(attached), want
    )
    half = dataclasses.replace(tiny_model, dtype="bfloat16")
    got = decoding_params(attached, half)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(
            np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=2**-7, atol=1e-6
        ),
        got,
        decoding_params(want, half),
    )
    assert got["layers"][1]["mlp"]["up_proj"]["kernel"].dtype == jnp.bfloat16
    # Without adapters nothing is copied.
    assert (
        lora.merge(base)["layers"]["mlp"]["up_proj"]["kernel"]
        is (base["layers"]["mlp"]["up_proj"]["kernel"])
    )


def test_a_base_of_16_bits_does_not_round_its_sum_with_adapters(tiny_model, start):
    """Where decoding, or the file to write, has 32: adapters may be below the base's precision."""
    base, adapters = jax.tree.map(lambda x: x.astype(jnp.bfloat16), start[0]), start[1]
    attached = lora.attach(base, adapters, LORA)
    want = by_hand(jax.tree.map(lambda x: x.astype(jnp.float32), base), adapters)
    layers = decoding_params(attached, tiny_model)["layers"]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *layers)
    for got in (stacked, lora.merge(attached, "float32")["layers"]):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(np.asarray(x, np.float32), y, atol=1e-5),
            got,
            want["layers"],
        )


def test_an_update_makes_no_matrix_of_the_base(tiny_model, start):
    """Neither the sum with the adapters, nor a float32 copy, nor a gradient."""
    base, adapters = start
    config = dataclasses.replace(tiny_model, dtype="bfloat16", param_dtype="bfloat16")
    base = jax.tree.map(lambda x: x.astype(jnp.bfloat16), base)

    def text(trained):
        def value(trained):
            params = trained if trained is base else lora.attach(base, trained, LORA)
            return loss(params, config)[0]

        return jax.jit(jax.grad(value)).lower(trained).as_text()

    D, F = config.hidden_size, config.intermediate_size
    assert f"tensor<{D}x{F}xf32>" not in text(adapters)
    assert f"tensor<2x{D}x{F}xf32>" not in text(adapters)
    assert f"tensor<2x{D}x{F}xbf16>" in text(adapters)


@pytest.mark.parametrize("value", [5, [["q_proj"]], (), "q_proj", ["q"]])
def test_other_targets_are_refused(value):
    with pytest.raises(ValueError, match=rf"targets={re.escape(repr(value))}: allowed are some of"):
        LoraConfig(targets=value)


def test_biases_survive_the_merge(tiny_model):
    """As Qwen2 has them: in the merged matrices and in what decoding reads."""
    config = dataclasses.replace(tiny_model, model_type="qwen2")
    base = model.init_params(jax.random.key(0), config)
    bias = jnp.arange(2 * 32, dtype=jnp.float32).reshape(2, 32) / 8
    query = base["layers"]["attention"]["q_proj"]
    assert query["bias"].shape == bias.shape
    query["bias"] = bias
    adapters = jax.tree.map(lambda x: x + 0.1, lora.init(jax.random.key(1), LORA, config))
    attached = lora.attach(base, adapters, LORA)
    merged = lora.merge(attached)
    np.testing.assert_array_equal(merged["layers"]["attention"]["q_proj"]["bias"], bias)
    got, want = (forward_pass.logits(x, config, TOKENS, POSITIONS) for x in (attached, merged))
    np.testing.assert_allclose(got, want, atol=1e-4)
    layers = decoding_params(attached, config)["layers"]
    for layer, want in zip(layers, bias, strict=True):
        np.testing.assert_array_equal(layer["attention"]["q_proj"]["bias"], want)
