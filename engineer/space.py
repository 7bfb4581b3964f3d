"""Configurations and their space, for any family.

A configuration is a table with a row for each kind of instance (a map size, a topic) and a column
for each parameter of the generator. A space defines the rows and columns, the bounds of each
number, and which column holds fractions that sum to 1.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Bounds = tuple[float, float]
Cell = tuple[str, str]
"""(row, parameter)."""

SUM_TOLERANCE = 1e-6
_TOLERANCE = 1e-9
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,39}")


def ordered_rows(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct row names: ascending if all are whole numbers, else in order of appearance."""
    distinct = list(dict.fromkeys(names))
    if all(name.isdecimal() for name in distinct):
        distinct.sort(key=int)
    return tuple(distinct)


def plural(label: str) -> str:
    """The plural of a row label."""
    return label if label.endswith("s") else f"{label}s"


def by_row(cells: Mapping[Cell, float]) -> dict[str, dict[str, float]]:
    """Numbers by row and parameter, in the order of their first cell."""
    table: dict[str, dict[str, float]] = {}
    for (row, parameter), value in cells.items():
        table.setdefault(row, {})[parameter] = value
    return table


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One finite number for each (row, parameter).

    Attributes:
      rows: names of the rows.
      parameters: names of the columns.
      values: `values[i][j]` is parameter j of row i.
    """

    rows: tuple[str, ...]
    parameters: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for kind, names in (("rows", self.rows), ("parameters", self.parameters)):
            if not names or len(set(names)) != len(names):
                raise ValueError(f"{kind}={names}: distinct names, at least one, are needed")
        for (row, name), value in self.cells().items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name} of {row}: {value!r} is not a number")
            if not math.isfinite(value):
                raise ValueError(f"{name} of {row}: {value} is not finite")
        numbers = tuple(tuple(map(float, row)) for row in self.values)
        object.__setattr__(self, "values", numbers)

    def __getitem__(self, cell: Cell) -> float:
        """The number of one (row, parameter)."""
        row, parameter = cell
        return self.values[self.rows.index(row)][self.parameters.index(parameter)]

    def column(self, parameter: str) -> tuple[float, ...]:
        """One parameter of all rows, in their order."""
        j = self.parameters.index(parameter)
        return tuple(row[j] for row in self.values)

    def cells(self) -> dict[Cell, float]:
        """All numbers, row by row."""
        return {
            (row, parameter): value
            for row, numbers in zip(self.rows, self.values, strict=True)
            for parameter, value in zip(self.parameters, numbers, strict=True)
        }

    def to_dict(self) -> dict[str, dict[str, float]]:
        """`{row: {parameter: number}}`, ready for JSON and YAML."""
        return by_row(self.cells())

    @classmethod
    def from_dict(cls, mapping: Mapping[Any, Mapping[str, Any]]) -> "Configuration":
        """Reads what `to_dict` writes; row names may be numbers, as YAML reads them.

        Raises:
          ValueError: the rows do not have the same parameters, or a value is not a number.
        """
        if not isinstance(mapping, Mapping) or not mapping:
            raise ValueError(f"configuration={mapping!r}: a mapping from rows is needed")
        table = {str(row): numbers for row, numbers in mapping.items()}
        rows = ordered_rows(table)
        names = tuple(table[rows[0]]) if isinstance(table[rows[0]], Mapping) else ()
        for row, numbers in table.items():
            if not isinstance(numbers, Mapping) or set(numbers) != set(names):
                raise ValueError(f"row {row}={numbers!r}: a mapping is needed, all of equal keys")
        return cls(rows, names, tuple(tuple(table[row][name] for name in names) for row in rows))

    @classmethod
    def from_cells(cls, cells: Mapping[Cell, float]) -> "Configuration":
        """The inverse of `cells`; row order and errors as in `from_dict`."""
        return cls.from_dict(by_row(cells))


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One column of a configuration.

    Attributes:
      name: letters, digits and underscores.
      bounds: (low, high) of every row in order; a single pair holds for all rows.
      decimals: digits after the point that are shown, drawn and decoded, 0 to 6; 0 means whole
        numbers. Additional digits that an engineer writes are kept unless `decimals` is 0.
      random_high: upper limit of random draws, if it is above the lower bound.
      meaning: what the number does, one sentence without its name, for the texts of a family.
    """

    name: str
    bounds: tuple[Bounds, ...] = ((0.0, 1.0),)
    decimals: int = 2
    random_high: float = math.inf
    meaning: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name={self.name!r}: letters, digits and underscores are allowed")
        if not 0 <= self.decimals <= 6:
            raise ValueError(f"{self.name}: decimals={self.decimals}, allowed are 0 to 6")
        given: Any = self.bounds
        try:
            if len(given) == 2 and not any(isinstance(bound, Sequence) for bound in given):
                given = (given,)
            pairs = tuple((float(low), float(high)) for low, high in given)
        except (TypeError, ValueError):
            raise ValueError(
                f"{self.name}: bounds={self.bounds!r}, pairs (low, high) of numbers are needed"
            ) from None
        for low, high in pairs:
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise ValueError(f"{self.name}: bounds ({low}, {high}) must satisfy low <= high")
            if self.decimals == 0 and (low % 1 or high % 1):
                raise ValueError(f"{self.name}: bounds ({low}, {high}) must be whole numbers")
        object.__setattr__(self, "bounds", pairs)


