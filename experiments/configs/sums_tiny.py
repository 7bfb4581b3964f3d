"""Sums and differences of reasoning-gym: a tiny model doubles its valid rate in minutes.

The model is embedded: `experiments/models/sums_tiny`, whose card says how it was made.
"""

import ml_collections

from experiments.configs import sums


def get_config() -> ml_collections.ConfigDict:
    """Two to seven terms of one digit, three rounds of up to 75 steps."""
    config = sums.get_config()
    config.model.path = "sums_tiny"
    config.family = "reasoning_gym:chain_sum"
    config.reasoning_gym.levels = 6
    config.reasoning_gym.other_levels = 1
    config.reasoning_gym.instruction = ""  # The model knows no other form of answer.
    config.loop.rounds = 3
    config.environment.num_instances = 3600
    config.validation.num_instances = 512
    config.validation.max_new_tokens = 32
    config.training.prompts_per_step = 48
    config.training.max_new_tokens = 32
    config.training.optimizer.learning_rate = 2e-4
    # At 1 sampled answers end 21 points below greedy ones, and greedy ones gain less (model card).
    config.training.temperature = config.validation.temperature = 0.6
    return config
