"""What designs did with their evidence, in a table; the measures are `engineer.analysis`'s."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.page import DASH, Html, fold, join, table

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
        "The check whose failures by size correlate most with the change of the data share.",
    ),
    "followed_correlation": ("its correlation", "Of the check above."),
    "share_moved": (
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


def of_designs(designs: Mapping[str, Mapping[str, Any]]) -> Html:
    """A table with one column for each design, and what the measures mean.

    Args:
      designs: the fields of `DesignAnalysis` by the name of the design.
    """
    rows = [
        (name, *(_written(found.get(key)) for found in designs.values()))
        for key, (name, _) in MEASURES.items()
    ]
    return join([table("Measures of the designs", ("measure", *designs), rows), _MEANINGS])


def of_arms(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> Html:
    """A table with one column for each arm: means over those designs that a measure applies to.

    Args:
      arms: the fields of `DesignAnalysis` of every design, by the name of the arm.
    """
    rows = []
    for key, (name, _) in MEASURES.items():
        cells = []
        for designs in arms.values():
            known = [found[key] for found in designs if found.get(key) is not None]
            if not known:
                cells.append(DASH)
            elif key == "followed":
                check, count = Counter(known).most_common(1)[0]
                cells.append(f"{_written(check)} ({count} of {len(known)})")
            else:
                of = f" (of {len(known)})" if len(known) < len(designs) else ""
                cells.append(f"{statistics.fmean(known):.2f}{of}")
        rows.append((name, *cells))
    header = ("measure", *(f"{arm} ({len(designs)} designs)" for arm, designs in arms.items()))
    return join([table("Measures of the designs, means by arm", header, rows), _MEANINGS])


def _written(value: Any) -> str:
    if value is None:
        return DASH
    return f"{value:.2f}" if isinstance(value, float) else str(value).replace("_", " ")


_MEANINGS = fold(
    "What these measures are",
    table("Measures", ("measure", "meaning"), list(MEASURES.values()), text=True),
)