@dataclasses.dataclass(frozen=True)
class ConfigurationSpace:
    """Rows and parameters of an environment family.

    Attributes:
      label: what a row is called, in texts and in JSON ("size").
      rows: names of the rows, ascending if they are whole numbers.
      parameters: the columns; none has the name of a row.
      fraction_parameter: the column that divides the training set over the rows: fractions with sum
        1 and bounds (0, 1).
      row_keys: keys besides the label and "name" under which a mapping in an answer may name its
        row; case-insensitive.
      row_suffix: a regular expression for what may follow a row name in an answer, without
        unbounded repetitions.
    """

    label: str
    rows: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    fraction_parameter: str
    row_keys: tuple[str, ...] = ()
    row_suffix: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.rows, str) or not all(isinstance(row, str) for row in self.rows):
            raise ValueError(f"rows={self.rows!r}: names are needed, such as ('3', '4')")
        if isinstance(self.parameters, Parameter):
            raise ValueError(f"parameters={self.parameters}: a tuple is needed, (Parameter(...),)")
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "parameters", tuple(self.parameters))
        for row in (*self.rows, self.label):
            if not _NAME.fullmatch(row):
                raise ValueError(f"name={row!r}: letters, digits and underscores are allowed")
        rows, names = (  # As designs are read: 01 is the number 1.
            [str(int(name)) if name.isdecimal() else name.lower() for name in kind]
            for kind in (self.rows, self.names)
        )
        for kind, values, read in (("rows", self.rows, rows), ("parameters", self.names, names)):
            if not values or len(set(read)) != len(values):
                raise ValueError(f"{kind}={values}: distinct names, at least one, are needed")
        if shared := set(rows) & set(names):
            raise ValueError(f"rows={self.rows}: {sorted(shared)} cannot be parameters as well")
        if self.rows != ordered_rows(self.rows):
            raise ValueError(f"rows={self.rows}: whole numbers must be ascending")
        for parameter in self.parameters:
            if len(parameter.bounds) not in (1, len(self.rows)):
                raise ValueError(
                    f"{parameter.name}: {len(parameter.bounds)} pairs of bounds, needed: one, or "
                    f"one for each of {self.rows}"
                )
        fraction = self.parameter(self.fraction_parameter)
        if set(fraction.bounds) != {(0.0, 1.0)} or not fraction.decimals:
            raise ValueError(f"{fraction}: fractions need bounds (0, 1) and decimals")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(parameter.name for parameter in self.parameters)

    def parameter(self, name: str) -> Parameter:
        """The column of that name."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise ValueError(f"parameter={name!r} is unknown, allowed: {self.names}")

    def bounds(self, row: str, name: str) -> Bounds:
        """(low, high) of one number."""
        bounds = self.parameter(name).bounds
        return bounds[self.rows.index(row) if len(bounds) > 1 else 0]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, row by row."""
        return tuple((row, name) for row in self.rows for name in self.names)

    def check(self, config: Configuration) -> None:
        """Raises a ValueError that names the problem if a configuration is not of the space."""
        if (config.rows, config.parameters) != (self.rows, self.names):
            raise ValueError(
                f"configuration: rows {config.rows} and parameters {config.parameters}, "
                f"needed: {self.rows} and {self.names}"
            )
        for (row, name), value in config.cells().items():
            low, high = self.bounds(row, name)
            if not low <= value <= high:
                raise ValueError(
                    f"{name} of {self.label} {row}: {value} is outside [{low:g}, {high:g}]"
                )
            if self.parameter(name).decimals == 0 and value % 1:
                raise ValueError(f"{name} of {self.label} {row}: {value} is no whole number")
        name = self.fraction_parameter
        total = math.fsum(config.column(name))
        if abs(total - 1.0) > SUM_TOLERANCE:
            raise ValueError(f"{name}: the fractions sum to {total:.6g}, they must sum to 1")

    def uniform(self) -> Configuration:
        """Equal fractions, and every other number in the middle of its random range."""
        cells: dict[Cell, float] = {}
        for row, name in self.cells:
            low, high = self.random_bounds(row, name)
            decimals = self.parameter(name).decimals
            cells[row, name] = on_grid((low + high) / 2, (low, high), decimals)
        for row in self.rows:
            cells[row, self.fraction_parameter] = 1.0 / len(self.rows)
        return Configuration.from_cells(cells)

    def random(self, seed: int | np.random.SeedSequence | np.random.Generator) -> Configuration:
        """A random configuration on the grid of each parameter's decimals: a cold start.

        The fractions are Dirichlet(1, ..., 1), so every division is equally likely; the other
        numbers are uniform within `random_bounds`.
        """
        rng = np.random.default_rng(seed)
        drawn = self.divided(rng.dirichlet(np.ones(len(self.rows))).tolist())
        for row, name in ((row, name) for name in self.names for row in self.rows):
            if name != self.fraction_parameter:
                bounds = self.random_bounds(row, name)
                value = float(rng.uniform(*bounds))
                drawn[row, name] = on_grid(value, bounds, self.parameter(name).decimals)
        return Configuration.from_cells({cell: drawn[cell] for cell in self.cells})

    def divided(self, weights: Sequence[float]) -> dict[Cell, float]:
        """Fractions in proportion to row weights, rounded to the decimals of their parameter."""
        name = self.fraction_parameter
        fractions = round_fractions(weights, 10 ** self.parameter(name).decimals)
        return {(row, name): part for row, part in zip(self.rows, fractions, strict=True)}

    def random_bounds(self, row: str, name: str) -> Bounds:
        """The bounds of one number, cut at the parameter's `random_high`."""
        low, high = self.bounds(row, name)
        return low, max(low, min(high, self.parameter(name).random_high))


