"""The publication's budget on accelerators: a model and a machine, with a mesh that it fits on.

`--config=experiments/configs/hardware.py:Qwen3-4B@v5p-64`, for any of `experiments.machines.NAMES`.
Needs the checkpoint's folder: `--config.model.path=/models/Qwen3-4B`.
"""

import ml_collections

from experiments import machines


def get_config(name: str = "Qwen3-0.6B@h200") -> ml_collections.ConfigDict:
    """As `qwen3_0_6b.py` but for model, mesh and batch sizes on each device."""
    return machines.config(name)
