"""Speed of the sampler, beside transformers' `generate` and google-tunix's sampler.

    python -m experiments.speed.sampler [--quick] [--out=docs/benchmarks]

Tokens a second of all three on the CPU at equal model, weights, batch, lengths and precision
(float32, greedy), and what refilling slots gains over fixed batches where completions are uneven;
the CPU counts as one device of JAX for each of its cores or as a single one.
"""

import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from experiments import records
from experiments.records import Table
from experiments.speed import commands
from experiments.speed.engines import Case, compare
from learner.qwen3 import model, weights
from learner.qwen3.config import Qwen3Config

SMALL = Qwen3Config(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
    tie_word_embeddings=True,
    max_position_embeddings=1024,
)
_OWN = "learner_engines:own_sampler"


def tables(
    tunix_python: str,
    rounds: int = 5,
    slots: int = 32,
    prompt_tokens: int = 128,
    new_tokens: int = 256,
    completions: int = 512,
    config: Qwen3Config = SMALL,
) -> Iterator[Table]:
    """Completions of one length beside other libraries, then uneven ones through refilled slots.

    Args:
      tunix_python: interpreter that has google-tunix.
      rounds: processes of every engine, which take turns; the best of each counts.
      slots: sequences at a time; there are as many prompts where all completions have one length.
      prompt_tokens, new_tokens: of these prompts, and the longest completion of any.
      completions: how many where they differ in length; their prompts are a quarter as long.
      config: of the model.
    """
    # Rows in the sampler of this project, key/value heads in that of google-tunix: equal parts.
    devices = math.gcd(len(records.cores()), slots, config.num_key_value_heads)
    said = "one device" if devices == 1 else f"{devices} devices"
    rng = np.random.default_rng(0)
    task = {
        "prompts": rng.integers(1, config.vocab_size, (slots, prompt_tokens)).tolist(),
        "new_tokens": new_tokens,
        "budgets": [new_tokens] * slots,
        "temperature": 0.0,
        "slots": slots,
        "at_once": slots,
        "devices": devices,
        "scan_unroll": 1,
    }
    short, longest = prompt_tokens // 4, new_tokens
    budgets = np.minimum(rng.geometric(4 / longest, completions), longest)
    with tempfile.TemporaryDirectory() as folder:
        weights.save(folder, model.init_params(jax.random.key(0), config), config)
        task["folder"] = folder
        on_one = task | {"devices": 1}
        cases = {
            "own": Case(_OWN, task),
            "own, one device": Case(_OWN, on_one),
            "transformers": Case("learner_engines:transformers", task),
            "tunix": Case("learner_engines:tunix", task, tunix_python),
            "tunix, one device": Case("learner_engines:tunix", on_one, tunix_python),
        }
        if devices == 1:  # Then these are the same once more.
            cases = {label: case for label, case in cases.items() if "one device" not in label}
        yield _compared(
            f"{slots} prompts of {prompt_tokens} tokens, {new_tokens} new ones each",
            cases,
            rounds,
            "Whole calls, the prompts' part included. float32, greedy, the same weights. Unless a "
            f"row says otherwise, the CPU is {said} of JAX for own and tunix.",
        )
        task |= {
            "prompts": rng.integers(1, config.vocab_size, (completions, short)).tolist(),
            "budgets": budgets.tolist(),
            "temperature": 1.0,
        }
        yield _compared(
            f"{completions} completions through {slots} slots",
            {"refilled": Case(_OWN, task | {"at_once": completions}), "fixed": Case(_OWN, task)},
            rounds,
            f"Lengths are geometric, cut at a budget of {longest}: {budgets.mean():.0f} on "
            f"average; prompts of {short} tokens, temperature 1; the CPU is {said} of JAX. Sums in "
            "other shapes are rounded differently, which may move a draw to the next token.",
        )


def _compared(title: str, cases: Mapping[str, Case], rounds: int, note: str) -> Table:
    """Tokens a second of engines, and the fraction of tokens that are those of the first."""
    outcomes = compare(cases, rounds)
    own: np.ndarray | None = None
    for measurement in (m for outcome in outcomes.values() for m in outcome.measurements):
        ids = np.array(measurement.pop("ids"))
        own = ids if own is None else own
        same = ids.shape == own.shape
        measurement["same tokens"] = float((ids == own).mean()) if same else 0.0
    note = f"{rounds} processes of each in turns, and the best of them. {note}"
    return commands.comparison(title, outcomes, "tokens/s", note)


if __name__ == "__main__":
    quick: dict[str, Any] = {"rounds": 2, "new_tokens": 128, "completions": 192}
    commands.run(
        "sampler",
        __doc__,
        lambda options: tables(options.tunix_python, **(quick if options.quick else {})),
        on_cpu=True,
        tunix_python={"default": sys.executable, "help": "interpreter that has tunix"},
    )