def grid_range(bounds: Bounds, decimals: int) -> tuple[int, int]:
    """(first, last) number within the bounds, in units of the last decimal place.

    first > last if there is none.
    """
    units = 10**decimals
    low, high = bounds
    return math.ceil(low * units - _TOLERANCE), math.floor(high * units + _TOLERANCE)


def on_grid(value: float, bounds: Bounds, decimals: int = 2) -> float:
    """The number with `decimals` decimals within the bounds that is nearest to `value`.

    The lower bound if no such number lies within them.
    """
    low, high = bounds
    first, last = grid_range(bounds, decimals)
    if first > last:
        return low
    units = min(max(round(value * 10**decimals), first), last)
    # Floating-point rounding must not push the result over a bound.
    return min(max(units / 10**decimals, low), high)


def round_fractions(weights: Sequence[float], units: int = 100) -> tuple[float, ...]:
    """Fractions proportional to `weights`, multiples of 1 / `units`, that sum to 1.

    Largest-remainder method: every fraction is rounded down, and the remaining units go to the
    largest remainders (the first on ties).
    """
    if not weights or not all(math.isfinite(w) and w >= 0 for w in weights) or not any(weights):
        raise ValueError(f"weights={tuple(weights)}: must be finite, >= 0, and not all 0")
    scaled = [w / max(weights) for w in weights]  # So that no sum overflows.
    exact = [units * w / math.fsum(scaled) for w in scaled]
    parts = [math.floor(e + _TOLERANCE) for e in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: parts[i] - exact[i])
    for i in by_remainder[: units - sum(parts)]:
        parts[i] += 1
    return tuple(part / units for part in parts)
