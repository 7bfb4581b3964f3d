"""Qwen3-4B that thinks first, in training, validation and design; not in the publication.

Needs the checkpoint's folder: `--config.model.path=/models/Qwen3-4B`, or one that always thinks,
such as Qwen3-4B-Thinking-2507. Thoughts of up to 32k tokens take
`--config.training.thinking_tokens=32768 --config.training.max_new_tokens=36864`, and likewise for
`validation` and `engineer`. `--config.training.cache_fraction=0.25` makes the cache of an
accelerator hold completions of a quarter of that length on average.
"""

import ml_collections

from experiments.configs import qwen3_4b


def get_config() -> ml_collections.ConfigDict:
    """As for Qwen3-4B with 8,192 tokens of thought and 4,096 for the answer or the design."""
    config = qwen3_4b.get_config()
    for group in (config.training, config.validation, config.engineer):
        group.thinking_tokens = 8192
        group.max_new_tokens = 8192 + 4096
    config.engineer.designer = "current"
    # As Qwen3's model card advises: greedy thoughts repeat themselves without end.
    config.validation.temperature = 0.6
    # Keys and values of a completion and its prompt take some 1.9 GB in bfloat16.
    config.training.sampling_slots = 32
    return config
