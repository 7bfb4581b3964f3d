"""Texts that are templates in files of this package, a macro for each text."""

from pathlib import Path
from typing import Any

import jinja2


def macros(file: str, **names: Any) -> Any:
    """The macros of a file as attributes: functions that return a text.

    Args:
      file: in the folder of this package.
      **names: what its macros may call besides their arguments.
    """
    return _TEMPLATES.from_string(Path(__file__).with_name(file).read_text(), globals=names).module


_TEMPLATES = jinja2.Environment(
    trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
)
_TEMPLATES.filters |= {"two": "{:.2f}".format, "g": "{:g}".format}
