"""How much of the training the engineer should be told, five seeds, the tiny model.

The tiny model learned to design from contexts with the bookkeeping form alone.
"""

import ml_collections

from experiments.configs.studies import bases, variants
from experiments.study.plan import Study

STUDY = Study(
    question=(
        "Does the current checkpoint design better environments if it is told of its training in "
        "full, in bookkeeping only, or not at all?"
    ),
    variants=variants.MODULES,
    reference="bookkeeping",
)


def get_config() -> ml_collections.ConfigDict:
    """The tiny model."""
    return bases.tiny_base()
