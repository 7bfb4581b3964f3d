"""How much of the training Qwen3-4B should be told; needs `--config.model.path`. Not run."""

import ml_collections

from experiments.configs.studies import bases, modules_tiny, variants
from experiments.study.plan import Study

STUDY = Study(
    question=modules_tiny.STUDY.question, variants=variants.MODULES, reference="bookkeeping"
)


def get_config() -> ml_collections.ConfigDict:
    """Qwen3-4B as published."""
    return bases.qwen3_base()
