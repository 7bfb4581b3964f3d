"""Qwen3-4B as published: lakes of 3 x 3 to 10 x 10, 4,000 instances a round, 2 epochs over them.

Needs the checkpoint's folder: `--config.model.path=/models/Qwen3-4B`. The number of rounds, the
instances and the epochs are the publication's (arXiv 2606.17682); it gives no other training
options, so those are current practice for on-policy training of a model of this size.
"""

import ml_collections

from experiments.configs import qwen3_0_6b


def get_config() -> ml_collections.ConfigDict:
    """For one accelerator with 141 GB; wider meshes by `--config.mesh.fsdp=8` and so on."""
    config = qwen3_0_6b.get_config()
    config.model.path = "Qwen3-4B"
    config.training.micro_batch_rows = 2
    return config
