"""Does a checkpoint learn to design from its own run? Seven variants on the ladder, eight seeds.

Written down before it was run.

Question: in `designers_ladder` the checkpoint's designs helped, but a warm start had shown it the
rule that makes them. Here the warm start showed random designs: the checkpoint knows the form of a
configuration, and its designs do not depend on the evidence. Do lessons from its own past rounds
(`experiments.hindsight`), one hundred steps before each design but the first, teach it to read, and
does it then train on better sets?

With `hindsight`, what a good design is still comes from the project: a lesson divides the set in
proportion to p (1 - p), where p is a row's valid rate before and after the round it trained on.
What is learned is to find those rows in new evidence. With `progress` that comes from the run too:
a lesson divides four fifths of the set in proportion to the change of each row's valid rate in the
round. (Such a rate also changes by chance, unless it is 0 or 1.)

Regime: `experiments/configs/sums_ladder.py` with the model `sums_ladder_form`, all variants from
the uniform configuration. Budgets are equal but for the lessons.

Measures: `valid_final`, the fraction of sampled validation answers that are valid after the last
round; and `reading`, the mean over a run's designs of the correlation, over rows, of the fraction
designed with p (1 - p) of the validation that the design was made from.

Tests: paired by seed, Student's 95 % intervals and paired t-tests. First hypothesis: `valid_final`
with hindsight minus that of the current checkpoint without is above zero. Second: with hindsight
minus the uniform configuration is above zero. Third, added with its variant `progress` while the
first two seeds ran and before anything was compared: with lessons from progress minus the current
checkpoint without lessons is above zero. Each at 5 %, with Holm's correction over these three.
The rule `learnability` shows how much there is to gain. All else is a further look: greedy answers,
`reading`, the base checkpoint (added with `progress`), which never learns to read, and hindsight
with shuffled evidence: it learns from its true outcomes but designs from outcomes under other rows'
names.

Stopping rule: seeds 0 to 7 of all variants, then the end; nothing is compared before that.

Explored before, and not part of it: seed 100 with hindsight. Its first design was random and gave
26 % of the set to the three rows with a signal; its second, after one hundred steps of lessons,
gave them 61 %. Sampled valid answers went from 11.6 to 13.7 % in six rounds.
"""

from pathlib import Path

import ml_collections

from experiments.configs import sums_ladder
from experiments.study.variants import Study, Variant

_LESSONS = {"engineer.training.hindsight_steps": 100}


def get_config() -> ml_collections.ConfigDict:
    """The ladder, from the uniform configuration, with a model that only knows the form."""
    config = sums_ladder.get_config()
    config.model.path = str(Path(__file__).resolve().parent / "model")
    config.engineer.start = "uniform"
    return config


STUDY = Study(
    question="Does a checkpoint that knew only the form of a design learn to design from its run?",
    variants=(
        Variant("uniform", "fixed, uniform", {"engineer.designer": "fixed"}),
        Variant("base", "base checkpoint", {"engineer.designer": "base"}),
        Variant("current", "current checkpoint"),
        Variant("hindsight", "current, with hindsight", _LESSONS),
        Variant(
            "shuffled",
            "with hindsight, shuffled evidence",
            _LESSONS | {"engineer.shuffle_evidence": True},
        ),
        Variant(
            "progress",
            "current, with hindsight of progress",
            _LESSONS | {"engineer.training.hindsight": "learning_progress"},
        ),
        Variant("learnability", "learnability, a rule", {"engineer.designer": "learnability"}),
    ),
    reference="current",
    seeds=tuple(range(8)),
    may_differ=("engineer_steps",),
)
