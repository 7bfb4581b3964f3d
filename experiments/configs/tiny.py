"""The embedded default: a tiny Qwen3 on lakes of 3 x 3 to 5 x 5, minutes on two CPU cores."""

import ml_collections

from experiments import settings


def get_config() -> ml_collections.ConfigDict:
    """Three rounds and two designs, by a rule unless `--config.engineer.designer=current`."""
    config = settings.default_config()
    config.model.path = settings.TINY_MODEL
    config.model.scan_unroll = 4  # All layers: faster on a CPU, and quick to compile when tiny.

    config.lakes.sizes = (3, 4, 5)
    config.environment.num_instances = 480
    config.lakes.max_candidates = 1 << 16
    config.lakes.list_holes = True

    config.validation.num_instances = 768
    config.validation.max_new_tokens = 64
    config.validation.temperature = 1.0  # The policy that is trained, not its mode.

    # The length part of the reward, scaled to answers of some 20 tokens.
    config.lakes.reward.short_length = 48
    config.lakes.reward.long_length = 64

    training = config.training
    training.epochs = 2.0
    training.prompts_per_step = 48
    training.group_size = 8
    training.max_new_tokens = 64
    training.micro_batch_size = 8
    training.objective.advantage_normalization = "none"
    training.optimizer.learning_rate = 1.2e-4
    training.optimizer.warmup_steps = 5
    training.optimizer.b2 = 0.99

    config.engineer.max_new_tokens = 96
    return config
