"""From the text of an answer to a configuration: read tolerantly, project strictly.

Reading any text takes time linear in its length, raises nothing, and returns a `Proposal` or the
reason why there is none. Regular expressions find keys and their numbers, and tables are read
line by line; no YAML or JSON parser is involved, so nesting, aliases and tags have no effect.
Projection turns any proposal into a configuration of the space and reports every change it made.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np

from engineer.space import Cell, Configuration, ConfigurationSpace, by_row, plural

MAX_TEXT = 65_536
"""Characters of an answer that are read, from its end, where the configuration is."""
MAX_EXPLANATION = 600
_MAX_NOTES = 32
_MAX_WRITTEN = 120  # Characters of a number with a remark.
_MOST_COLUMNS = 64
_NEAR = 0.05  # Part of the width of its bounds by which a column may miss them, to be clipped.

_DECIMAL = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(
    rf"(?P<whole>{_DECIMAL}) ?(?:(?P<percent>%|percent\b)|/ ?(?P<part>[0-9]+))?"
    r"(?:[ \t]+(?:\(|//|<|\u2190|[-\u2013\u2014]+[ \t]?[A-Za-z]).*)?"  # A remark.
)
_DECIMAL_COMMA = re.compile(r"([+-]?[0-9]{1,3}),([0-9]{1,6})")
_THOUSANDS = re.compile(r"([+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?)(.*)", re.DOTALL)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_BETWEEN = re.compile(r"[\s,;\"'-]*")
"""Separators between two tokens of a configuration; anything else is prose and ends it."""
_MARKS = str.maketrans(
    dict.fromkeys("\r\xa0\u2007\u2009\u200b\u202f\u2060\u3000\ufeff", " ")
    | {"\u2212": "-", "\xd7": "x", "\uff1a": ":", "\uff0c": ",", "\uff05": "%", "=": ":"}
    | dict.fromkeys("\u201c\u201d\u201e", '"')
    | dict.fromkeys("\u2018\u2019", "'")
)
_EMPHASIS = re.compile(r"\*\*|(?<!`)`(?!`)")
_THOUGHT = re.compile(r"<(/?)(?:think(?:ing)?|reasoning)>", re.IGNORECASE)
_COMMENT = re.compile(
    r"(?<![^\s,{}\[\]])//[^\n]*|/\*[^\n*]{0,200}\*/|(?<=[}\d%])[ \t]{1,80}\#[^\n]*|"
    r"(?<=\})[ \t]{0,8}\([^()\n]{0,200}\)|"
    r"^[ \t]{0,80}(?:reason(?:ing)?|rationale|explanation|justification|why|notes?|comments?):"
    r"[^\n{}]*$",
    re.MULTILINE | re.IGNORECASE,
)
"""What explains a design beside it; its numbers are not those of the design."""
_WRAPPERS = ("params", "parameters", "config", "configuration", "settings", "values")
"""Keys between a row and its parameters."""
_BULLET = re.compile(r"^([ \t]{0,80})[*+\u2022](?=[ \t])", re.MULTILINE)
_RULE = re.compile(r"[-: ]*")
_PAST = re.compile(
    r"\b(?:previous|prior|old|original|last round|changes?|deltas?|differences?)\b", re.IGNORECASE
)
_PRESENT = re.compile(r"\b(?:new|next|final|now|proposed|updated|revised)\b", re.IGNORECASE)
_ANNOUNCED = re.compile(
    r"^[^\w\n]{0,20}(?:the )?(?:new|next|final|proposed|updated|revised)"
    r"(?: (?:configuration|config|design|environment|settings|values|answer))?[^\w\n]{0,20}$",
    re.MULTILINE | re.IGNORECASE,
)


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


TRIGGER = "\nConfiguration:\n"
"""What ends prose in front of a configuration, in runs that ask for prose under the grammar."""


def parse(text: str, space: ConfigurationSpace, trigger: str = "") -> Proposal | Unreadable:
    """Reads the last complete configuration of an answer.

    Reasoning in blocks of `<think>`, `<thinking>` or `<reasoning>` is skipped. The configuration
    may be YAML or JSON, fenced or between prose, in any of these shapes: a mapping from rows (the
    requested form), the same under some other key, a mapping from each parameter name to numbers by
    row, a list of mappings that name their row (`size: 3`), parameters under a heading for each
    row, a list of numbers for each parameter beside a list of the rows (`size: [3, 4]`), or a table
    of Markdown or commas. Keys may be bold, in backticks, in camel case or a row and its parameter
    at once (`3.fraction`), `=` may stand for `:`, a row may hold a mapping `params`, and rows and
    numbers may be followed by a remark in parentheses. Numbers may be written `10%`, `1/5` or
    `0,25`; remarks may also follow them after `//`, `<-` or a dash. A comma separates thousands
    where a parameter's bounds reach 1000. If nothing else can be read, `:` may be missing between a
    name and its number, and so may the name of an only parameter.

    A fragment ends at prose or at a number that it already has. Fragments belong together until
    one repeats a number of those before it. A configuration is readable if it is complete: nothing
    missing is ever guessed. One that follows is a remark if it has at most half of the numbers, or
    else an incomplete design, and then the answer is unreadable. So it is if the line that opens
    the last of several complete ones calls it an earlier one, or if a line after the last complete
    one announces another ("New configuration:").

    The answer is also unreadable if a fraction is negative, as changes are, or if no number of
    another parameter is near its bounds: all miss them by more than rounding and a twentieth of
    their width, or all but zeros by more than their width. But if at least one misses them by more
    than their width and all fit as percentages, they are divided by 100, with a note; so are those
    that stand beside fractions with a sum of 100. (Single numbers, and columns nearer to their
    bounds, are for `project` to clip.)

    Args:
      text: the answer; any text.
      space: the expected rows and parameters.
      trigger: if the answer contains this text, only what follows its last occurrence is read, and
        what precedes it is the explanation.
    """
    # Cut to the tail first, so that nothing below sees a huge text.
    visible, opened = _after_reasoning(text)
    if opened and not visible.strip():
        return Unreadable("the answer ends within its reasoning")
    before, _, after = visible.rpartition(trigger) if trigger else ("", "", visible)
    visible = after[-MAX_TEXT:].encode("utf-8", "replace").decode("utf-8")
    reasoning = before[-MAX_TEXT:].encode("utf-8", "replace").decode("utf-8")
    if not visible.strip():
        return Unreadable("the answer is empty")

    cells = set(space.cells)
    plain = _plain(visible)
    readable = _read(plain, space)
    if not readable:
        visible = _bare(space).sub(r"\1: ", plain)
        readable = _read(visible, space, bare=True)
    if not readable:
        rows = f"{plural(space.label)} {' '.join(space.rows)}"
        return Unreadable(f"no configuration with a number for one of the {rows}")
    designs = list(_designs(readable, cells))
    substantial = (one for one in designs if 2 * len(cells & one.cells.keys()) > len(cells))
    last = next(substantial, designs[0])
    if len([one for one in designs if cells <= one.cells.keys()]) > 1 and _is_past(visible, last):
        return Unreadable("a design, then one that is called an earlier one")
    if _ANNOUNCED.search(visible[last.start :].partition("\n")[2]):
        return Unreadable("another design is announced after the last one that can be read")
    if missing := [cell for cell in space.cells if cell not in last.cells]:
        named = [f"{space.label} {row} {name}" for row, name in missing[:4]]
        more = ["..."] if len(missing) > 4 else []
        return Unreadable("; ".join([*last.notes[:4], f"missing: {', '.join(named + more)}"]))
    for name in space.names:
        if reason := _misread(last, name, space):
            return Unreadable(reason)
    prose = " ".join(_FENCE.sub(" ", reasoning or visible[: last.start]).split()).rstrip(" {[\"'-")
    if len(prose) > MAX_EXPLANATION:
        prose = prose[-MAX_EXPLANATION:].partition(" ")[2]
    return Proposal(by_row(last.cells), tuple(last.notes[:_MAX_NOTES]), prose)


@dataclasses.dataclass
class _Block:
    """Numbers of one configuration, or of a fragment, that begins at `start` of the text."""

    start: int
    cells: dict[Cell, float] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    def add(self, cell: Cell, written: str, names: "_Names") -> None:
        """Takes a number as it is written, or notes that it is none."""
        number = _number(written, cell[1] in names.thousands)
        if number is None:
            self.notes.append(f"{' '.join(cell)}: {written[:40]!a} is not a finite number")
        else:
            self.cells[cell] = number


def _after_reasoning(text: str) -> tuple[str, bool]:
    """What follows the last end of a thought, up to the next one, and whether there is a next."""
    tags = list(_THOUGHT.finditer(text))
    end = max((tag.end() for tag in tags if tag[1]), default=0)
    begin = next((tag.start() for tag in tags if tag.start() >= end), None)
    return text[end:begin], begin is not None


def _is_past(text: str, design: _Block) -> bool:
    """Whether the line or key that opens a design calls it an earlier one, or changes."""
    line = text[: design.start].rpartition("}")[2].rstrip("\n\"'`, ").rpartition("\n")[2][-120:]
    opening = line + text[design.start : design.start + 40].partition(":")[0]
    return bool(_PAST.search(opening)) and not _PRESENT.search(opening)


def _read(text: str, space: ConfigurationSpace, bare: bool = False) -> list[_Block]:
    """Fragments with a number of the space, in the order of the text; see `_blocks`."""
    fragments = [*_blocks(text, space, bare), *_lists(text, space), *_tables(text, space)]
    own = [one for one in fragments if set(space.cells) & one.cells.keys()]
    return sorted(own, key=lambda one: one.start)


def _designs(fragments: Sequence[_Block], cells: Set[Cell]) -> Iterator[_Block]:
    """Fragments put together, the last design first.

    A design grows backwards until it has all `cells`, or the one before repeats a number of it.
    """
    design: _Block | None = None
    for one in reversed(fragments):
        if design is not None and (cells <= design.cells.keys() or design.cells.keys() & one.cells):
            yield design
            design = None
        design = design or _Block(one.start)
        design.start = one.start
        design.cells = one.cells | design.cells
        design.notes = one.notes + design.notes
    if design is not None:
        yield design


def _misread(design: _Block, name: str, space: ConfigurationSpace) -> str:
    """The reason why a column cannot be meant as it is, empty if it can.

    Divides a column of percentages by 100, with a note.
    """
    bounds = {row: space.bounds(row, name) for row in space.rows}
    width = max(high - low for low, high in bounds.values())
    rounding = max(_NEAR * width, 0.5 * 10.0 ** -space.parameter(name).decimals)

    def outside(row: str, value: float, by: float) -> bool:
        low, high = bounds[row]
        return max(low - value, value - high) > by

    cells = {row: design.cells[row, name] for row in space.rows}
    column = {row: value for row, value in cells.items() if value}
    if name == space.fraction_parameter:
        least = min(cells.values())
        return f"{name}: {_short(least)} is negative, as changes are" if least < -rounding else ""
    if not column:
        return ""
    far = [outside(row, value, width) for row, value in column.items()]
    out = all(far) or all(outside(row, value, rounding) for row, value in cells.items())
    total = math.fsum(design.cells[row, space.fraction_parameter] for row in space.rows)
    ratios = any(far) and all(high <= 1 for _, high in bounds.values())
    fit = all(1 <= v <= 100 and not outside(r, v / 100, width) for r, v in column.items())
    if ratios and fit and (out or abs(total - 100) <= 1):
        design.cells |= {(row, name): value / 100 for row, value in column.items()}
        design.notes.append(f"{name}: read as percentages")
        return ""
    such = _short(next(iter(column.values())))
    return f"{name}: no number is near its bounds, such as {such}" if out else ""


def _plain(text: str) -> str:
    """The text with other blanks, signs and quotes made plain, and without emphasis and comments.

    Its length stays the same, so that places in it are those of the text.
    """
    text = text.replace("=>", ": ")
    for pattern in (_EMPHASIS, _COMMENT):
        text = pattern.sub(lambda found: " " * len(found[0]), text)
    return _BULLET.sub(r"\1-", text).translate(_MARKS)


class _Names:
    """Finds the row or parameter that a key stands for; None if there is none.

    Args:
      space: the expected rows and parameters.
    """

    def __init__(self, space: ConfigurationSpace) -> None:
        self._row_key = _patterns(space)[1]
        self._rows = {_folded(name): name for name in space.rows}
        joined = {_folded(name).replace("_", ""): name for name in space.names}
        self._parameters = joined | {_folded(name): name for name in space.names}
        self._parameter = re.compile(_words(space.names, joined=True), re.IGNORECASE)
        self._labels = {_folded(key) for key in (space.label, *space.row_keys)}
        self._numbered = {str(int(row)): row for row in space.rows if row.isdecimal()}
        highest = {
            name: max(space.bounds(row, name)[1] for row in space.rows) for name in space.names
        }
        self.thousands = {name for name, high in highest.items() if high >= 1000}

    def row(self, key: str) -> str | None:
        """The name of a row; whole numbers may be none of the space."""
        match = self._row_key.fullmatch(key.strip("\"'"))
        if match is None:
            return None
        if not match[1].isdecimal():
            return self._rows.get(_folded(match[1]))
        number = str(int(match[1]))
        return self._numbered.get(number, number)

    def parameter(self, key: str) -> str | None:
        """The name of a parameter."""
        return self._parameters.get(_folded(key.strip("\"'")))

    def mentions(self, key: str) -> bool:
        """Whether a parameter's name is a part of a key."""
        return self._parameter.search(key) is not None

    def is_label(self, key: str) -> bool:
        """Whether a key stands for the row in a mapping or a table."""
        return _folded(key) in self._labels


