"""The shares of lake sizes beside those that the publication prints, for the look of them."""

import math
from collections.abc import Sequence

from engineer.space import Configuration
from experiments import published
from experiments.report.charts import Gallery, Lines, Series
from experiments.report.page import Html, charts, heading, paragraph

REMARK = (
    "Beside each other only to compare how designs move: model, lake sizes and training are not "
    "the same."
)


def chart(gallery: Gallery, top: float) -> Html:
    """The published shares by lake size, marked as those of another model.

    Args:
      gallery: where the chart goes.
      top: upper end of the axis.
    """
    found = published.tables()["data_ratio_chosen"]
    return gallery.add(
        _lines("fractions_published", "published: another model, other sizes", _published(), top),
        f"What Qwen3-4B chose with context {found['context']} ({published.SOURCE}). Its "
        "configuration of round 0 was drawn at random and is not printed; the shares printed for "
        "round 2 sum to 1.005.",
    )


def _published() -> list[tuple[str, Sequence[str], Sequence[float]]]:
    found = published.tables()["data_ratio_chosen"]
    return [(f"round {i}", found["sizes"], found[f"for_round_{i}"]) for i in (1, 2)]


def beside(named: Sequence[tuple[str, Configuration]], gallery: Gallery) -> list[Html]:
    """The shares of a run by lake size and the published ones, in two charts of equal height.

    Args:
      named: (name, configuration) in order, with equal rows.
      gallery: where the charts go.
    """
    lines = [(name, config.rows, config.column("data_ratio")) for name, config in named]
    highest = max(share for _, _, shares in lines for share in shares)
    printed = max(share for _, _, shares in _published() for share in shares)
    top = math.ceil(10 * max(highest, printed)) / 10
    return [
        heading("Shares by lake size, beside the published ones"),
        charts(
            gallery.add(_lines("shares", "this run", lines, top), "What every round asked for."),
            chart(gallery, top),
        ),
        paragraph(REMARK, class_="note"),
    ]


def _lines(
    name: str,
    title: str,
    lines: Sequence[tuple[str, Sequence[str], Sequence[float]]],
    top: float,
) -> Lines:
    sizes = [float(size) for size in lines[0][1]]
    return Lines(
        name,
        title,
        "Share of the training set by lake size, one line for each round.",
        "lake size",
        "data_ratio",
        tuple(Series(who, sizes, shares, look=i) for i, (who, _, shares) in enumerate(lines)),
        {size: f"{size:g}" for size in sizes},
        (0, top),
    )
