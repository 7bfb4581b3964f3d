"""Speed of the sampler, beside transformers' `generate` and google-tunix's sampler.

    python -m experiments.speed.sampler [--quick] [--out=docs/benchmarks]

Tokens a second of all three on the CPU at equal model, weights, batch, lengths and precision
(float32, greedy), and what refilling slots gains over fixed batches where completions are uneven;
the CPU counts as one device of JAX for each of its cores or as a single one.
"""

import dataclasses
import math
from collections.abc import Iterator

import jax
import numpy as np

from experiments import records
from experiments.records import Table
from experiments.speed import commands
from experiments.speed.engines import Case, Outcome, compare
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


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
      rounds: turns of every engine; the best of each counts.
      batch, prompt_tokens, new_tokens: the even comparison.
      slots, completions, uneven_prompt_tokens, uneven_new_tokens: refilling against fixed batches.
      model: of both.
    """

    rounds: int = 5
    batch: int = 32
    prompt_tokens: int = 128
    new_tokens: int = 256
    slots: int = 32
    completions: int = 512
    uneven_prompt_tokens: int = 32
    uneven_new_tokens: int = 256
    model: Qwen3Config = SMALL

    @property
    def devices(self) -> int:
        """Devices of JAX that the CPU counts as: its cores, as far as all get equal parts.

        Of rows in the sampler of this project, of key/value heads in that of google-tunix.
        """
        return math.gcd(
            len(records.cores()), self.batch, self.slots, self.model.num_key_value_heads
        )


def _devices(scale: Scale) -> str:
    return "one device" if scale.devices == 1 else f"{scale.devices} devices"


def even_lengths(scale: Scale, folder: str, tunix_python: str) -> Table:
    """Tokens a second where all completions have one length."""
    shape = (scale.batch, scale.prompt_tokens)
    task = {
        "folder": folder,
        "prompts": np.random.default_rng(0).integers(1, scale.model.vocab_size, shape).tolist(),
        "new_tokens": scale.new_tokens,
        "devices": scale.devices,
        "scan_unroll": 1,
    }
    on_one = task | {"devices": 1}
    cases = {
        "own": Case("learner_engines:own_sampler", task),
        "own, one device": Case("learner_engines:own_sampler", on_one),
        "transformers": Case("learner_engines:transformers", task),
        "tunix": Case("learner_engines:tunix", task, tunix_python),
        "tunix, one device": Case("learner_engines:tunix", on_one, tunix_python),
    }
    if scale.devices == 1:  # Then these are the same once more.
        cases = {label: case for label, case in cases.items() if "one device" not in label}
    outcomes = compare(cases, scale.rounds)

    def same_tokens(outcome: Outcome) -> float | None:
        own, ids = (np.array(o.measurements[0]["ids"]) for o in (outcomes["own"], outcome))
        return float((ids == own).mean()) if ids.shape == own.shape else None

    return commands.comparison(
        f"{scale.batch} prompts of {scale.prompt_tokens} tokens, {scale.new_tokens} new ones each",
        outcomes,
        "tokens/s",
        f"Whole calls, the prompts' part included; {scale.rounds} rounds in turns, after one that "
        "compiles. float32, greedy, the same weights. Unless a row says otherwise, the CPU is "
        f"{_devices(scale)} of JAX for own and tunix.",
        {"same tokens": same_tokens},
    )


def uneven_lengths(scale: Scale, folder: str) -> Table:
    """Refilled slots against fixed batches, completions of geometric length."""
    rng = np.random.default_rng(1)
    shape = (scale.completions, scale.uneven_prompt_tokens)
    longest = scale.uneven_new_tokens
    budgets = np.minimum(rng.geometric(4 / longest, scale.completions), longest)
    task = {
        "folder": folder,
        "prompts": rng.integers(1, scale.model.vocab_size, shape).tolist(),
        "new_tokens": longest,
        "budgets": budgets.tolist(),
        "slots": scale.slots,
        "devices": scale.devices,
        "scan_unroll": 1,
    }
    case = Case("learner_engines:own_uneven_sampler", task)
    outcome = compare({"own": case}, scale.rounds)["own"]
    if not outcome.measurements:
        raise RuntimeError(f"the sampler could not run: {outcome.obstacle}")
    best = {name: min(m[name] for m in outcome.measurements) for name in ("refilled", "fixed")}
    same = min(m["same"] for m in outcome.measurements)
    return Table(
        f"{scale.completions} completions through {scale.slots} slots",
        ("slots", "tokens/s, best", "times fixed batches"),
        [(name, budgets.sum() / time, best["fixed"] / time) for name, time in best.items()],
        f"Lengths are geometric, cut at a budget of {longest}: {budgets.mean():.0f} on average; "
        f"prompts of {scale.uneven_prompt_tokens} tokens, temperature 1; the CPU is "
        f"{_devices(scale)} of JAX. {same:.1%} of the completions are the same "
        "both ways, token by token (sums in other shapes are rounded differently, which may move a "
        "draw to the next token).",
    )


def tables(scale: Scale, folder: str, tunix_python: str) -> Iterator[Table]:
    """The tables of the page."""
    weights.save(folder, model.init_params(jax.random.key(0), scale.model), scale.model)
    yield even_lengths(scale, folder, tunix_python)
    yield uneven_lengths(scale, folder)


if __name__ == "__main__":
    quick = Scale(rounds=2, new_tokens=128, completions=192)
    commands.run("sampler", __doc__, "tunix", (Scale(), quick), tables)
