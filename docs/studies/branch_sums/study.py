"""Who designs the next round best, from one and the same state? Eleven variants, twelve seeds.

Written down before it was run. It must not run before its regime is chosen, see below.

Question: runs of many rounds differ in all that follows the first design, and their last checkpoint
is one noisy number. Here all variants branch from one uniform run: at each of three of its rounds
every engineer designs one round from the same weights, evidence and sampling keys. Whose design
gains most, does it pay to read the evidence, and does training wear the engineer down?

Regime: the ladder of sums of 3 to 12 digits with rewards of 0 and 1, no credit for prefixes
(`family.py`); the model of `contexts_ladder`, taught the rule `target` from the contexts V1 to V6;
context V6 with the current configuration; uniform runs of 12 rounds of 100 steps. The learning rate
and the weight of the KL divergence are to be chosen beforehand, on seeds 100 to 102 (`regime.py`),
and written here; today they are those of the ladder.

Branches: after rounds 2, 6 and 10, counted from 0. The designed round is the next one (horizon 1).
Then come three uniform rounds (horizon 4), as the gain of one round may not last.

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
further look: horizon 4, each branch alone (does `current` minus `base` fall from round 2 to 10?),
the worst row, the largest fall of a mastered row, distinct designs, processor seconds.

What a result means: the first two, evidence is read and that pays; the first alone, a good prior
over rows and no reading; the third negative and falling with the round, training erodes the
engineer; `once` at or above all engineers, a set need not be designed anew; all within 0.75 points
of `uniform`, designing is worth less than that in a round here.

Stopping rule: seeds 200 to 211, whole seeds in this order, then the end; nothing is compared before
that. A clock may stop it earlier, results may not.

Known before: contexts show all rounds since round 1, and the warm start showed three at most. After
rounds 6 and 10 they do not fit the model's window of 2,048 tokens with a design, so they lose their
oldest rounds. Uniform rounds ran on seed 300, at a learning rate of 5e-4 without KL, to measure
their cost: 12.5 % of the answers were valid before training and 12.4 % after the first round.
"""

from pathlib import Path

import ml_collections

from experiments.configs import sums_ladder
from experiments.study.variants import Branches, Study, Variant

_HERE = Path(__file__).resolve().parent


def get_config() -> ml_collections.ConfigDict:
    """Twelve rounds on the ladder, from the uniform configuration."""
    config = sums_ladder.get_config()
    config.family = f"{_HERE / 'family.py'}:family"
    config.model.path = str(_HERE.parent / "contexts_ladder" / "model")
    config.engineer.start = "uniform"
    config.engineer.context = "V6+current"
    config.engineer.reading_questions = 0
    config.loop.rounds = 12
    config.validation.samples = 4
    config.validation.test_instances = 1280
    return config


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
    seeds=tuple(range(200, 212)),
    branches=Branches(
        rounds=(2, 6, 10),
        horizons=(1, 4),
        primary=(("current", "uniform"), ("current", "shuffled"), ("current", "base")),
        equivalent=("current", "base"),
        bound=0.0075,
    ),
)
