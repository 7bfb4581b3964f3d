"""The promises of the update on eight TPUs, compiled for them: kept, and seen to be broken."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from learner.decoder import model
from learner.decoder.config import DecoderConfig
from learner.devices import sharding
from learner.plan import programs, promises, targets
from learner.training import completion_rows as completions
from learner.training import trainer
from learner.training.trainer import GRPOConfig

pytestmark = pytest.mark.aot

SMALL = DecoderConfig(
    vocab_size=704,  # No other axis is as long.
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=True,
    dtype="bfloat16",
    remat="full",
)
TARGET = targets.Target.parse("v5e-8")


@pytest.fixture(scope="module")
def devices():
    """Eight TPUs that are not there."""
    pytest.importorskip("libtpu")
    targets.use_compilers()
    return TARGET.devices()


def check(devices, config, size=(2, 4, 1), new_tokens=1100):
    mesh = sharding.make_mesh(*size, devices=devices)
    shards = sharding.num_row_shards(mesh)
    training = GRPOConfig(
        prompts_per_step=shards,
        micro_batch_rows=shards,
        max_new_tokens=new_tokens,
        sampling_rows=shards,
    )
    config = programs.for_target(config, TARGET)
    jax.clear_caches()
    lowered = programs.abstract_trainer(config, training, mesh).lower_update(32)
    length, _ = training.row_shape(32 + new_tokens, 1)
    text = lowered["gradients"].compile().as_text()
    return promises.broken(text, config, mesh, length)


@pytest.mark.parametrize("size", [(2, 4, 1), (1, 4, 2)])
def test_the_update_keeps_its_promises(devices, size):
    assert check(devices, SMALL, size) == []


# Broken steps -------------------------------------------------------------------------------

hidden_states, token_logprobs = model.hidden_states, completions.token_logprobs
abstract_train_state = trainer.abstract_train_state


def gathered_before(params, *args, **kwargs):
    whole = jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, P()), params["layers"])
    return hidden_states({**params, "layers": whole}, *args, **kwargs)


def gathered_one_by_one(params, *args, **kwargs):
    def whole(x):
        rows = [jax.lax.with_sharding_constraint(x[i].astype(jnp.bfloat16), P()) for i in range(4)]
        # What is stacked again is split again: no matrix of all layers is left.
        back = P(None, *[axis if x.ndim > 2 else None for axis in ("fsdp",)])
        return jax.lax.with_sharding_constraint(jnp.stack(rows).astype(x.dtype), back)

    layers = jax.tree.map(whole, params["layers"])
    return hidden_states({**params, "layers": layers}, *args, **kwargs)


def all_at_once(*args, **kwargs):
    return token_logprobs(*args, **{**kwargs, "chunk": 1 << 20})


def everywhere(config, optimizer, mesh, adapters=None):
    state = abstract_train_state(config, optimizer, mesh, adapters)
    return jax.tree.map(lambda leaf: leaf.update(sharding=sharding.replicated(mesh)), state)


def split_float32(embedding, tokens, config):
    return model.embed(embedding, tokens, dataclasses.replace(config, dtype="float32"))


class CastBehind(model.Projection):
    @nn.compact
    def __call__(self, x, product=jnp.matmul):
        init = nn.with_logical_partitioning(nn.initializers.zeros, self.axes)
        kernel = self.param("kernel", init, self.shape, jnp.float32)
        if not jax.sharding.get_abstract_mesh().empty:
            kernel = jax.lax.with_sharding_constraint(kernel, P())
        return product(x, kernel.astype(x.dtype))


def unrolled(scan):
    return lambda *args, **kwargs: scan(*args, **{**kwargs, "unroll": 4})


@pytest.mark.parametrize(
    ("owner", "name", "broken", "what"),
    [
        (model, "hidden_states", gathered_before, "parameters: .* holds a matrix of all layers"),
        (model, "hidden_states", gathered_one_by_one, "parameters: .* gathered outside the loops"),
        (trainer, "abstract_train_state", everywhere, "parameters: .* a matrix of all layers"),
        (nn, "scan", unrolled(nn.scan), "parameters: 0 loops over layers"),
        (completions, "token_logprobs", all_at_once, "logits: .* has those of"),
        (model, "embed_split", split_float32, "bfloat16: .* carries activations as f32"),
        (model, "Projection", CastBehind, "bfloat16: .* gathers float32"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_step_is_seen(devices, monkeypatch, owner, name, broken, what):
    monkeypatch.setattr(owner, name, broken)
    found = check(devices, SMALL)
    assert any(re.match(what, text) for text in found), found


def test_float32_throughout_breaks_no_promise(devices):
    assert check(devices, dataclasses.replace(SMALL, dtype="float32")) == []
