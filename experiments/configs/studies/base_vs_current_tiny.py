"""Whether training makes the model a better engineer: ten seeds, the tiny model."""

import ml_collections

from experiments.configs.studies import bases, variants
from experiments.study.plan import Study

STUDY = Study(
    question=(
        "Does the checkpoint that is being trained design better environments for itself than the "
        "checkpoint that training started from?"
    ),
    variants=variants.BASE_VS_CURRENT,
    reference="base",
    seeds=tuple(range(10)),
)


def get_config() -> ml_collections.ConfigDict:
    """The tiny model."""
    return bases.tiny_base()
