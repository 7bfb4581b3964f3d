"""Checks training steps on 256 devices, as they are and broken in one place each; prints JSON.

A program of its own, since the number of devices is fixed when JAX starts.
"""

import dataclasses
import json
import sys
from unittest import mock

from learner import plan

plan.use_host_devices(256)

import flax.linen as nn  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from learner import step_check  # noqa: E402
from learner.devices import sharding  # noqa: E402
from learner.qwen3 import model  # noqa: E402
from learner.qwen3.config import Qwen3Config  # noqa: E402
from learner.qwen3.sizes import published  # noqa: E402
from learner.training import completion_rows as completions  # noqa: E402
from learner.training import update  # noqa: E402
from learner.training.trainer import GRPOConfig  # noqa: E402

SMALL = Qwen3Config(
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


def check(config, size=(32, 8, 1), new_tokens=1100):
    mesh = sharding.make_mesh(*size)
    shards = sharding.num_row_shards(mesh)
    training = GRPOConfig(
        prompts_per_step=shards,
        micro_batch_rows=shards,
        max_new_tokens=new_tokens,
        sampling_rows=shards,
    )
    return [str(violation) for violation in step_check.check_update(config, training, mesh, 32)]


hidden_states, token_logprobs = model.hidden_states, completions.token_logprobs
shardings = update.train_state_shardings


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
    placed = shardings(config, optimizer, mesh, adapters)
    return jax.tree.map(lambda _: sharding.replicated(mesh), placed)


def split_float32(embedding, tokens, config):
    return model.embed(embedding, tokens, dataclasses.replace(config, dtype="float32"))


class CastBehind(nn.Module):
    config: Qwen3Config
    features: int
    axes: tuple[str, str]

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", *self.split(x), jnp.float32)
        if not jax.sharding.get_abstract_mesh().empty:
            kernel = jax.lax.with_sharding_constraint(kernel, P())
        return x @ kernel.astype(x.dtype)

    def split(self, x):
        init = nn.with_logical_partitioning(nn.initializers.zeros, self.axes)
        return init, (x.shape[-1], self.features)


class NotCast(CastBehind):
    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", *self.split(x), jnp.float32)
        return (x.astype(jnp.float32) @ kernel).astype(x.dtype)


def unrolled(scan):
    return lambda *args, **kwargs: scan(*args, **{**kwargs, "unroll": 4})


def main():
    """Checks the variants named on the command line, all if none is."""
    full = published("Qwen3-4B", dtype="bfloat16", remat="full")
    wanted = set(sys.argv[1:])
    whole = {
        "Qwen3-4B 32x8x1": lambda: check(full, new_tokens=4095),
        "Qwen3-4B 8x8x4": lambda: check(full, (8, 8, 4), 4095),
        "small 32x8x1": lambda: check(SMALL),
        "computed in float32": lambda: check(dataclasses.replace(SMALL, dtype="float32")),
    }
    found = {name: run() for name, run in whole.items() if not wanted or name in wanted}
    patches = {
        "parameters gathered before the loop": (model, "hidden_states", gathered_before),
        "layers gathered one by one": (model, "hidden_states", gathered_one_by_one),
        "gradients on every device": (update, "train_state_shardings", everywhere),
        "logits of all tokens": (completions, "token_logprobs", all_at_once),
        "embedding gathered": (model, "embed_split", model.embed),
        "float32 residual stream": (model, "embed_split", split_float32),
        "weights cast behind the gather": (model, "projection", CastBehind),
        "weights not cast": (model, "projection", NotCast),
        # The check expects a loop of four layers, and there is none.
        "layers not scanned": (nn, "scan", unrolled(nn.scan)),
    }
    for variant, (owner, name, broken) in patches.items():
        if wanted and variant not in wanted:
            continue
        with mock.patch.object(owner, name, broken):
            jax.clear_caches()
            found[variant] = check(SMALL)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
