"""What designs did with their evidence, as tables; the measures are `engineer.analysis`'s."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.records import DASH

MEASURES = {
    "failure_following": (
        "data follows failures",
        "Rank correlation over rows of the fraction of failed answers with the change of the data "
        "ratio. Near 1, data went where failures are.",
    ),
    "signal_following": (
        "data follows signal",
        "The same for p (1 - p), the variance of success. Near 1, data went where there is "
        "something to learn.",
    ),
    "followed": (
        "check followed most",
        "The check whose failures by row correlate most with the change of the data ratio; of "
        "equal ones, the first. It is the best of several checks over a few rows, so some check "
        "always fits.",
    ),
    "followed_correlation": ("its correlation", "Of the check above."),
    "fraction_moved": (
        "fraction of the set moved",
        "Half the sum of the absolute changes of the data ratios: 0 is no change, 1 is all of it.",
    ),
    "value_moved": (
        "mean change of other parameters",
        "Mean absolute change of all other parameters, in units of the width of their bounds.",
    ),
    "cells_changed": ("values changed", "Fraction of all values of the configuration."),
    "saturated_rows": ("saturated rows", "Rows with a valid rate of at least 90 %."),
    "saturated_shrunk": ("saturated rows reduced", "Fraction of them whose data ratio fell."),
    "hopeless_rows": ("hopeless rows", "Rows with a valid rate of at most 10 %."),
    "hopeless_eased": ("hopeless rows eased", "Fraction of them made easier or given less data."),
    "mistakes": (
        "earlier changes followed by a loss",
        "Values that the previous design changed in rows whose valid rate then fell.",
    ),
    "mistakes_reversed": (
        "such changes taken back",
        "Fraction of them that this design moves back.",
    ),
    "signal_before": (
        "expected signal before",
        "Sum over rows of the data ratio times 4 p (1 - p), with the previous data ratios.",
    ),
    "signal_after": ("expected signal after", "The same with the new data ratios."),
}
"""Name and meaning of the measures of `engineer.analysis.DesignAnalysis`."""
_OF_ONE = ("followed", "followed_correlation")
"""To be looked at design by design: as the best of several checks, their means say nothing."""


def of_designs(
    designs: Sequence[Mapping[str, Any]], failure: Callable[[str], str]
) -> list[tuple[str, ...]]:
    """A row for each measure with its value for each design.

    Args:
      designs: the fields of `DesignAnalysis`.
      failure: what to call failing a check.
    """

    def written(key: str, value: Any) -> str:
        if value is None:
            return DASH
        if key == "followed":
            return failure(value)
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    return [
        (name, *(written(key, found.get(key)) for found in designs))
        for key, (name, _) in MEASURES.items()
    ]


def of_variants(variants: Sequence[Sequence[Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """A row for each measure with its mean over the designs of each variant.

    How many designs a measure applies to stands in brackets where it is not all of them.
    """
    rows = [("designs", *(str(len(designs)) for designs in variants))]
    for key, (name, _) in MEASURES.items():
        cells = []
        for designs in variants if key not in _OF_ONE else ():
            known = [found[key] for found in designs if found.get(key) is not None]
            of = f" ({len(known)})" if len(known) < len(designs) else ""
            cells.append(f"{statistics.fmean(known):.2f}{of}" if known else DASH)
        if cells:
            rows.append((name, *cells))
    return rows
