"""Does a checkpoint that learns from hindsight go on reading? Four variants on sums, eight seeds.

Written down before it was run.

Question: `designers_sums` found that the current checkpoint reads its evidence less and less while
it trains. Do supervised lessons from its own past designs (`experiments.hindsight`), sixteen steps
before each design but the first, keep it reading; and does it then train on better sets?

Regime: `experiments/configs/sums.py` as in `designers_sums`, but all variants start from the
uniform configuration, which varies less between seeds than one drawn at random and is the
reference.

Measures: `reading`, the mean over a run's designs of the correlation, over rows, of the fraction
designed with p (1 - p) of the validation that the design was made from; and `valid_final`, the
fraction of sampled validation answers that are valid after the last round.

Tests: paired by seed, Student's 95 % intervals and paired t-tests. First hypothesis: `reading` of
the current checkpoint with hindsight minus that of the current checkpoint without is above zero.
Second: `valid_final` of the current checkpoint with hindsight minus that of the uniform
configuration is above zero. Each at 5 %, with Holm's correction over these two. All else, greedy
answers and `learnability` included, is a further look.

Stopping rule: seeds 0 to 7 of all variants, then the end; nothing is compared before that.

Explored before, and not part of it: seed 100 without and with sixteen steps, seed 101 with 32, with
a floor of 0.02 in place of 0.05 under the weights of rows. Correlations by design were .99 .85 .17
.32 -.16 without and .99 .98 .99 .84 .43 with sixteen steps. Such a checkpoint can be led astray as
`learnability` can: a row without a single valid answer gets little data and stays where it is.
"""

from experiments.configs.sums import get_config as get_config
from experiments.study.variants import Study, Variant

_UNIFORM = {"engineer.start": "uniform"}

STUDY = Study(
    question="Does learning from hindsight keep a checkpoint reading, and is that worth anything?",
    variants=(
        Variant("uniform", "fixed, uniform", _UNIFORM | {"engineer.designer": "fixed"}),
        Variant("learnability", "learnability", _UNIFORM | {"engineer.designer": "learnability"}),
        Variant("current", "current checkpoint", _UNIFORM),
        Variant(
            "hindsight",
            "current, with hindsight",
            _UNIFORM | {"engineer.training.hindsight_steps": 16},
        ),
    ),
    reference="uniform",
    seeds=tuple(range(8)),
    may_differ=("engineer_steps",),
)
