"""From the text of an answer to a configuration: read tolerantly, project strictly.

Reading any text takes time linear in its length, raises nothing, and returns a `Proposal` or the
reason why there is none. One regular expression finds keys and their numbers; no YAML or JSON
parser is involved, so nesting, aliases and tags have no effect. Projection turns any proposal into
a configuration of the space and reports every change it made.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from engineer.space import Cell, Configuration, ConfigurationSpace, by_row, plural

MAX_TEXT = 65_536
"""Characters of an answer that are read, from its end, where the configuration is."""
MAX_EXPLANATION = 600
_MAX_NOTES = 32

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_BETWEEN = re.compile(r"[\s,;\"'-]*")
"""Separators between two tokens of a configuration; anything else is prose and ends it."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """The numbers that an answer proposes, not yet a configuration.

    Attributes:
      values: finite numbers by row and parameter name; rows and parameters may be missing, rows
        unknown and numbers out of range.
      notes: a line for each number that could not be read, at most `_MAX_NOTES`.
      explanation: the end of the prose before the configuration, at most `MAX_EXPLANATION`
        characters on one line.
    """

    values: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...] = ()
    explanation: str = ""

    @classmethod
    def from_cells(cls, cells: Mapping[Cell, float]) -> "Proposal":
        """A proposal of these numbers."""
        return cls(by_row(cells))


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """The reason why no configuration could be read from an answer."""

    reason: str


def parse(text: str, space: ConfigurationSpace, trigger: str = "") -> Proposal | Unreadable:
    """Reads the last configuration of an answer.

    Reasoning in `<think>` blocks is skipped. The configuration may be YAML or JSON, fenced or
    between prose, in any of these shapes: a mapping from rows (the requested form), the same under
    some other key, a mapping from each parameter name to numbers by row, or a list of mappings that
    name their row (`size: 3`). It ends at prose or at a number that it already has. It is readable
    if it has a number for one of the space's rows. The last complete configuration (every parameter
    of every row) is chosen, or else the last readable one, so that a later remark does not replace
    it.

    Args:
      text: the answer; any text.
      space: the expected rows and parameters.
      trigger: if the answer contains this text, only what follows its last occurrence is read, and
        what precedes it is the explanation.
    """
    # Cut to the tail first, so that nothing below sees a huge text.
    visible, opened, _ = text.rpartition("</think>")[2].partition("<think>")
    if opened and not visible.strip():
        return Unreadable("the answer ends within its reasoning")
    before, _, after = visible.rpartition(trigger) if trigger else ("", "", visible)
    visible = after[-MAX_TEXT:].encode("utf-8", "replace").decode("utf-8")
    reasoning = before[-MAX_TEXT:].encode("utf-8", "replace").decode("utf-8")
    if not visible.strip():
        return Unreadable("the answer is empty")

    cells = set(space.cells)
    readable = [block for block in _blocks(visible, space) if cells & block.cells.keys()]
    if not readable:
        rows = f"{plural(space.label)} {' '.join(space.rows)}"
        return Unreadable(f"no configuration with a number for one of the {rows}")
    complete = [block for block in readable if cells <= block.cells.keys()]
    last = (complete or readable)[-1]
    prose = " ".join(_FENCE.sub(" ", reasoning or visible[: last.start]).split()).rstrip(" {[\"'-")
    if len(prose) > MAX_EXPLANATION:
        prose = prose[-MAX_EXPLANATION:].partition(" ")[2]
    return Proposal(by_row(last.cells), tuple(last.notes[:_MAX_NOTES]), prose)


@dataclasses.dataclass
class _Block:
    """Numbers of one configuration that begins at `start` of the text."""

    start: int
    cells: dict[Cell, float] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)


def _blocks(text: str, space: ConfigurationSpace) -> Iterator[_Block]:
    """Candidate configurations, in the order of the text.

    `row` or `name` is the row or parameter of the current mapping; `waiting` holds the numbers of a
    mapping that has not named its row yet.
    """
    tokens, row_key = _patterns(space)
    rows, parameters = ({_folded(n): n for n in names} for names in (space.rows, space.names))

    def row_of(key: str) -> str | None:
        match = row_key.fullmatch(key.strip("\"'"))
        if match is None:
            return None
        return str(int(match[1])) if match[1].isdecimal() else rows.get(_folded(match[1]))

    block, end = _Block(0), 0
    row: str | None = None
    name: str | None = None
    waiting: dict[str, str] = {}
    for token in tokens.finditer(text):
        value = token["value"]
        found: list[tuple[str | None, str, str]] = []
        named_mapping = token["row"] or token["parameter"]
        new_mapping = value is None and not (named_mapping or token["comment"])
        prose = not _BETWEEN.fullmatch(text, end, token.start())
        if prose or (new_mapping and not token["bracket"]):
            yield block
            block = _Block(token.start())
        if prose or new_mapping:
            row, name, waiting = None, None, {}
        end = token.end()
        if token["row"] and value is None:
            row, name, waiting = row_of(token["row"]), None, {}
        elif token["row"] and name:  # a number of the row, in the mapping of a parameter
            found = [(row_of(token["row"]), name, value)]
        elif token["parameter"]:
            parameter = parameters[_folded(token["parameter"])]
            if value is None:
                row, name, waiting = None, parameter, {}
            elif row:
                found = [(row, parameter, value)]
            else:
                waiting[parameter] = value
        elif token["label"] and value and (named := row_of(value)):
            row, found, waiting = named, [(named, *item) for item in waiting.items()], {}
        for of_row, of_name, written in found:
            number = _number(written)
            if of_row is None:
                continue
            if number is None:
                block.notes.append(f"{of_row} {of_name}: {written[:40]!a} is not a finite number")
                continue
            if (of_row, of_name) in block.cells:
                yield block
                block = _Block(token.start())
            block.cells[of_row, of_name] = number
    yield block


@functools.lru_cache(maxsize=16)
def _patterns(space: ConfigurationSpace) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of a token (bracket, bullet, comment, key with the value on its line) and of a row.

    Repetitions of white space are bounded; unbounded ones would make the search quadratic.
    """

    def words(names: Sequence[str]) -> str:
        longest_first = sorted(names, key=len, reverse=True)
        return "|".join(re.escape(name).replace("_", "[ _-]") for name in longest_first)

    label = words([space.label])
    numbered = all(row.isdecimal() for row in space.rows)
    digits = max(3, *map(len, space.rows))
    row = f"[0-9]{{1,{digits}}}" if numbered else words(space.rows)
    any_row = rf"(?:{label}[ _]?)?({row}){space.row_suffix}"
    key = (
        rf"(?P<row>{any_row})|(?P<parameter>{words(space.names)})"
        rf"|(?P<label>(?:row_)?{label}|{words([*space.row_keys, 'name'])})|\w{{1,40}}"
    )
    word = r"[^\s,;{}\[\]#\"']{1,80}+(?<!:)"
    more = r"(?:[ \t]{1,8}[^\s,;{}\[\]#\"':]{1,80}+(?![\"' \t]*:)){0,8}"
    value = rf"\"[^\"\n]{{0,80}}\"|'[^'\n]{{0,80}}'|\[[^\[\]{{}}\n]{{0,80}}\]|{word}{more}"
    token = (
        r"(?P<bracket>[{}\[\]]|(?<!\S)-(?=\s))|(?P<comment>\#[^\n{}]{0,200}$)"
        rf"|(?<![\w.])(?:{key})[\"']?[ \t]{{0,8}}:"
        rf"(?:[ \t]{{0,8}}(?P<value>{value})|\s{{0,80}}[{{\[])?"
    )
    flags = re.IGNORECASE | re.ASCII | re.MULTILINE
    return re.compile(token, flags), re.compile(any_row, flags)


