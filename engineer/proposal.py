"""From the text of an answer to a configuration: read tolerantly, project strictly.

The text is what a language model wrote. Whatever it is, reading ends quickly, raises nothing, and
gives either a `Proposal` or the reason why there is none. Projection then makes any proposal a
configuration of the space and tells every change it made.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from engineer import plain_yaml
from engineer.space import ConfigurationSpace
from mapf_jax.environment_config import PARAMETERS, EnvironmentConfig

MAX_TEXT = 65_536
"""Characters of an answer that are read, counted from its end, where the configuration stands."""
MAX_CANDIDATES = 32
MAX_EXPLANATION = 600
_MAX_NOTES = 32

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_PARAMETER = re.compile(r"(?:data|hole|wait)[ _-]?ratio", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_SIZE = r"(?:size[ _]?)?([0-9]{1,3})(?: ?x ?[0-9]{1,3})?"
_SIZE_KEY = re.compile(_SIZE, re.IGNORECASE)
# A row of the asked form anywhere in a line: `3: {data_ratio: 0.4, ...}`.
_ROW = re.compile(
    rf"(?<![\w.])[\"']?{_SIZE}[\"']?[ \t]{{0,8}}:[ \t]{{0,8}}\{{[^{{}}]{{0,400}}\}}", re.IGNORECASE
)
_BETWEEN_ROWS = re.compile(r"[\s,;{}\[\]-]{0,40}")
# A line, stripped, that may belong to a configuration which stands unfenced between prose. All
# white space within is bounded: unbounded neighbours would make the search quadratic.
_LINE = re.compile(
    rf"(?:-[ \t]{{1,8}})?(?:"
    rf"[\"']?(?:{_SIZE}|(?:data|hole|wait)[ _-]?ratio|(?:map_|lake_)?size|N)[\"']?[ \t]{{0,8}}:.*"
    rf"|[\"']?[A-Za-z_][A-Za-z_ -]{{0,40}}[\"']?[ \t]{{0,8}}:[ \t]{{0,8}}[\[{{]?"
    rf"|[\[\]{{}}, \t]+|-|---|\{{.*\}},?|#.*"
    rf")",
    re.IGNORECASE,
)
_MAX_LINE = 1_024
_SIZE_NAMES = ("size", "map_size", "lake_size", "n")


@dataclasses.dataclass(frozen=True)
class Proposal:
    """What an answer proposes, as far as it could be read; not yet a configuration.

    Attributes:
      values: finite numbers by size and parameter name; sizes and parameters may be missing,
        sizes may be unknown and numbers out of range.
      notes: what was there but could not be read.
      explanation: the end of the prose before the configuration, at most `MAX_EXPLANATION`
        characters on one line.
    """

    values: Mapping[int, Mapping[str, float]]
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


def parse(text: str, sizes: Sequence[int]) -> Proposal | Unreadable:
    """Reads the last configuration of an answer.

    Reasoning in `<think>` blocks is skipped. The configuration may be YAML or JSON, fenced or
    between prose, and of any of these shapes: a mapping from sizes (the asked form), the same
    under some other key, a mapping from each parameter name to numbers by size, or a list of
    mappings with a `size`. It counts as readable if it has a number for one of `sizes`. Of
    several readable ones the last complete one counts (every parameter of every size), or the
    last one if none is complete: a remark after the configuration does not replace it.

    Args:
      text: the answer; anything.
      sizes: the sizes that are asked for.

    Returns:
      The proposal, or why there is none. Never raises on account of `text`.
    """
    # The tail first: the end of an answer decides, and nothing below is to see a huge text.
    visible = text[text.rfind(_THINK_CLOSE) + len(_THINK_CLOSE) :] if _THINK_CLOSE in text else text
    if (opened := visible.find(_THINK_OPEN)) >= 0:
        visible = visible[:opened]
        if not visible.strip():
            return Unreadable("the answer ends within its reasoning")
    visible = visible[-MAX_TEXT:].encode("utf-8", "replace").decode("utf-8")
    if not visible.strip():
        return Unreadable("the answer is empty")

    last_error = ""
    partial: Proposal | None = None
    for candidate in _candidates(visible):
        try:
            documents = plain_yaml.read(candidate.text)
        except plain_yaml.NotPlainError as error:
            last_error = last_error or str(error)
            continue
        for document in reversed(documents):
            reading = _Reading()
            reading.add(document)
            known = [reading.values.get(size, {}) for size in sizes]
            if not any(known):
                continue
            notes = tuple(reading.notes[:_MAX_NOTES])
            found = Proposal(reading.values, notes, _prose(visible[: candidate.start]))
            if all(name in row for row in known for name in PARAMETERS):
                return found
            partial = partial or found
    if partial is not None:
        return partial
    reason = "no configuration with a number for one of the sizes " + " ".join(map(str, sizes))
    return Unreadable(f"{reason} ({last_error})" if last_error else reason)


def project(
    raw: Proposal, previous: EnvironmentConfig, space: ConfigurationSpace
) -> tuple[EnvironmentConfig, tuple[str, ...]]:
    """The configuration of the space that a proposal means, and every change this took.

    What is missing is kept from the previous configuration. Unknown sizes are dropped, hole and
    wait ratios clipped to their bounds, data ratios clipped to at least 0 and divided by their
    sum (uniform if all are 0).

    Args:
      raw: what `parse` read.
      previous: the configuration of the round before; its sizes are those of the space.
      space: the sizes and bounds.

    Returns:
      The configuration, and one readable line for each change.

    Raises:
      ValueError: `previous` has other sizes than the space.
    """
    if previous.sizes != space.sizes:
        raise ValueError(f"previous: sizes {previous.sizes} are not allowed, only {space.sizes}")
    repairs = list(raw.notes)
    unknown = sorted(set(raw.values) - set(space.sizes))
    if unknown:
        listed = " ".join(map(str, unknown[:10])) + (" ..." if len(unknown) > 10 else "")
        repairs.append(f"unknown sizes dropped: {listed}")

    numbers: dict[str, list[float]] = {name: [] for name in PARAMETERS}
    for i, size in enumerate(space.sizes):
        row = raw.values.get(size, {})
        if not row:
            repairs.append(f"size {size}: missing, kept from the previous configuration")
        for name in PARAMETERS:
            if name in row:
                value = row[name]
            else:
                value = getattr(previous, name)[i]
                if row:
                    repairs.append(
                        f"size {size} {name}: missing, {_short(value)} kept from the previous "
                        "configuration"
                    )
            low, high = (0.0, math.inf) if name == "data_ratio" else space.bounds(name, size)
            clipped = min(max(value, low), high) + 0.0  # + 0.0 turns -0.0 into 0.0
            if clipped != value:
                repairs.append(f"size {size} {name}: {_short(value)} clipped to {_short(clipped)}")
            numbers[name].append(clipped)

    shares = numbers["data_ratio"]
    if not any(shares):
        repairs.append("data_ratio: all 0, made uniform")
        numbers["data_ratio"] = [1.0 / len(shares)] * len(shares)
    else:
        largest = max(shares)  # dividing by it first keeps the sum of huge numbers finite
        scaled = [share / largest for share in shares]
        total = math.fsum(scaled)
        # Far below the tolerance of `EnvironmentConfig`, which sums the shares unscaled.
        if abs(total * largest - 1.0) > 1e-9 or largest > 1.0:
            repairs.append(f"data_ratio: sum {_short(total * largest)} rescaled to 1")
            numbers["data_ratio"] = [share / total for share in scaled]
    config = EnvironmentConfig(
        sizes=space.sizes, **{name: tuple(numbers[name]) for name in PARAMETERS}
    )
    return config, tuple(repairs)


def render_config(config: EnvironmentConfig) -> str:
    """The configuration in the form that is asked of an engineer; `parse` is its inverse.

    One line a size, numbers with two decimals, or more where two would change them.
    """
    return "\n".join(
        f"{size}: {{"
        + ", ".join(f"{name}: {_decimal(getattr(config, name)[i])}" for name in PARAMETERS)
        + "}"
        for i, size in enumerate(config.sizes)
    )


class _Reading:
    """Collects the numbers of one document, whatever its shape."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}
        self.notes: list[str] = []

    def add(self, node: plain_yaml.Node) -> None:
        if isinstance(node, list):
            for item in node:
                self.add(item)
            return
        if not isinstance(node, dict):
            return
        own_size = next(
            (_size(v) for k, v in node.items() if _name(k) in _SIZE_NAMES and isinstance(v, str)),
            None,
        )
        for key, value in node.items():
            name = _name(key)
            if name in PARAMETERS:
                if isinstance(value, dict):  # numbers by size
                    for size_key, number in value.items():
                        self._set(_size(size_key), name, number)
                elif own_size is not None:  # a row that names its size
                    self._set(own_size, name, value)
            elif (size := _size(key)) is not None and isinstance(value, dict):
                for inner, number in value.items():
                    if _name(inner) in PARAMETERS:
                        self._set(size, _name(inner), number)
            else:
                self.add(value)

    def _set(self, size: int | None, name: str, written: plain_yaml.Node) -> None:
        if size is None:
            return
        number = _number(written)
        if number is None:
            shown = ascii(written[:40]) if isinstance(written, str) else "a collection"
            self.notes.append(f"size {size} {name}: {shown} is not a finite number")
        else:
            self.values.setdefault(size, {})[name] = number


