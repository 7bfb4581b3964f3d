"""Speed of the trainer, beside TRL's GRPOTrainer and plain torch.

    python -m experiments.speed.trainer [--quick] [--out=docs/benchmarks] [--trl_python=...]

On a CPU: completion tokens a second of a whole GRPO step (sampling, scoring, update) beside TRL,
and of the update alone beside torch, at equal model, weights, prompts, groups, lengths, rewards and
precision (float32). On a GPU: the update of Qwen3-4B's shapes with rows of 4,096 tokens, all
parameters trained on one device, as a fraction of the peak.
"""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from experiments.speed import records
from experiments.speed.engines import Case, Outcome, alone, compare
from experiments.speed.sampler import QWEN3_4B, SMALL
from learner import tokens
from learner.qwen3 import model, weights
from learner.qwen3.config import Qwen3Config

# Dense bfloat16 operations a second of one device, by the vendors' data sheets.
_PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "B200": 2250e12}


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured; see `GRPOConfig` for the fields that it shares."""

    rounds: int = 5
    num_prompts: int = 8
    group_size: int = 8
    prompt_tokens: int = 128
    new_tokens: int = 128
    micro_batch_rows: int = 8
    model: Qwen3Config = SMALL

    @property
    def count(self) -> int:
        """Completions of a step."""
        return self.num_prompts * self.group_size


QUICK = Scale(rounds=2, num_prompts=4, new_tokens=32)


def flops_per_token(config: Qwen3Config, length: int, completion_fraction: float) -> float:
    """Operations of the forward and backward pass for each token of rows of `length` tokens.

    6 for every weight of a matrix product, that with the output matrix for completion tokens alone
    (the fraction `completion_fraction` of a row), and 6 * heads * head width * length for causal
    attention (2 products of half the square, backward twice the forward; PaLM, arXiv 2204.02311,
    appendix B, counts the whole square). What is computed twice to save memory is not counted, as
    is usual for the model's fraction of the peak (MFU).
    """
    heads = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    block = config.hidden_size * (2 * heads + 2 * keys + 3 * config.intermediate_size)
    output = config.vocab_size * config.hidden_size * completion_fraction
    matrices = config.num_hidden_layers * block + output
    return 6.0 * matrices + 6.0 * config.num_hidden_layers * heads * length


def _task(scale: Scale, folder: str, vocab_size: int, **more: Any) -> dict[str, Any]:
    completions = np.random.default_rng(1).integers(0, vocab_size, (scale.count, scale.new_tokens))
    return {
        "folder": folder,
        "completions": completions.tolist(),
        "num_prompts": scale.num_prompts,
        "group_size": scale.group_size,
        "new_tokens": scale.new_tokens,
        **more,
    }


def cpu_tables(scale: Scale, folder: str, trl_python: str) -> Iterator[records.Table]:
    """Whole steps beside TRL, updates beside torch."""
    characters = "".join(chr(0x4E00 + i) for i in range(scale.model.vocab_size - 1))
    tokenizer = tokens.character_tokenizer(characters)
    params = model.init_params(jax.random.key(0), scale.model)
    weights.save(folder, params, scale.model, tokenizer)
    shape = (scale.num_prompts, scale.prompt_tokens - 1)
    ids = np.random.default_rng(0).integers(0, len(characters), shape)
    prompts = ["".join(characters[i] for i in row) for row in ids]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    task = _task(
        scale,
        folder,
        len(characters),
        prompts=prompts,
        prompt_ids=[tokens.encode_chat(tokenizer, chat) for chat in chats],
        completions_per_row=scale.group_size,
        micro_batch_rows=1,
        peer_micro_batch_rows=scale.micro_batch_rows,
        length_multiple=32,
        scan_unroll=scale.model.num_hidden_layers,
    )
    alone = task | {"completions_per_row": 1, "micro_batch_rows": scale.micro_batch_rows}
    at_once = task | {"peer_micro_batch_rows": scale.count}
    size = (
        f"{scale.num_prompts} prompts of {scale.prompt_tokens} tokens, {scale.group_size} "
        f"completions of {scale.new_tokens} each"
    )
    steps = {
        "this project": Case("trainer_engines:own", task),
        "this project, one completion a row": Case("trainer_engines:own", alone),
        "TRL GRPOTrainer": Case("trainer_engines:trl", task, trl_python),
    }
    yield _compare(f"Whole GRPO step: {size}", scale, steps)
    updates = {
        "this project": Case("trainer_engines:own_update", task),
        "this project, one completion a row": Case("trainer_engines:own_update", alone),
        "torch": Case("trainer_engines:torch_update", task),
        "torch, all rows at once": Case("trainer_engines:torch_update", at_once),
    }
    yield _compare(f"Update alone: {size}", scale, updates)


def _compare(title: str, scale: Scale, cases: Mapping[str, Case]) -> records.Table:
    def least(part: str, outcome: Outcome) -> float | None:
        return min((m[part] for m in outcome.measurements if part in m), default=None)

    return records.comparison(
        title,
        compare(cases, scale.rounds),
        "completion tokens/s",
        f"{scale.rounds} rounds in turns, after one that compiles. float32, the same weights, "
        "AdamW, clipped gradients, DAPO's loss without KL. This project puts all completions of a "
        "prompt into one row, which computes the prompt once; the gradient is the same.",
        {
            "seconds of sampling": lambda outcome: least("sample_seconds", outcome),
            "seconds of the update": lambda outcome: least("update_seconds", outcome),
        },
    )


def gpu_table(config: Qwen3Config, quick: bool, folder: str) -> records.Table:
    """Updates of all parameters of one model on one device, in rows of 4,096 tokens."""
    scale = Scale(num_prompts=2 if quick else 8, prompt_tokens=1024, new_tokens=3072)
    characters = "".join(chr(0x4E00 + i) for i in range(64))
    tokens.character_tokenizer(characters).save_pretrained(folder)
    shape = (scale.num_prompts, scale.prompt_tokens)
    prompt_ids = np.random.default_rng(0).integers(0, len(characters), shape).tolist()
    length = scale.prompt_tokens + scale.new_tokens
    flops = flops_per_token(config, length, scale.new_tokens / length)
    peak = next((v for k, v in _PEAK.items() if k in jax.devices()[0].device_kind), None)
    rows: list[tuple[Any, ...]] = []
    # One case at a time: each takes the memory of the device.
    for remat, micro in (("full", 1), ("full", 2), ("full", 4), ("outputs", 1), ("outputs", 2)):
        name = f"remat {remat}, {micro} rows"
        shapes = dataclasses.replace(config, dtype="bfloat16", param_dtype="float32", remat=remat)
        task = _task(
            scale,
            folder,
            len(characters),
            architecture=dataclasses.asdict(shapes),
            prompt_ids=prompt_ids,
            completions_per_row=1,
            micro_batch_rows=micro,
            length_multiple=length,
        )
        outcome = alone(Case("trainer_engines:own_update", task), 1 if quick else 3)
        if outcome.obstacle or not outcome.measurements:
            rows.append((name, None, None, None, None, outcome.obstacle))
            continue
        seconds = min(outcome.all("seconds"))
        speed = scale.count * length / seconds
        memory = outcome.measurements[-1]["memory_gib"]
        rows.append((name, speed, seconds, speed * flops / peak if peak else None, memory, ""))
    return records.Table(
        f"Update of all parameters, rows of {length} tokens, one device",
        ("case", "tokens/s", "seconds", "fraction of peak (MFU)", "peak memory, GiB", "note"),
        rows,
        "Prompt and completion tokens. Parameters, gradients and moments float32, activations "
        "bfloat16; recomputation is not counted as work.",
    )


def tables(options: argparse.Namespace, folder: str) -> Iterator[records.Table]:
    """The tables of the page."""
    if jax.default_backend() == "cpu":
        yield from cpu_tables(QUICK if options.quick else Scale(), folder, options.trl_python)
    else:
        yield gpu_table(QWEN3_4B, options.quick, folder)


if __name__ == "__main__":
    records.run("trainer", __doc__, "trl", tables)