def _blocks(text: str, space: ConfigurationSpace, bare: bool) -> Iterator[_Block]:
    """Fragments of mappings, in the order of the text.

    With `bare`, a row may be followed by a number alone if the space has one parameter.

    `row` or `name` is the row or parameter of the current mapping, `open` if bullets may list what
    belongs to it. `waiting` holds the numbers of a mapping that has not named its row yet.
    """
    names = _Names(space)
    alone = space.names[0] if bare and len(space.names) == 1 else None
    block, end = _Block(0), 0
    row: str | None = None
    name: str | None = None
    listed = opened = False
    waiting: dict[str, str] = {}
    for token in _patterns(space)[0].finditer(text):
        value = token["value"]
        found: list[tuple[str | None, str, str]] = []
        heading = token["heading"] or token["titled"] or (value is None and token["row"])
        named_mapping = heading or token["row"] or token["parameter"] or token["own"]
        wrapped = opened and token["wrapper"] and value is None  # The mapping of a row holds one.
        new_mapping = value is None and not (named_mapping or token["comment"] or wrapped)
        prose = not _BETWEEN.fullmatch(text, end, token.start())
        if prose or (new_mapping and not token["bracket"]):
            yield block
            block = _Block(token.start())
        if prose or (new_mapping and not (listed and token["bracket"] == "-")):
            row, name, listed, waiting = None, None, False, {}
        end, opened = token.end(), bool(heading or wrapped)
        if heading:
            row, name, listed, waiting = names.row(heading), None, True, {}
        elif token["row"] and (named := name or alone):  # A number of the row.
            found = [(names.row(token["row"]), named, value)]
        elif token["own"] and value and (own := names.parameter(token["own"])):
            found = [(names.row(token["of"]), own, value)]
        elif token["parameter"]:
            parameter = names.parameter(token["parameter"])
            assert parameter is not None
            if value is None:
                row, name, listed, waiting = None, parameter, True, {}
            elif row:
                found = [(row, parameter, value)]
            else:
                waiting[parameter] = value
        elif token["label"] and value and (named := names.row(value)):
            row, listed, opened = named, False, True
            found, waiting = [(named, *item) for item in waiting.items()], {}
        for of_row, of_name, written in found:
            if of_row is None:
                continue
            if (of_row, of_name) in block.cells:
                yield block
                block = _Block(token.start())
            block.add((of_row, of_name), written, names)
    yield block


