"""What the engineer should be shown: the contexts V1 to V6, five seeds, the tiny model.

The tiny model learned to design from V6 alone, so the other contexts are strange to it. Under the
grammar it explains nothing, so the summary of V5 is always empty.
"""

import ml_collections

from experiments.configs.studies import bases, variants
from experiments.study.plan import Study

STUDY = Study(
    question="Which context makes the current checkpoint design the best environments?",
    variants=variants.CONTEXTS,
    reference="v6",
)


def get_config() -> ml_collections.ConfigDict:
    """The tiny model."""
    return bases.tiny_base()
