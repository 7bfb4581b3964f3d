"""What makes a checkpoint's designs good on the ladder of sums? Eight variants, eight seeds.

Written down before it was run.

Question: in `designers_ladder` the current checkpoint ended 2.4 points above a uniform training
set, and a rule 5.8. Is it also above a set drawn once at random, above the checkpoint that training
started from, and above itself where the evidence is shuffled? And where do chance, failures, single
problems chosen by their outcomes, and an oracle that tries configurations out stand beside it?

Regime: `experiments/configs/sums_ladder.py` as in `designers_ladder`, with its seeds. All variants
start from the uniform configuration but `random`, which keeps the seed's random one. `replay` keeps
the uniform configuration and repeats single problems of its sets (prioritized level replay).
Budgets are equal but for the trials of the oracle: 17 of 20 steps before each design.

Measure: `valid_final`, the fraction of sampled validation answers that are valid after the last
round.

Tests: paired by seed, Student's 95 % intervals and two-sided paired t-tests. Three hypotheses, at
5 % with Holm's correction over the three: the current checkpoint minus `random` is above zero
(designing helps), minus `base` is not zero (training changes the designer), minus `shuffled` is
above zero (it reads). All else is a further look: each variant minus the uniform one of
`designers_ladder`, paired by seed, greedy answers, `reading`, and which part of the oracle's gain
over `random` the checkpoint gets.

`current` is the variant of that name in `designers_ladder`, run again, and so is known: 19.5 %
(19.0 to 20.0) over the same seeds there. Nothing else of this study was seen before.

Stopping rule: seeds 0 to 7 of all variants, then the end; nothing is compared before that.
"""

import ml_collections

from experiments.configs import sums_ladder
from experiments.study.variants import Study, Variant


def get_config() -> ml_collections.ConfigDict:
    """The ladder, from the uniform configuration, with trials of 20 steps for the oracle."""
    config = sums_ladder.get_config()
    config.engineer.start = "uniform"
    trials = config.engineer.training
    trials.trial_steps, trials.trial_instances, trials.probe_set_size = 20, 1280, 512
    return config


STUDY = Study(
    question="What makes a checkpoint's designs good where most of the ladder is out of reach?",
    variants=(
        Variant(
            "random",
            "fixed, random",
            {"engineer.designer": "fixed", "engineer.start": "random"},
        ),
        Variant("new_random", "new random", {"engineer.designer": "random"}),
        Variant("failures", "failures", {"engineer.designer": "failures"}),
        Variant(
            "replay",
            "prioritized level replay",
            {"engineer.designer": "fixed", "training.curriculum.method": "replay"},
        ),
        Variant("base", "base checkpoint", {"engineer.designer": "base"}),
        Variant("shuffled", "current, shuffled evidence", {"engineer.shuffle_evidence": True}),
        Variant("current", "current checkpoint"),
        Variant("oracle", "oracle", {"engineer.designer": "oracle"}),
    ),
    reference="random",
    seeds=tuple(range(8)),
    may_differ=("trial_steps",),
)
