"""Does designing help where it can? Fourteen variants on sums, eight seeds.

Written down before it was run.

Question: does a checkpoint that designs its own training set get better than one whose set is drawn
once and kept, and which link fails if it does not: evidence, reading, design or training?

Regime: `experiments/configs/sums.py`, 1,024 validation sums, six rounds of 100 steps, five designs.
Its sensitivity was measured beforehand.

Measure: `valid_final`, the fraction of sampled validation answers that are valid after the last
round. Secondary, and not corrected for being further looks: greedy answers, and the mean over
training.

Test: differences from the fixed random configuration, paired by seed, with Student's 95 % intervals
and paired t-tests, Holm's correction over the thirteen. The main hypothesis: the current checkpoint
gains more than the fixed random configuration; designing is said to help if its interval lies above
zero. Half of what the oracle gains is what it is hoped to reach.

The chain: `learnability` reads the same evidence as numbers (evidence and training), the base
checkpoint and the current one design from the same text, and the shuffled current one says what
reading is worth. The trained engineer is trained by trials on what its designs teach.

Stopping rule: seeds 0 to 7 of all variants, then the end; nothing is compared before that.

Explored before, and not part of it: one seed each of a few designers on five models from other warm
starts, with three rewards and four learning rates. The reward that counts digits before the first
error was kept because `learnability` led the uniform configuration by nine and twelve points
with it.
"""

import dataclasses

import ml_collections

from experiments.configs import sums
from experiments.configs.studies import designers
from experiments.study.variants import Variant


def get_config() -> ml_collections.ConfigDict:
    """Sums, with trials of 20 steps for the variants that have any."""
    config = sums.get_config()
    trials = config.engineer.training
    trials.trial_steps, trials.trial_instances, trials.probe_set_size = 20, 1280, 512
    return config


STUDY = dataclasses.replace(
    designers.STUDY,
    question="Does a checkpoint that designs its own training set learn more than a fixed one?",
    variants=(
        *designers.STUDY.variants,
        Variant("staged", "by hand", {"engineer.designer": "staged"}),
        Variant(
            "dynamic",
            "fixed, groups without signal drawn anew",
            {"engineer.designer": "fixed", "training.degenerate_groups": "resample"},
        ),
        Variant("oracle", "oracle", {"engineer.designer": "oracle"}),
        Variant("adversary", "adversary", {"engineer.designer": "adversary"}),
        Variant(
            "trained",
            "current, trained as engineer",
            # Designs that are trained on are sampled freely, not under the grammar.
            {"engineer.training.steps": 2, "engineer.decoding": "parsed"},
        ),
        Variant(
            "shuffled",
            "current, shuffled evidence",
            {"engineer.shuffle_evidence": True},
        ),
    ),
    seeds=tuple(range(8)),
    # Answers: of the variant "dynamic".
    may_differ=("answers", "engineer_steps", "trial_steps", "trial_answers"),
)
