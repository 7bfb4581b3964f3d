"""From the text of an answer to a configuration: read tolerantly, project strictly.

The text is what a language model wrote. Whatever it is, reading ends quickly, raises nothing, and
gives either a `Proposal` or the reason why there is none. Projection then makes any proposal a
configuration of the space and tells every change it made.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from engineer import plain_yaml
from engineer.space import Configuration, ConfigurationSpace

MAX_TEXT = 65_536
"""Characters of an answer that are read, counted from its end, where the configuration stands."""
MAX_CANDIDATES = 32
MAX_EXPLANATION = 600
_MAX_NOTES = 32

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_BETWEEN_ROWS = re.compile(r"[\s,;{}\[\]-]{0,40}")
_MAX_LINE = 1_024


@dataclasses.dataclass(frozen=True)
class Proposal:
    """What an answer proposes, as far as it could be read; not yet a configuration.

    Attributes:
      values: finite numbers by row and parameter name; rows and parameters may be missing, rows
        may be unknown and numbers out of range.
      notes: what was there but could not be read.
      explanation: the end of the prose before the configuration, at most `MAX_EXPLANATION`
        characters on one line.
    """

    values: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...] = ()
    explanation: str = ""


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """No configuration could be read from an answer, and why."""

    reason: str


@dataclasses.dataclass(frozen=True)
class _Candidate:
    start: int
    end: int
    text: str


def parse(text: str, space: ConfigurationSpace, trigger: str = "") -> Proposal | Unreadable:
    """Reads the last configuration of an answer.

    Reasoning in `<think>` blocks is skipped. The configuration may be YAML or JSON, fenced or
    between prose, and of any of these shapes: a mapping from rows (the asked form), the same
    under some other key, a mapping from each parameter name to numbers by row, or a list of
    mappings that name their row (`size: 3`). It counts as readable if it has a number for one of
    the space's rows. Of several readable ones the last complete one counts (every parameter of
    every row), or the last one if none is complete: a remark after the configuration does not
    replace it.

    Args:
      text: the answer; anything.
      space: the rows and parameters that are asked for.
      trigger: where the answer has this text, only what follows its last occurrence is read, and
        what stands before it is the explanation.

    Returns:
      The proposal, or why there is none. Never raises on account of `text`.
    """
    # The tail first: the end of an answer decides, and nothing below is to see a huge text.
    visible = text[text.rfind(_THINK_CLOSE) + len(_THINK_CLOSE) :] if _THINK_CLOSE in text else text
    if (opened := visible.find(_THINK_OPEN)) >= 0:
        visible = visible[:opened]
        if not visible.strip():
            return Unreadable("the answer ends within its reasoning")
    before, found, after = visible.rpartition(trigger) if trigger else ("", "", visible)
    visible = after[-MAX_TEXT:].encode("utf-8", "replace").decode("utf-8")
    reasoning = before[-MAX_TEXT:].encode("utf-8", "replace").decode("utf-8") if found else ""
    if not visible.strip():
        return Unreadable("the answer is empty")

    forms = _forms(space)
    last_error = ""
    partial: Proposal | None = None
    for candidate in _candidates(visible, forms):
        try:
            documents = plain_yaml.read(candidate.text)
        except plain_yaml.NotPlainError as error:
            last_error = last_error or str(error)
            continue
        for document in reversed(documents):
            reading = _Reading(forms)
            reading.add(document)
            known = [reading.values.get(row, {}) for row in space.rows]
            if not any(known):
                continue
            notes = tuple(reading.notes[:_MAX_NOTES])
            prose = _prose(reasoning or visible[: candidate.start])
            complete = Proposal(reading.values, notes, prose)
            if all(name in numbers for numbers in known for name in space.names):
                return complete
            partial = partial or complete
    if partial is not None:
        return partial
    reason = f"no configuration with a number for one of the {space.label}s {' '.join(space.rows)}"
    return Unreadable(f"{reason} ({last_error})" if last_error else reason)


def project(
    raw: Proposal, previous: Configuration, space: ConfigurationSpace
) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration of the space that a proposal means, and every change this took.

    What is missing is kept from the previous configuration. Unknown rows are dropped, numbers are
    clipped to their bounds and rounded where they must be whole, and shares are clipped to at
    least 0 and divided by the sum of their group (uniform if all are 0).

    Args:
      raw: what `parse` read.
      previous: the configuration of the round before; its rows and parameters are the space's.
      space: the rows, parameters and bounds.

    Returns:
      The configuration, and one readable line for each change.

    Raises:
      ValueError: `previous` has other rows or parameters than the space.
    """
    if (previous.rows, previous.parameters) != (space.rows, space.names):
        raise ValueError(
            f"previous: rows {previous.rows} and parameters {previous.parameters} are not "
            f"allowed, only {space.rows} and {space.names}"
        )
    label = space.label
    repairs = list(raw.notes)
    unknown = sorted(set(raw.values) - set(space.rows), key=lambda row: (len(row), row))
    if unknown:
        listed = " ".join(unknown[:10]) + (" ..." if len(unknown) > 10 else "")
        repairs.append(f"unknown {label}s dropped: {listed}")

    shares = space.fraction_cells
    numbers: dict[tuple[str, str], float] = {}
    for row in space.rows:
        given = raw.values.get(row, {})
        if not given:
            repairs.append(f"{label} {row}: missing, kept from the previous configuration")
        for name in space.names:
            if name in given:
                value = given[name]
            else:
                value = previous[row, name]
                if given:
                    repairs.append(
                        f"{label} {row} {name}: missing, {_short(value)} kept from the previous "
                        "configuration"
                    )
            low, high = (0.0, math.inf) if (row, name) in shares else space.bounds(row, name)
            clipped = min(max(value, low), high) + 0.0  # + 0.0 turns -0.0 into 0.0
            if clipped != value:
                repairs.append(
                    f"{label} {row} {name}: {_short(value)} clipped to {_short(clipped)}"
                )
            if space.parameter(name).decimals == 0 and clipped % 1:
                repairs.append(
                    f"{label} {row} {name}: {_short(clipped)} rounded to {round(clipped)}"
                )
                clipped = float(round(clipped))
            numbers[row, name] = clipped

    for group in space.simplexes:
        called = _group_name(group)
        parts = [numbers[cell] for cell in group]
        if not any(parts):
            repairs.append(f"{called}: all 0, made uniform")
            numbers |= dict.fromkeys(group, 1.0 / len(group))
            continue
        largest = max(parts)  # dividing by it first keeps the sum of huge numbers finite
        scaled = [part / largest for part in parts]
        total = math.fsum(scaled)
        # Far below the tolerance of a configuration, which sums the shares unscaled.
        if abs(total * largest - 1.0) > 1e-9 or largest > 1.0:
            repairs.append(f"{called}: sum {_short(total * largest)} rescaled to 1")
            numbers |= {cell: part / total for cell, part in zip(group, scaled, strict=True)}
    return Configuration.from_cells(numbers), tuple(repairs)


