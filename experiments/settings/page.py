"""The page of all options, with defaults and meanings from the docstrings of their classes.

`python -m experiments.main --list_options` prints it, and the site has it.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from experiments.settings import Settings
from experiments.text.templates import render

_ATTRIBUTES = re.compile(r"^Attributes:\n((?:  .*\n?|\n)+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^  (\w+(?:, \w+)*): (.*(?:\n    .*)*)", re.MULTILINE)


def options_page() -> str:
    """The options in Markdown: a heading for each group, a line for each option."""
    return "\n".join([render("options.md"), *_group(Settings(), "")])


def _group(options: Any, path: str) -> Iterator[str]:
    """The lines of a group, then those of its subgroups."""
    meanings = _meanings(type(options))
    values = [(field.name, getattr(options, field.name)) for field in dataclasses.fields(options)]
    if path:
        yield f"## {path.rstrip('.')}\n\n{meanings['']}\n"
    for name, value in values:
        of_group = dataclasses.is_dataclass(value)
        if name in meanings or not of_group:
            shown = f"{name}.*" if of_group else f"{name}={value!r}"
            line = f"- `{path}{shown}`: {meanings[name]}"
            yield textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False)
    yield ""
    for name, value in values:
        if dataclasses.is_dataclass(value):
            yield from _group(value, f"{path}{name}.")


def _meanings(kind: type) -> dict[str, str]:
    """Docs of each field of a class and its bases, and under "" the summary of the class."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        text = inspect.cleandoc(base.__doc__ or "")
        found[""] = text.partition("\n\n")[0]
        for section in _ATTRIBUTES.findall(text):
            for names, said in _ATTRIBUTE.findall(section):
                found.update(dict.fromkeys(names.split(", "), " ".join(said.split())))
    return found
