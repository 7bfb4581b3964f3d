"""Speed of a pretrained model, SmolLM2-135M, beside transformers and plain PyTorch.

    python docs/benchmarks/pretrained.py [--quick] [--out=docs/benchmarks]

Tokens a second of updates and of sampling on the CPU, at equal weights, tokens and precision
(float32). `taskset -c 0` before the command measures one core.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

import runner
from experiments.measurements import Table
from experiments.text.templates import counted
from learner.decoder import hub
from learner.decoder.config import DecoderConfig
from runner import Case, compare


def tables(
    model: str = "smollm2",
    rounds: int = 3,
    steps: int = 5,
    rows: int = 8,
    prompt_tokens: int = 32,
    new_tokens: int = 96,
    slots: int = 32,
    groups: int = 8,
    group: int = 8,
    chat_tokens: int = 48,
    answer_tokens: int = 20,
) -> Iterator[Table]:
    """Yields two tables of updates and two of sampling: single texts, and groups of short answers.

    Args:
      model: as `config.model.path`.
      rounds: processes of each engine, in turns.
      steps: updates in each; the first two are not counted.
      rows: of an update.
      prompt_tokens, new_tokens: lengths of each prompt and completion, of random tokens.
      slots: prompts that are sampled at once.
      groups, group, chat_tokens, answer_tokens: prompts, completions of each and lengths of both,
        as in `--config=smollm2`.
    """
    folder = str(hub.model_folder(model))
    size = DecoderConfig.from_folder(folder).vocab_size
    rng = np.random.default_rng(0)
    ids = rng.integers(1, size, (max(rows, slots, groups), prompt_tokens + new_tokens)).tolist()
    examples = [(row[:prompt_tokens], row[prompt_tokens:]) for row in ids[:rows]]
    same = {"folder": folder, "devices": 1, "scan_unroll": 1}
    update = same | {"examples": examples, "steps": steps}
    outcomes = compare(
        {
            "this project": Case("learner_engines:own_update", update | {"remat": "dots"}),
            "PyTorch": Case("learner_engines:torch_update", update),
        },
        rounds,
    )
    yield runner.comparison(
        f"An update: {rows} rows of {prompt_tokens} + {new_tokens} tokens",
        outcomes,
        "tokens/s",
        f"{rounds} processes of each in turns, {steps - 2} updates each, and the best of them. "
        "Supervised loss of the completions, AdamW with moments in float32, clipped gradients; "
        "`remat=dots` here, as in `--config=smollm2`. Losses are the lowest of all updates.",
    )
    update = same | {
        "prompts": [row[:chat_tokens] for row in ids[:groups]],
        "completions": rng.integers(1, size, (groups * group, answer_tokens)).tolist(),
        "rewards": [float(i % 2) for i in range(groups * group)],
        "micro_batch_groups": 2,
        "steps": steps,
    }
    outcomes = compare(
        {
            "this project": Case("learner_engines:own_policy_update", update | {"remat": "dots"}),
            "PyTorch": Case("learner_engines:torch_policy_update", update),
        },
        rounds,
    )
    yield runner.comparison(
        f"An update of GRPO: {group} answers of {answer_tokens} tokens to each of {groups} prompts "
        f"of {chat_tokens}",
        outcomes,
        "tokens/s",
        f"{rounds} processes of each in turns, {steps - 2} updates each, and the best of them. "
        "Tokens of answers alone; two prompts with their answers at a time. Here the answers to a "
        "prompt share it, as in `--config=smollm2`; in PyTorch each has its own copy.",
    )
    for count, samples, old, new in (
        (slots, 1, prompt_tokens, new_tokens),
        (groups, group, chat_tokens, answer_tokens),
    ):
        prompts = [row[:old] for row in ids[:count]]
        sampling = same | {"prompts": prompts, "samples": samples, "new_tokens": new}
        outcomes = compare(
            {
                "this project": Case("learner_engines:own_sampler", sampling),
                "transformers": Case("learner_engines:transformers", sampling),
            },
            rounds,
        )
        runner.compare_tokens(outcomes)
        yield runner.comparison(
            f"Sampling: {counted(samples, 'answer')} of {new} tokens to each of {count} prompts of "
            f"{old}",
            outcomes,
            "tokens/s",
            f"{rounds} processes of each in turns, and the best of them. Whole calls, greedy.",
        )


if __name__ == "__main__":
    quick: dict[str, Any] = {"rounds": 1, "steps": 3, "rows": 2, "slots": 4, "new_tokens": 16}
    quick |= {"groups": 2, "group": 2}
    runner.run(
        "pretrained",
        __doc__,
        lambda options: tables(**(quick if options.quick else {})),
        on_cpu=True,
    )
