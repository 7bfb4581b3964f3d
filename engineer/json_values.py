"""Dataclasses as what JSON holds of them, and back."""

import types
import typing
from collections.abc import Mapping
from typing import Any, Self


class JsonValue:
    """A dataclass with `to_dict` and `from_dict`, and so is every dataclass among its fields."""

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON; `from_dict` is its inverse."""
        return {name: _written(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Reads what `to_dict` writes.

        Raises:
          ValueError: a field is missing or not allowed.
        """
        hints = typing.get_type_hints(cls)
        try:
            return cls(**{name: _read(hints[name], value) for name, value in mapping.items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{cls.__name__}: missing or malformed field {error}") from error


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


def _read(kind: Any, value: Any) -> Any:
    """A value of an annotated type from what JSON holds of it."""
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return None if value is None else _read(arguments[0], value)
    if typing.get_origin(kind) is tuple:
        return tuple(_read(arguments[0], item) for item in value)
    return kind.from_dict(value) if hasattr(kind, "from_dict") else value
