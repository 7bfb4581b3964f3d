"""The variants of the studies, for any size of model."""

from experiments.study.plan import Variant

DESIGNERS = (
    Variant("fixed_random", "fixed, random", {"engineer.designer": "fixed"}),
    Variant(
        "fixed_uniform",
        "fixed, uniform",
        {"engineer.designer": "fixed", "engineer.start": "uniform"},
    ),
    Variant("new_random", "new random", {"engineer.designer": "random"}),
    Variant("failures", "failures", {"engineer.designer": "failures"}),
    Variant("learnability", "learnability", {"engineer.designer": "learnability"}),
    Variant("progress", "progress bandit", {"engineer.designer": "progress"}),
    Variant("current", "current checkpoint", {"engineer.designer": "current"}),
    Variant("base", "base checkpoint", {"engineer.designer": "base"}),
)
"""Who designs. All start from the seed's random configuration but for the uniform one."""

BASE_VS_CURRENT = (
    Variant("base", "base checkpoint", {"engineer.designer": "base"}),
    Variant("current", "current checkpoint", {"engineer.designer": "current"}),
)

CONTEXTS = tuple(
    Variant(f"v{number}", f"V{number}", {"engineer.context": f"V{number}"})
    for number in range(1, 7)
)
"""What the current checkpoint is shown: the publication's variants."""

_V4 = {
    "engineer.context": "own",
    "engineer.modules.guideline": True,
    "engineer.modules.history": "designed",
}
MODULES = (
    Variant("bookkeeping", "T bookkeeping (V6)", {"engineer.context": "V6"}),
    Variant("none", "no T (V4)", {"engineer.context": "V4"}),
    Variant("full", "T in full", {**_V4, "engineer.modules.training": "full"}),
)
"""How much of the training the current checkpoint is told."""
