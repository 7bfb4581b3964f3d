"""Speed of the trainer, beside TRL's GRPOTrainer.

    python docs/benchmarks/trainer.py [--quick] [--out=docs/benchmarks] [--python=trl=...]

Completion tokens a second on the CPU of a whole GRPO step (sampling, scoring, update) at equal
model, weights, prompts, groups, lengths, rewards and precision (float32).
"""

import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import runner
from experiments.measurements import Table
from learner import tokens
from learner.decoder import model, weights
from learner.decoder.config import DecoderConfig
from runner import Case, compare
from sampler import SMALL


def tables(
    trl_python: str,
    rounds: int = 5,
    num_prompts: int = 8,
    group_size: int = 8,
    prompt_tokens: int = 128,
    new_tokens: int = 128,
    micro_batch_size: int = 8,
    config: DecoderConfig = SMALL,
) -> Iterator[Table]:
    """Yields a table of whole GRPO steps; `GRPOConfig` documents the options of the same names."""
    characters = "".join(chr(0x4E00 + i) for i in range(config.vocab_size - 1))
    tokenizer = tokens.character_tokenizer(characters)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, len(characters), (num_prompts, prompt_tokens - 1))
    task = {
        "prompts": ["".join(characters[i] for i in row) for row in ids],
        "group_size": group_size,
        "new_tokens": new_tokens,
        "micro_batch_size": micro_batch_size,
        "peer_micro_batch_size": micro_batch_size,
        "devices": 1,
        "scan_unroll": config.num_hidden_layers,
    }
    with tempfile.TemporaryDirectory() as folder:
        params = model.init_params(jax.random.key(0), config)
        weights.save(folder, params, config, tokenizer)
        task["folder"] = folder
        outcomes = compare(
            {
                "this project": Case("learner_engines:own_trainer", task),
                "TRL GRPOTrainer": Case("learner_engines:trl", task, trl_python),
            },
            rounds,
        )
    yield runner.comparison(
        f"Whole GRPO step: {num_prompts} prompts of {prompt_tokens} tokens, {group_size} "
        f"completions of {new_tokens} each",
        outcomes,
        "completion tokens/s",
        f"{rounds} processes of each in turns, and the best of them. float32, the same weights, "
        "AdamW, clipped gradients, DAPO's loss without KL. Here completions in "
        "one sequence share their prompt, which is computed once; the gradient is the same.",
    )


if __name__ == "__main__":
    quick: dict[str, Any] = {"rounds": 2, "num_prompts": 4, "new_tokens": 32}
    runner.run(
        "trainer",
        __doc__,
        lambda options: tables(options.python["trl"], **(quick if options.quick else {})),
        peers=["trl"],
        on_cpu=True,
    )
