"""How much is there to gain on the ladder of sums by trying out? An oracle, eight seeds.

Written down before it was run.

Question: an oracle trains a copy of the checkpoint for 20 steps under each of 17 configurations
before each design, and takes the one whose mean reward on 512 sums rises most. How far above the
uniform configuration does it end, and which part of that do the designers of `designers_ladder`
get?

Regime: `experiments/configs/sums_ladder.py`, from the uniform configuration. The oracle has 1,700
steps of trials besides the 600 of its run; they are reported and not made equal.

Measure: `valid_final`, the fraction of sampled validation answers that are valid after the last
round; its difference from the uniform configuration, paired by seed, with Student's 95 % interval.
There is one comparison and no hypothesis: it is a bound, if the trials are long enough to tell
configurations apart.

Stopping rule: seeds 0 to 7, then the end.

Seen before: the oracle's first two seeds, which ended at 15.4 %, in a first form of
`controls_ladder`, whose summary told it after the oracle had been taken out; and the uniform
configuration, 17.1 % over the same eight seeds in `designers_ladder`. In `designers_sums` the
oracle gained 2.5 points over a fixed random configuration, less than a rule that tries nothing out.
"""

import ml_collections

from experiments.configs.studies import controls_ladder
from experiments.study.variants import Study, Variant


def get_config() -> ml_collections.ConfigDict:
    """The ladder, from the uniform configuration, with trials of 20 steps."""
    config = controls_ladder.get_config()
    trials = config.engineer.training
    trials.trial_steps, trials.trial_instances, trials.probe_set_size = 20, 1280, 512
    return config


STUDY = Study(
    question="How much is there to gain on the ladder by trying configurations out?",
    variants=(
        Variant("uniform", "fixed, uniform", {"engineer.designer": "fixed"}),
        Variant("oracle", "oracle", {"engineer.designer": "oracle"}),
    ),
    reference="uniform",
    seeds=tuple(range(8)),
    may_differ=("trial_steps", "trial_answers"),
)
