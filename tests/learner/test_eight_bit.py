"""Moments in 8 bits: the data type, its error, and Adam with it against Adam without."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from forward_pass import flat
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from learner.decoder import model
from learner.devices import sharding
from learner.training import eight_bit
from learner.training.checkpoints import Checkpoints
from learner.training.sft import Example, SFTConfig, SFTTrainer
from learner.training.train_state import OptimizerConfig, abstract_train_state, create_train_state


def values(signed):
    """The data type as in figure 2 of the paper: decades of evenly spaced values, and zero."""
    bits = 7 if signed else 8
    found = [0.0]
    for i in range(bits):
        ends = np.linspace(0.1, 1, 2**i + 1)[1:]
        found += list(10.0 ** (i - bits + 1) * ends)
    return np.sort(np.array([*found, *(-np.array(found[1:]) if signed else [])]))


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_the_data_type_of_the_paper(signed):
    want = values(signed)
    assert len(want) == 256 - signed
    codes = np.arange(-127, 128, dtype=np.int8) if signed else np.arange(256, dtype=np.uint8)
    got = np.asarray(eight_bit.dequantise(jnp.asarray(codes), jnp.ones(1)))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    # What is one of the values stays; the largest makes each block begin at 1.
    blocks = np.pad(np.resize(want, (11, 63)), ((0, 0), (0, 1)), constant_values=1)
    again, largest = eight_bit.quantise(jnp.asarray(blocks, jnp.float32), signed)
    np.testing.assert_array_equal(largest, 1)
    np.testing.assert_allclose(eight_bit.dequantise(again, largest), blocks, rtol=1e-5)


@given(
    arrays.arrays(np.float32, (3, 64), elements=st.floats(-1, 1, width=32)),
    st.floats(-30, 30),
    st.booleans(),
)
@settings(max_examples=60)
def test_error_is_at_most_half_a_step(x, exponent, signed):
    """Of magnitude m in its block: half the distance of the values around it."""
    x = (x * np.float32(2.0) ** np.float32(exponent)).astype(np.float32)
    x = np.where(np.abs(x) < 1e-30, 0, x)  # Subnormal numbers are zero on some machines.
    x = x if signed else np.abs(x)
    codes, largest = eight_bit.quantise(jnp.asarray(x), signed)
    got = np.asarray(eight_bit.dequantise(codes, largest), np.float64)
    top = np.abs(x).max(axis=1, keepdims=True).astype(np.float64)
    np.testing.assert_array_equal(np.asarray(largest), top)
    magnitude = np.abs(x) / np.where(top > 0, top, 1)
    bits = 7 if signed else 8
    decade = sum((magnitude > 10.0**-i).astype(int) for i in range(1, bits))
    end = 10.0 ** (decade - bits + 1)
    # In the lowest decade the smallest value stands for all that is below it.
    bound = np.where(decade == 0, end, 0.45 * end / 2.0**decade)
    assert (np.abs(got - x) <= (1.001 * bound + 1e-6 * magnitude) * top).all()
    np.testing.assert_array_equal(np.sign(got), np.sign(x))
    np.testing.assert_allclose(got.max(initial=0, where=x == top), x.max(initial=0, where=x == top))


def test_axes_that_no_block_divides():
    for n in (1, 6, 100, 192):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(2, n)), jnp.float32)
        codes, largest = eight_bit.quantise(x, True)
        assert codes.shape == (2, n)
        assert n % largest.shape[1] == 0
        assert np.abs(eight_bit.dequantise(codes, largest) - x).max() < 0.01 * np.abs(x).max()


def test_first_moments_are_zeros_that_need_no_arithmetic():
    """XLA folds what follows from constants: for a large model, minutes of compilation."""
    params = {"a": jnp.ones((3, 128)), "b": jnp.ones(20), "c": jnp.ones(())[None]}
    adam = eight_bit.scale_by_adam(0.9, 0.95, 1e-8)
    state, plain = jax.jit(adam.init)(params), optax.scale_by_adam(0.9, 0.95).init(params)
    for moments, signed in ((state.mu, True), (state.nu, False)):
        want = {name: eight_bit.quantise(zeros, signed) for name, zeros in plain.mu.items()}
        for name, (codes, largest) in want.items():
            for got, wanted in ((moments["codes"], codes), (moments["largest"], largest)):
                assert (got[name].shape, got[name].dtype) == (wanted.shape, wanted.dtype)
                assert not got[name].any()
    assert "power" not in jax.jit(adam.init).lower(params).as_text()


def test_first_step_is_that_of_float32():
    """The second moment is divided by before it is quantised."""
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.zeros((8, 64))}
    gradients = {"kernel": jnp.asarray(rng.normal(size=(8, 64)), jnp.float32)}
    changes = []
    for adam in (optax.scale_by_adam(0.9, 0.95), eight_bit.scale_by_adam(0.9, 0.95, 1e-8)):
        change, _ = adam.update(gradients, adam.init(params))
        changes.append(change["kernel"])
    np.testing.assert_array_equal(*changes)


EXAMPLES = [Example((256, 257, 10 + i), (40 + 3 * i, 41 + i, 258)) for i in range(6)]


def train(config, mesh, steps, **optimizer):
    optimizer = OptimizerConfig(learning_rate=1e-3, **optimizer)
    sft = SFTConfig(
        micro_batch_size=8, length_multiple=16, max_completion_tokens=4, optimizer=optimizer
    )
    params = model.init_params(jax.random.key(0), config)
    start = flat(params)
    state = create_train_state(params, config, optimizer, mesh)
    trainer = SFTTrainer(sft, config, mesh, pad_id=256)
    for step in range(steps):
        state, metrics = trainer.step(state, EXAMPLES, step)
    return state, flat(state.params) - start, metrics


@pytest.mark.slow
def test_training_is_close_to_float32(tiny_model, one_device):
    """A number between a tenth of its block's largest and that is off by 0.7 to 7 % at most.

    That is half of it on average, with either sign, and what ten steps add up averages out.
    """
    _, want, exact = train(tiny_model, one_device, 10)
    state, got, metrics = train(tiny_model, one_device, 10, moment_dtype="int8")
    distance = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 0 < distance < 0.05
    np.testing.assert_allclose(metrics["loss"], exact["loss"], rtol=1e-2)
    size = sum(x.nbytes for x in jax.tree.leaves(state.opt_state))
    count = sum(x.size for x in jax.tree.leaves(state.params))
    assert size < 2.5 * count  # Here blocks have 8 to 64 numbers.


@pytest.mark.slow
def test_lives_on_the_mesh_and_in_checkpoints(tiny_model, tmp_path):
    mesh = sharding.make_mesh(2, 2, 2)
    optimizer = OptimizerConfig(learning_rate=1e-3, moment_dtype="int8")
    state, moved, _ = train(tiny_model, mesh, 2, moment_dtype="int8")
    moments = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
        if jax.tree_util.keystr(path).endswith("['codes']['embedding']")
    ]
    assert [leaf.dtype for leaf in moments] == [jnp.int8, jnp.uint8]
    for moment in moments:
        assert moment.sharding == state.params["embedding"].sharding
    _, alone, _ = train(tiny_model, sharding.make_mesh(), 2, moment_dtype="int8")
    np.testing.assert_allclose(moved, alone, atol=0.02 * np.abs(alone).max())
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, state, {})
        other = sharding.make_mesh(fsdp=4)
        restored, _ = checkpoints.restore(abstract_train_state(tiny_model, optimizer, other))
    jax.tree.map(np.testing.assert_array_equal, restored, state)
