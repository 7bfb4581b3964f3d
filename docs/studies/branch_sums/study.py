"""Who designs the next round best, from one and the same state? Eleven variants, twelve seeds.

Written down before it was run.

Question: runs of many rounds differ in all that follows the first design, and their last checkpoint
is one noisy number. Here all variants branch from one uniform run: at each of three of its rounds
every engineer designs one round from the same weights, evidence and sampling keys. Whose design
gains most, does it pay to read the evidence, and does training wear the engineer down?

Regime: the ladder of sums of 3 to 12 digits with rewards of 0 and 1, no credit for prefixes
(`family.py`); uniform runs of rounds of 100 steps; context V1, the latest evidence. Every round of
these runs has the same configuration, so a history could only repeat it, and after round 6 it does
not fit the models' windows; in `contexts_ladder` no context was significantly better than another.
The learning rate, 2e-4 without KL divergence, was chosen beforehand on other seeds, by the rule of
`regime.py`: there the mean over the three warm starts never falls, and ends at 16.8 %
(`regime.md`). At 5e-4 the first round lost points on every seed, with a KL divergence too.

Three warm starts, a block of four seeds each, so that the answer is not that of one model: taught
the rule `target` (seeds 200 to 203, the embedded `sums_ladder`), taught the rule `mastery` (204 to
207, the model of `climbing_ladder`), and taught the form of designs alone (208 to 211, the model of
`learning_ladder`). The third one cannot read: what it designs shows what a prior is worth.

Branches: after rounds 2, 6 and 10, counted from 0. The designed round is the next one (horizon 1).
Then, for `uniform`, `current` and whichever other variant leads at horizon 1 (an amendment will
name it), come three uniform rounds (horizon 4), as the gain of one round may not last.

- `uniform`: ten rows equally, kept; the run that all branch from, and the reference.
- `current`: the checkpoint in training designs.
- `base`: the checkpoint that training started from designs.
- `shuffled`: `current` from evidence whose rows have exchanged their outcomes.
- `local`: `current`, each number moved by a tenth at most.
- `learnability`: in proportion to p (1 - p), p a row's valid rate; `once`: the same from the
  validation before training.
- `sec`, `rlve`, `adarft`, `filtering`: rules of 2025, see `engineer/rivals.py`.

Measure: the fraction of valid answers to a test set of 1,280 sums that no engineer reads, four
sampled answers each. A gain is the difference from `uniform` at the same branch and horizon; the
unit is a seed, its value the mean over its three branches.

Tests: paired by seed, Student's 95 % intervals and two-sided t-tests at horizon 1. Three hypotheses
at 5 % with Holm's correction over the three: `current` minus `uniform` is above zero (designing
pays), minus `shuffled` is above zero (reading pays), minus `base` is not zero (training changes the
engineer); the last also by two one-sided tests for equivalence within 0.75 points. All else is a
further look: each block and each branch alone (does `current` minus `base` fall from round 2 to
10?), horizon 4, the worst row, the largest fall of a mastered row, distinct designs, processor
seconds, reading by likelihood.

What a result means: the first two, evidence is read and that pays; the first alone, a good prior
over rows and no reading; the third negative and falling with the round, training erodes the
engineer, and only then does rehearsal have something to cure; `once` at or above all engineers, a
set need not be designed anew; all within 0.75 points of `uniform`, designing is worth less than
that in a round here.

Stopping rule: the seeds in the order 200, 204, 208, 201, 205, ..., so that blocks grow together,
then the end; nothing is compared before that. A clock may stop it earlier, results may not.

Amended on 29 November 2026, when horizon 1 of all seeds had been compared: `learnability` leads
there, by less than 0.01 points over `filtering`, and joins `uniform` and `current` at horizon 4.

Known before: `contexts_ladder`, `designers_ladder`, `climbing_ladder`, `late_ladder` and
`learning_ladder` ran with these models, seeds 0 to 7, partial credit and whole runs.
"""

from pathlib import Path

import ml_collections

from experiments.configs import sums_ladder
from experiments.study.variants import Branches, Study, Variant

_HERE = Path(__file__).resolve().parent
_OTHERS = _HERE.parent


def get_config() -> ml_collections.ConfigDict:
    """Eleven rounds on the ladder, from the uniform configuration."""
    config = sums_ladder.get_config()
    config.family = f"{_HERE / 'family.py'}:family"
    config.engineer.start = "uniform"
    config.engineer.reading_questions = 0
    config.loop.rounds = 11
    config.training.optimizer.learning_rate = 2e-4
    config.validation.samples = 4
    config.validation.test_instances = 1280
    return config


WARM_STARTS = (
    "sums_ladder",
    str(_OTHERS / "climbing_ladder" / "model"),
    str(_OTHERS / "learning_ladder" / "model"),
)


def _rule(name: str, label: str) -> Variant:
    return Variant(name, label, {"engineer.designer": name})


STUDY = Study(
    question="Who designs the next round best, from one and the same state?",
    variants=(
        Variant("uniform", "fixed, uniform", {"engineer.designer": "fixed"}),
        Variant("current", "current checkpoint"),
        Variant("base", "base checkpoint", {"engineer.designer": "base"}),
        Variant("shuffled", "current, shuffled evidence", {"engineer.shuffle_evidence": True}),
        _rule("local", "current, local edits"),
        _rule("learnability", "learnability, a rule"),
        Variant("once", "learnability, once", {"engineer.designer": "learnability_once"}),
        _rule("sec", "SEC"),
        _rule("rlve", "RLVE's sliding window"),
        _rule("adarft", "AdaRFT"),
        _rule("filtering", "difficulty filtering"),
    ),
    reference="uniform",
    seeds=tuple(200 + 4 * block + seed for seed in range(4) for block in range(3)),
    blocks={
        200 + 4 * block + seed: {"model.path": path}
        for block, path in enumerate(WARM_STARTS)
        for seed in range(4)
    },
    branches=Branches(
        rounds=(2, 6, 10),
        horizons=(1, 4),
        primary=(("current", "uniform"), ("current", "shuffled"), ("current", "base")),
        equivalent=("current", "base"),
        bound=0.0075,
        longer=("uniform", "current", "learnability"),
    ),
)
