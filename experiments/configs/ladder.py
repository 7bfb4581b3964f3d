"""Lakes of 3 x 3 to 8 x 8 that a tiny model climbs: hardly any of the largest are solved at first.

The model comes from a warm start whose lessons halve from size to size, so that the sizes that give
a signal change as training goes on:

    python -m experiments.warm_start --config=ladder --out=ladder_model
    python -m experiments.main --config=ladder --config.model.path=ladder_model
"""

import ml_collections

from experiments.configs import tiny


def get_config() -> ml_collections.ConfigDict:
    """Six rounds of 40 steps."""
    config = tiny.get_config()
    config.loop.rounds = 6
    config.environment.num_instances = 640

    config.lakes.sizes = (3, 4, 5, 6, 7, 8)
    config.lakes.lesson_decay = 0.5
    config.lakes.reward.short_length = 72
    config.lakes.reward.long_length = 96

    config.validation.num_instances = 1536
    config.validation.max_new_tokens = 96
    config.training.max_new_tokens = 96
    config.training.prompts_per_step = 32
    # A killed run loses one round at most.
    config.checkpoint.every_steps = 1000
    config.checkpoint.keep = 1

    config.engineer.max_new_tokens = 192
    config.engineer.decoding = "grammar"
    return config
