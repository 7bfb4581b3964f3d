"""All registered primary hypotheses of the studies, corrected over the whole programme.

Run it in the repository's root to print the table of docs/studies/README.md:

    PYTHONPATH=. python docs/studies/hypotheses.py
"""

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import scipy.stats

from experiments.statistics import holm, paired


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
)


def table() -> list[str]:
    """Returns the lines of a Markdown table, one for each primary hypothesis."""
    found = []
    for family in FAMILIES:
        path = Path(__file__).parent / family.study / "study.json.gz"
        study = json.loads(gzip.decompress(path.read_bytes()))
        labels = {variant["name"]: variant["label"] for variant in study["variants"]}
        values = {
            entry["variant"]: entry["values"]
            for entry in study["comparison"]
            if entry["metric"] == "valid_final"
        }
        results = [paired(values[one], values[other]) for one, other in family.comparisons]
        corrected = holm([result["p"] for result in results])
        tested = zip(family.comparisons, results, corrected, strict=True)
        for pair, result, p_study in itertools.islice(tested, family.primary):
            title = f"[{family.study}]({family.study}/README.md)"
            found.append((title, " minus ".join(labels[name] for name in pair), result, p_study))
    p_values = [result["p"] for _, _, result, _ in found]
    programme = zip(
        holm(p_values), scipy.stats.false_discovery_control(p_values, method="bh"), strict=True
    )
    lines = [
        "| study | hypothesis | points (95 %) | p | Holm, study | Holm, all | BH, all |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (title, hypothesis, result, p_study), (p_holm, p_bh) in zip(found, programme, strict=True):
        mean, low, high = (100 * result[end] for end in ("mean", "low", "high"))
        cells = (
            title,
            hypothesis,
            f"{mean:+.1f} ({low:+.1f} to {high:+.1f})",
            *(f"{p:.3f}" for p in (result["p"], p_study, p_holm, p_bh)),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
