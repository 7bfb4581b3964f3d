"""The engines that `experiments.speed.sampler` compares, each in a process of its own.

Started as `python sampler_engines.py ENGINE TASK.json`, with the interpreter of an environment that
has the engine. It loads the model, says "ready", and answers every line on its standard input with
one measurement as a line of JSON. So the caller can let the engines take turns: what else the
machine does then weighs on all of them alike.

No other module of this project is imported here but where an engine is the project's own.
"""

import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Task = Mapping[str, Any]
Measure = Callable[[], dict[str, Any]]


# This project's sampler -------------------------------------------------------


def _own_parts(task: Task, devices: int) -> tuple[Any, Any, Any]:
    import jax

    from learner.devices import sharding
    from learner.qwen3 import weights
    from learner.qwen3.config import Qwen3Config

    jax.config.update("jax_num_cpu_devices", devices)
    config = Qwen3Config.from_folder(task["folder"], scan_unroll=1)
    mesh = sharding.make_mesh(data=devices)
    return config, mesh, weights.load(task["folder"], config, mesh)


def own(task: Task) -> Measure:
    """`Sampler` on all prompts of the task at once, greedy; rows split over the CPU's devices."""
    return _own(task, task["devices"])


def own_on_one(task: Task) -> Measure:
    """`own` with the whole CPU as one device."""
    return _own(task, 1)


def _own(task: Task, devices: int) -> Measure:
    import jax

    from learner.sampling.sampler import Sampler, SamplingParams

    config, mesh, params = _own_parts(task, devices)
    prompts, new = task["prompts"], task["new_tokens"]
    sampling = SamplingParams(max_new_tokens=new, temperature=0.0)
    sampler = Sampler(config, mesh, sampling, 0, max_rows=len(prompts))
    keys = jax.random.split(jax.random.key(0), len(prompts))

    def measure() -> dict[str, Any]:
        begin = time.perf_counter()
        samples = sampler(params, prompts, keys)
        return {"seconds": time.perf_counter() - begin, "tokens": samples.tokens.tolist()}

    return measure


def own_uneven(task: Task) -> Measure:
    """Answers of given lengths through few slots: refilled, and in fixed batches."""
    import jax
    import numpy as np

    from learner.sampling.sampler import Sampler, SamplingParams

    config, mesh, params = _own_parts(task, task["devices"])
    prompts, slots = task["prompts"], task["slots"]
    budgets = np.array(task["budgets"])
    sampling = SamplingParams(max_new_tokens=task["new_tokens"])
    sampler = Sampler(config, mesh, sampling, 0, max_rows=slots)
    keys = jax.random.split(jax.random.key(0), len(prompts))
    batches = [slice(first, first + slots) for first in range(0, len(prompts), slots)]

    def measure() -> dict[str, Any]:
        begin = time.perf_counter()
        whole = sampler(params, prompts, keys, budgets=budgets)
        middle = time.perf_counter()
        parts = [sampler(params, prompts[b], keys[b], budgets=budgets[b]) for b in batches]
        end = time.perf_counter()
        fixed = np.concatenate([part.tokens for part in parts])
        same = float((whole.tokens == fixed).all(axis=1).mean())
        return {"refilled": middle - begin, "fixed": end - middle, "same_answers": same}

    return measure


