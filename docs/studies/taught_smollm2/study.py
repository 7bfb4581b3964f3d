"""Does a pretrained model that reads its evidence gain by designing? SmolLM2, taught a rule.

Written down before it was run.

Question: in `repeat_smollm2` an untaught SmolLM2 designed no better than uniform rounds, but it
could not read its evidence. Taught 600 designs of the rule `mastery`, it reads, and in one run its
greedy answers rose in both designed rounds (docs/first_real_run.md). No uniform rounds stood
beside that run. What do they say?

Model: SmolLM2-135M-Instruct after one warm start, seed 0:

    python -m experiments.warm_start --config=smollm2 --config.validation.num_instances=384 \\
        --model=smollm2 --config.engineer.context=V1 --config.engineer.max_new_tokens=48 \\
        --contexts=V1 --designs_by=mastery --design_every=2 --batch_size=8 --steps=150 \\
        --solutions=2000 --designs=2000 --learning_rate=2e-4 --validate_every=1000 --out=taught

Regime: that of `repeat_smollm2`, but for the model, the context V1, in which it was taught, and
384 validation problems for 192 (274 distinct ones for 146): some 29 answers won or lost of 146
made more than half of the variance there. The runs of a seed share their first, uniform round.

- `uniform`: three rows equally, kept; the reference.
- `current`: the checkpoint in training designs.

Measure: `greedy_final`, the fraction of greedy validation answers that are valid after the last
round; the engineer reads the sampled ones.

Hypothesis: `current` minus `uniform`, paired by seed, with Student's 95 % interval; two-sided.
Further looks: sampled answers, and whether the designs are those of `mastery`.

Stopping rule: seeds from 0 up, whole seeds in this order, until the machine's time ends. Nobody
looks at results before.

Known before: the run above, of a model taught by another warm start (seed 0).
"""

import ml_collections

from experiments.configs import smollm2
from experiments.study.variants import Study, Variant


def get_config() -> ml_collections.ConfigDict:
    """The run of `--config=smollm2` with the taught model, in the folder `taught`."""
    config = smollm2.get_config()
    config.model.path = "taught"
    config.validation.num_instances = 384
    config.checkpoint.every_steps = 0
    config.engineer.context = "V1"
    config.engineer.max_new_tokens = 48
    config.engineer.reading_questions = 0
    return config


STUDY = Study(
    question="Does a SmolLM2 that was taught to read its evidence gain by designing?",
    variants=(
        Variant("uniform", "fixed, uniform", {"engineer.designer": "fixed"}),
        Variant("current", "current checkpoint, taught", {"engineer.designer": "current"}),
    ),
    reference="uniform",
    seeds=(0, 1, 2, 3),  # As far as the time goes.
)
