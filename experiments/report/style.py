"""How pages and charts look: one palette for light and dark, one style sheet."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Look:
    """How one of several lines or agents is told from the others, by more than its colour.

    Attributes:
      light: colour on white, as in the PNG files.
      dark: colour on a dark page.
      marker: Matplotlib's name of the marker.
      dashes: lengths of strokes and gaps in line widths; empty is a whole line.
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


def look(index: int) -> Look:
    """The look of the line of that number; beyond the colours the shapes are other ones."""
    colour = LOOKS[index % len(LOOKS)]
    shape = LOOKS[(index + index // len(LOOKS)) % len(LOOKS)]
    return dataclasses.replace(colour, marker=shape.marker, dashes=shape.dashes)


INK, GRID, PAPER, BAD = "#1b2733", "#d3dae1", "#ffffff", "#c4002a"
_DARK_INK, _DARK_GRID, _DARK_PAPER, _DARK_BAD = "#e3e8ed", "#39434e", "#12171c", "#ff6b81"


def _variables(dark: bool) -> str:
    looks = " ".join(f"--c{i}: {x.dark if dark else x.light};" for i, x in enumerate(LOOKS))
    ink, grid = (_DARK_INK, _DARK_GRID) if dark else (INK, GRID)
    paper, bad = (_DARK_PAPER, _DARK_BAD) if dark else (PAPER, BAD)
    soft, panel = ("#a3afba", "#1a2129") if dark else ("#55636f", "#f4f6f8")
    ice, hole = ("#1d2b38", "#7d8b99") if dark else ("#edf4f9", "#27384a")
    return (
        f"--ink: {ink}; --grid: {grid}; --paper: {paper}; --bad: {bad}; --soft: {soft}; "
        f"--panel: {panel}; --ice: {ice}; --hole: {hole}; {looks}"
    )


STYLE = f"""
:root {{ color-scheme: light dark; {_variables(dark=False)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(dark=True)} }} }}
@media print {{ :root {{ color-scheme: light; {_variables(dark=False)} }} }}
""" + (
    """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 76rem; margin: 0 auto; padding: 1rem clamp(1rem, 3vw, 2.5rem) 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 1rem 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 3rem 0 .8rem; padding-bottom: .25rem;
     border-bottom: 2px solid var(--grid); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
p, ul, dl { max-width: 46rem; } ul { padding-left: 1.3rem; } li { margin: .25rem 0; }
a { color: var(--c0); }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
.note, .remark, figcaption { color: var(--soft); font-size: .875rem; line-height: 1.45; }
nav ol { display: flex; flex-wrap: wrap; gap: .2rem 1.3rem; padding: .7rem 0; margin: 1.2rem 0 0;
         list-style: none; border-block: 1px solid var(--grid); }
nav a { text-decoration: none; } nav a:hover { text-decoration: underline; }
.tiles { display: grid; gap: .8rem; margin: 1.2rem 0;
         grid-template-columns: repeat(auto-fit, minmax(min(100%, 10.5rem), 1fr)); }
.tile { background: var(--panel); border-radius: 8px; padding: .7rem .9rem; }
.tile .name { font-size: .875rem; color: var(--soft); }
.tile .figure { font-size: 1.45rem; font-weight: 600; line-height: 1.3;
                overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.charts, .lakes { display: grid; gap: 1.4rem; align-items: start; margin: 1rem 0;
                  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.lakes { grid-template-columns: repeat(auto-fill, minmax(min(100%, 16rem), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { margin-top: .3rem; }
figure b { color: var(--ink); }
svg { display: block; width: 100%; height: auto; }
svg.chart { color: var(--ink); max-width: 34rem; }
svg.chart * { stroke-linejoin: round; stroke-linecap: butt; }
svg.lake { max-width: 22rem; }
.scroll { overflow-x: auto; margin: .8rem 0; border: 1px solid var(--grid); border-radius: 6px;
          max-width: max-content; }
.scroll:focus-visible { outline: 2px solid var(--c0); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9375rem; }
th, td { padding: .35rem .65rem; border-bottom: 1px solid var(--grid); text-align: right;
         vertical-align: top; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { background: var(--panel); font-weight: 600; vertical-align: bottom; }
.numbers td, .numbers tbody th { white-space: nowrap; }
tbody th { text-align: left; font-weight: 500; position: sticky; left: 0;
           background: var(--paper); }
thead th:first-child { text-align: left; position: sticky; left: 0; }
table.text td { text-align: left; overflow-wrap: break-word; max-width: 44rem; }
td ul { margin: 0; padding-left: 1.1rem; } td code { overflow-wrap: normal; }
table.text thead th { text-align: left; }
table.text tbody th { max-width: 16rem; }
td.heat { background: color-mix(in srgb, var(--c1) calc(min(var(--heat), .6) * 90%), transparent); }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--c0); }
pre { font: .8125rem/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
      background: var(--panel); border-radius: 6px; padding: .7rem .9rem; margin: .5rem 0;
      max-height: 32rem; overflow-y: auto; }
.design { border: 1px solid var(--grid); border-radius: 8px; padding: .2rem 1.1rem .8rem;
          min-width: 0; }
.designs { display: grid; gap: 1.2rem; align-items: start; margin: 1rem 0;
           grid-template-columns: repeat(auto-fill, minmax(min(100%, 32rem), 1fr)); }
.design h3 { margin-top: .8rem; }
.pause { display: inline-block; margin: .4rem 0; cursor: pointer; }
body:has(#pause:checked) .moving { animation-play-state: paused !important; }
@media (prefers-reduced-motion: reduce) {
  html { scroll-behavior: auto; } .moving { animation: none !important; } .pause { display: none; }
}
@media (max-width: 30rem) {
  th, td { padding: .3rem .5rem; } .numbers { font-size: .875rem; }
  .numbers tbody th { white-space: normal; max-width: 8.5rem; }
  .design { padding-inline: .7rem; } .design :is(th, td) { padding-inline: .3rem; }
}
@media print {
  body { font-size: 10pt; max-width: none; padding: 0; }
  nav, .pause { display: none; }
  .moving { animation: none !important; }
  h2, h3 { break-after: avoid; }
  figure, .tile, tr { break-inside: avoid; }
  .design { break-inside: avoid; }
  .charts { grid-template-columns: repeat(2, 1fr); }
  .lakes { grid-template-columns: repeat(3, 1fr); }
  .tiles { grid-template-columns: repeat(4, 1fr); }
  .scroll { overflow: visible; max-width: none; border: 0; }
  .numbers td, .numbers tbody th { white-space: normal; }
  table { font-size: 8pt; } th, td { padding: .2rem .35rem; }
  tbody th, thead th:first-child { position: static; }
  pre { max-height: none; overflow: visible; font-size: 7pt; }
}
"""
)
