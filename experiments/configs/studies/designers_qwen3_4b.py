"""Who should design, with Qwen3-4B; needs `--config.model.path`. It has not been run."""

import ml_collections

from experiments.configs.studies import bases, designers_tiny, variants
from experiments.study.plan import Study

STUDY = Study(
    question=designers_tiny.STUDY.question, variants=variants.DESIGNERS, reference="fixed_random"
)


def get_config() -> ml_collections.ConfigDict:
    """Qwen3-4B as published."""
    return bases.qwen3_base()
