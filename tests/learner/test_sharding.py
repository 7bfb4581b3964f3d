"""Placement: what is split over which axis, and what is refused."""

import jax
import jax.numpy as jnp
import micro_model
import numpy as np
import pytest

from learner.decoder import model
from learner.decoder.logprobs import token_logprobs
from learner.devices import sharding
from learner.training.train_state import OptimizerConfig, abstract_train_state

CONFIG = micro_model.config(tie_word_embeddings=False, intermediate_size=48, remat="full")


def test_loss_and_gradient_on_a_mesh_equal_those_of_one_device():
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    placed = model.param_shardings(CONFIG, mesh)
    params = model.init_params(jax.random.key(0), CONFIG)
    tokens = np.random.default_rng(0).integers(0, 96, (8, 10)).astype(np.int32)
    positions = np.broadcast_to(np.arange(10, dtype=np.int32), tokens.shape)

    def loss(params, tokens):
        hidden = model.hidden_states(params, CONFIG, tokens, positions)
        out = model.unembedding(params, CONFIG)
        return -jnp.mean(token_logprobs(hidden[:, :-1], out, tokens[:, 1:], chunk=16)[0])

    value, grad = jax.jit(jax.value_and_grad(loss))(params, tokens)
    step = jax.jit(
        jax.value_and_grad(loss),
        in_shardings=(placed, sharding.batch_sharding(mesh)),
        out_shardings=(sharding.replicated(mesh), placed),
    )
    with sharding.use(mesh):
        value8, grad8 = step(jax.device_put(params, placed), tokens)
    np.testing.assert_allclose(value, value8, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grad, grad8)


def test_matrices_and_optimizer_moments_are_split_alike():
    mesh = sharding.make_mesh(data=1, fsdp=4, tensor=2)
    placed = model.param_shardings(CONFIG, mesh)
    abstract = model.abstract_params(CONFIG)

    def bytes_on_one(shape, place):
        return np.prod(place.shard_shape(shape.shape)) / shape.size

    shares = jax.tree.map(bytes_on_one, abstract, placed)
    for (path, _), share in zip(
        jax.tree_util.tree_leaves_with_path(abstract), jax.tree.leaves(shares), strict=True
    ):
        # Every matrix is split over all eight devices; the vectors of the norms are not.
        assert share == (1 if path[-1].key == "scale" else 1 / 8), path

    abstract = abstract_train_state(CONFIG, OptimizerConfig(), mesh)
    state = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    adam = state.opt_state[1][0]
    assert state.params == adam.mu == adam.nu == placed
    assert state.step == adam.count == sharding.replicated(mesh)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"tensor": 4}, r"num_key_value_heads is 2.*tensor=4.*\[1, 2\]"),
        ({"tensor": 8}, r"num_attention_heads is 4.*\[1, 2\]"),
        ({"fsdp": 3}, "hidden_size is 32.*fsdp=3"),
    ],
)
def test_dimensions_that_do_not_divide_are_refused_by_field(axes, message):
    mesh = sharding.make_mesh(**axes)
    with pytest.raises(ValueError, match=message):
        model.param_shardings(CONFIG, mesh)


def test_mesh_sizes_must_fit_the_devices():
    with pytest.raises(ValueError, match="takes 16 devices; there are 8"):
        sharding.make_mesh(data=16)
    with pytest.raises(ValueError, match="fsdp=0: "):
        sharding.make_mesh(fsdp=0)
    with pytest.raises(ValueError, match="takes 1 devices; there are 2"):
        sharding.make_mesh(devices=jax.devices()[:2])