def _group_name(group: Sequence[tuple[str, str]]) -> str:
    """The parameter of a column, the row of a group within a row, else the first cell."""
    rows, names = {row for row, _ in group}, {name for _, name in group}
    if len(names) == 1:
        return names.pop()
    return rows.pop() if len(rows) == 1 else " ".join(group[0])


def render_config(config: Configuration, space: ConfigurationSpace) -> str:
    """The configuration in the form that is asked of an engineer; `parse` is its inverse.

    One line a row, numbers with the decimals of their parameter, or more where those would change
    them.
    """
    return "\n".join(
        row_text(row, {name: number_text(config[row, name], space, name) for name in space.names})
        for row in config.rows
    )


def row_text(row: str, numbers: Mapping[str, str]) -> str:
    """One line of the asked form from numbers as they are written, by parameter."""
    return f"{row}: {{" + ", ".join(f"{name}: {text}" for name, text in numbers.items()) + "}"


def number_text(number: float, space: ConfigurationSpace, name: str) -> str:
    """A number of one parameter as it is written."""
    text = f"{number:.{space.parameter(name).decimals}f}"
    if float(text) == number:
        return text
    # YAML 1.1 takes an exponent only after a decimal point, which repr may leave out.
    if abs(number) > 1e-4:
        return np.format_float_positional(number)
    return np.format_float_scientific(number)


