"""Environments by name."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from mapf_jax.env.environment import MapfFrozenLake

_REGISTRY: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}


def register(name: str, factory: Callable[..., Any], **defaults: Any) -> None:
    """Makes an environment known by name.

    Args:
      name: by custom with a version, such as "MyLake-v0".
      factory: a dataclass or function of keyword arguments.
      **defaults: keyword arguments of it, which `make` may override.

    Raises:
      ValueError: the name is taken.
    """
    if name in _REGISTRY:
        raise ValueError(f"name={name!r}: an environment of this name is registered already")
    _REGISTRY[name] = (factory, defaults)


def registered_envs() -> tuple[str, ...]:
    """The names that `make` knows, sorted."""
    return tuple(sorted(_REGISTRY))


def make(name: str, **options: Any) -> Any:
    """An environment by name.

    Args:
      name: one of `registered_envs()`.
      **options: of the environment; those of `MapfFrozenLake` for the names of this package.

    Raises:
      ValueError: the name or an option is unknown (near ones are named) or out of range.
    """
    if name not in _REGISTRY:
        raise ValueError(f"name={name!r} is not registered{_near(name, _REGISTRY)}")
    factory, defaults = _REGISTRY[name]
    if dataclasses.is_dataclass(factory):
        allowed = {field.name: field for field in dataclasses.fields(factory) if field.init}
        for option in options:
            if option not in allowed:
                raise ValueError(f"{option}: {name} has no such option{_near(option, allowed)}")
    return factory(**{**defaults, **options})


def _near(word: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; known are {', '.join(map(repr, known))}"


register("MapfFrozenLake-v0", MapfFrozenLake)
register("MapfFrozenLakeBlock-v0", MapfFrozenLake, conflict="block")
#: As slippery as Gymnasium's FrozenLake: a move goes where it should one time in three.
register("MapfFrozenLakeSlippery-v0", MapfFrozenLake, conflict="block", slip_probability=2 / 3)
