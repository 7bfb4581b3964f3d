"""Whether training makes the model a better engineer: base against current, ten seeds."""

from experiments.configs.studies.bases import get_config as get_config
from experiments.study.variants import Study, Variant

STUDY = Study(
    question=(
        "Does the checkpoint that is being trained design better environments for itself than the "
        "checkpoint that training started from?"
    ),
    variants=(
        Variant("base", "base checkpoint", {"engineer.designer": "base"}),
        Variant("current", "current checkpoint", {"engineer.designer": "current"}),
    ),
    reference="base",
    seeds=tuple(range(10)),
)
