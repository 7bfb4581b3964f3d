"""Whether training makes Qwen3-4B a better engineer; needs `--config.model.path`. Not run."""

import ml_collections

from experiments.configs.studies import base_vs_current_tiny, bases, variants
from experiments.study.plan import Study

STUDY = Study(
    question=base_vs_current_tiny.STUDY.question,
    variants=variants.BASE_VS_CURRENT,
    reference="base",
)


def get_config() -> ml_collections.ConfigDict:
    """Qwen3-4B as published."""
    return bases.qwen3_base()
