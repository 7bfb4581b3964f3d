"""What Qwen3-4B as engineer should be shown; needs `--config.model.path`. It has not been run."""

import ml_collections

from experiments.configs.studies import bases, contexts_tiny, variants
from experiments.study.plan import Study

STUDY = Study(question=contexts_tiny.STUDY.question, variants=variants.CONTEXTS, reference="v6")


def get_config() -> ml_collections.ConfigDict:
    """Qwen3-4B as published."""
    return bases.qwen3_base()
