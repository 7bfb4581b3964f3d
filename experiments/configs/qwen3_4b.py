"""Qwen3-4B as published: lakes of 3 x 3 to 10 x 10, 4,000 instances a round, 2 epochs over them.

There the model designs as well: `--config.engineer.designer=current`; here a rule does by default.

Needs the checkpoint's folder: `--config.model.path=/models/Qwen3-4B`. The number of rounds, the
instances and the epochs are the publication's (arXiv 2606.17682); it gives no other training
options, so those are current practice for on-policy training of a model of this size.
"""

import ml_collections

from experiments.configs import qwen3_0_6b


def get_config() -> ml_collections.ConfigDict:
    """As for Qwen3-0.6B but for the model.

    On eight H100s `--config.mesh.fsdp=8 --config.training.micro_batch_size=32
    --config.training.sampling_slots=256`; docs/scaling.md lists what fits elsewhere.
    """
    config = qwen3_0_6b.get_config()
    config.model.path = "Qwen3-4B"
    # Keys and values of one answer of 4,096 tokens and its prompt take some 0.7 GB in bfloat16.
    config.training.sampling_slots = 64
    # A checkpoint has 48 GB, the weights of a round 8.
    config.checkpoint.every_steps = 0
    config.checkpoint.every_minutes = 30.0
    config.checkpoint.of_rounds = "weights"
    return config
