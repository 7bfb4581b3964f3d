"""The fractions of a run's training sets beside published ones, to compare how they move."""

import itertools
import math
from collections.abc import Mapping, Sequence

from engineer.space import Configuration
from experiments.families import Family
from experiments.report.charts import Drawn, Gallery, Lines, Series


def fractions(
    family: Family, configs: Mapping[str, Configuration], gallery: Gallery
) -> list[Drawn]:
    """The fractions of a run and the published ones, if there are any, in charts of equal height.

    Args:
      family: of the run.
      configs: of the run by name of the round; without any, only the published ones are drawn.
      gallery: where the charts go.
    """
    published = family.published
    if published is None:
        return []
    label, parameter = family.texts.label, family.space.fraction_parameter
    own = {name: config.column(parameter) for name, config in configs.items()}
    top = math.ceil(10 * max(itertools.chain(*own.values(), *published.rounds.values()))) / 10

    def chart(
        name: str, title: str, rows: Sequence[str], rounds: Mapping[str, Sequence[float]]
    ) -> Lines:
        lines = (Series(who, rows, ys, look=i) for i, (who, ys) in enumerate(rounds.items()))
        return Lines(name, title, label, parameter, tuple(lines), y_range=(0, top))

    drawn = []
    if own:
        mine = chart(f"{parameter}s", "this run", family.space.rows, own)
        drawn.append(gallery.add(mine, "What every round asked for."))
    theirs = chart("fractions_published", published.title, published.rows, published.rounds)
    return [*drawn, gallery.add(theirs, published.remark)]
