"""What Qwen3-4B as engineer should be shown; needs `--config.model.path`. It has not been run."""

import ml_collections

from experiments.configs.studies import arms, bases, contexts_tiny
from experiments.study.plan import Study

STUDY = Study(question=contexts_tiny.STUDY.question, arms=arms.CONTEXTS, reference="v6")


def get_config() -> ml_collections.ConfigDict:
    """Qwen3-4B as published."""
    return bases.qwen3_base()