def _folded(key: str) -> str:
    return key.lower().replace(" ", "_").replace("-", "_")


def _number(written: str) -> float | None:
    text = written.strip("\"' ")
    if len(text) > 64 or not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def project(
    raw: Proposal, previous: Configuration, space: ConfigurationSpace
) -> tuple[Configuration, tuple[str, ...]]:
    """Projects a proposal onto the space.

    Missing numbers are taken from the previous configuration. Unknown rows are dropped, numbers are
    clipped to their bounds and rounded where they must be whole. Fractions are clipped to at least
    0 and divided by their sum (uniform if all are 0).

    Returns:
      The configuration, and one readable line for each change.
    """
    if (previous.rows, previous.parameters) != (space.rows, space.names):
        raise ValueError(
            f"previous: rows {previous.rows} and parameters {previous.parameters} are not "
            f"allowed, only {space.rows} and {space.names}"
        )
    label, fraction = space.label, space.fraction_parameter
    repairs = list(raw.notes)
    unknown = sorted(set(raw.values) - set(space.rows), key=lambda row: (len(row), row))
    if unknown:
        listed = " ".join(unknown[:10]) + (" ..." if len(unknown) > 10 else "")
        repairs.append(f"unknown {plural(label)} dropped: {listed}")

    numbers: dict[Cell, float] = {}
    for row in space.rows:
        given = raw.values.get(row, {})
        if not given:
            repairs.append(f"{label} {row}: missing, kept from the previous configuration")
        for name in space.names:
            cell = (row, name)
            where = f"{label} {row} {name}"
            value = given.get(name, previous[cell])
            if given and name not in given:
                repairs.append(
                    f"{where}: missing, {_short(value)} kept from the previous configuration"
                )
            low, high = (0.0, math.inf) if name == fraction else space.bounds(*cell)
            clipped = min(max(value, low), high) + 0.0  # + 0.0 turns -0.0 into 0.0
            if clipped != value:
                repairs.append(f"{where}: {_short(value)} clipped to {_short(clipped)}")
            if space.parameter(name).decimals == 0 and clipped % 1:
                repairs.append(f"{where}: {_short(clipped)} rounded to {round(clipped)}")
                clipped = float(round(clipped))
            numbers[cell] = clipped

    # Dividing by the largest first keeps the sum of huge numbers finite.
    largest = max(numbers[row, fraction] for row in space.rows)
    scaled = [numbers[row, fraction] / (largest or 1.0) for row in space.rows]
    total = math.fsum(scaled)
    if not total:
        repairs.append(f"{fraction}: all 0, made uniform")
        scaled, total = [1.0] * len(scaled), len(scaled)
    # Well below `SUM_TOLERANCE`, as a configuration sums the fractions unscaled.
    elif abs(total * largest - 1.0) > 1e-9 or largest > 1.0:
        repairs.append(f"{fraction}: sum {_short(total * largest)} rescaled to 1")
    else:
        return Configuration.from_cells(numbers), tuple(repairs)
    for row, part in zip(space.rows, scaled, strict=True):
        numbers[row, fraction] = part / total
    return Configuration.from_cells(numbers), tuple(repairs)


