"""Environments by name."""

import dataclasses
import difflib
from collections.abc import Collection
from typing import Any

from mapf_jax.env.environment import MapfFrozenLake

# By name, the options that differ from the environment's own defaults.
_REGISTRY: dict[str, dict[str, Any]] = {
    "MapfFrozenLake-v0": {},
    "MapfFrozenLakeBlock-v0": {"conflict": "block"},
    # As slippery as Gymnasium's FrozenLake: a move goes where it should one time in three.
    "MapfFrozenLakeSlippery-v0": {"conflict": "block", "slip_probability": 2 / 3},
}


def registered_envs() -> tuple[str, ...]:
    """The names that `make` knows, sorted."""
    return tuple(sorted(_REGISTRY))


def make(name: str, **options: Any) -> MapfFrozenLake:
    """An environment by name.

    Args:
      name: one of `registered_envs()`.
      **options: those of `MapfFrozenLake`.

    Raises:
      ValueError: the name or an option is unknown (near ones are named) or out of range.
    """
    _check("name", name, _REGISTRY)
    for option in options:
        _check("option", option, [field.name for field in dataclasses.fields(MapfFrozenLake)])
    return MapfFrozenLake(**{**_REGISTRY[name], **options})


def _check(what: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        near = difflib.get_close_matches(word, known, n=3, cutoff=0.5) or known
        raise ValueError(f"{what}={word!r}: did you mean {' or '.join(map(repr, near))}?")
