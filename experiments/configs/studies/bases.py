"""What the variants of a study have in common, for each model."""

import ml_collections

from experiments.configs import qwen3_4b, tiny


def tiny_base() -> ml_collections.ConfigDict:
    """The tiny model in many short rounds, as designs need rounds to matter.

    Six rounds of 20 steps: a third more prompts than `configs/tiny.py` and twice its updates, with
    five designs in place of two.
    """
    config = tiny.get_config()
    config.loop.rounds = 6
    config.environment.num_instances = 320
    config.training.prompts_per_step = 32
    config.training.optimizer.learning_rate = 2e-4
    # A killed run loses one round at most.
    config.checkpoint.every_steps = 1000
    config.checkpoint.keep = 1
    config.engineer.designer = "current"
    # The model's own answers are often no configuration; under the grammar every answer is one.
    config.engineer.decoding = "grammar"
    config.engineer.reading_questions = 0  # No table of a study has readings.
    return config


def qwen3_4b_base() -> ml_collections.ConfigDict:
    """Qwen3-4B as published: three rounds of 4,000 instances, 2 epochs over them."""
    config = qwen3_4b.get_config()
    config.checkpoint.keep = 1
    config.engineer.designer = "current"
    return config


def measured(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """The same with the measurements of a new study; those registered before keep theirs.

    Four sampled answers to each problem in place of one, at temperature 1 if validation was greedy:
    up to half of the variance of a result after the last round was that of sampling. And a test set
    as large as that of validation.
    """
    config.validation.samples = 4
    config.validation.test_instances = config.validation.num_instances
    config.validation.temperature = config.validation.temperature or 1.0
    return config


BASES = {"tiny": tiny_base, "qwen3_4b": qwen3_4b_base}


def get_config(base: str = "tiny") -> ml_collections.ConfigDict:
    """The base that `--config=FILE.py:BASE` names.

    Raises:
      ValueError: there is no such base.
    """
    if base not in BASES:
        raise ValueError(f"{base!r} after the file's name: allowed are {', '.join(BASES)}")
    return BASES[base]()