def designs_nothing(
    raw: Proposal, config: Configuration, previous: Configuration, space: ConfigurationSpace
) -> str:
    """Why a proposal is no design, empty if it is one.

    Either it has the same numbers for all of several rows, so that it says nothing about any, or
    its projection `config` is the previous configuration, but for rounding. Fractions that had to
    be rescaled are still a design, of weights.
    """

    def rounding(name: str) -> float:
        return 0.51 * 10.0 ** -space.parameter(name).decimals

    def constant(name: str) -> bool:
        column = [raw.values[row][name] for row in space.rows if name in raw.values.get(row, {})]
        # Fractions that sum to 1 may differ by one unit, as 0.33, 0.33 and 0.34 do.
        return len(column) == len(space.rows) and max(column) - min(column) <= 2 * rounding(name)

    if len(space.rows) > 1 and all(map(constant, space.names)):
        return f"the same numbers for all {plural(space.label)}"
    if all(abs(config[cell] - previous[cell]) <= rounding(cell[1]) for cell in space.cells):
        return "the previous configuration again"
    return ""


def render_config(config: Configuration, space: ConfigurationSpace) -> str:
    """The configuration in the form requested of an engineer; `parse` is the inverse.

    One line for each row; numbers have the decimals of their parameter, or more where rounding
    would change them.
    """
    return "\n".join(
        row_text(row, {name: number_text(config[row, name], space, name) for name in space.names})
        for row in config.rows
    )


def row_text(row: str, numbers: Mapping[str, str]) -> str:
    """One line of the requested form, from formatted numbers by parameter."""
    return f"{row}: {{" + ", ".join(f"{name}: {text}" for name, text in numbers.items()) + "}"


def number_text(number: float, space: ConfigurationSpace, name: str) -> str:
    """Formats a number of one parameter."""
    text = f"{number:.{space.parameter(name).decimals}f}"
    if float(text) == number:
        return text
    # YAML 1.1 takes an exponent only after a decimal point, which repr may leave out.
    if abs(number) > 1e-4:
        return np.format_float_positional(number)
    return np.format_float_scientific(number)


def _short(number: float) -> str:
    """Two decimals; scientific notation for huge numbers."""
    return f"{number:.2f}" if abs(number) < 1e6 else f"{number:.2e}"
