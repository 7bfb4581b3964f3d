"""Charts, each drawn once and written as a PNG file, as SVG for the page and as numbers."""

import dataclasses
import io
import itertools
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from experiments.measurements import Table
from experiments.report import style
from experiments.run import store as files

_WIDTH = 4.3  # Inches; at this width the text is readable on a phone.
_STYLE = Path(__file__).with_name("chart.mplstyle")
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclasses.dataclass(frozen=True)
class Series:
    """A line of a chart, or an estimate with the values behind it.

    Attributes:
      name: in the legend.
      x: positions: numbers, or names in order.
      y: values; None breaks the line.
      low: lower ends of intervals around `y`, if any.
      high: their upper ends.
      look: index of its `style.look`; None for a total or a reference.
      faint: for a series that accompanies another one: "-" draws a thin line, "o" rings.
      in_legend: whether the legend has a faint series; it has all others.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    look: int | None = 0
    faint: str = ""
    in_legend: bool = False


@dataclasses.dataclass(frozen=True)
class Lines:
    """Lines over a common axis.

    Attributes:
      name: of its files; letters, digits, hyphens and underscores.
      title: what it shows.
      x_label: name of the horizontal axis.
      y_label: name of the vertical axis, with its unit.
      series: the lines.
      y_range: (low, high) of the vertical axis; chosen by the data if None.
      begins: positions of vertical dotted lines, such as the beginnings of rounds.
      markers: mark every point, for lines of few points.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    y_range: tuple[float, float] | None = None
    begins: Sequence[float] = ()
    markers: bool = True

    def table(self) -> Table:
        """The numbers of the chart, point by point."""
        points = [
            (line.name, *point)
            for line in self.series
            for point in itertools.zip_longest(line.x, line.y, line.low, line.high)
        ]
        return Table(self.title, ("series", self.x_label, self.y_label, "low", "high"), points)

    def draw(self) -> Any:
        """A Matplotlib figure."""
        named = [line for line in self.series if line.in_legend or not line.faint]
        columns = _legend_columns([line.name for line in named])
        legend_lines = math.ceil(len(named) / columns) if len(named) > 1 else 0
        figure, axes = _axes(2.75 + 0.19 * legend_lines)
        self._draw_begins(axes, 0.8)
        names = list(dict.fromkeys(x for line in self.series for x in line.x if isinstance(x, str)))
        for line in self.series:
            x = [names.index(x) if isinstance(x, str) else x for x in line.x]
            self._draw_line(axes, x, line)
        if names:
            axes.set_xticks(range(len(names)), names)
            axes.set_xlim(-0.25, len(names) - 0.75)
        else:
            axes.xaxis.get_major_locator().set_params(integer=True, steps=[1, 2, 5, 10])
        axes.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label, ylim=self._limits())
        if legend_lines:
            figure.legend(loc="outside lower center", ncols=columns)
        return figure

    def _draw_begins(self, axes: Any, width: float) -> None:
        for begin in self.begins:
            axes.axvline(begin, color=style.LIGHT["ink"], linewidth=width, linestyle=":")

    def _limits(self) -> tuple[float, float] | None:
        """The limits of the axis of `y`, with a margin that keeps points at its ends whole."""
        if self.y_range is None:
            return None
        low, high = self.y_range
        reach = 0.03 * (high - low)
        return low - reach, high + reach

    def _draw_line(self, axes: Any, x: Sequence[float], line: Series) -> None:
        y, low, high = (np.array(values, float) for values in (line.y, line.low, line.high))
        look = style.look(line.look)
        if line.faint:
            rings = {"fillstyle": "none", "markersize": 10}
            name = line.name if line.in_legend else None
            axes.plot(
                x, y, line.faint, color=look.light, linewidth=0.7, alpha=0.6, label=name, **rings
            )
            return
        axes.plot(
            x,
            y,
            color=look.light,
            marker=look.marker if self.markers else None,
            markeredgewidth=0,
            dashes=look.dashes,
            linewidth=2.6 if line.look is None else None,
            label=line.name,
        )
        if line.low:
            axes.vlines(x, low, high, color=look.light, linewidth=1.2)


