"""Environments by name."""

import dataclasses
import difflib
from collections.abc import Callable, Collection
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
        raise ValueError(f"name={name!r}: it is registered already")
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
    _check("name", name, _REGISTRY)
    factory, defaults = _REGISTRY[name]
    if dataclasses.is_dataclass(factory):
        for option in options:
            _check("option", option, [field.name for field in dataclasses.fields(factory)])
    return factory(**{**defaults, **options})


def _check(what: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        near = difflib.get_close_matches(word, known, n=3, cutoff=0.5) or known
        raise ValueError(f"{what}={word!r}: did you mean {' or '.join(map(repr, near))}?")


register("MapfFrozenLake-v0", MapfFrozenLake)
register("MapfFrozenLakeBlock-v0", MapfFrozenLake, conflict="block")
#: As slippery as Gymnasium's FrozenLake: a move goes where it should one time in three.
register("MapfFrozenLakeSlippery-v0", MapfFrozenLake, conflict="block", slip_probability=2 / 3)
