"""Does designing help where most of the ladder is out of reach? Four variants, eight seeds.

Written down before it was run.

Question: on `sums` six rows were too few for a uniform training set to be bad. `sums_ladder` has
ten, of which three teach anything at first and others later. Does a checkpoint that designs its own
training set end better there than one that trains on a uniform set?

Regime: `experiments/configs/sums_ladder.py`, all variants from the uniform configuration, which is
also the reference: a set drawn once varies much more between seeds.

Measure: `valid_final`, the fraction of sampled validation answers that are valid after the last
round.

Tests: paired by seed, Student's 95 % intervals and paired t-tests. First hypothesis: the current
checkpoint with hindsight minus the uniform configuration is above zero. Second: the current
checkpoint as published, without hindsight, minus the uniform configuration is above zero. Each at
5 %, with Holm's correction over these two. The rule `learnability` stands beside them for how much
there is to gain: it divides the set by p (1 - p), read as numbers. All else, greedy answers,
`reading` and the difference of the two checkpoints included, is a further look.

Stopping rule: seeds 0 to 7 of all variants, then the end; nothing is compared before that.

Explored before, and not part of it: seed 100, where the uniform configuration ended at 18.0 %,
`learnability` at 24.3 %, from 13.1 %; and the checkpoint with hindsight at seeds 100 and 101, up to
its third design (16.3 % at seed 101 after three rounds), which gave 60 to 70 % of the set to the
three rows with a signal.
"""

from experiments.configs.sums_ladder import get_config as get_config
from experiments.study.variants import Study, Variant

_UNIFORM = {"engineer.start": "uniform"}

STUDY = Study(
    question="Does designing help where most of the ladder is out of reach?",
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