def own_roofline(task: Task) -> Measure:
    """Seconds of one decoding step with all slots busy, and the copy bandwidth that bounds it."""
    import dataclasses
    import functools

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
    sampler = Sampler(config, mesh, sampling, 0, max_rows=batch, segment_tokens=steps)
    engine = sampler.engine
    init = jax.jit(
        functools.partial(model.init_params, config=config),
        out_shardings=placement.param_shardings(config, mesh),
    )
    params = engine.prepare(init(jax.random.key(0)))
    # What a cache holds does not change how long it takes to read.
    prompts = engine.new_prompts(batch, context - steps)
    lengths = jax.device_put(np.full(batch, context - steps, np.int32), prompts.lengths.sharding)
    prompts = dataclasses.replace(prompts, lengths=lengths)
    lanes = slots.Lanes.idle(batch, 1, np.zeros((1, 2), np.uint32))
    lanes = dataclasses.replace(
        lanes,
        counts=np.full((batch, 1), steps // 2, np.int32),  # so the context is `context` midway
        budgets=np.full((batch, 1), 2 * steps, np.int32),
        finish=np.full((batch, 1), slots.RUNNING, np.int32),
    )

    def segment(cache: Any) -> tuple[Any, float]:
        begin = time.perf_counter()
        cache, *rest = engine.segment(
            params, prompts, cache, lanes, None, np.int32(0), "threefry2x32"
        )
        jax.block_until_ready(rest)
        return cache, time.perf_counter() - begin

    def copy_bandwidth() -> float:
        array = jnp.zeros(task["copy_bytes"] // 4, jnp.float32)
        copy = jax.jit(lambda x: x + 1)
        jax.block_until_ready(copy(array))
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            jax.block_until_ready(copy(array))
            seconds.append(time.perf_counter() - begin)
        return 2 * array.nbytes / min(seconds)

    bandwidth = copy_bandwidth()
    cache, _ = segment(engine.new_samples(batch, 1, 2 * steps))  # compiles

    def measure() -> dict[str, Any]:
        nonlocal cache
        cache, seconds = segment(cache)
        return {
            "step_seconds": seconds / steps,
            "weight_bytes": sum(x.nbytes for x in jax.tree.leaves(params)),
            "cache_bytes": 2
            * batch
            * context
            * _cache_width(config)
            * jnp.dtype(config.dtype).itemsize,
            "copy_bandwidth": bandwidth,
        }

    return measure


def _cache_width(config: Any) -> int:
    """Numbers of keys (or of values) that a token has in all layers."""
    return config.num_hidden_layers * config.num_key_value_heads * config.head_dim


# Others ----------------------------------------------------------------------


def transformers(task: Task) -> Measure:
    """`generate` of transformers on torch, greedy."""
    import torch
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(task["folder"], dtype=torch.float32).eval()
    prompts, new = torch.tensor(task["prompts"]), task["new_tokens"]

    def measure() -> dict[str, Any]:
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
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "tokens": out[:, prompts.shape[1] :].tolist()}

    return measure


def transformers_roofline(task: Task) -> Measure:
    """Seconds of one decoding step of `generate`: of a long run less a short one."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    fields = {name: task["config"][name] for name in task["config"] if "dtype" not in name}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        config = Qwen3Config(**fields)
        model = Qwen3ForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    batch, context, steps = task["batch"], task["context"], task["steps"]
    shape = (batch, context - steps // 2)
    prompts = torch.randint(1, config.vocab_size, shape, device=device)

    def seconds(new: int) -> float:
        begin = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=False,
                max_new_tokens=new,
                eos_token_id=None,
                pad_token_id=0,
            )
        out.cpu()
        return time.perf_counter() - begin

    def measure() -> dict[str, Any]:
        seconds(2)
        return {"step_seconds": (seconds(steps + 1) - seconds(1)) / steps}

    return measure


def tunix(task: Task) -> Measure:
    """The sampler of google-tunix, greedy; heads and widths split over the CPU's devices.

    With rows and parameters split instead, its mesh axis `fsdp`, it is slower.
    """
    return _tunix(task, task["devices"])


def tunix_on_one(task: Task) -> Measure:
    """`tunix` with the whole CPU as one device."""
    return _tunix(task, 1)


def _tunix(task: Task, devices: int) -> Measure:
    import jax
    import numpy as np
    from tunix.generate.sampler import CacheConfig, Sampler
    from tunix.models.qwen3 import model as qwen3
    from tunix.models.qwen3 import params as qwen3_params

    class Numbers:
        """Stands in for a tokenizer: the text of an id is its number."""

        def encode(self, text: str, **_: Any) -> list[int]:
            return [int(word) for word in text.split()]

        def decode(self, ids: Any, **_: Any) -> str:
            return " ".join(map(str, ids))

        def bos_id(self) -> int:
            return 0

        def eos_id(self) -> int:
            return -1

        def pad_id(self) -> int:
            return 0

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
    jax.config.update("jax_num_cpu_devices", devices)
    mesh = jax.make_mesh(
        (1, devices), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )  # fmt: skip
    prompts, new = task["prompts"], task["new_tokens"]
    longest = max(map(len, prompts))
    with mesh:
        model = qwen3_params.create_model_from_safe_tensors(task["folder"], config, mesh)
        cache = CacheConfig(
            cache_size=longest + new + 1,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
        sampler = Sampler(model, Numbers(), cache)
    texts = [" ".join(map(str, prompt)) for prompt in prompts]

    def measure() -> dict[str, Any]:
        begin = time.perf_counter()
        with mesh:
            out = sampler(texts, max_generation_steps=new, max_prompt_length=longest)
        tokens = [np.asarray(row).tolist() for row in out.tokens]
        return {"seconds": time.perf_counter() - begin, "tokens": tokens}

    return measure


_ALL: tuple[Callable[[Task], Measure], ...] = (
    own,
    own_on_one,
    own_uneven,
    own_roofline,
    transformers,
    transformers_roofline,
    tunix,
    tunix_on_one,
)
ENGINES = {engine.__name__: engine for engine in _ALL}


def _lines(measure: Measure) -> Iterator[str]:
    yield "ready"
    for _ in sys.stdin:
        yield json.dumps(measure())


def main(engines: Mapping[str, Callable[[Task], Measure]] = ENGINES) -> None:
    """The process: load, then one measurement for each line of input."""
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not mix in
    name, path = sys.argv[1:]
    try:
        measure = engines[name](json.loads(pathlib.Path(path).read_text()))
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=out, flush=True)
        return
    for line in _lines(measure):
        print(line, file=out, flush=True)


if __name__ == "__main__":
    main()
