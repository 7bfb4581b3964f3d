"""What designs did with their evidence, in a table; the measures are `engineer.analysis`'s."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.page import DASH, Html, fold, join, paragraph, table
from experiments.report.reading import failure

MEASURES = {
    "failure_following": (
        "shares follow failures",
        "Rank correlation over lake sizes of the share of failed answers with the change of the "
        "data share: near 1, data went where failures are.",
    ),
    "signal_following": (
        "shares follow signal",
        "The same for p (1 - p), the variance of success: near 1, data went where there is "
        "something to learn.",
    ),
    "followed": (
        "check followed most",
        "The check whose failures by size correlate most with the change of the data share, the "
        "first of equal ones. The best of eight over a few sizes: some check always fits.",
    ),
    "followed_correlation": ("its correlation", "Of the check above."),
    "fraction_moved": (
        "part of the set moved",
        "Half the sum of the absolute changes of the data shares: 0 is no change, 1 is all of it.",
    ),
    "value_moved": (
        "mean change of holes and waits",
        "Mean absolute change of the other ratios, in units of the width of their bounds.",
    ),
    "cells_changed": ("numbers changed", "Share of all numbers of the configuration that changed."),
    "saturated_rows": ("saturated sizes", "Sizes with a valid rate of at least 90 %."),
    "saturated_shrunk": ("of those given less", "Share of them whose data share fell."),
    "hopeless_rows": ("hopeless sizes", "Sizes with a valid rate of at most 10 %."),
    "hopeless_eased": (
        "of those backed off",
        "Share of them that got easier lakes or less data.",
    ),
    "mistakes": (
        "earlier changes followed by a loss",
        "Numbers that the design before changed, of sizes whose valid rate then fell.",
    ),
    "mistakes_reversed": ("of those taken back", "Share of them that this design moves back."),
    "signal_before": (
        "expected signal before",
        "Sum over sizes of data share times 4 p (1 - p), with the previous shares.",
    ),
    "signal_after": ("expected signal after", "The same with the new shares."),
}
"""Name and meaning of the measures of `engineer.analysis.DesignAnalysis`."""
_OF_ONE = ("followed", "followed_correlation")
"""To be looked at design by design: as the best of several checks, their means say nothing."""


def of_designs(designs: Mapping[str, Mapping[str, Any]]) -> Html:
    """A table with one column for each design, and what the measures mean.

    Args:
      designs: the fields of `DesignAnalysis` by the name of the design.
    """
    rows = [
        (name, *(_written(key, found.get(key)) for found in designs.values()))
        for key, (name, _) in MEASURES.items()
    ]
    return join([table("Measures of the designs", ("measure", *designs), rows), _MEANINGS])


def of_variants(variants: Mapping[str, Sequence[Mapping[str, Any]]]) -> Html:
    """A table with one column for each variant: means over those designs that a measure applies to.

    How many these are stands in brackets where they are not all.

    Args:
      variants: the fields of `DesignAnalysis` of every design, by the name of the variant.
    """
    rows = []
    for key, (name, _) in MEASURES.items():
        if key in _OF_ONE:
            continue
        cells = []
        for designs in variants.values():
            known = [found[key] for found in designs if found.get(key) is not None]
            if not known:
                cells.append(DASH)
            else:
                of = f" ({len(known)})" if len(known) < len(designs) else ""
                cells.append(f"{statistics.fmean(known):.2f}{of}")
        rows.append((name, *cells))
    rows.insert(0, ("designs", *(str(len(designs)) for designs in variants.values())))
    remark = paragraph(
        "Means over the designs of a variant; in brackets over how many, where a measure does not "
        "apply to all. Rank correlations over a few sizes are large by chance for any one design: "
        "only their means over many say something, and those of a variant that draws at random show "
        "what chance makes of them.",
        class_="note",
    )
    made = table("Measures of the designs, means by variant", ("measure", *variants), rows)
    return join([made, remark, _MEANINGS])


def _written(key: str, value: Any) -> str:
    if value is None:
        return DASH
    if key == "followed":
        return failure(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


_MEANINGS = fold(
    "What these measures are",
    table("Measures", ("measure", "meaning"), list(MEASURES.values()), text=True),
)