class Estimates(Lines):
    """Estimates with intervals, one below the other, over the axis of `y`.

    The first point of each series is the estimate; the others are the values behind it, by name.
    """

    def draw(self) -> Any:
        """A Matplotlib figure."""
        figure, axes = _axes(1.0 + 0.36 * len(self.series))
        self._draw_begins(axes, 1.0)
        for place, series in enumerate(self.series):
            look = style.look(series.look)
            value, *points = series.y
            dots = {"marker": "o", "markersize": 3, "markeredgewidth": 0, "alpha": 0.7}
            heights = [place + 0.22] * len(points)
            axes.plot(points, heights, linestyle="", color=look.light, **dots)
            ends = np.array([*series.low, *series.high], float)
            if np.isfinite(ends).all():
                axes.hlines(place, *ends, color=look.light, linewidth=2.2)
            if value is not None:
                axes.plot([value], [place], marker=look.marker, color=look.light, markersize=7)
        names = [textwrap.fill(series.name, 24) for series in self.series]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set(title=self.title, xlabel=self.y_label, xlim=self._limits())
        return figure


def on_one_scale(charts: Sequence[Lines]) -> list[Lines]:
    """The charts with one `y_range` per unit, which shows all values, for small multiples."""
    shown: dict[str, list[float]] = {chart.y_label: [] for chart in charts}
    for chart in charts:
        ends = (end for one in chart.series for end in (*one.y, *one.low, *one.high))
        begins = chart.begins if isinstance(chart, Estimates) else ()
        shown[chart.y_label] += [end for end in (*ends, *begins) if end is not None]
    ranges = {unit: (min(s), max(s)) if len(set(s)) > 1 else None for unit, s in shown.items()}
    return [dataclasses.replace(chart, y_range=ranges[chart.y_label]) for chart in charts]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A chart as part of a page.

    Attributes:
      svg: with the light colours, which the style of the page replaces.
      label: description for screen readers.
    """

    svg: Markup
    label: str


class Gallery:
    """The charts of a page and their files below a folder.

    Args:
      root: the folder; pictures go to `figures`, numbers to `data`.

    Attributes:
      names: names of the charts so far.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.names: list[str] = []

    def add(self, chart: Lines) -> Drawn:
        """Draws a chart, whose name must be unique on the page, and writes its files."""
        if chart.name in self.names:
            raise ValueError(f"name={chart.name!r}: another chart has it")
        self.names.append(chart.name)
        import matplotlib

        with matplotlib.rc_context({"svg.hashsalt": chart.name}, fname=_STYLE):
            figure = chart.draw()
            picture, drawing = io.BytesIO(), io.StringIO()
            figure.savefig(picture, format="png", dpi=160, facecolor=style.LIGHT["paper"])
            figure.set_layout_engine("none")  # All is in its place.
            # Identifiers must be unique on the page.
            for place, artist in enumerate(figure.findobj()):
                artist.set_gid(f"{chart.name}-{place}")
            figure.savefig(drawing, format="svg", transparent=True, metadata=_NO_METADATA)
        path = self._root / "figures" / f"{chart.name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.getvalue())
        table = chart.table()
        files.write_file(self._root / "data" / f"{chart.name}.csv", table.to_csv())
        _, tag, content = drawing.getvalue().partition("<svg")
        names = ", ".join(dict.fromkeys(line[0] for line in table.lines))
        return Drawn(Markup(tag + content), f"{chart.title}, {table.columns[2]}: {names}")


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and up to `window` - 1 values before it."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(sums))
    begins = np.maximum(ends - window, 0)
    return ((sums[ends] - sums[begins]) / (ends - begins)).tolist()


def _axes(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _legend_columns(names: Sequence[str]) -> int:
    longest = max((len(name) for name in names), default=0)
    most = max(1, int(66 / (longest + 9)))
    lines = math.ceil(len(names) / most)
    return math.ceil(len(names) / max(lines, 1))
