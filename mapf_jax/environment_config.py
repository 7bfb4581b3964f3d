"""The configuration of a training environment: what an environment engineer may change."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
      agents: ascending pairs (number of agents in 2..5, fraction of the instances of every size);
        the fractions sum to 1. A mapping is accepted too. Empty leaves the number to the generator.

    Raises:
      ValueError: a field is out of its range; the message names field, value and range.
    """

    sizes: tuple[int, ...]
    data_ratio: tuple[float, ...]
    hole_ratio: tuple[float, ...]
    wait_ratio: tuple[float, ...]
    agents: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        sizes = _ascending("sizes", self.sizes, MIN_SIZE, MAX_SIZE)
        if not sizes:
            raise ValueError("sizes=(): at least one lake size is needed")
        checked: dict[str, Any] = {"sizes": sizes}
        for name in PARAMETERS:
            checked[name] = _ratios(name, [f"size {size}" for size in sizes], getattr(self, name))
        agents = dict(self.agents)
        counts = _ascending("agents", agents, MIN_AGENTS, MAX_AGENTS)
        fractions = _ratios("agents", [f"{n} agents" for n in counts], list(agents.values()))
        checked["agents"] = tuple(zip(counts, fractions, strict=True))
        for name, parts in (("data_ratio", checked["data_ratio"]), ("agents", fractions)):
            if parts and abs(math.fsum(parts) - 1) > 1e-6:
                raise ValueError(
                    f"{name}={parts}: the fractions sum to {math.fsum(parts):.6g}, "
                    "they must sum to 1"
                )
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def uniform(
        cls, sizes: Iterable[int], hole_ratio: float, wait_ratio: float
    ) -> "EnvironmentConfig":
        """The same number of instances of every size, with one hole and one wait ratio."""
        sizes = list(sizes)
        row = dict(zip(PARAMETERS, (1 / max(len(sizes), 1), hole_ratio, wait_ratio), strict=True))
        return cls.from_dict(dict.fromkeys(sizes, row))

    def to_dict(self) -> dict[str, dict[str, float]]:
        """`{"3": {"data_ratio": .., "hole_ratio": .., "wait_ratio": ..}, ...}`.

        Where the configuration says how many agents there are, also `"agents": {"2": .., ...}`.
        """
        rows = {
            str(size): {name: getattr(self, name)[i] for name in PARAMETERS}
            for i, size in enumerate(self.sizes)
        }
        if self.agents:
            rows["agents"] = {str(count): fraction for count, fraction in self.agents}
        return rows

    @classmethod
    def from_dict(cls, mapping: Mapping[Any, Mapping[str, Any]]) -> "EnvironmentConfig":
        """Reads what `to_dict` writes; sizes may be strings or integers, in any order.

        Raises:
          ValueError: a size is no integer, a parameter is missing, unknown or out of range.
        """
        if not isinstance(mapping, Mapping):
            raise ValueError(f"configuration={mapping!r}: a mapping from sizes is needed")
        agents = mapping.get("agents", {})
        if not isinstance(agents, Mapping):
            raise ValueError(f"agents={agents!r}: a mapping from numbers of agents is needed")
        rows = [(_integer("sizes", key), row) for key, row in mapping.items() if key != "agents"]
        rows.sort(key=lambda pair: pair[0])
        for size, row in rows:
            if not isinstance(row, Mapping):
                raise ValueError(f"size {size}: {row!r} is not a mapping of {PARAMETERS}")
            for name in (*row, *PARAMETERS):
                if name not in PARAMETERS:
                    raise ValueError(f"size {size}: unknown field {name!r}, allowed: {PARAMETERS}")
                if name not in row:
                    raise ValueError(f"size {size}: {name} is missing")
        return cls(
            tuple(size for size, _ in rows),
            **{name: tuple(row[name] for _, row in rows) for name in PARAMETERS},
            agents=tuple(sorted((_integer("agents", n), part) for n, part in agents.items())),
        )


def num_holes(hole_ratio: float, size: int) -> int:
    """Holes of a `size` x `size` lake: `floor(hole_ratio * size * size)`.

    A small tolerance keeps decimal ratios exact: 0.29 * 100 is 28.999999999999996 in binary.
    """
    return math.floor(hole_ratio * size * size + 1e-9)


def max_hole_ratio(size: int, num_agents: int) -> float:
    """The largest hole ratio that leaves a cell for every start and goal (2 `num_agents`)."""
    return (size * size - 2 * num_agents) / (size * size)


def _integer(name: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or (isinstance(value, float) and number != value):
        raise ValueError(f"{name}: {value!r} is not an integer")
    return number


def _ascending(name: str, values: Iterable[Any], lowest: int, highest: int) -> tuple[int, ...]:
    numbers = tuple(_integer(name, value) for value in values)
    for number in numbers:
        if not lowest <= number <= highest:
            raise ValueError(f"{name}: {number} is not allowed, only {lowest} to {highest}")
    if list(numbers) != sorted(set(numbers)):
        raise ValueError(f"{name}={numbers}: must be ascending and distinct")
    return numbers


def _ratios(name: str, owners: Sequence[str], values: Any) -> tuple[float, ...]:
    if not isinstance(values, Sequence) or len(values) != len(owners):
        raise ValueError(
            f"{name}={values!r}: one number for each of the {len(owners)} sizes is needed"
        )
    for owner, value in zip(owners, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name} of {owner}: {value!r} is not a number")
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} of {owner}: {value} is outside [0, 1]")
    return tuple(float(value) for value in values)
