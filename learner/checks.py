"""Checks of user input; an error is one line with the field or file and what is allowed."""

import json
import reprlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_QUOTES = reprlib.Repr()
_QUOTES.maxlevel, _QUOTES.maxstring, _QUOTES.maxlong, _QUOTES.maxother = 2, 120, 120, 120


def one_line(error: BaseException) -> str:
    """An error's message in one line of at most 2,000 characters; an OSError's names its file."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    return " ".join(text.split())[:2000]


def first_line(error: BaseException) -> str:
    """The first line of an error's message; empty if it has none."""
    return next(iter(str(error).strip().splitlines()), "")


def shortened(value: Any) -> str:
    """A value as errors quote it: 120 characters at most."""
    return _QUOTES.repr(value)


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises `ValueError` with the path if it holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {json.dumps(value)[:40]}; it must be a JSON object")
    return value


def integers(options: Any, **least: int) -> None:
    """Raises `ValueError` unless each named field is an integer from the given bound up."""
    for name, bound in least.items():
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or not bound <= value < 1 << 63:
            raise ValueError(
                f"{name}={shortened(value)}: allowed are integers from {bound} up, below 2**63"
            )


def seeds(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a seed: JAX reads the last 32 bits alone."""
    for name in names:
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise ValueError(f"{name}={shortened(value)}: allowed are integers from 0 to 2**32 - 1")


def positive(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a finite number above 0."""
    _numbers(options, names, lambda value: value > 0, "finite numbers above 0")


def not_negative(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a finite number from 0 up."""
    _numbers(options, names, lambda value: value >= 0, "finite numbers from 0 up")


def fractions(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a number in [0, 1]."""
    _numbers(options, names, lambda value: 0 <= value <= 1, "numbers in [0, 1]")


def below_one(options: Any, *names: str) -> None:
    """Raises `ValueError` unless each named field is a number in [0, 1)."""
    _numbers(options, names, lambda value: 0 <= value < 1, "numbers in [0, 1)")


def choices(options: Any, **allowed: Sequence[Any]) -> None:
    """Raises `ValueError` unless each named field is one of the given values."""
    for name, values in allowed.items():
        value = getattr(options, name)
        if value not in values:
            raise ValueError(f"{name}={shortened(value)}: allowed are {tuple(values)}")


def _numbers(
    options: Any, names: Sequence[str], fits: Callable[[float], bool], allowed: str
) -> None:
    for name in names:
        value = getattr(options, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # Larger integers have no float to compute with.
        if not (is_number and abs(value) <= sys.float_info.max and fits(value)):
            raise ValueError(f"{name}={shortened(value)}: allowed are {allowed}")