def _name(key: str) -> str:
    return key.strip().lower().replace(" ", "_").replace("-", "_")


def _size(key: str) -> int | None:
    match = _SIZE_KEY.fullmatch(key.strip()[:32])
    return int(match.group(1)) if match else None


def _number(written: plain_yaml.Node) -> float | None:
    if not isinstance(written, str) or len(written) > 64 or not _NUMBER.fullmatch(written.strip()):
        return None
    number = float(written)
    return number if math.isfinite(number) else None


def _candidates(text: str) -> list[_Candidate]:
    """Parts of the text that may be a configuration, the last first, of equal ends the longest."""
    found = {
        (c.start, c.end): c
        for source in (_rows(text), _braced(text), _runs(text), _fenced(text))
        for c in source
        if _PARAMETER.search(c.text)
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


def _runs(text: str) -> Iterator[_Candidate]:
    """Runs of lines that look like YAML or JSON, blank lines between them included."""
    start: int | None = None
    end = position = 0
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if stripped and len(stripped) <= _MAX_LINE and _LINE.fullmatch(stripped):
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


def _rows(text: str) -> Iterator[_Candidate]:
    """Rows of the asked form that follow each other; a size that comes again begins anew."""
    rows: list[re.Match[str]] = []
    for match in _ROW.finditer(text):
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


def _decimal(number: float) -> str:
    two = f"{number:.2f}"
    if float(two) == number:
        return two
    # YAML 1.1 takes an exponent only after a decimal point, which repr may leave out.
    return (
        np.format_float_positional(number) if number > 1e-4 else np.format_float_scientific(number)
    )
