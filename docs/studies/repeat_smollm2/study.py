"""Does designing help an untaught SmolLM2? Its own designs and the default rule's, with new seeds.

Written down before it was run.

Question: `designers_smollm2` compared the model's own designs with uniform rounds over three seeds,
and the default rule `learnability` only afterwards: -7.8 points (-41.5 to +26.0) and +0.2 (-21.0 to
+21.5). So few seeds decide nothing. What do more say?

Regime: that of `designers_smollm2`, but that runs do not ask the model made-up contexts, which
changes no weight. The runs of a seed share their first, uniform round.

- `uniform`: three rows equally, kept; the reference.
- `current`: the checkpoint in training designs, taught nothing.
- `learnability`: the default rule.

Measure: `greedy_final`, the fraction of greedy validation answers that are valid after the last
round; the engineer reads the sampled ones.

Comparisons, paired by seed, with Student's 95 % intervals and Holm's correction over the two:
`current` minus `uniform`, `learnability` minus `uniform`. A second look adds the three seeds of
`designers_smollm2` (their differences have standard deviations of 13.6 and 8.6 points, by which an
interval over six seeds is 14 and 9 points to either side, over nine 10 and 7).

Stopping rule: seeds from 3 up, whole seeds in this order, until the machine's time ends. Nobody
looks at results before.

Known before: the three seeds above.
"""

import ml_collections

from experiments.configs import smollm2
from experiments.study.variants import Study, Variant


def get_config() -> ml_collections.ConfigDict:
    """The run of `--config=smollm2`."""
    config = smollm2.get_config()
    config.checkpoint.every_steps = 0
    config.engineer.reading_questions = 0
    return config


STUDY = Study(
    question="Does designing help an untaught SmolLM2: by itself, or by the default rule?",
    variants=(
        Variant("uniform", "fixed, uniform", {"engineer.designer": "fixed"}),
        Variant("current", "current checkpoint, untaught", {"engineer.designer": "current"}),
        Variant("learnability", "learnability, the default rule"),
    ),
    reference="uniform",
    seeds=tuple(range(3, 9)),  # Of 3 to 14: as far as the time went.
)