def _lists(text: str, space: ConfigurationSpace) -> Iterator[_Block]:
    """Fragments of a list of numbers for each parameter beside a list of the rows, in order.

    Left out is a parameter with more or fewer numbers than rows, and all if a row is there twice.
    """
    names = _Names(space)
    block, end = _Block(0), 0
    rows: list[str | None] = []
    waiting: list[tuple[str, list[str]]] = []
    for token in _list_pattern(space).finditer(text):
        if not _BETWEEN.fullmatch(text, end, token.start()):
            yield block
            block, rows, waiting = _Block(token.start()), [], []
        end = token.end()
        items = [item.strip() for item in token["items"].removesuffix(",").split(",")]
        if name := names.parameter(token["parameter"] or ""):
            waiting.append((name, items))
        else:
            rows = list(map(names.row, items))
        if not rows:
            continue
        for name, written in waiting:
            cells = {(row, name): number for row, number in zip(rows, written, strict=False) if row}
            if block.cells.keys() & cells:
                yield block
                block = _Block(token.start())
            if len(cells) == len(rows) == len(written):
                for cell, number in cells.items():
                    block.add(cell, number, names)
        waiting = []
    yield block


def _tables(text: str, space: ConfigurationSpace) -> Iterator[_Block]:
    """The tables, in the order of the text: lines of cells between `|`, commas or tabs.

    The first line names the parameters (or rows) of its columns, "(%)" behind those of percentages.
    In every other line, the cell below the label of rows, or else the first one, names the row (or
    parameter). Left out is a table with a column whose head holds a parameter's name and more, as
    "new fraction" does.
    """
    names = _Names(space)
    block: _Block | None = None
    columns: list[tuple[str | None, str | None, str]] = []
    start = at_label = 0
    for line in text.splitlines(keepends=True):
        separator = next((mark for mark in "|\t" if mark in line), ",")
        written = line.strip().removeprefix("|").removesuffix("|").split(separator, _MOST_COLUMNS)
        cells = [cell.strip(" \"'") for cell in written]
        labels = [i for i, cell in enumerate(cells) if names.is_label(cell)]
        at_label = labels[0] if labels else at_label if block else 0
        first = cells.pop(at_label) if at_label < len(cells) else ""
        row, parameter = names.row(first), names.parameter(first)
        plain = [cell.removesuffix("(%)").rstrip() for cell in cells]
        heads = [(names.row(cell), names.parameter(cell)) for cell in plain]
        if block is not None and (row or parameter):
            for (of_row, of_parameter, unit), cell in zip(columns, cells, strict=False):
                at = (row or of_row, parameter or of_parameter)
                if at in block.cells:
                    yield block
                    block = _Block(start)
                if at[0] and at[1]:
                    block.add((at[0], at[1]), cell.removesuffix(unit) + unit, names)
        elif any(map(any, heads)):
            if block is not None:
                yield block
            both = list(zip(heads, plain, cells, strict=True))
            more = any(names.mentions(cell) and not any(head) for head, cell, _ in both)
            block = None if more else _Block(start)
            columns = [(*head, "%" * (cell != written)) for head, cell, written in both]
        elif block is not None and not all(map(_RULE.fullmatch, written)):
            yield block
            block = None
        start += len(line)
    if block is not None:
        yield block


