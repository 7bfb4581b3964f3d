"""SmolLM2-135M-Instruct on the publication's own task, lakes of 3 x 3 and 4 x 4, on two CPU cores.

Untaught it solved none of six lakes, so a warm start comes first, by the same file:

    python -m experiments.warm_start --config=smollm2_lakes --model=smollm2 --designs_by=mastery \\
        --batch_size=8 --steps=130 --design_every=13 --solutions=1300 --designs=160 \\
        --learning_rate=2e-4 --validate_every=1000 --out=taught_lakes
    python -m experiments.main --config=smollm2_lakes --config.model.path=taught_lakes
"""

import ml_collections

from experiments.configs import smollm2


def get_config() -> ml_collections.ConfigDict:
    """Three rounds of 8 steps and two designs, which the model writes itself."""
    config = smollm2.get_config()
    config.family = "lakes"
    config.lakes.sizes = (3, 4)
    config.environment.num_instances = 32

    # A prompt takes some 380 tokens, a shortest answer 34 to 86; a few take more than 128.
    config.validation.num_instances = 64
    config.validation.max_new_tokens = 128

    config.training.max_new_tokens = 128
    config.training.prompts_per_step = 4
    # The length part of the reward, scaled to answers of some 70 tokens.
    config.lakes.reward.short_length = 96
    config.lakes.reward.long_length = 128
    config.training.micro_batch_size = 1

    config.engineer.designer = "current"  # The warm start teaches it to design.
    config.engineer.context = "V1"
    return config
