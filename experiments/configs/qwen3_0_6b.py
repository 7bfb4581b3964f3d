"""Qwen3-0.6B on the published environment, a first step towards Qwen3-4B.

Needs the checkpoint's folder or name: `--config.model.path=Qwen/Qwen3-0.6B`.
"""

import ml_collections

from experiments import settings


def get_config() -> ml_collections.ConfigDict:
    """Three rounds of 4,000 instances, 2 epochs over them, answers of up to 4,096 tokens."""
    config = settings.default_config()
    config.model.path = "Qwen3-0.6B"
    config.model.dtype = "bfloat16"  # Parameters and optimizer stay in float32.
    config.model.remat = "full"

    training = config.training
    training.epochs = 2.0
    training.prompts_per_step = 32
    training.group_size = 8
    training.max_new_tokens = 4096
    training.micro_batch_size = 8
    training.sampling_slots = 128
    training.optimizer.learning_rate = 1e-6
    training.optimizer.warmup_steps = 10
    return config
