"""What designs did with their evidence, as tables; the measures are `engineer.analysis`'s."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.records import DASH

MEASURES: Mapping[str, tuple[str, str]] = {
    key: (words["name"], words["meaning"])
    for key, words in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
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
