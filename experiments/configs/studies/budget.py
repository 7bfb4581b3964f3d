"""How often to design under one budget of instances and updates, five seeds, the tiny model."""

import ml_collections

from experiments.configs.studies import bases
from experiments.study.variants import Study, Variant

_INSTANCES = 1920
_ROUNDS = (1, 2, 3, 6, 12)

STUDY = Study(
    question=(
        f"With {_INSTANCES:,} training instances and equally many updates in all, into how many "
        "rounds should they be divided, that is, how often should the current checkpoint design?"
    ),
    variants=tuple(
        Variant(
            f"rounds_{rounds}",
            f"{rounds} round{'s' if rounds > 1 else ''}",
            {
                "loop.rounds": rounds,
                "environment.num_instances": _INSTANCES // rounds,
                "engineer.designer": "current",
            },
        )
        for rounds in _ROUNDS
    ),
    reference="rounds_1",
    # Every round is validated, so more rounds take more answers to the validation set.
    may_differ=("rounds", "validated"),
)


def get_config() -> ml_collections.ConfigDict:
    """The tiny model."""
    return bases.tiny_base()
