"""Speed of the sampler, beside transformers' `generate` and google-tunix's sampler.

    python docs/benchmarks/sampler.py [--quick] [--out=docs/benchmarks] [--python=tunix=...]

Tokens a second of all three on the CPU at equal model, weights, batch, lengths and precision
(float32, greedy); the CPU counts as one device of JAX for each of its cores.
"""

import math
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import runner
from experiments import measurements
from experiments.measurements import Table
from learner.decoder import model, weights
from learner.decoder.config import DecoderConfig
from runner import Case, compare

SMALL = DecoderConfig(
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


def tables(
    tunix_python: str,
    rounds: int = 5,
    slots: int = 32,
    prompt_tokens: int = 128,
    new_tokens: int = 256,
    config: DecoderConfig = SMALL,
) -> Iterator[Table]:
    """Yields a table: tokens per second, and the fraction of tokens that match the first engine's.

    Args:
      tunix_python: interpreter with google-tunix.
      rounds: processes of each engine, in turns; the best of them counts.
      slots: number of prompts, all sampled at once.
      prompt_tokens, new_tokens: lengths of each prompt and completion.
      config: of the model.
    """
    # This project's sampler splits rows, google-tunix's key/value heads; both must divide evenly.
    devices = math.gcd(len(measurements.cores()), slots, config.num_key_value_heads)
    said = "one device" if devices == 1 else f"{devices} devices"
    rng = np.random.default_rng(0)
    task = {
        "prompts": rng.integers(1, config.vocab_size, (slots, prompt_tokens)).tolist(),
        "samples": 1,
        "new_tokens": new_tokens,
        "devices": devices,
        "scan_unroll": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        weights.save(folder, model.init_params(jax.random.key(0), config), config)
        task["folder"] = folder
        outcomes = compare(
            {
                "this project": Case("learner_engines:own_sampler", task),
                "transformers": Case("learner_engines:transformers", task),
                "tunix": Case("learner_engines:tunix", task, tunix_python),
            },
            rounds,
        )
    runner.compare_tokens(outcomes)
    yield runner.comparison(
        f"{slots} prompts of {prompt_tokens} tokens, {new_tokens} new ones each",
        outcomes,
        "tokens/s",
        f"{rounds} processes of each in turns, and the best of them. Whole calls, the prompts' "
        "part included. float32, greedy, the same weights; the CPU is "
        f"{said} of JAX for this project and tunix.",
    )


if __name__ == "__main__":
    quick: dict[str, Any] = {"rounds": 2, "new_tokens": 128}
    runner.run(
        "sampler",
        __doc__,
        lambda options: tables(options.python["tunix"], **(quick if options.quick else {})),
        peers=["tunix"],
        on_cpu=True,
    )
