"""What the engineer should be shown: the publication's contexts V1 to V6, five seeds.

The warm start showed the tiny model all six, each answered by the same rule. Under the grammar it
explains nothing, so the summary of V5 is always empty.
"""

from experiments.configs.studies.bases import get_config as get_config
from experiments.study.variants import Study, Variant

STUDY = Study(
    question="Which context makes the current checkpoint design the best environments?",
    variants=tuple(
        Variant(f"v{number}", f"V{number}", {"engineer.context": f"V{number}"})
        for number in range(1, 7)
    ),
    reference="v6",
)
