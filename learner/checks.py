"""Checks of what users give: errors name the field or file and what is allowed, in one line."""

import json
import math
from collections.abc import Sequence
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
    for name in names:
        value = getattr(options, name)
        if not (_is_number(value) and value > 0):
            raise ValueError(f"{name}={value!r}: allowed are finite numbers above 0")


def not_negative(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a finite number from 0 up."""
    for name in names:
        value = getattr(options, name)
        if not (_is_number(value) and value >= 0):
            raise ValueError(f"{name}={value!r}: allowed are finite numbers from 0 up")


def fractions(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a number in [0, 1]."""
    for name in names:
        value = getattr(options, name)
        if not (_is_number(value) and 0 <= value <= 1):
            raise ValueError(f"{name}={value!r}: allowed are numbers in [0, 1]")


def choices(options: Any, **allowed: Sequence[Any]) -> None:
    """Raises `ValueError` unless each named field is one of the given values."""
    for name, values in allowed.items():
        value = getattr(options, name)
        if value not in values:
            raise ValueError(f"{name}={value!r}: allowed are {tuple(values)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
