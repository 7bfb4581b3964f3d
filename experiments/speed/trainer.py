"""Speed of the trainer, beside TRL's GRPOTrainer and plain torch.

    python -m experiments.speed.trainer [--quick] [--out=docs/benchmarks] [--trl_python=...]

Completion tokens a second on the CPU of a whole GRPO step (sampling, scoring, update) beside TRL,
and of the update alone beside torch, at equal model, weights, prompts, groups, lengths, rewards and
precision (float32).
"""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import numpy as np

from experiments.records import Table
from experiments.speed import commands
from experiments.speed.engines import Case, Outcome, compare
from experiments.speed.sampler import SMALL
from learner import tokens
from learner.qwen3 import model, weights
from learner.qwen3.config import Qwen3Config


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


def tables(scale: Scale, folder: str, trl_python: str) -> Iterator[Table]:
    """Whole steps beside TRL, updates beside torch."""
    characters = "".join(chr(0x4E00 + i) for i in range(scale.model.vocab_size - 1))
    tokenizer = tokens.character_tokenizer(characters)
    params = model.init_params(jax.random.key(0), scale.model)
    weights.save(folder, params, scale.model, tokenizer)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, len(characters), (scale.num_prompts, scale.prompt_tokens - 1))
    prompts = ["".join(characters[i] for i in row) for row in ids]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    completions = rng.integers(0, len(characters), (scale.count, scale.new_tokens))
    task = {
        "folder": folder,
        "prompts": prompts,
        "prompt_ids": [tokens.encode_chat(tokenizer, chat) for chat in chats],
        "completions": completions.tolist(),
        "num_prompts": scale.num_prompts,
        "group_size": scale.group_size,
        "new_tokens": scale.new_tokens,
        "completions_per_row": scale.group_size,
        "micro_batch_rows": 1,
        "peer_micro_batch_rows": scale.micro_batch_rows,
        "devices": 1,
        "scan_unroll": scale.model.num_hidden_layers,
    }
    alone = task | {"completions_per_row": 1, "micro_batch_rows": scale.micro_batch_rows}
    at_once = task | {"peer_micro_batch_rows": scale.count}
    size = (
        f"{scale.num_prompts} prompts of {scale.prompt_tokens} tokens, {scale.group_size} "
        f"completions of {scale.new_tokens} each"
    )
    steps = {
        "this project": Case("learner_engines:own_trainer", task),
        "this project, one completion a row": Case("learner_engines:own_trainer", alone),
        "TRL GRPOTrainer": Case("learner_engines:trl", task, trl_python),
    }
    updates = {
        "this project": Case("learner_engines:own_update", task),
        "this project, one completion a row": Case("learner_engines:own_update", alone),
        "torch": Case("learner_engines:torch_update", task),
        "torch, all rows at once": Case("learner_engines:torch_update", at_once),
    }

    def least(part: str, outcome: Outcome) -> float | None:
        return min((m[part] for m in outcome.measurements if part in m), default=None)

    for title, cases in (("Whole GRPO step", steps), ("Update alone", updates)):
        yield commands.comparison(
            f"{title}: {size}",
            compare(cases, scale.rounds),
            "completion tokens/s",
            f"{scale.rounds} rounds in turns, after one that compiles. float32, the same weights, "
            "AdamW, clipped gradients, DAPO's loss without KL. This project puts all completions "
            "of a prompt into one row, which computes the prompt once; the gradient is the same.",
            {
                "seconds of sampling": functools.partial(least, "sample_seconds"),
                "seconds of the update": functools.partial(least, "update_seconds"),
            },
        )


if __name__ == "__main__":
    quick = Scale(rounds=2, num_prompts=4, new_tokens=32)
    commands.run("trainer", __doc__, "trl", (Scale(), quick), tables)
