"""Checks of what users give: errors name the field or file and what is allowed, in one line."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def first_line(error: BaseException) -> str:
    """The first line of an error's message; empty if it has none."""
    return next(iter(str(error).strip().splitlines()), "")


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; `ValueError` with the path if there is another thing in it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {json.dumps(value)[:40]}; it must be a JSON object")
    return value


def integers(options: Any, **least: int) -> None:
    """Raises `ValueError` unless each named field is an integer from the given bound up."""
    for name, bound in least.items():
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < bound:
            raise ValueError(f"{name}={value!r}: allowed are integers from {bound} up")


def positive(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a finite number above 0."""
    _numbers(options, names, lambda value: value > 0, "finite numbers above 0")


def not_negative(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a finite number from 0 up."""
    _numbers(options, names, lambda value: value >= 0, "finite numbers from 0 up")


def fractions(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a number in [0, 1]."""
    _numbers(options, names, lambda value: 0 <= value <= 1, "numbers in [0, 1]")


def choices(options: Any, **allowed: Sequence[Any]) -> None:
    """Raises `ValueError` unless each named field is one of the given values."""
    for name, values in allowed.items():
        value = getattr(options, name)
        if value not in values:
            raise ValueError(f"{name}={value!r}: allowed are {tuple(values)}")


def _numbers(
    options: Any, names: Sequence[str], fits: Callable[[float], bool], allowed: str
) -> None:
    for name in names:
        value = getattr(options, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value) and fits(value)):
            raise ValueError(f"{name}={value!r}: allowed are {allowed}")
