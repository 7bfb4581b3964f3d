"""The data ratios of a run beside those that the publication prints, to compare how they move."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engineer.space import Configuration
from experiments import published
from experiments.report.charts import Drawn, Gallery, Lines, Series

Row = tuple[str, Sequence[str], Sequence[float]]
"""(name of a line, names of the rows, data ratios)."""


def comparable(settings: Mapping[str, Any]) -> bool:
    """Whether a run's family is the one that the publication is about."""
    return settings.get("family") == "lakes"


def chart(gallery: Gallery, top: float) -> Drawn:
    """The published data ratios, marked as those of another model; `top` ends the axis."""
    found = published.tables()["data_ratio_chosen"]
    return gallery.add(
        _lines("fractions_published", "published: another model, other sizes", _published(), top),
        f"What Qwen3-4B chose with context {found['context']} ({published.SOURCE}). Its "
        "configuration of round 0 was drawn at random and is not printed; the ratios printed for "
        "round 2 sum to 1.005.",
    )


def beside(named: Sequence[tuple[str, Configuration]], gallery: Gallery) -> list[Drawn]:
    """The data ratios of a run and the published ones, in two charts of equal height.

    Args:
      named: (name, configuration) in order, with equal rows.
      gallery: where the charts go.
    """
    lines = [(name, config.rows, config.column("data_ratio")) for name, config in named]
    highest = max(ratio for _, _, ratios in (*lines, *_published()) for ratio in ratios)
    top = math.ceil(10 * highest) / 10
    drawn = _lines("data_ratios", "this run", lines, top)
    return [gallery.add(drawn, "What every round asked for."), chart(gallery, top)]


def _published() -> list[Row]:
    found = published.tables()["data_ratio_chosen"]
    return [(f"round {i}", found["sizes"], found[f"for_round_{i}"]) for i in (1, 2)]


def _lines(name: str, title: str, lines: Sequence[Row], top: float) -> Lines:
    sizes = [float(size) for size in lines[0][1]]
    return Lines(
        name,
        title,
        "Fraction of the training set by size, one line for each round.",
        "size",
        "data_ratio",
        tuple(Series(who, sizes, ratios, look=i) for i, (who, _, ratios) in enumerate(lines)),
        {size: f"{size:g}" for size in sizes},
        (0, top),
    )
