"""Does designing pay in a long run if it begins late? Four variants.

Written down before it was run.

Question: in `climbing_ladder` designing leads for half of 18 rounds, and then the uniform set
catches up. Sums of 6 digits and more seem to be learnt from longer ones, whose partial credit a
narrow set gives up. Here all runs train on the uniform set for ten rounds; then the checkpoint in
training designs the last eight. Does it end above a run that keeps the uniform set?

Regime: that of `climbing_ladder`, with `engineer.kept_rounds` = 10. The model was taught the rule
`mastery`: half of the set for the first row below a valid rate of 0.5, half for the rows before it.
All budgets are equal, and all runs of a seed share their first ten rounds.

- `uniform`: ten rows equally, kept; the reference.
- `current`: the checkpoint in training designs.
- `base`: the checkpoint that training started from designs.
- `mastery`: the rule that both were taught.

Measure: `valid_final`, the fraction of sampled validation answers that are valid after the last
round.

Tests: paired by seed, Student's 95 % intervals and paired t-tests. First hypothesis: `current`
minus `uniform` is above zero. Second: `mastery` minus `uniform` is above zero. Each at 5 %, with
Holm's correction over these two. All else is a further look.

Stopping rule: seeds 0 to 5 of all variants, then the end; nothing is compared before that.

Explored before, and not part of it, one run each at seed 100: ten uniform rounds and then a rule
like `mastery`, which divides the second half in proportion to failures, ended at 42.3 %; 18 uniform
rounds at 33.3 %; six rounds of `mastery` and twelve uniform ones at 27.8 %; rules that give far
rows a part from the first design on at 28.1, 28.7, 33.5 and 34.5 %.
"""

from pathlib import Path

import ml_collections

from experiments.configs import sums_ladder
from experiments.study.variants import Study, Variant


def get_config() -> ml_collections.ConfigDict:
    """The long run on the ladder, with designs after its first ten rounds."""
    config = sums_ladder.get_config()
    config.model.path = str(Path(__file__).resolve().parents[1] / "climbing_ladder" / "model")
    config.engineer.start = "uniform"
    config.engineer.kept_rounds = 10
    config.loop.rounds = 18
    return config


STUDY = Study(
    question="Does designing pay in a long run if it begins after ten uniform rounds?",
    variants=(
        Variant("uniform", "fixed, uniform", {"engineer.designer": "fixed"}),
        Variant("current", "current checkpoint"),
        Variant("base", "base checkpoint", {"engineer.designer": "base"}),
        Variant("mastery", "mastery, a rule", {"engineer.designer": "mastery"}),
    ),
    reference="uniform",
    seeds=tuple(range(6)),
)
