"""The optimizer against AdamW written out in NumPy, its schedule, and where the state lives."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner.decoder import model
from learner.devices import sharding
from learner.training.train_state import (
    OptimizerConfig,
    abstract_train_state,
    create_train_state,
    learning_rate_schedule,
    make_optimizer,
)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5])
def test_optimizer_is_adamw(max_grad_norm):
    config = OptimizerConfig(
        learning_rate=0.1,
        warmup_steps=1,
        weight_decay=0.3,
        b1=0.8,
        b2=0.9,
        eps=1e-3,
        max_grad_norm=max_grad_norm,
    )
    rng = np.random.default_rng(0)
    params = {"mlp": {"kernel": rng.normal(size=(3, 4))}, "norm": {"scale": rng.normal(size=3)}}
    optimizer = make_optimizer(config)
    ours = jax.tree.map(jnp.asarray, params)
    opt_state = optimizer.init(ours)
    flat = [params["mlp"]["kernel"], params["norm"]["scale"]]
    m, v = [0.0, 0.0], [0.0, 0.0]
    for t in (1, 2, 3):
        grads = [rng.normal(size=p.shape) for p in flat]
        tree = {"mlp": {"kernel": jnp.asarray(grads[0])}, "norm": {"scale": jnp.asarray(grads[1])}}
        changes, opt_state = optimizer.update(tree, opt_state, ours)
        ours = jax.tree.map(jnp.add, ours, changes)

        norm = math.sqrt(sum((g**2).sum() for g in grads))
        if max_grad_norm:
            assert norm > max_grad_norm
            grads = [g * max_grad_norm / norm for g in grads]
        rate = 0.1 * min(t / 2, 1.0)
        for i, (g, decay) in enumerate(zip(grads, (0.3, 0.0), strict=True)):
            m[i] = 0.8 * m[i] + 0.2 * g
            v[i] = 0.9 * v[i] + 0.1 * g**2
            step = m[i] / (1 - 0.8**t) / (np.sqrt(v[i] / (1 - 0.9**t)) + 1e-3)
            flat[i] = flat[i] - rate * (step + decay * flat[i])
    np.testing.assert_allclose(ours["mlp"]["kernel"], flat[0], rtol=1e-4)
    np.testing.assert_allclose(ours["norm"]["scale"], flat[1], rtol=1e-4)


def test_bfloat16_moments():
    """Half the bytes of the first moment; the second stays exact; nearly the same steps."""
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.asarray(rng.normal(size=(30, 40)), jnp.float32)}
    ends = []
    for dtype in ("float32", "bfloat16"):
        optimizer = make_optimizer(OptimizerConfig(learning_rate=0.01, moment_dtype=dtype))
        state, ours = optimizer.init(params), params
        moments = [leaf.dtype for leaf in jax.tree.leaves(state) if leaf.shape == (30, 40)]
        assert moments == [dtype, "float32"]
        for step in range(20):
            grads = {"kernel": jnp.sin(ours["kernel"] + step / 20)}
            changes, state = optimizer.update(grads, state, ours)
            ours = jax.tree.map(jnp.add, ours, changes)
        ends.append(ours["kernel"] - params["kernel"])
    assert np.abs(ends[0]).max() > 0.1
    np.testing.assert_allclose(ends[1], ends[0], atol=5e-3)
    assert (ends[0] != ends[1]).any()


def test_checkpoints_of_adamw_still_fit():
    """The state has the structure of `optax.adamw`'s, which earlier runs have saved."""
    params = {"kernel": jnp.ones((2, 3))}
    config = OptimizerConfig(max_grad_norm=0.0)
    masked = optax.adamw(optax.constant_schedule(1e-6), mask=lambda p: {"kernel": True})
    ours, theirs = make_optimizer(config).init(params), masked.init(params)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)


@pytest.mark.parametrize(
    ("decay", "want"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", [0.25, 0.5, 0.75] + [0.5 + 0.5 * math.cos(math.pi * i / 4) for i in range(5)]),
    ],
)
def test_schedule(decay, want):
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=3, decay=decay, total_steps=7)
    schedule = learning_rate_schedule(config)
    np.testing.assert_allclose(
        [schedule(jnp.int32(i)) for i in range(8)], 2 * np.array(want), atol=1e-6
    )
    np.testing.assert_allclose(schedule(jnp.int32(100)), 2 * want[-1], atol=1e-6)


def test_every_leaf_lives_on_the_mesh(tiny_model):
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    params = model.init_params(jax.random.key(0), tiny_model)
    state = create_train_state(params, tiny_model, OptimizerConfig(), mesh)
    abstract = abstract_train_state(tiny_model, OptimizerConfig(), mesh)
    for leaf, want in zip(jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True):
        assert leaf.sharding == want.sharding
        assert (leaf.shape, leaf.dtype) == (want.shape, want.dtype)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0),
        ("b1", "x"),
        ("b2", 1.0),
        ("b2", None),
        ("max_grad_norm", -1.0),
        ("warmup_steps", -1),
        ("decay", "exponential"),
        ("moment_dtype", "int4"),
    ],
)
def test_bad_optimizer_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}={value!r}.*allowed"):
        OptimizerConfig(**{field: value})
    for total in (None, 0, 2.5, float("nan"), "5"):
        with pytest.raises(ValueError, match=f"total_steps={total!r}: .* needs an integer above"):
            OptimizerConfig(decay="cosine", total_steps=total)


def test_neither_norms_nor_biases_decay(tiny_model):
    """With a gradient of zero, only weight decay moves a parameter."""
    config = dataclasses.replace(tiny_model, model_type="qwen2")
    params = jax.tree.map(jnp.ones_like, model.init_params(jax.random.key(0), config))
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1.0, weight_decay=0.5))
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        name = jax.tree_util.keystr(path)
        kept = "scale" in name or "bias" in name
        np.testing.assert_array_equal(update, 0.0 if kept else -0.5, err_msg=name)
