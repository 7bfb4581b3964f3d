"""Who should design: eight designers, five seeds, the tiny model."""

import ml_collections

from experiments.configs.studies import bases, variants
from experiments.study.plan import Study

STUDY = Study(
    question=(
        "Who designs the next training environment best: nobody, chance, an automatic curriculum, "
        "the checkpoint that is being trained, or the one that training started from?"
    ),
    variants=variants.DESIGNERS,
    reference="fixed_random",
)


def get_config() -> ml_collections.ConfigDict:
    """The tiny model."""
    return bases.tiny_base()
