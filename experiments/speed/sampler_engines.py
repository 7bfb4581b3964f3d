"""The engines that `experiments.speed.sampler` compares."""

import json
import pathlib
import time
import types
from typing import Any

from experiments.speed.engines import Measurements, Task


def _own_parts(task: Task) -> tuple[Any, Any, Any]:
    import jax

    from learner.devices import sharding
    from learner.qwen3 import weights
    from learner.qwen3.config import Qwen3Config

    jax.config.update("jax_num_cpu_devices", task["devices"])
    config = Qwen3Config.from_folder(task["folder"], scan_unroll=1)
    mesh = sharding.make_mesh(data=task["devices"])
    return config, mesh, weights.load(task["folder"], config, mesh)


def own(task: Task) -> Measurements:
    """`Sampler` on all prompts of the task at once, greedy; rows split over the CPU's devices."""
    import jax

    from learner.sampling.sampler import Sampler, SamplingParams

    config, mesh, params = _own_parts(task)
    prompts = task["prompts"]
    sampling = SamplingParams(max_new_tokens=task["new_tokens"], temperature=0.0)
    sampler = Sampler(config, mesh, sampling, 0, max_rows=len(prompts))
    keys = jax.random.split(jax.random.key(0), len(prompts))
    while True:
        begin = time.perf_counter()
        ids = sampler(params, prompts, keys).tokens
        yield {"seconds": time.perf_counter() - begin, "tokens": ids.size, "ids": ids.tolist()}


def own_uneven(task: Task) -> Measurements:
    """Completions of given lengths through few slots: refilled, and in fixed batches."""
    import jax
    import numpy as np

    from learner.sampling.sampler import Sampler, SamplingParams

    config, mesh, params = _own_parts(task)
    prompts, slots = task["prompts"], task["slots"]
    budgets = np.array(task["budgets"])
    sampling = SamplingParams(max_new_tokens=task["new_tokens"])
    sampler = Sampler(config, mesh, sampling, 0, max_rows=slots)
    keys = jax.random.split(jax.random.key(0), len(prompts))
    batches = [slice(first, first + slots) for first in range(0, len(prompts), slots)]
    while True:
        begin = time.perf_counter()
        whole = sampler(params, prompts, keys, budgets=budgets)
        middle = time.perf_counter()
        parts = [sampler(params, prompts[b], keys[b], budgets=budgets[b]) for b in batches]
        end = time.perf_counter()
        fixed = np.concatenate([part.tokens for part in parts])
        same = float((whole.tokens == fixed).all(axis=1).mean())
        yield {"refilled": middle - begin, "fixed": end - middle, "same": same}


def transformers(task: Task) -> Measurements:
    """`generate` of transformers on torch, greedy."""
    import torch
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(task["folder"], dtype=torch.float32).eval()
    prompts = torch.tensor(task["prompts"])
    while True:
        begin = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=False,
                max_new_tokens=task["new_tokens"],
                min_new_tokens=task["new_tokens"],
                eos_token_id=None,
                pad_token_id=0,
            )
        took, ids = time.perf_counter() - begin, out[:, prompts.shape[1] :]
        yield {"seconds": took, "tokens": ids.numel(), "ids": ids.tolist()}


def tunix(task: Task) -> Measurements:
    """The sampler of google-tunix, greedy; heads and widths split over the CPU's devices.

    With rows and parameters split instead, its mesh axis `fsdp`, it is slower.
    """
    import jax
    import numpy as np
    from tunix.generate.sampler import CacheConfig, Sampler
    from tunix.models.qwen3 import model as qwen3
    from tunix.models.qwen3 import params as qwen3_params

    raw = json.loads((pathlib.Path(task["folder"]) / "config.json").read_text())
    config = qwen3.ModelConfig(
        num_layers=raw["num_hidden_layers"],
        vocab_size=raw["vocab_size"],
        embed_dim=raw["hidden_size"],
        hidden_dim=raw["intermediate_size"],
        num_heads=raw["num_attention_heads"],
        head_dim=raw["head_dim"],
        num_kv_heads=raw["num_key_value_heads"],
        rope_theta=int(raw["rope_theta"]),
        norm_eps=raw["rms_norm_eps"],
        use_tied_embedding=raw["tie_word_embeddings"],
    )
    devices = task["devices"]
    jax.config.update("jax_num_cpu_devices", devices)
    mesh = jax.make_mesh(
        (1, devices), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )  # fmt: skip
    prompts, new = task["prompts"], task["new_tokens"]
    longest = max(map(len, prompts))
    numbers = types.SimpleNamespace(  # Stands in for a tokenizer: the text of an id is its number.
        encode=lambda text, **_: [int(word) for word in text.split()],
        decode=lambda ids, **_: " ".join(map(str, ids)),
        bos_id=lambda: 0,
        eos_id=lambda: -1,
        pad_id=lambda: 0,
    )
    with mesh:
        model = qwen3_params.create_model_from_safe_tensors(task["folder"], config, mesh)
        cache = CacheConfig(
            cache_size=longest + new + 1,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
        sampler = Sampler(model, numbers, cache)
    texts = [" ".join(map(str, prompt)) for prompt in prompts]
    while True:
        begin = time.perf_counter()
        with mesh:
            out = sampler(texts, max_generation_steps=new, max_prompt_length=longest)
        ids = [np.asarray(row).tolist() for row in out.tokens]
        took = time.perf_counter() - begin
        yield {"seconds": took, "tokens": sum(map(len, ids)), "ids": ids}
