"""Who should design: eight designers, five seeds."""

from experiments.configs.studies.bases import get_config as get_config
from experiments.study.variants import Study, Variant

STUDY = Study(
    question=(
        "Who designs the next training environment best: nobody, chance, an automatic curriculum, "
        "the checkpoint that is being trained, or the one that training started from?"
    ),
    # All start from the seed's random configuration but for the uniform one.
    variants=(
        Variant("fixed_random", "fixed, random", {"engineer.designer": "fixed"}),
        Variant(
            "fixed_uniform",
            "fixed, uniform",
            {"engineer.designer": "fixed", "engineer.start": "uniform"},
        ),
        Variant("new_random", "new random", {"engineer.designer": "random"}),
        Variant("failures", "failures", {"engineer.designer": "failures"}),
        Variant("learnability", "learnability", {"engineer.designer": "learnability"}),
        Variant("progress", "progress bandit", {"engineer.designer": "learning_progress"}),
        Variant("current", "current checkpoint", {"engineer.designer": "current"}),
        Variant("base", "base checkpoint", {"engineer.designer": "base"}),
    ),
    reference="fixed_random",
)
