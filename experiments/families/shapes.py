"""What the functions of a family return, checked in one place before the run relies on it."""

import sys
from collections.abc import Mapping
from typing import Any

from learner import checks


class FamilyError(ValueError):
    """A run cannot go on with a family as it is."""


class ShapeError(FamilyError):
    """A value that a function returned has another shape than promised; the message names it."""


def check(value: Any, shape: Any, name: str) -> None:
    """Checks a JSON-able value against its shape.

    Args:
      shape: `str`, `bool`, `int` or `float` (finite; integers too); [shape] for a list of any
        length; (low, high) for a number within; a frozenset for one of its members; or a mapping
        of names to shapes, where "name?" may be missing or None, and "*" stands for all others.
      name: what errors call the value.

    Raises:
      ShapeError: names the first part that does not fit.
    """
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            raise ShapeError(f"{name}={checks.shortened(value)}: allowed are mappings")
        for key, part in shape.items():
            if key.rstrip("?") in value:
                if not (key.endswith("?") and value[key.rstrip("?")] is None):
                    check(value[key.rstrip("?")], part, f"{name}.{key.rstrip('?')}")
            elif key != "*" and not key.endswith("?"):
                raise ShapeError(f"{name}.{key}: is missing")
        for key in value if "*" in shape else ():
            check(value[key], shape["*"], f"{name}.{checks.shortened(key)}")
    elif isinstance(shape, list):
        if not isinstance(value, (list, tuple)):
            raise ShapeError(f"{name}={checks.shortened(value)}: allowed are lists")
        for i, one in enumerate(value):
            check(one, shape[0], f"{name}[{i}]")
    elif isinstance(shape, frozenset):
        if not (isinstance(value, str) and value in shape):
            allowed = checks.shortened(sorted(shape))
            raise ShapeError(f"{name}={checks.shortened(value)}: allowed are {allowed}")
    elif isinstance(shape, tuple):
        if not (_is_number(value) and shape[0] <= value <= shape[1]):
            allowed = "numbers from {:g} to {:g}".format(*shape)
            raise ShapeError(f"{name}={checks.shortened(value)}: allowed are {allowed}")
    elif not (
        _is_number(value) and (shape is float or type(value) is int)
        if shape in (int, float)
        else type(value) is shape
    ):
        allowed = "finite numbers" if shape is float else f"values of type {shape.__name__}"
        raise ShapeError(f"{name}={checks.shortened(value)}: allowed are {allowed}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