@dataclasses.dataclass(frozen=True)
class _Forms:
    """How the rows and parameters of a space may be written."""

    rows: Mapping[str, str]  # by normalised name
    parameters: Mapping[str, str]  # likewise
    row_labels: frozenset[str]  # keys under which a mapping names its own row
    numbered: bool  # the rows are whole numbers
    parameter: re.Pattern[str]
    row_key: re.Pattern[str]
    row: re.Pattern[str]  # a row of the asked form anywhere in a line
    line: re.Pattern[str]  # a line that may belong to a configuration between prose

    def row_of(self, key: str) -> str | None:
        match = self.row_key.fullmatch(key.strip()[:96])
        if match is None:
            return None
        if self.numbered:
            return str(int(match.group(1)))
        return self.rows.get(_name(match.group(1)))


@functools.lru_cache(maxsize=16)
def _forms(space: ConfigurationSpace) -> _Forms:
    def words(names: Sequence[str]) -> str:
        longest_first = sorted(names, key=len, reverse=True)
        return "|".join(re.escape(name).replace("_", "[ _-]?") for name in longest_first)

    label = words([space.label])
    numbered = all(row.isdecimal() for row in space.rows)
    if numbered:
        row = rf"(?:{label}[ _]?)?([0-9]{{1,3}}){space.row_suffix}"
    else:
        row = rf"(?:{label}[ _]?)?({words(space.rows)}){space.row_suffix}"
    parameter = rf"(?:{words(space.names)})"
    keys = words([*space.row_keys, "name"])
    # All white space in a line is bounded: unbounded neighbours would make the search quadratic.
    line = (
        rf"(?:-[ \t]{{1,8}})?(?:"
        rf"[\"']?(?:{row}|{parameter}|(?:[a-z]{{1,12}}_)?{label}|{keys})[\"']?[ \t]{{0,8}}:.*"
        rf"|[\"']?[A-Za-z_][A-Za-z_ -]{{0,40}}[\"']?[ \t]{{0,8}}:[ \t]{{0,8}}[\[{{]?"
        rf"|[\[\]{{}}, \t]+|-|---|\{{.*\}},?|#.*"
        rf")"
    )
    name = _name(space.label)
    return _Forms(
        rows={_name(text): text for text in space.rows},
        parameters={_name(text): text for text in space.names},
        row_labels=frozenset({name, f"row_{name}", "name", *map(_name, space.row_keys)}),
        numbered=numbered,
        parameter=re.compile(parameter, re.IGNORECASE),
        row_key=re.compile(row, re.IGNORECASE),
        row=re.compile(
            rf"(?<![\w.])[\"']?{row}[\"']?[ \t]{{0,8}}:[ \t]{{0,8}}\{{[^{{}}]{{0,400}}\}}",
            re.IGNORECASE,
        ),
        line=re.compile(line, re.IGNORECASE),
    )


class _Reading:
    """Collects the numbers of one document, whatever its shape."""

    def __init__(self, forms: _Forms) -> None:
        self.values: dict[str, dict[str, float]] = {}
        self.notes: list[str] = []
        self._forms = forms

    def add(self, node: plain_yaml.Node) -> None:
        if isinstance(node, list):
            for item in node:
                self.add(item)
            return
        if not isinstance(node, dict):
            return
        forms = self._forms
        own_row = next(
            (
                forms.row_of(value)
                for key, value in node.items()
                if _name(key) in forms.row_labels and isinstance(value, str)
            ),
            None,
        )
        for key, value in node.items():
            name = forms.parameters.get(_name(key))
            if name is not None:
                if isinstance(value, dict):  # numbers by row
                    for row_key, number in value.items():
                        self._set(forms.row_of(row_key), name, number)
                elif own_row is not None:  # a mapping that names its row
                    self._set(own_row, name, value)
            elif (row := forms.row_of(key)) is not None and isinstance(value, dict):
                for inner, number in value.items():
                    if (name := forms.parameters.get(_name(inner))) is not None:
                        self._set(row, name, number)
            else:
                self.add(value)

    def _set(self, row: str | None, name: str, written: plain_yaml.Node) -> None:
        if row is None:
            return
        number = _number(written)
        if number is None:
            shown = ascii(written[:40]) if isinstance(written, str) else "a collection"
            self.notes.append(f"{row} {name}: {shown} is not a finite number")
        else:
            self.values.setdefault(row, {})[name] = number


