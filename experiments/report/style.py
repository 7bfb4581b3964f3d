"""The palette of pages and charts, from `style.yaml`."""

import dataclasses
from pathlib import Path

import yaml


@dataclasses.dataclass(frozen=True)
class Look:
    """The look of a line, which differs from other lines by more than its colour.

    Attributes:
      light: colour on white, as in the PNG files.
      dark: colour on a dark page.
      marker: Matplotlib's name of the marker.
      dashes: lengths of strokes and gaps in line widths; empty for a solid line.
    """

    light: str
    dark: str
    marker: str
    dashes: tuple[float, ...]


_PALETTE = yaml.safe_load(Path(__file__).with_name("style.yaml").read_text(encoding="utf-8"))
LOOKS = tuple(
    Look(light, dark, marker, tuple(dashes)) for light, dark, marker, dashes in _PALETTE["looks"]
)
LIGHT: dict[str, str] = _PALETTE["light"]
DARK: dict[str, str] = _PALETTE["dark"]


def look(index: int | None) -> Look:
    """The look of line `index`; None is for a total or a reference.

    Indices past the last colour repeat the colours with other shapes.
    """
    if index is None:
        return Look(LIGHT["ink"], DARK["ink"], "o", ())
    colour = LOOKS[index % len(LOOKS)]
    shape = LOOKS[(index + index // len(LOOKS)) % len(LOOKS)]
    return dataclasses.replace(colour, marker=shape.marker, dashes=shape.dashes)


def page_colours() -> dict[str, str]:
    """The name of the page's variable for each colour of the charts."""
    return {LIGHT[name]: name for name in ("ink", "grid")} | {
        each.light: f"c{i}" for i, each in enumerate(LOOKS)
    }
