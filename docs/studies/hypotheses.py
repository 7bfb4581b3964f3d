"""All registered primary hypotheses of the studies, corrected over the whole programme.

Run it in the repository's root to print the two tables of docs/studies/README.md, the hypotheses
and the further looks at the same runs:

    PYTHONPATH=. python docs/studies/hypotheses.py
"""

import functools
import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import scipy.stats

from experiments.statistics import LEVEL, holm, paired


class Family(NamedTuple):
    """Comparisons of `valid_final` that a registration corrects together, the primary ones first.

    Attributes:
      study: a folder beside this file.
      comparisons: pairs of variants, the first minus the second.
      primary: how many of them are hypotheses; the others only enter the study's correction.
    """

    study: str
    comparisons: Sequence[tuple[str, str]]
    primary: int


def _against(reference: str, variants: str) -> list[tuple[str, str]]:
    return [(variant, reference) for variant in variants.split()]


_SUMS = (
    "current fixed_uniform new_random failures learnability progress base staged dynamic oracle"
    " adversary trained shuffled"
)
FAMILIES = (
    Family("designers_sums", _against("fixed_random", _SUMS), 1),
    Family("instances_sums", _against("uniform", "instances replay redraw rows"), 2),
    Family("designers_ladder", _against("uniform", "hindsight current"), 2),
    Family(
        "controls_ladder",
        [("current", "random"), ("current", "base"), ("current", "shuffled")],
        3,
    ),
    Family(
        "learning_ladder",
        [("hindsight", "current"), ("hindsight", "uniform"), ("progress", "current")],
        3,
    ),
    Family("contexts_ladder", _against("uniform", "v6"), 1),
    Family("contexts_ladder", _against("v6", "v1 v2 v3 v4 v5 full"), 6),
    Family("fixed_ladder", [("learnability", "once"), ("learnability", "solvable")], 2),
    Family("climbing_ladder", [("current", "uniform"), ("current", "six")], 2),
    Family("late_ladder", _against("uniform", "current mastery"), 2),
    Family(
        "branch_sums",
        [("current", "uniform"), ("current", "shuffled"), ("current", "base")],
        3,
    ),
)

LAST, LAST_THREE, MEAN = "last", "last three", "over training"
LOOKS = (
    ("designers_ladder current", "designers_ladder uniform", (LAST_THREE, MEAN)),
    ("fixed_ladder once", "designers_ladder current", (LAST,)),
    ("fixed_ladder once", "designers_ladder hindsight", (LAST,)),
    ("fixed_ladder once", "controls_ladder base", (LAST,)),
    ("fixed_ladder solvable", "designers_ladder current", (LAST,)),
    ("fixed_ladder learnability", "fixed_ladder once", (LAST_THREE, MEAN)),
    ("learning_ladder hindsight", "learning_ladder uniform", (LAST_THREE, MEAN)),
    ("learning_ladder hindsight", "learning_ladder current", (LAST_THREE, MEAN)),
    ("climbing_ladder current", "climbing_ladder uniform", (LAST_THREE, MEAN)),
    ("late_ladder current", "late_ladder uniform", (LAST_THREE, MEAN)),
    ("late_ladder mastery", "late_ladder uniform", (LAST_THREE, MEAN)),
    ("late_ladder mastery", "late_ladder uniform", ("round 11",)),
    ("late_ladder base", "late_ladder uniform", ("round 11",)),
    ("late_ladder current", "late_ladder uniform", ("round 11",)),
    ("late_ladder current", "late_ladder base", ("round 11",)),
    ("late_ladder current", "late_ladder mastery", ("round 11",)),
)
TAUGHT = ("designers_sums", "controls_ladder", "climbing_ladder", "late_ladder")


@functools.cache
def _study(name: str) -> dict[str, Any]:
    return json.loads(
        gzip.decompress((Path(__file__).parent / name / "study.json.gz").read_bytes())
    )


