"""What should the engineer see of its run on the ladder? Eight variants, eight seeds.

Written down before it was run.

Question: `contexts` and `modules` ask this on lakes, where hardly any configuration matters. On the
ladder of sums configurations matter. Which of the contexts V1 to V6, and V4 with its training in
full, makes the current checkpoint train on the best sets?

Regime: `experiments/configs/sums_ladder.py`, from the uniform configuration, with the model
`sums_ladder_contexts`, whose warm start showed designs from all seven contexts in turn, made by one
rule. All seven show the valid rates that the rule needs; whatever else a context shows (guideline,
history, training) only makes them harder to find for so small a model. Under the grammar it
explains nothing, so the summary of V5 is always empty. The study can show what a longer context
costs this model, and not what advice is worth to a language model. Four rounds, so that no context
is longer than those of the warm start. Budgets are equal.

Measure: `valid_final`, the fraction of sampled validation answers that are valid after the last
round.

Tests: paired by seed, Student's 95 % intervals and two-sided paired t-tests. Hypothesis: designing
helps from V6, the publication's context, minus the uniform configuration, at 5 %. Then each other
context minus V6, at 5 % with Holm's correction over the six. All else is a further look: greedy
answers, and `reading`, the correlation of designs with p (1 - p).

Seen before: how well the warm start's model designs for made-up contexts of each kind, on its card.

Stopping rule: seeds 0 to 7 of all variants, then the end; nothing is compared before that.
"""

from pathlib import Path

import ml_collections

from experiments.configs import sums_ladder
from experiments.study.variants import Study, Variant

_V4_WITH_T_IN_FULL = {"engineer.context": "V4+training=full"}


def get_config() -> ml_collections.ConfigDict:
    """Four rounds of the ladder, with a model that has seen every context."""
    config = sums_ladder.get_config()
    config.model.path = str(Path(__file__).resolve().parent / "model")
    config.engineer.start = "uniform"
    config.loop.rounds = 4
    return config


STUDY = Study(
    question="From which context does a checkpoint design best on the ladder?",
    variants=(
        Variant("uniform", "fixed, uniform", {"engineer.designer": "fixed"}),
        *(
            Variant(f"v{number}", f"V{number}", {"engineer.context": f"V{number}"})
            for number in range(1, 7)
        ),
        Variant("full", "T in full", _V4_WITH_T_IN_FULL),
    ),
    reference="v6",
    seeds=tuple(range(8)),
)
