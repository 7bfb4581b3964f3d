"""What the variants of a study have in common, for each size of model."""

import ml_collections

from experiments.configs import qwen3_4b, tiny


def tiny_base() -> ml_collections.ConfigDict:
    """The tiny model in many short rounds, as designs need rounds to matter.

    Six rounds of 20 steps: a good third of the training of `configs/tiny.py`, with five designs in
    place of two.
    """
    config = tiny.get_config()
    config.loop.rounds = 6
    config.environment.num_instances = 320
    config.training.prompts_per_step = 32
    # A killed run loses one round at most.
    config.checkpoint.every_steps = 1000
    config.checkpoint.keep = 1
    # The model's own answers are often no configuration; under the grammar every answer is one.
    config.engineer.decoding = "grammar"
    return config


def qwen3_base() -> ml_collections.ConfigDict:
    """Qwen3-4B as published: three rounds of 4,000 instances, 2 epochs over them."""
    config = qwen3_4b.get_config()
    config.checkpoint.keep = 1
    return config
