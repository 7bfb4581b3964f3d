"""Pages from the templates of this package: what is not markup already is escaped."""

import json
from typing import Any

import jinja2

from experiments.records import DASH, estimate, interval, p_value
from experiments.report import style


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
    """A whole page that needs no other file.

    Args:
      template: its file in `templates`.
      **values: what the template shows.
    """
    return _TEMPLATES.get_template(template).render(values)


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("experiments.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    each.__name__: each for each in (percent, number, duration, estimate, p_value)
}
_TEMPLATES.filters["json"] = json.dumps
_TEMPLATES.globals |= {"DASH": DASH, "interval": interval, "style": style}