def _name(key: str) -> str:
    return key.strip().lower().replace(" ", "_").replace("-", "_")


def _number(written: plain_yaml.Node) -> float | None:
    if not isinstance(written, str) or len(written) > 64 or not _NUMBER.fullmatch(written.strip()):
        return None
    number = float(written)
    return number if math.isfinite(number) else None


def _candidates(text: str, forms: _Forms) -> list[_Candidate]:
    """Parts of the text that may be a configuration, the last first, of equal ends the longest."""
    found = {
        (c.start, c.end): c
        for source in (_rows(text, forms), _braced(text), _runs(text, forms), _fenced(text))
        for c in source
        if forms.parameter.search(c.text)
    }
    ordered = sorted(found.values(), key=lambda c: (-c.end, c.start))
    return ordered[:MAX_CANDIDATES]


def _fenced(text: str) -> Iterator[_Candidate]:
    """The insides of code fences; one that is not closed ends with the text."""
    fences = list(_FENCE.finditer(text))
    for i in range(0, len(fences), 2):
        start = fences[i].end()
        end = fences[i + 1].start() if i + 1 < len(fences) else len(text)
        yield _Candidate(start, end, text[start:end])


def _runs(text: str, forms: _Forms) -> Iterator[_Candidate]:
    """Runs of lines that look like YAML or JSON, blank lines between them included."""
    start: int | None = None
    end = position = 0
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if stripped and len(stripped) <= _MAX_LINE and forms.line.fullmatch(stripped):
            start = position if start is None else start
            end = position + len(line)
        elif stripped and start is not None:
            yield _Candidate(start, end, text[start:end])
            start = None
        position += len(line)
    if start is not None:
        yield _Candidate(start, end, text[start:end])


def _braced(text: str) -> Iterator[_Candidate]:
    """The outermost balanced pairs of braces or brackets."""
    stack: list[int] = []
    outermost: list[tuple[int, int]] = []
    for match in re.finditer(r"[{}\[\]]", text):
        if match.group() in "{[":
            stack.append(match.start())
        elif stack:
            start = stack.pop()
            while outermost and outermost[-1][0] > start:
                outermost.pop()
            outermost.append((start, match.end()))
    for start, end in outermost:
        yield _Candidate(start, end, text[start:end])


def _rows(text: str, forms: _Forms) -> Iterator[_Candidate]:
    """Rows of the asked form that follow each other; one that comes again begins anew."""
    rows: list[re.Match[str]] = []
    for match in forms.row.finditer(text):
        if rows and (
            match.group(1) in {row.group(1) for row in rows}
            or not _BETWEEN_ROWS.fullmatch(text, rows[-1].end(), match.start())
        ):
            yield _joined(rows)
            rows = []
        rows.append(match)
    if rows:
        yield _joined(rows)


def _joined(rows: Sequence[re.Match[str]]) -> _Candidate:
    return _Candidate(rows[0].start(), rows[-1].end(), "\n".join(row.group() for row in rows))


def _prose(text: str) -> str:
    words = " ".join(_FENCE.sub(" ", text).split())
    return words if len(words) <= MAX_EXPLANATION else words[-MAX_EXPLANATION:].partition(" ")[2]


def _short(number: float) -> str:
    """Two decimals for ordinary numbers, and no thousand digits for extraordinary ones."""
    return f"{number:.2f}" if abs(number) < 1e6 else f"{number:.2e}"
