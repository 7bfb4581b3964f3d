"""The engines that `experiments.speed.sampler` compares."""

import json
import pathlib
import time
import types
from typing import Any

from experiments.speed.engines import Measurements, Task, seconds


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


def own_roofline(task: Task) -> Measurements:
    """Seconds of one decoding step with all slots busy, and the copy bandwidth that bounds it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from learner.devices import sharding
    from learner.qwen3 import model, placement
    from learner.qwen3.config import Qwen3Config
    from learner.sampling import slots
    from learner.sampling.sampler import Sampler, SamplingParams

    config = Qwen3Config(**task["config"])
    mesh = sharding.make_mesh()
    batch, context, steps = task["batch"], task["context"], task["steps"]
    sampling = SamplingParams(max_new_tokens=2 * steps)
    engine = Sampler(config, mesh, sampling, 0, max_rows=batch, segment_tokens=steps)
    init = jax.jit(
        lambda key: model.init_params(key, config),
        out_shardings=placement.param_shardings(config, mesh),
    )
    params = engine.prepare(init(jax.random.key(0)))
    # What a cache holds does not change how long it takes to read.
    prompts = engine.new_prompts((batch,), context - steps)
    sequences = slots.Sequences.idle(batch, 1)._replace(
        prompt_lengths=np.full(batch, context - steps, np.int32),
        counts=np.full((batch, 1), steps // 2, np.int32),  # So the context is `context` midway.
        budgets=np.full((batch, 1), 2 * steps, np.int32),
        finish=np.full((batch, 1), slots.RUNNING, np.int32),
    )
    array = jnp.zeros(task["bytes"] // 4, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    bandwidth = 2 * array.nbytes / seconds(lambda: jax.block_until_ready(copy(array)), repeats=5)
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    bytes_read = sum(x.nbytes for x in jax.tree.leaves(params))
    bytes_read += batch * context * numbers * jnp.dtype(config.dtype).itemsize
    cache = engine.new_samples((batch, 1), 2 * steps)
    while True:
        begin = time.perf_counter()
        cache, *rest = engine.segment(params, prompts, cache, sequences, None, np.int32(0))
        jax.block_until_ready(rest)
        step = (time.perf_counter() - begin) / steps
        yield {
            "step_seconds": step,
            "copy GB/s": bandwidth / 1e9,
            "tokens/s": batch / step,
            "fraction of roofline": bytes_read / bandwidth / step,
        }


def _generate(model: Any, prompts: Any, new: int) -> tuple[float, Any]:
    """(seconds, new tokens) of transformers' `generate`, greedy."""
    import torch

    begin = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            max_new_tokens=new,
            min_new_tokens=new,
            eos_token_id=None,
            pad_token_id=0,
        )
    out = out[:, prompts.shape[1] :].cpu()
    return time.perf_counter() - begin, out


def transformers(task: Task) -> Measurements:
    """`generate` of transformers on torch, greedy."""
    import torch
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(task["folder"], dtype=torch.float32).eval()
    while True:
        took, ids = _generate(model, torch.tensor(task["prompts"]), task["new_tokens"])
        yield {"seconds": took, "tokens": ids.numel(), "ids": ids.tolist()}


def transformers_roofline(task: Task) -> Measurements:
    """Seconds of one decoding step of `generate`: of a long run less a short one."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    fields = {name: task["config"][name] for name in task["config"] if "dtype" not in name}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        config = Qwen3Config(**fields)
        model = Qwen3ForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    steps = task["steps"]
    shape = (task["batch"], task["context"] - steps // 2)
    prompts = torch.randint(1, config.vocab_size, shape, device=device)
    while True:
        _generate(model, prompts, 2)
        long, short = (_generate(model, prompts, new)[0] for new in (steps + 1, 1))
        step = (long - short) / steps
        yield {"step_seconds": step, "generate tokens/s": task["batch"] / step}


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
