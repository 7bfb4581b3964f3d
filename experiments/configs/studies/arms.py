"""The arms of the studies, for any size of model."""

from experiments.study.plan import Arm

DESIGNERS = (
    Arm("fixed_random", "fixed, random", {"engineer.designer": "fixed"}),
    Arm(
        "fixed_uniform",
        "fixed, uniform",
        {"engineer.designer": "fixed", "engineer.start": "uniform"},
    ),
    Arm("new_random", "new random", {"engineer.designer": "random"}),
    Arm("failures", "failures", {"engineer.designer": "failures"}),
    Arm("learnability", "learnability", {"engineer.designer": "learnability"}),
    Arm("progress", "progress bandit", {"engineer.designer": "progress"}),
    Arm("current", "current checkpoint", {"engineer.designer": "current"}),
    Arm("base", "base checkpoint", {"engineer.designer": "base"}),
)
"""Who designs. All start from the seed's random configuration but for the uniform one."""

BASE_VS_CURRENT = (
    Arm("base", "base checkpoint", {"engineer.designer": "base"}),
    Arm("current", "current checkpoint", {"engineer.designer": "current"}),
)

CONTEXTS = tuple(
    Arm(f"v{number}", f"V{number}", {"engineer.context": f"V{number}"}) for number in range(1, 7)
)
"""What the current checkpoint is shown: the publication's variants."""

_V4 = {
    "engineer.context": "own",
    "engineer.modules.guideline": True,
    "engineer.modules.history": "designed",
}
MODULES = (
    Arm("bookkeeping", "T bookkeeping (V6)", {"engineer.context": "V6"}),
    Arm("none", "no T (V4)", {"engineer.context": "V4"}),
    Arm("full", "T in full", {**_V4, "engineer.modules.training": "full"}),
)
"""How much of the training the current checkpoint is told."""
