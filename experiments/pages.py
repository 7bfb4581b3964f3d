"""Pages and paragraphs from `templates`; in HTML what is not markup already is escaped."""

import json
from typing import Any

import jinja2

from engineer.analysis import MEASURES
from experiments.records import DASH, cell, estimate, interval, p_value


def percent(fraction: float | None) -> str:
    """A fraction in percent; a dash if there is none."""
    return DASH if fraction is None else f"{100 * fraction:.1f}%"


def number(value: float | None, digits: int = 2) -> str:
    """A number with separated thousands; a dash if there is none."""
    return DASH if value is None else f"{value:,.{digits}f}"


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def render(template: str, **values: Any) -> str:
    """A whole page.

    Args:
      template: its file in `templates`.
      **values: what the template shows.
    """
    return _TEMPLATES.get_template(template).render(values)


def paragraphs(template: str, **values: Any) -> list[str]:
    """The paragraphs of a template, each on a line of its own; arguments as of `render`."""
    return [
        " ".join(text.split()) for text in render(template, **values).split("\n\n") if text.strip()
    ]


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("experiments"),
    autoescape=jinja2.select_autoescape(),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {
    each.__name__: each for each in (percent, number, duration, cell, estimate, p_value)
}
_TEMPLATES.filters |= {"json": json.dumps, "g": "{:g}".format}
_TEMPLATES.globals |= {"DASH": DASH, "MEASURES": MEASURES, "interval": interval}
