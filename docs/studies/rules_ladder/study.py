"""Does the default rule pay in a long run, from the start or begun late? Four variants.

Written down before it was run.

Question: the default rule `learnability` ends 5.8 points above a uniform set after six rounds on
the ladder (`designers_ladder`). In 18 rounds it has never been compared. There the designs of a
checkpoint and of the rule `mastery` lead for half of the run and end at or below a uniform set
(`climbing_ladder`); `mastery` begun after ten uniform rounds ends 6.4 points above it
(`late_ladder`). Does `learnability` end above or below a uniform set, and does it gain by beginning
late? Does the gain of a late `mastery` come again, with another warm start and other seeds?

Regime: `experiments/configs/sums_ladder.py` with its embedded model, a uniform start and 18 rounds
of 100 steps. `climbing_ladder` and `late_ladder` had a model of another warm start. All budgets are
equal. A test set of 1,280 sums, which no designer reads, is answered before training and after the
last round; the warm start, which is older, did not keep it apart.

- `uniform`: ten rows equally, kept; the reference.
- `learnability`: the default rule, after every round.
- `learnability_late`: the same rule after ten uniform rounds (`engineer.kept_rounds`).
- `mastery_late`: the rule of `late_ladder`, after ten uniform rounds.

Measure: `valid_last3`, the fraction of sampled validation answers that are valid, as the mean of
the last three validations: in 18 rounds single validations jump (`climbing_ladder`).

Tests: paired by seed, Student's 95 % intervals and two-sided paired t-tests. Each of the other
variants minus `uniform`, at 5 %, with Holm's correction over these three. All else is a further
look: the last validation alone, the test set, the mean over training, `learnability_late` minus
`learnability` and minus `mastery_late`.

Seeds: differences of the earlier two studies have standard deviations of 2.2 to 2.9 points in this
measure. Ten seeds then find one of 2.2 to 2.9 points with a power of 0.8, before the correction.

Stopping rule: seeds 20 to 29, whole seeds in this order, until 19:15 UTC on 1 December 2026, when
the machine's time ends. Nothing is compared before.

Explored before, and not part of it: one run at seed 100 with this model in which `learnability` had
28.7 % after 18 rounds and `mastery` 38.4 % (`climbing_ladder`).
"""

import ml_collections

from experiments.configs import sums_ladder
from experiments.study.variants import Study, Variant

_LATE = {"engineer.kept_rounds": 10}


def get_config() -> ml_collections.ConfigDict:
    """The ladder for 18 rounds."""
    config = sums_ladder.get_config()
    config.engineer.start = "uniform"
    config.loop.rounds = 18
    config.validation.test_instances = 1280
    return config


STUDY = Study(
    question="Does the default rule pay in a long run, from the start or begun late?",
    variants=(
        Variant("uniform", "fixed, uniform", {"engineer.designer": "fixed", **_LATE}),
        Variant("learnability", "learnability", {"engineer.designer": "learnability"}),
        Variant(
            "learnability_late",
            "learnability, late",
            {"engineer.designer": "learnability", **_LATE},
        ),
        Variant("mastery_late", "mastery, late", {"engineer.designer": "mastery", **_LATE}),
    ),
    reference="uniform",
    seeds=tuple(range(20, 30)),
)
