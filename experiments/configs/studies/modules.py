"""How much the current checkpoint should know of its training as engineer, five seeds.

The warm start showed the tiny model all three.
"""

from experiments.configs.studies.bases import get_config as get_config
from experiments.study.variants import Study, Variant

_V4_WITH_T_IN_FULL = {
    "engineer.context": "own",
    "engineer.modules.guideline": True,
    "engineer.modules.history": "designed",
    "engineer.modules.training": "full",
}

STUDY = Study(
    question=(
        "Does the current checkpoint design better environments if it is told of its training in "
        "full, in bookkeeping only, or not at all?"
    ),
    variants=(
        Variant("bookkeeping", "T bookkeeping (V6)", {"engineer.context": "V6"}),
        Variant("none", "no T (V4)", {"engineer.context": "V4"}),
        Variant("full", "T in full", _V4_WITH_T_IN_FULL),
    ),
    reference="bookkeeping",
)
