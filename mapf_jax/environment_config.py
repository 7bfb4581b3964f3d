"""The configuration of a training environment: what an environment engineer may change."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MIN_SIZE = 3
MAX_SIZE = 32
MIN_AGENTS = 2
MAX_AGENTS = 5
PARAMETERS = ("data_ratio", "hole_ratio", "wait_ratio")
_SUM_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """Which instances a generator makes: three numbers for each lake size.

    Attributes:
      sizes: ascending, distinct lake sizes N (a lake has N x N cells), each in 3..32.
      data_ratio: share of the set that has size `sizes[i]`; the shares sum to 1.
      hole_ratio: share of the cells of such a lake that are holes, in [0, 1]; a lake has
        exactly `floor(hole_ratio * N * N)` of them.
      wait_ratio: share of the instances of that size that need at least one wait action in
        every optimal solution, in [0, 1].
      agents: ascending pairs (number of agents in 2..5, share of the instances of every size); the
        shares sum to 1. A mapping is accepted too. Empty leaves the number to the generator.

    Raises:
      ValueError: a field is out of its range; the message names field, value and range.
    """

    sizes: tuple[int, ...]
    data_ratio: tuple[float, ...]
    hole_ratio: tuple[float, ...]
    wait_ratio: tuple[float, ...]
    agents: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        sizes = tuple(_integer("sizes", size) for size in self.sizes)
        object.__setattr__(self, "sizes", sizes)
        if not sizes:
            raise ValueError("sizes=(): at least one lake size is needed")
        for size in sizes:
            if not MIN_SIZE <= size <= MAX_SIZE:
                raise ValueError(f"sizes: {size} is not allowed, only {MIN_SIZE} to {MAX_SIZE}")
        if list(sizes) != sorted(set(sizes)):
            raise ValueError(f"sizes={sizes}: sizes must be ascending and distinct")
        for name in PARAMETERS:
            values = getattr(self, name)
            if not isinstance(values, Sequence) or len(values) != len(sizes):
                raise ValueError(
                    f"{name}={values!r}: one number for each of the {len(sizes)} sizes is needed"
                )
            numbers = tuple(
                _unit_number(name, f"size {size}", v) for size, v in zip(sizes, values, strict=True)
            )
            object.__setattr__(self, name, numbers)
        _check_shares("data_ratio", self.data_ratio)
        agents = tuple(
            (_integer("agents", count), _unit_number("agents", f"{count} agents", share))
            for count, share in (
                self.agents.items() if isinstance(self.agents, Mapping) else self.agents
            )
        )
        counts = [count for count, _ in agents]
        for count in counts:
            if not MIN_AGENTS <= count <= MAX_AGENTS:
                raise ValueError(
                    f"agents: {count} is not allowed, only {MIN_AGENTS} to {MAX_AGENTS}"
                )
        if counts != sorted(set(counts)):
            raise ValueError(f"agents={agents}: numbers must be ascending and distinct")
        if agents:
            _check_shares("agents", [share for _, share in agents])
        object.__setattr__(self, "agents", agents)

    @classmethod
    def uniform(
        cls, sizes: Iterable[int], hole_ratio: float, wait_ratio: float
    ) -> "EnvironmentConfig":
        """The same number of instances of every size, with one hole and one wait ratio."""
        sizes = tuple(sizes)
        count = max(len(sizes), 1)
        return cls(
            sizes=sizes,
            data_ratio=(1.0 / count,) * len(sizes),
            hole_ratio=(hole_ratio,) * len(sizes),
            wait_ratio=(wait_ratio,) * len(sizes),
        )

    def to_dict(self) -> dict[str, dict[str, float]]:
        """`{"3": {"data_ratio": .., "hole_ratio": .., "wait_ratio": ..}, ...}`.

        Where the configuration says how many agents there are, also `"agents": {"2": .., ...}`.
        """
        rows = {
            str(size): {name: getattr(self, name)[i] for name in PARAMETERS}
            for i, size in enumerate(self.sizes)
        }
        if self.agents:
            rows["agents"] = {str(count): share for count, share in self.agents}
        return rows

    @classmethod
    def from_dict(cls, mapping: Mapping[Any, Mapping[str, Any]]) -> "EnvironmentConfig":
        """Reads what `to_dict` writes; sizes may be strings or integers, in any order.

        Raises:
          ValueError: a size is no integer, a parameter is missing, unknown or out of range.
        """
        if not isinstance(mapping, Mapping):
            raise ValueError(f"configuration={mapping!r}: a mapping from sizes is needed")
        rows: dict[int, Mapping[str, Any]] = {}
        agents = mapping.get("agents", {})
        if not isinstance(agents, Mapping):
            raise ValueError(f"agents={agents!r}: a mapping from numbers of agents is needed")
        for key, row in mapping.items():
            if key == "agents":
                continue
            size = _integer("sizes", key)
            if size in rows:
                raise ValueError(f"sizes: {size} is given twice")
            if not isinstance(row, Mapping):
                raise ValueError(f"sizes: {size} has {row!r}, a mapping of {PARAMETERS} is needed")
            for name in row:
                if name not in PARAMETERS:
                    raise ValueError(f"size {size}: unknown field {name!r}, allowed: {PARAMETERS}")
            for name in PARAMETERS:
                if name not in row:
                    raise ValueError(f"size {size}: {name} is missing")
            rows[size] = row
        sizes = tuple(sorted(rows))
        return cls(
            sizes=sizes,
            data_ratio=tuple(rows[s]["data_ratio"] for s in sizes),
            hole_ratio=tuple(rows[s]["hole_ratio"] for s in sizes),
            wait_ratio=tuple(rows[s]["wait_ratio"] for s in sizes),
            agents=tuple(sorted((_integer("agents", n), share) for n, share in agents.items())),
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
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name}: {value!r} is not an integer") from error
    if isinstance(value, bool) or (isinstance(value, float) and number != value):
        raise ValueError(f"{name}: {value!r} is not an integer")
    return number


def _unit_number(name: str, whose: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} of {whose}: {value!r} is not a number")
    number = float(value)
    if not (math.isfinite(number) and 0.0 <= number <= 1.0):
        raise ValueError(f"{name} of {whose}: {number} is outside [0, 1]")
    return number


def _check_shares(name: str, values: Sequence[float]) -> None:
    total = math.fsum(values)
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise ValueError(f"{name}={values}: the shares sum to {total:.6g}, they must sum to 1")
