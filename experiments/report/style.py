"""One palette for pages and charts, light and dark; the layout is in `templates/style.css`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Look:
    """What sets one of several lines apart from the others, by more than its colour.

    Attributes:
      light: colour on white, as in the PNG files.
      dark: colour on a dark page.
      marker: Matplotlib's name of the marker.
      dashes: lengths of strokes and gaps in line widths; empty for a solid line.
    """

    light: str
    dark: str
    marker: str
    dashes: tuple[float, ...] = ()


LOOKS = (
    Look("#1f39c4", "#3b79ff", "o"),
    Look("#af3812", "#ff8617", "s", (5, 1.5)),
    Look("#00825e", "#52f1a3", "D", (1.5, 1.2)),
    Look("#d66eb5", "#f092ec", "^", (6, 1.5, 1.5, 1.5)),
    Look("#451709", "#937f44", "v", (3, 1.2)),
    Look("#2a98f2", "#cbf9ff", "P", (8, 2)),
    Look("#26224b", "#6f8589", "X", (3, 1.2, 1, 1.2)),
    Look("#9b9800", "#fffa1c", "*", (1, 2)),
)
"""Eight colours in the spirit of Okabe and Ito's ("Color universal design", 2008), but each with a
contrast of at least 3 to 1 with the page, on white and on dark. Found by search: for any of the
common kinds of colour vision (after Machado, Oliveira and Fernandes, 2009) no two of them are
nearer than 20 units of CIELAB."""

LIGHT = {
    "ink": "#1b2733",
    "grid": "#d3dae1",
    "paper": "#ffffff",
    "bad": "#c4002a",
    "soft": "#55636f",
    "panel": "#f4f6f8",
}
DARK = {
    "ink": "#e3e8ed",
    "grid": "#39434e",
    "paper": "#12171c",
    "bad": "#ff6b81",
    "soft": "#a3afba",
    "panel": "#1a2129",
}


def look(index: int) -> Look:
    """The look of the line of that number; beyond the colours the shapes are other ones."""
    colour = LOOKS[index % len(LOOKS)]
    shape = LOOKS[(index + index // len(LOOKS)) % len(LOOKS)]
    return dataclasses.replace(colour, marker=shape.marker, dashes=shape.dashes)


def page_colours() -> dict[str, str]:
    """The variable of a page for each colour that charts are drawn in."""
    return {LIGHT[name]: name for name in ("ink", "grid")} | {
        each.light: f"c{i}" for i, each in enumerate(LOOKS)
    }
