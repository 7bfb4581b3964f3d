"""Does it help to choose single problems by their outcomes? Five variants on sums, eight seeds.

Written down before it was run.

Question: of one budget of sampled answers, does training learn more where a step's problems are
chosen by the outcomes seen so far, problem by problem (`training.curriculum`), than from shuffled
passes over the same sets? And is that worth more or less than choosing the rows of the sets?

Regime: `experiments/configs/sums.py` as in `reading_sums`: all variants start from the uniform
configuration, and all but `rows` keep it, so that their sets are the same at each seed.

Budgets are equal in every part: 600 steps with one update each, 64 groups of 8 answers sampled in
each. `uniform`, `replay` and `rows` train on all 64. `instances` trains on the 32 whose rewards
vary most, and `redraw`, its control, on the first 32 with a signal: it samples 32 groups and, where
fewer than 32 have one, 32 more. It may so use less than its budget; what it used is reported. The
smaller batch is a part of what these two are.

Measure: `valid_final`, the fraction of sampled validation answers that are valid after the last
round. Secondary, and not corrected for being further looks: greedy answers, the mean over training,
and `instances` minus `redraw` (is it the most learnable problems, or would any signal do?).

Test: differences from `uniform`, paired by seed, with Student's 95 % intervals and paired t-tests,
Holm's correction over the four. Choosing single problems is said to help if the corrected p-value
of `instances` or `replay` is below 0.05 and its difference above zero. In `designers_sums` the
difference of `learnability` from the uniform configuration had a standard deviation of 7.8 points
between seeds: at that, eight seeds find nine points four times in five, before the correction.

Stopping rule: seeds 0 to 7 of all variants, then the end; nothing is compared before that.

Explored before, and not part of it: seed 100 of `replay` and of `instances`, to see that they run
to their end, with 20 and 4 steps in all and 64 validation sums: valid 23.4 to 12.5 % and 23.4 to
18.8 %. Nothing was compared or tuned; the numbers of `replay` are those of another field's code
(`learner.training.curriculum`).
"""

from experiments.configs.sums import get_config as get_config
from experiments.study.variants import Study, Variant

_FIXED = {"engineer.designer": "fixed", "engineer.start": "uniform"}
_HALF = _FIXED | {"training.prompts_per_step": 32}

STUDY = Study(
    question="Does it help to choose single problems by their outcomes, at one budget of answers?",
    variants=(
        Variant("uniform", "uniform", _FIXED),
        Variant(
            "redraw",
            "groups without signal drawn anew",
            _HALF
            | {
                "training.epochs": 0.5,
                "training.degenerate_groups": "resample",
                "training.max_resamples": 1,
            },
        ),
        Variant(
            "instances",
            "learnability of instances",
            _HALF
            | {"training.curriculum.method": "learnability", "training.curriculum.candidates": 2},
        ),
        Variant(
            "replay",
            "prioritized level replay",
            _FIXED | {"training.curriculum.method": "replay"},
        ),
        Variant(
            "rows",
            "learnability of rows",
            {"engineer.designer": "learnability", "engineer.start": "uniform"},
        ),
    ),
    reference="uniform",
    seeds=tuple(range(8)),
)
