"""The configuration of a training environment: what an environment engineer may change."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

MIN_SIZE, MAX_SIZE = 3, 32
MIN_AGENTS, MAX_AGENTS = 2, 5
PARAMETERS = ("data_ratio", "hole_ratio", "wait_ratio")


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """Which instances a generator makes: three numbers for each lake size.

    Attributes:
      sizes: ascending, distinct lake sizes N (a lake has N x N cells), each in 3..32.
      data_ratio: fraction of the set that has size `sizes[i]`; the fractions sum to 1.
      hole_ratio: fraction of the cells of such a lake that are holes, in [0, 1]; a lake has
        exactly `floor(hole_ratio * N * N)` of them.
      wait_ratio: fraction of the instances of that size that need at least one wait action in
        every optimal solution, in [0, 1].

    Raises:
      ValueError: a field is out of its range; the message names field, value and range.
    """

    sizes: tuple[int, ...]
    data_ratio: tuple[float, ...]
    hole_ratio: tuple[float, ...]
    wait_ratio: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = tuple(map(_size, self.sizes))
        if not sizes or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"sizes={sizes}: at least one, ascending and distinct, is needed")
        object.__setattr__(self, "sizes", sizes)
        for name in PARAMETERS:
            object.__setattr__(self, name, _ratios(name, sizes, getattr(self, name)))
        total = math.fsum(self.data_ratio)
        if abs(total - 1) > 1e-6:
            raise ValueError(
                f"data_ratio={self.data_ratio}: the fractions sum to {total:.6g}, not to 1"
            )

    @classmethod
    def uniform(
        cls, sizes: Iterable[int], hole_ratio: float, wait_ratio: float
    ) -> "EnvironmentConfig":
        """The same number of instances of every size, with one hole and one wait ratio."""
        sizes = list(sizes)
        row = dict(zip(PARAMETERS, (1 / max(len(sizes), 1), hole_ratio, wait_ratio), strict=True))
        return cls.from_dict(dict.fromkeys(sizes, row))

    def to_dict(self) -> dict[str, dict[str, float]]:
        """`{"3": {"data_ratio": .., "hole_ratio": .., "wait_ratio": ..}, ...}`."""
        return {
            str(size): {name: getattr(self, name)[i] for name in PARAMETERS}
            for i, size in enumerate(self.sizes)
        }

    @classmethod
    def from_dict(cls, mapping: Mapping[Any, Mapping[str, Any]]) -> "EnvironmentConfig":
        """Reads what `to_dict` writes; sizes may be strings or integers, in any order.

        Raises:
          ValueError: a size is no integer, a parameter is missing, unknown or out of range.
        """
        if not isinstance(mapping, Mapping):
            raise ValueError(f"configuration={mapping!r}: a mapping from sizes is needed")
        rows = sorted(((_size(key), row) for key, row in mapping.items()), key=lambda row: row[0])
        for size, row in rows:
            if not isinstance(row, Mapping):
                raise ValueError(f"size {size}: {row!r} is not a mapping of {PARAMETERS}")
            for name in (*row, *PARAMETERS):
                if name not in PARAMETERS:
                    raise ValueError(f"size {size}: unknown field {name!r}, allowed: {PARAMETERS}")
                if name not in row:
                    raise ValueError(f"size {size}: {name} is missing")
        columns = {name: tuple(row[name] for _, row in rows) for name in PARAMETERS}
        return cls(tuple(size for size, _ in rows), **columns)


def num_holes(hole_ratio: float, size: int) -> int:
    """Holes of a `size` x `size` lake: `floor(hole_ratio * size * size)`.

    A small tolerance keeps decimal ratios exact: 0.29 * 100 is 28.999999999999996 in binary.
    """
    return math.floor(hole_ratio * size * size + 1e-9)


def max_hole_ratio(size: int, num_agents: int) -> float:
    """The largest hole ratio that leaves a cell for every start and goal (2 `num_agents`)."""
    return (size * size - 2 * num_agents) / (size * size)


def _size(value: Any) -> int:
    """A lake size from a string or a number."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or (isinstance(value, float) and number != value):
        raise ValueError(f"sizes: {value!r} is not an integer")
    if not MIN_SIZE <= number <= MAX_SIZE:
        raise ValueError(f"sizes: {number} is not allowed, only {MIN_SIZE} to {MAX_SIZE}")
    return number


def _ratios(name: str, sizes: Sequence[int], values: Any) -> tuple[float, ...]:
    if not isinstance(values, Sequence) or len(values) != len(sizes):
        raise ValueError(
            f"{name}={values!r}: one number for each of the {len(sizes)} sizes is needed"
        )
    for size, value in zip(sizes, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise ValueError(f"{name} of size {size}: {value!r} is not a number")
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} of size {size}: {value} is outside [0, 1]")
    return tuple(float(value) for value in values)