@functools.lru_cache(maxsize=16)
def _patterns(space: ConfigurationSpace) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of a token (bracket, bullet, comment, key with the value on its line) and of a row.

    Repetitions of white space are bounded; unbounded ones would make the search quadratic.
    """

    label = _words([space.label])
    numbered = all(row.isdecimal() for row in space.rows)
    digits = max(3, *map(len, space.rows))
    row = f"[0-9]{{1,{digits}}}" if numbered else _words(space.rows)
    any_row = rf"(?:{label}[ _]?)?({row}){space.row_suffix}"
    remark = r"(?:[ \t]{0,4}\([^()\n]{0,40}\))?"
    names = _words(space.names, joined=True)
    colon = r"[\"']?\]?[ \t]{0,8}:"
    key = (
        rf"(?P<row>{any_row}){remark}|(?P<parameter>{names})|(?P<of>{any_row})[._](?P<own>{names})"
        rf"|(?P<label>(?:row_)?{label}|{_words([*space.row_keys, 'name'])})"
        rf"|(?P<wrapper>{'|'.join(_WRAPPERS)})|\w{{1,40}}"
    )
    word = r"[^\s,;{}\[\]#\"']{1,80}+(?<!:)"
    more = r"(?:[ \t]{1,8}[^\s,;{}\[\]#\"':]{1,80}+(?![\"' \t]*:)){0,8}"
    # A row alone on its line, unless a bracket follows; a remark in parentheses may.
    heading = (
        rf"^[ \t]{{0,8}}(?:\#{{2,6}}[ \t]{{1,4}}|\[(?:\w{{1,20}}\.)?)?(?P<heading>{any_row})\]?"
        rf"{remark}:?[ \t]{{0,8}}$(?!\s{{0,80}}[{{\[])"
        rf"|^[ \t]{{0,8}}\#{{2,6}}[ \t]{{1,4}}"
        rf"(?P<titled>(?:{label})[ _](?:{row}){space.row_suffix})"
        r"[ \t]{0,4}[:\u2014\u2013-][^\n{}]{0,80}$"
    )
    comma = (
        r"[0-9]{1,3}(?:(?:,[0-9]{3}){1,4}(?:\.[0-9]{1,6})?|,[0-9]{1,6})(?![\w.]|[\"']?[ \t]{0,8}:)"
    )
    value = (
        rf"\"[^\"\n]{{0,600}}\"|'[^'\n]{{0,80}}'|\[[^\[\]{{}}\n]{{0,80}}\]"
        rf"|{word}[ \t]{{1,4}}\([^()\n{{}}]{{1,90}}\)|{comma}|{word}{more}"
    )
    token = (
        rf"{heading}|"
        r"(?P<bracket>[{}\[\]]|(?<!\S)-(?=\s))|(?P<comment>\#[^\n{}]{0,200}$)"
        rf"|(?<![\w.])(?:{key}){colon}"
        rf"(?:[ \t]{{0,8}}(?![\"']?(?:{names}){colon})(?P<value>{value})|\s{{0,80}}[{{\[])?"
    )
    flags = re.IGNORECASE | re.ASCII | re.MULTILINE
    return re.compile(token, flags), re.compile(any_row, flags)


@functools.lru_cache(maxsize=16)
def _list_pattern(space: ConfigurationSpace) -> re.Pattern[str]:
    """The name of a parameter, or a key of rows, and a list."""
    keys = [key for one in (space.label, *space.row_keys, "row") for key in (one, plural(one))]
    names = rf"(?P<parameter>{_words(space.names, joined=True)})|{_words(keys)}"
    pattern = rf"(?<![\w.])(?:{names})[\"']?\s{{0,8}}:\s{{0,8}}\[(?P<items>[^\[\]{{}}]{{1,600}})\]"
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


@functools.lru_cache(maxsize=16)
def _bare(space: ConfigurationSpace) -> re.Pattern[str]:
    """The name of a parameter and the blank before a number."""
    pattern = rf"(?<![\w.])({_words(space.names, joined=True)})[ \t](?=[ \t]{{0,7}}{_DECIMAL})"
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


def _words(names: Sequence[str], joined: bool = False) -> str:
    """A pattern of any of the names; Markdown writes some underscores with a backslash.

    With `joined`, words may follow each other without anything in between, as in `dataRatio`.
    """
    longest_first = sorted(names, key=len, reverse=True)
    between = r"(?:\\_|[ _-])" + "?" * joined
    return "|".join(re.escape(name).replace("_", between) for name in longest_first)


def _folded(key: str) -> str:
    return key.lower().replace("\\", "").replace(" ", "_").replace("-", "_")


def _number(written: str, thousands: bool) -> float | None:
    text = written.strip("\"' ").removesuffix(".")
    if thousands and (grouped := _THOUSANDS.fullmatch(text)):
        text = grouped[1].replace(",", "") + grouped[2]
    elif comma := _DECIMAL_COMMA.fullmatch(text):
        text = f"{comma[1]}.{comma[2]}"
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX_WRITTEN else None
    if match is None:
        return None
    number, divisor = float(match["whole"]), float(match["part"] or 1)
    number = number / (100 if match["percent"] else divisor) if divisor else math.inf
    return number if math.isfinite(number) else None


def project(raw: Proposal, space: ConfigurationSpace) -> tuple[Configuration, tuple[str, ...]]:
    """Projects a proposal with all numbers of the space onto it.

    Unknown rows are dropped, numbers are clipped to their bounds and rounded where they must be
    whole. Fractions are clipped to at least 0 and divided by their sum (uniform if all are 0).

    Returns:
      The configuration, and one readable line for each change.
    """
    label, fraction = space.label, space.fraction_parameter
    repairs = list(raw.notes)
    unknown = sorted(set(raw.values) - set(space.rows), key=lambda row: (len(row), row))
    if unknown:
        listed = " ".join(unknown[:10]) + (" ..." if len(unknown) > 10 else "")
        repairs.append(f"unknown {plural(label)} dropped: {listed}")

    numbers: dict[Cell, float] = {}
    for row, name in space.cells:
        value, where = raw.values[row][name], f"{label} {row} {name}"
        low, high = (0.0, math.inf) if name == fraction else space.bounds(row, name)
        clipped = min(max(value, low), high) + 0.0  # + 0.0 turns -0.0 into 0.0
        if clipped != value:
            repairs.append(f"{where}: {_short(value)} clipped to {_short(clipped)}")
        if space.parameter(name).decimals == 0 and clipped % 1:
            repairs.append(f"{where}: {_short(clipped)} rounded to {round(clipped)}")
            clipped = float(round(clipped))
        numbers[row, name] = clipped

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
        column = [raw.values[row][name] for row in space.rows]
        # Fractions that sum to 1 may differ by one unit, as 0.33, 0.33 and 0.34 do.
        return max(column) - min(column) <= 2 * rounding(name)

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
