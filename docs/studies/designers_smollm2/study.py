"""What are an untaught SmolLM2's own designs worth against uniform rounds? Three variants.

Written down before it was run.

Question: in one run of `--config=smollm2`, seed 0, the greedy valid rate rose to 60 % in the
uniform first round and fell to 51 % in two rounds that the model designed
(docs/first_real_run.md). No other run stood beside it. Were the designs to blame?

Regime: that of `--config=smollm2`, a pretrained model of 135 million parameters on sums of 1 to 3
digits in words, three rounds of 16 steps. The runs of a seed share their first, uniform round, so
they are branches from one state with one evidence.

- `uniform`: three rows equally, kept; the reference.
- `current`: the checkpoint in training designs, taught nothing.
- `mastery`: half of the set for the first row below a valid rate of 0.5, half for the rows before
  it.

Measure: `greedy_final`, the fraction of greedy validation answers that are valid after the last
round; the engineer reads the sampled ones.

Comparisons, paired by seed, with Student's 95 % intervals: `current` minus `uniform`, then
`mastery` minus `uniform`. Within a seed also the answers won and lost, by an exact sign test.

Stopping rule: seeds 0, 1 and 2, whole seeds in this order, as far as the machine's time goes.

Known before: the run above (variant `current`, seed 0, an earlier revision).
"""

import ml_collections

from experiments.configs import smollm2
from experiments.study.variants import Study, Variant


def get_config() -> ml_collections.ConfigDict:
    """The run of `--config=smollm2`."""
    config = smollm2.get_config()
    config.checkpoint.every_steps = 0
    config.engineer.designer = "current"
    return config


STUDY = Study(
    question="What are an untaught SmolLM2's own designs worth against uniform rounds?",
    variants=(
        Variant("uniform", "fixed, uniform", {"engineer.designer": "fixed"}),
        Variant("current", "current checkpoint, untaught"),
        Variant("mastery", "mastery, a rule", {"engineer.designer": "mastery"}),
    ),
    reference="uniform",
    seeds=(0, 1, 2),
)
