"""Sets of actions and observations, with membership."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of integers or truth values between two bounds, both included.

    Attributes:
      low: smallest value.
      high: largest value.
      shape: of the array.
      dtype: of the array; `np.integer` allows any type of integers.
    """

    low: int
    high: int
    shape: tuple[int, ...]
    dtype: Any

    @property
    def n(self) -> int:
        """How many values an entry may have."""
        return self.high - self.low + 1

    def sample(self, key: jax.Array) -> jax.Array:
        """A uniform draw."""
        drawn = jax.random.randint(key, self.shape, self.low, self.high + 1, jnp.int32)
        return drawn if self.dtype is np.integer else drawn.astype(self.dtype)

    def contains(self, value: Any) -> bool:
        """Does the concrete array have this shape and dtype and lie within the bounds?"""
        array = np.asarray(value)
        if array.shape != self.shape or not np.issubdtype(array.dtype, self.dtype):
            return False
        wide = array.astype(np.int64)
        return bool(np.all((wide >= self.low) & (wide <= self.high)))


@dataclasses.dataclass(frozen=True)
class Dict:
    """Mappings with one value of a given space under each name."""

    spaces: Mapping[str, Box]

    def sample(self, key: jax.Array) -> dict[str, jax.Array]:
        """A uniform draw of each."""
        keys = jax.random.split(key, len(self.spaces))
        return {n: x.sample(k) for (n, x), k in zip(self.spaces.items(), keys, strict=True)}

    def contains(self, value: Any) -> bool:
        """Does the mapping have these names, and a member of the space under each?"""
        if not isinstance(value, Mapping) or set(value) != set(self.spaces):
            return False
        return all(space.contains(value[name]) for name, space in self.spaces.items())


Space = Box | Dict
