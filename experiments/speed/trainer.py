"""Speed of the trainer, beside TRL's GRPOTrainer and plain torch.

    python -m experiments.speed.trainer [--quick] [--out=docs/benchmarks] [--trl_python=...]

On a CPU: answer tokens a second of a whole GRPO step (sampling, scoring, update) beside TRL, and of
the update alone beside torch, at equal model, weights, prompts, groups, lengths, rewards and
precision (float32). On a GPU: the update of Qwen3-4B's shapes with rows of 4,096 tokens, all
parameters trained on one device, as a share of the peak. Engines run in processes of their own and
take turns.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.speed import records
from experiments.speed.sampler import QWEN3_4B, SMALL, Engine, compare
from learner import tokens
from learner.qwen3 import model, weights
from learner.qwen3.config import Qwen3Config

_SCRIPT = Path(__file__).with_name("trainer_engines.py")

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


QUICK = Scale(rounds=2, num_prompts=4, new_tokens=32)


def flops_per_token(config: Qwen3Config, length: int, answer_share: float) -> float:
    """Operations of the forward and backward pass for each token of rows of `length` tokens.

    6 for every weight of a matrix product, that with the output matrix for answer tokens alone (the
    share `answer_share` of a row), and 6 * heads * head width * length for causal attention (2
    products of half the square, backward twice the forward; PaLM, arXiv 2204.02311, appendix B,
    counts the whole square). What is computed twice to save memory is not counted, as is usual for
    the model's share of the peak (MFU).
    """
    heads = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    block = config.hidden_size * (2 * heads + 2 * keys + 3 * config.intermediate_size)
    output = config.vocab_size * config.hidden_size * answer_share
    matrices = config.num_hidden_layers * block + output
    return 6.0 * matrices + 6.0 * config.num_hidden_layers * heads * length


def _write_model(scale: Scale, folder: Path) -> tuple[list[str], list[list[int]]]:
    """A model of random weights with a tokenizer of characters; prompts as texts and as ids."""
    characters = "".join(chr(0x4E00 + i) for i in range(scale.model.vocab_size - 1))
    tokenizer = tokens.character_tokenizer(characters)
    params = model.init_params(jax.random.key(0), scale.model)
    weights.save(folder, params, scale.model, tokenizer)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, len(characters), (scale.num_prompts, scale.prompt_tokens - 1))
    prompts = ["".join(characters[i] for i in row) for row in ids]
    return prompts, [
        tokens.encode_chat(tokenizer, [{"role": "user", "content": prompt}]) for prompt in prompts
    ]


def cpu_tables(scale: Scale, folder: Path, trl_python: str) -> list[records.Table]:
    """Whole steps beside TRL, updates beside torch."""
    prompts, prompt_ids = _write_model(scale, folder)
    rng = np.random.default_rng(1)
    count = scale.num_prompts * scale.group_size
    task: dict[str, Any] = {
        "folder": str(folder),
        "scratch": str(folder / "scratch"),
        "prompts": prompts,
        "prompt_ids": prompt_ids,
        "answers": rng.integers(0, scale.model.vocab_size - 1, (count, scale.new_tokens)).tolist(),
        "num_prompts": scale.num_prompts,
        "group_size": scale.group_size,
        "new_tokens": scale.new_tokens,
        "completions_per_row": scale.group_size,
        "micro_batch_rows": 1,
        "peer_micro_batch_rows": scale.micro_batch_rows,
        "length_multiple": 32,
        "scan_unroll": scale.model.num_hidden_layers,
        "moment_dtype": "float32",
    }
    alone = task | {"completions_per_row": 1, "micro_batch_rows": scale.micro_batch_rows}
    size = f"{scale.num_prompts} prompts of {scale.prompt_tokens} tokens, {scale.group_size} " \
        f"answers of {scale.new_tokens} each"  # fmt: skip
    return [
        _compare(
            f"Whole GRPO step: {size}",
            scale,
            folder,
            {
                "this project": ("own", sys.executable, task),
                "this project, one answer a row": ("own", sys.executable, alone),
                "TRL GRPOTrainer": ("trl", trl_python, task),
            },
        ),
        _compare(
            f"Update alone: {size}",
            scale,
            folder,
            {
                "this project": ("own_update", sys.executable, task),
                "this project, one answer a row": ("own_update", sys.executable, alone),
                "torch": ("torch_update", sys.executable, task),
                "torch, all rows at once": (
                    "torch_update",
                    sys.executable,
                    task | {"peer_micro_batch_rows": count},
                ),
            },
        ),
    ]


def _start(
    cases: Mapping[str, tuple[str, str, Mapping[str, Any]]], folder: Path
) -> dict[str, Engine]:
    """Label -> (engine, interpreter, task); the engines carry the labels as names."""
    engines = {}
    for number, (label, (kind, python, task)) in enumerate(cases.items()):
        path = folder / f"task-{number}.json"
        path.write_text(json.dumps(task))
        engines[label] = Engine(kind, path, python, _SCRIPT)
        engines[label].name = label
    return engines


def _compare(
    title: str,
    scale: Scale,
    folder: Path,
    cases: Mapping[str, tuple[str, str, Mapping[str, Any]]],
) -> records.Table:
    engines = _start(cases, folder)
    results = compare(list(engines.values()), scale.rounds)
    speeds: dict[str, list[float]] = {}
    rows: list[tuple[Any, ...]] = []
    for name, engine in engines.items():
        engine.close()
        speeds[name] = [r["tokens"] / r["seconds"] for r in results[engine.name]]
    own = max(speeds["this project"], default=None)
    for name, engine in engines.items():
        if engine.obstacle is not None or not speeds[name]:
            rows.append((name, None, None, None, None, None, engine.obstacle))
            continue
        best, found = max(speeds[name]), results[engine.name]
        parts = [
            min(r[part] for r in found) if part in found[0] else None
            for part in ("sample_seconds", "update_seconds")
        ]
        rows.append((name, best, float(np.median(speeds[name])), own and own / best, *parts, ""))
    return records.Table(
        title,
        (
            "engine",
            "answer tokens/s, best",
            "median",
            "this project is faster by",
            "seconds of sampling",
            "seconds of the update",
            "note",
        ),
        rows,
        note=f"{scale.rounds} rounds in turns, after one that compiles. float32, the same weights, "
        "AdamW, clipped gradients, DAPO's loss without KL. This project puts all answers to a "
        "prompt into one row, which computes the prompt once; the gradient is the same.",
    )


def gpu_table(config: Qwen3Config, quick: bool, folder: Path) -> records.Table:
    """Updates of all parameters of one model on one device, in rows of 4,096 tokens."""
    scale = Scale(num_prompts=2 if quick else 8, prompt_tokens=1024, new_tokens=3072)
    characters = "".join(chr(0x4E00 + i) for i in range(64))
    tokens.character_tokenizer(characters).save_pretrained(folder)
    rng = np.random.default_rng(0)
    length = scale.prompt_tokens + scale.new_tokens
    cases = {}
    for remat, rows in (("full", 1), ("full", 2), ("full", 4), ("outputs", 1), ("outputs", 2)):
        architecture = dataclasses.replace(
            config, dtype="bfloat16", param_dtype="float32", remat=remat
        )
        count = scale.num_prompts * scale.group_size
        task = {
            "folder": str(folder),
            "architecture": dataclasses.asdict(architecture),
            "prompt_ids": rng.integers(0, 64, (scale.num_prompts, scale.prompt_tokens)).tolist(),
            "answers": rng.integers(0, 64, (count, scale.new_tokens)).tolist(),
            "num_prompts": scale.num_prompts,
            "group_size": scale.group_size,
            "new_tokens": scale.new_tokens,
            "completions_per_row": 1,
            "micro_batch_rows": rows,
            "length_multiple": length,
            "moment_dtype": "float32",
        }
        cases[f"remat {remat}, {rows} rows"] = ("own_update", sys.executable, task)
    peak = next((v for k, v in _PEAK.items() if k in jax.devices()[0].device_kind), None)
    rows_out: list[tuple[Any, ...]] = []
    for name, case in cases.items():  # One at a time: each takes the memory of the device.
        (engine,) = _start({name: case}, folder).values()
        found = compare([engine], 1 if quick else 3)[engine.name]
        engine.close()
        if engine.obstacle is not None or not found:
            rows_out.append((name, None, None, None, None, engine.obstacle))
            continue
        seconds = min(result["seconds"] for result in found)
        speed = scale.num_prompts * scale.group_size * length / seconds
        flops = flops_per_token(config, length, scale.new_tokens / length)
        share = speed * flops / peak if peak else None
        rows_out.append((name, speed, seconds, share, found[-1]["memory_gib"], ""))
    return records.Table(
        f"Update of all parameters, rows of {length} tokens, one device",
        ("case", "tokens/s", "seconds", "share of peak (MFU)", "peak memory, GiB", "note"),
        rows_out,
        note="Prompt and answer tokens. Parameters, gradients and moments float32, activations "
        "bfloat16; recomputation is not counted as work.",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.speed.trainer", description="Speed of the trainer."
    )
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--out", default="docs/benchmarks", help="folder of the results")
    parser.add_argument(
        "--trl_python",
        default=sys.executable,
        help="interpreter of an environment with this project's extra `peers-learner`",
    )
    parsed = parser.parse_args(arguments)
    # This process only makes the models; the memory is for those of the engines.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    about = records.facts()
    with tempfile.TemporaryDirectory() as name:
        if jax.default_backend() == "cpu":
            scale = QUICK if parsed.quick else Scale()
            tables = cpu_tables(scale, Path(name), parsed.trl_python)
        else:
            tables = [gpu_table(QWEN3_4B, parsed.quick, Path(name))]
    for table in tables:
        print(table.to_markdown())
    print(*records.write("trainer", "Trainer", tables, folder=parsed.out, about=about), sep="\n")


if __name__ == "__main__":
    main()