def values(variant: str, measure: str = LAST) -> dict[int, float]:
    """The fraction of sampled validation answers that are valid, by seed.

    Args:
      variant: a study and the name of a variant, with a space between.
      measure: the last validation, the mean of the last three, the area under the curve over
        training steps, or "round N", the validation after that round, counted from 1. Of a study of
        branches the last one is the test one round after a branch, as a mean over branches.
    """
    study, name = variant.split()
    result = {}
    for run in _study(study)["runs"]:
        if run["variant"] == name and "branches" in run:
            assert measure == LAST
            tests = [one["test"] for one in run["branches"] if one["horizon"] == 1]
            result[run["seed"]] = float(np.mean([one["valid"] / one["answers"] for one in tests]))
        elif run["variant"] == name:
            points = run["points"]
            valid = np.array([point["valid"] / point["answers"] for point in points])
            steps = np.array([point["steps"] for point in points])
            result[run["seed"]] = float(
                np.trapezoid(valid, steps) / (steps[-1] - steps[0])
                if measure == MEAN
                else valid[-3:].mean()
                if measure == LAST_THREE
                else valid[-1 if measure == LAST else int(measure.split()[1])]
            )
    return result


def _label(variant: str) -> str:
    study, name = variant.split()
    return next(v["label"] for v in _study(study)["variants"] if v["name"] == name)


def _points(result: dict[str, Any]) -> str:
    mean, low, high = (100 * result[end] for end in ("mean", "low", "high"))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def _table(*lines: Sequence[str]) -> list[str]:
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    return [head, "| --- " * len(lines[0]) + "|", *body]


def _link(study: str) -> str:
    return f"[{study}]({study}/README.md)"


def hypotheses() -> list[str]:
    """Returns the lines of a Markdown table, one for each primary hypothesis."""
    found = []
    for study, comparisons, primary in FAMILIES:
        pairs = [(f"{study} {one}", f"{study} {other}") for one, other in comparisons]
        results = [paired(values(one), values(other)) for one, other in pairs]
        corrected = holm([result["p"] for result in results])
        tested = zip(pairs, results, corrected, strict=True)
        for pair, result, p_study in itertools.islice(tested, primary):
            found.append((_link(study), " minus ".join(map(_label, pair)), result, p_study))
    p_values = [result["p"] for _, _, result, _ in found]
    over_all = zip(
        holm(p_values), scipy.stats.false_discovery_control(p_values, method="bh"), strict=True
    )
    return _table(
        ("study", "hypothesis", "points (95 %)", "p", "Holm, study", "Holm, all", "BH, all"),
        *(
            (study, name, _points(result), *(f"{p:.3f}" for p in (result["p"], p_study, *p_all)))
            for (study, name, result, p_study), p_all in zip(found, over_all, strict=True)
        ),
    )


def further_looks() -> list[str]:
    """Returns the lines of a Markdown table of differences that nobody registered."""
    found = []
    for one, other, measures in LOOKS:
        studies = dict.fromkeys(variant.split()[0] for variant in (one, other))
        for measure in measures:
            result = paired(values(one, measure), values(other, measure))
            names = f"{_label(one)} minus {_label(other)}"
            found.append((", ".join(map(_link, studies)), names, measure, _points(result)))
    for measure in (LAST, LAST_THREE, MEAN):
        found.append(("pooled over four", "current minus base", measure, _points(pooled(measure))))
    return _table(("study", "difference", "validation", "points (95 %)"), *found)


def pooled(measure: str) -> dict[str, float]:
    """Current minus base checkpoint over `TAUGHT`, weighted by inverse squared standard errors."""
    means, weights = [], []
    for study in TAUGHT:
        result = paired(values(f"{study} current", measure), values(f"{study} base", measure))
        differences = np.array(list(result["values"].values()))
        means.append(differences.mean())
        weights.append(len(differences) / differences.var(ddof=1))
    mean = float(np.average(means, weights=weights))
    half = float(scipy.special.ndtri((1 + LEVEL) / 2) / np.sqrt(np.sum(weights)))
    return {"mean": mean, "low": mean - half, "high": mean + half}


if __name__ == "__main__":
    print("\n".join([*hypotheses(), "", *further_looks()]))
