"""Training in float16: the residual stream, and gradients too small or too large for it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forward_pass import flat

from learner.decoder import model
from learner.training.sft import Example, SFTConfig, SFTTrainer
from learner.training.train_state import OptimizerConfig, abstract_train_state, create_train_state
from learner.training.update import NonFiniteError, Updater, check

EXAMPLES = [Example((256, 257, 10 + i), (40 + 3 * i, 41 + i, 258)) for i in range(4)]
# A large eps keeps the step nearly linear in the gradient.
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, eps=1e-3)


def test_an_update_is_that_of_float32(tiny_model, one_device):
    """Within its ten bits: the sum of the rounding of some 50 products, each of 2 ** -11."""
    sft = SFTConfig(
        micro_batch_size=2, length_multiple=16, max_completion_tokens=4, optimizer=OPTIMIZER
    )
    moved = []
    for dtype in ("float32", "float16"):
        config = dataclasses.replace(tiny_model, dtype=dtype)
        params = model.init_params(jax.random.key(0), config)
        before = flat(params)
        state = create_train_state(params, config, OPTIMIZER, one_device)
        state, _ = SFTTrainer(sft, config, one_device, pad_id=256).step(state, EXAMPLES)
        assert int(state.updates) == 1
        moved.append(flat(state.params) - before)
    assert 0 < np.linalg.norm(moved[1] - moved[0]) < 50 * 2**-11 * np.linalg.norm(moved[0])


def updated(config, optimizer, mesh, count):
    """A state after updates whose gradient is 2e-4, or 0 for all but the last norm's scale."""

    def loss(params, batch, extra):
        return 2e-4 * jnp.sum(params["final_norm"]["scale"].astype(jnp.float32) * batch), {}

    params = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), model.abstract_params(config))
    state = create_train_state(params, config, optimizer, mesh)
    updater = Updater(loss, abstract_train_state(config, optimizer, mesh), optimizer, mesh)
    for _ in range(count):
        state, result = updater(state, [np.ones((1, 32), np.float32)])
    return state, result


def test_parameters_of_16_bits_move_like_those_of_32(tiny_model, one_device):
    """With moments of 16 bits the first update would divide 0 by 0."""
    optimizer = OptimizerConfig(learning_rate=1e-2)
    scales = []
    for dtype in ("float32", "float16"):
        config = dataclasses.replace(tiny_model, param_dtype=dtype)
        state, result = updated(config, optimizer, one_device, 3)
        assert result.finite
        assert result.params_finite
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(state.params)} == {dtype}
        assert "float16" not in {str(leaf.dtype) for leaf in jax.tree.leaves(state.opt_state)}
        scales.append(np.asarray(state.params["final_norm"]["scale"]))
    np.testing.assert_allclose(scales[0], 0.97, atol=1e-3)
    np.testing.assert_allclose(scales[1], scales[0], atol=2e-3)


def test_a_parameter_that_leaves_the_range_stops_the_run(tiny_model, one_device):
    config = dataclasses.replace(tiny_model, param_dtype="float16")
    state, result = updated(config, OptimizerConfig(learning_rate=1e6), one_device, 1)
    assert result.finite
    with pytest.raises(NonFiniteError, match="step 7: a parameter is not finite after the update"):
        check(7, result, {"loss": 1.0}, state)


def test_the_residual_stream_may_leave_the_range_of_float16(tiny_model):
    """The largest number of float16 is 65,504; real models have outliers in few dimensions."""
    config = dataclasses.replace(tiny_model, dtype="float16")
    params = model.init_params(jax.random.key(0), config)
    params = {**params, "embedding": params["embedding"].at[:, 3].set(1e5)}
    tokens = jnp.arange(12)[None]
    got = model.hidden_states(params, config, tokens, tokens)
    assert got.dtype == jnp.float16
    single = dataclasses.replace(config, dtype="float32")
    np.testing.assert_allclose(got, model.hidden_states(params, single, tokens, tokens), atol=0.01)


@pytest.mark.parametrize("size", [1e-9, 1.0, 3e3])
def test_gradients_of_any_size_come_through(tiny_model, one_device, size):
    """Of 1e-9 nothing would be left in float16; those of 3,000 overflow at the first scales."""
    half = dataclasses.replace(tiny_model, dtype="float16")

    def loss(params, batch, extra):
        # The factor of the loss is part of the backward pass, as weights of tokens are.
        down = params["final_norm"]["scale"].astype(jnp.float16)
        return jnp.sum(down.astype(jnp.float32) * batch * size), {}

    # In units of the gradient: Adam would hide its size.
    optimizer = OptimizerConfig(learning_rate=1.0, b1=0.0, b2=0.0, eps=1e6, max_grad_norm=0.0)
    params = model.init_params(jax.random.key(0), half)
    state = create_train_state(params, half, optimizer, one_device)
    before = np.asarray(state.params["final_norm"]["scale"])
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    updater = Updater(loss, abstract, optimizer, one_device, "float16")
    batches = [np.ones((1, 32), np.float32), np.full((1, 32), 2, np.float32)]
    state, result = updater(state, iter(batches))
    assert bool(result.finite)
    assert int(state.updates) == 1
    np.testing.assert_allclose(result.grad_norm, 3 * size * np.sqrt(32), rtol=1e-2)
    assert (np.asarray(state.params["final_norm"]["scale"]) <= before).all()
