"""Sums of two numbers of 3 to 8 digits: a ladder that a tiny model climbs in minutes.

The model is embedded: `experiments/models/sums`, whose card says how it was made.
"""

from pathlib import Path

import ml_collections

from experiments import families
from experiments.configs import tiny


def get_config() -> ml_collections.ConfigDict:
    """Six rounds of 100 steps."""
    config = tiny.get_config()
    config.model.path = "sums"
    config.family = f"{Path(families.__file__).parent / 'template.py'}:family"
    config.loop.rounds = 6
    config.environment.num_instances = 6400
    config.validation.num_instances = 1024
    config.validation.max_new_tokens = 12

    training = config.training
    training.epochs = 1.0
    training.prompts_per_step = 64
    training.max_new_tokens = 12
    training.optimizer.learning_rate = 5e-4
    # A killed run loses one round at most.
    config.checkpoint.every_steps = 1000
    config.checkpoint.keep = 1

    config.engineer.designer = "current"  # The warm start taught it to design.
    config.engineer.context = "V1"  # The latest results alone: short enough to learn in minutes.
    config.engineer.max_new_tokens = 192
    # The model knows how much, the projection the sum.
    config.engineer.decoding = "grammar_rescaled"
    return config
