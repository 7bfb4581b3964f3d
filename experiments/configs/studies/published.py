"""What the tables and figures of the publication need, each way of training once, five seeds.

`python -m experiments.reproduce` runs it, and makes the tables (arXiv 2606.17682).
"""

import ml_collections

from experiments.configs.studies import bases, contexts, designers
from experiments.study.variants import Study, Variant

_ROUNDS = 3
_V4_WITH_T_IN_FULL = {"engineer.context": "V4+training=full"}


def get_config(base: str = "tiny") -> ml_collections.ConfigDict:
    """The base of other studies in three rounds, as published, which train on as much data."""
    config = bases.get_config(base)
    config.environment.num_instances *= config.loop.rounds // _ROUNDS
    config.loop.rounds = _ROUNDS
    return config


STUDY = Study(
    question=(
        "Does the checkpoint in training design better environments for itself than a random one "
        "that is kept, and what should it be shown?"
    ),
    # The current checkpoint that reads V6 stands in every table of the publication.
    variants=(
        *(one for one in designers.STUDY.variants if one.name in ("fixed_random", "base")),
        *contexts.STUDY.variants,
        Variant("full", "T in full", _V4_WITH_T_IN_FULL),
    ),
    reference="fixed_random",
)
