"""The space of configurations an engineer may choose from."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from mapf_jax.environment_config import EnvironmentConfig

Bounds = tuple[float, float]
_CENT_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True)
class ConfigurationSpace:
    """Lake sizes, and the range of the hole and wait ratio of each.

    The data ratios are free but for being shares: at least 0, with sum 1.

    Attributes:
      sizes: ascending, distinct lake sizes.
      hole_bounds: (low, high) of the hole ratio of `sizes[i]`, 0 <= low <= high <= 1; [0, 1]
        for every size if left out.
      wait_bounds: the same for the wait ratio.

    Raises:
      ValueError: a field is out of its range; the message names field, value and range.
    """

    sizes: tuple[int, ...]
    hole_bounds: tuple[Bounds, ...] = ()
    wait_bounds: tuple[Bounds, ...] = ()

    def __post_init__(self) -> None:
        # EnvironmentConfig knows which sizes there are; it refuses the others by name.
        sizes = EnvironmentConfig.uniform(self.sizes, 0.0, 0.0).sizes
        object.__setattr__(self, "sizes", sizes)
        for name in ("hole_bounds", "wait_bounds"):
            bounds = tuple(getattr(self, name)) or ((0.0, 1.0),) * len(sizes)
            if len(bounds) != len(sizes):
                raise ValueError(f"{name}={bounds}: one (low, high) for each of {sizes} is needed")
            for size, (low, high) in zip(sizes, bounds, strict=True):
                if not 0.0 <= low <= high <= 1.0:
                    raise ValueError(
                        f"{name} of size {size}: ({low}, {high}) must satisfy 0 <= low <= high <= 1"
                    )
            object.__setattr__(self, name, tuple((float(a), float(b)) for a, b in bounds))

    @classmethod
    def from_mappings(
        cls,
        sizes: Iterable[int],
        hole_bounds: Mapping[int, Bounds] | None = None,
        wait_bounds: Mapping[int, Bounds] | None = None,
    ) -> "ConfigurationSpace":
        """The same from bounds by size; a size without bounds has [0, 1].

        Raises:
          ValueError: bounds are given for a size that is not in `sizes`.
        """
        sizes = tuple(sizes)
        full: Bounds = (0.0, 1.0)
        for name, mapping in (("hole_bounds", hole_bounds), ("wait_bounds", wait_bounds)):
            unknown = sorted(set(mapping or {}) - set(sizes))
            if unknown:
                raise ValueError(f"{name}: sizes {unknown} are not allowed, only {sizes}")
        return cls(
            sizes=sizes,
            hole_bounds=tuple((hole_bounds or {}).get(size, full) for size in sizes),
            wait_bounds=tuple((wait_bounds or {}).get(size, full) for size in sizes),
        )

    def bounds(self, parameter: str, size: int) -> Bounds:
        """(low, high) of "hole_ratio" or "wait_ratio" for one size of the space."""
        table = {"hole_ratio": self.hole_bounds, "wait_ratio": self.wait_bounds}
        if parameter not in table:
            raise ValueError(f"parameter={parameter!r} has no bounds, allowed: {tuple(table)}")
        if size not in self.sizes:
            raise ValueError(f"size={size} is not in the space, allowed: {self.sizes}")
        return table[parameter][self.sizes.index(size)]

    def contains(self, config: EnvironmentConfig) -> bool:
        """Whether `config` has exactly the sizes of the space and respects its bounds."""
        return config.sizes == self.sizes and all(
            low <= value <= high
            for values, bounds in (
                (config.hole_ratio, self.hole_bounds),
                (config.wait_ratio, self.wait_bounds),
            )
            for value, (low, high) in zip(values, bounds, strict=True)
        )


def two_decimals(value: float, bounds: Bounds) -> float:
    """The number with two decimals nearest to `value` within the bounds.

    Where no number with two decimals lies within the bounds, their lower end.
    """
    low, high = bounds
    first = math.ceil(low * 100 - _CENT_TOLERANCE)
    last = math.floor(high * 100 + _CENT_TOLERANCE)
    if first > last:
        return low
    cents = min(max(round(value * 100), first), last)
    # Binary rounding of the bound itself must not push the result over it.
    return min(max(cents / 100, low), high)


def share_cents(weights: Sequence[float]) -> tuple[float, ...]:
    """Shares proportional to `weights`, with two decimals, that sum to 1.

    Largest remainders: every share is rounded down to a hundredth, and the hundredths that
    are left go to the largest remainders (the first of equal ones).

    Args:
      weights: finite numbers, at least 0, with a positive sum.

    Raises:
      ValueError: the weights are not such numbers.
    """
    if not weights or not all(math.isfinite(w) and w >= 0 for w in weights) or not any(weights):
        raise ValueError(f"weights={tuple(weights)}: must be finite, >= 0, and not all 0")
    scale = max(weights)
    scaled = [w / scale for w in weights]
    total = math.fsum(scaled)
    exact = [100 * w / total for w in scaled]
    cents = [math.floor(e + _CENT_TOLERANCE) for e in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: cents[i] - exact[i])
    for i in by_remainder[: 100 - sum(cents)]:
        cents[i] += 1
    return tuple(c / 100 for c in cents)
