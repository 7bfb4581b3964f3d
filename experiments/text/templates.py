"""Pages and paragraphs from `templates`; HTML is escaped unless it is markup already."""

import json
import math
from collections.abc import Mapping
from typing import Any

import jinja2
import numpy as np

from engineer.analysis import MEASURES
from engineer.space import plural

DASH = "\N{EN DASH}"
"""Placeholder for a missing number."""


def percent(fraction: float | None) -> str:
    """A fraction in percent; a dash for None."""
    return DASH if fraction is None else f"{100 * fraction:.1f}%"


def whole_percent(fraction: float) -> str:
    """A fraction in percent, for sentences."""
    return f"{100 * fraction:.0f}\N{NO-BREAK SPACE}%"


def number(value: float | None, digits: int = 2) -> str:
    """A number with thousands separators; a dash for None."""
    return DASH if value is None else f"{value:,.{digits}f}"


def counted(count: int, noun: str) -> str:
    """Such as "1 round" and "1,000 rounds"."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def cell(value: Any) -> str:
    """A value as a cell of a Markdown table."""
    if value is None:
        return DASH
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|")


def estimate(found: Mapping[str, Any], sign: str = "", unit: str = "", scale: int = 100) -> str:
    """A mean with its interval, if any, times `scale` (100 for percent); a dash if it is None."""

    def shown(value: float) -> str:
        return format(scale * value, f"{sign}.{1 if scale == 100 else 2}f")

    if found["mean"] is None:
        return DASH
    mean = shown(found["mean"]) + unit
    if found["low"] is None or found["high"] is None:
        return mean
    return f"{mean} ({shown(found['low'])} to {shown(found['high'])})"


def p_value(value: float | None) -> str:
    """A p-value with three decimals; a dash for None."""
    if value is None:
        return DASH
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def render(template: str, **values: Any) -> str:
    """Renders a page.

    Args:
      template: a file in `templates`.
      **values: the variables of the template.
    """
    return _TEMPLATES.get_template(template).render(values)


def paragraphs(template: str, **values: Any) -> list[str]:
    """Renders a template to its paragraphs, each as one line; arguments as in `render`."""
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
    each.__name__: each
    for each in (percent, whole_percent, number, duration, cell, estimate, p_value, counted)
}
_TEMPLATES.filters |= {"json": json.dumps, "g": "{:g}".format}
_TEMPLATES.globals |= {"DASH": DASH, "MEASURES": MEASURES}
