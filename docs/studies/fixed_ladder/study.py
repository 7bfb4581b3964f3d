"""Is it adapting that helps on the ladder, or only leaving out what is never solved? Four variants.

Written down before it was run.

Question: on `sums_ladder` the rule `learnability` ends 5.8 points above a uniform set. Part of that
could be had without designing: by a set that leaves out the seven rows that no run solves. Does a
set that follows the outcomes, round by round, end better than a good one that is kept?

Regime: `experiments/configs/sums_ladder.py`, as in `designers_ladder`. All budgets are equal.

- `solvable`: a third each of the sums of 3, 4 and 5 digits, the three rows of which the model
  solves any before training. Kept for all rounds, the first included.
- `once`: what `learnability` designs from the valid rates before training (.80, .41, .09, and 0 for
  the other seven rows, by the model's card), kept for all rounds.
- `learnability`: begins with a uniform set as in `designers_ladder` and designs five times.
- `uniform`: the reference.

`solvable` and `once` know from the start what `learnability` sees after its first round only, which
is to their advantage.

Measure: `valid_final`, the fraction of sampled validation answers that are valid after the last
round.

Tests: paired by seed, Student's 95 % intervals and paired t-tests. First hypothesis: `learnability`
minus `once` is above zero: adapting is worth something. Second: `learnability` minus `solvable` is
above zero. Each at 5 %, with Holm's correction over these two. All else is a further look.

Stopping rule: seeds 0 to 7 of all variants, then the end; nothing is compared before that.

Explored before: runs of `uniform` and `learnability` are those of `designers_ladder`, made again.
The two others have never been run.
"""

from pathlib import Path

from experiments.configs.sums_ladder import get_config as get_config
from experiments.study.variants import Study, Variant


def _kept(start: str) -> dict[str, str]:
    return {"engineer.designer": "fixed", "engineer.start": start}


_FOLDER = Path(__file__).resolve().parent

STUDY = Study(
    question="Does a training set that adapts beat a good one that is kept?",
    variants=(
        Variant("uniform", "fixed, uniform", _kept("uniform")),
        Variant("solvable", "fixed, 3 to 5 digits", _kept(str(_FOLDER / "solvable.yaml"))),
        Variant("once", "learnability, once", _kept(str(_FOLDER / "once.yaml"))),
        Variant(
            "learnability",
            "learnability",
            {"engineer.designer": "learnability", "engineer.start": "uniform"},
        ),
    ),
    reference="uniform",
    seeds=tuple(range(8)),
)
