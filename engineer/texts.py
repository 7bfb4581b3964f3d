"""The checks and context texts of a family."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from engineer.space import ConfigurationSpace, plural


def macros(file: str, **names: Any) -> Any:
    """Loads the macros of a template file: attributes that return a text when called.

    Args:
      file: name of a file in this package.
      **names: globals of the template.
    """
    return _TEMPLATES.from_string(
        Path(__file__).with_name(file).read_text(encoding="utf-8"), globals=names
    ).module


_TEMPLATES = jinja2.Environment(
    trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
)
_TEMPLATES.filters |= {"two": "{:.2f}".format, "g": "{:g}".format, "plural": plural}

SUMMARY_REQUEST = (
    "Before the configuration, explain in at most three sentences what it is meant to achieve. "
    "You will be shown this explanation when you design the next round."
)
"""Asked for only where module S carries the explanation forward."""

NO_HISTORY = "no round to show yet"
NO_SUMMARY = "no explanation yet"


@dataclasses.dataclass(frozen=True)
class FamilyTexts:
    """The checks of a family, and the texts of a context that are the same in every round.

    Attributes:
      label: what a row is called, as in the space.
      checks: names of the checks; an answer is valid if it passes all of them.
      alone: checks whose failure makes all others meaningless.
      instruction: the task, what may be changed, and how to read the results.
      guideline: module G: how the parameters affect learnability, with advice.
      neutral_guideline: the same without advice, so that designs show what a model reads in its
        failures rather than how it follows advice.
      output_format: the requested form of a configuration.
      failure_words: the failures shown, in this order, each with the checks that it counts.
      explanation: of the designs in demonstrations, if a context carries one forward.
      task: what the trained model learns, such as "to add numbers"; for people.
    """

    label: str
    checks: tuple[str, ...]
    alone: tuple[str, ...]
    instruction: str
    guideline: str
    neutral_guideline: str
    output_format: str
    failure_words: Mapping[str, Sequence[str]]
    explanation: str
    task: str = ""


def plain_texts(space: ConfigurationSpace, task: str, checks: Sequence[str]) -> FamilyTexts:
    """Generic texts from the names and meanings of the parameters.

    Args:
      space: its parameters' `meaning`s are quoted.
      task: what the trained model learns, such as "to add numbers".
      checks: names of the checks, each shown under its own name.

    Raises:
      ValueError: `checks` is a single text.
    """
    if isinstance(checks, str):
        raise ValueError(f"checks={checks!r}: names are needed, such as ({checks!r},)")
    names = ("instruction", "guideline", "neutral_guideline", "output_format", "explanation")
    texts = {name: " ".join(getattr(_TEXTS, name)(space, task).split()) for name in names}
    return FamilyTexts(
        label=space.label,
        checks=tuple(checks),
        alone=(),
        failure_words={check: (check,) for check in checks},
        task=task,
        **texts,
    )


_TEXTS = macros("texts.txt")
