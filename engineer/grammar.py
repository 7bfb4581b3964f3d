"""Which tokens may come next, so that an answer ends with a well-formed configuration.

A finite automaton over token ids, built once for a space and a vocabulary as plain NumPy tables,
which a sampler can use on the device without asking the host. The answer is: free reasoning up to
a budget, a trigger, and then one configuration in exactly the asked form: every row, every
parameter, every number within its bounds with the decimals of its parameter. With `exact_fractions`
the shares of a group sum to 1: the automaton counts, in units of the last decimal, what is left
for the shares to come, and the last one gets the rest. Without it each share is free and the
projection rescales them.

Every text is tokenized as the tokenizer itself does (a model has seen no other way), in the
whole configuration and not in pieces, so any vocabulary serves: numbers that are one token,
digits that are tokens, digits that merge.

Why no library: xgrammar needs torch; llguidance computes each mask on the host, a round trip for
every token, where ours is one gather inside the decoding loop; outlines-core compiles a regular
expression to a table as we do, but a regular expression cannot say that numbers sum to 1 short of
listing all ways, and it admits every way of cutting a text into tokens, which leaves the length of
an answer unbounded by anything but its characters.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from engineer.proposal import number_text, row_text
from engineer.space import Cell, ConfigurationSpace, grid_range

Tokenize = Callable[[str], Sequence[int]]
MAX_STATES = 2_000_000
_MAX_VALUES = 10_001


@dataclasses.dataclass(frozen=True)
class TokenTables:
    """A finite automaton over token ids; an answer begins in state 0.

    A state that is not free allows its listed tokens alone; a free one allows every token.

    Attributes:
      tokens: i32[Q, K], listed tokens of each state, padded with -1.
      targets: i32[Q, K], the state after each; 0 for padding.
      free: bool[Q].
      otherwise: i32[Q], the state after a token that a free state does not list.
      longest: the most tokens that an answer can have, the stop token included.
    """

    tokens: np.ndarray
    targets: np.ndarray
    free: np.ndarray
    otherwise: np.ndarray
    longest: int


@dataclasses.dataclass(frozen=True)
class _Field:
    """One number of the configuration.

    `middles[i]` are the tokens of its i-th allowed value, `units[i]` that value in units of the
    last decimal; `literal` are the tokens between the number before it and this one.
    """

    cell: Cell
    literal: tuple[int, ...]
    units: tuple[int, ...]
    middles: tuple[tuple[int, ...], ...]


def build(
    space: ConfigurationSpace,
    tokenize: Tokenize,
    stop_ids: Sequence[int],
    *,
    exact_fractions: bool = True,
    reasoning_tokens: int = 0,
    trigger: str = "",
    opening: str = "",
) -> TokenTables:
    """The automaton of all answers with a configuration of the space.

    Args:
      space: the rows, parameters and bounds.
      tokenize: token ids of a text, without special tokens added to it.
      stop_ids: tokens that end an answer, at least one.
      exact_fractions: shares of a group sum to 1.
      reasoning_tokens: most tokens of free reasoning before the trigger; 0 for none. A stop token
        within the reasoning still ends the answer; whoever samples has to finish it then.
      trigger: the text that ends the reasoning, such as "</think>". It is recognised in the
        model's own tokens, and forced where the budget ends. Needed if there is a budget.
      opening: text between the trigger and the configuration.

    Raises:
      ValueError: an argument is out of its range, or the tokenizer joins two numbers in one token.
    """
    if reasoning_tokens < 0 or (reasoning_tokens > 0 and not trigger):
        raise ValueError(
            f"reasoning_tokens={reasoning_tokens}, trigger={trigger!r}: allowed are 0 and, with a "
            "trigger, whole numbers above"
        )
    if not stop_ids:
        raise ValueError("stop_ids=(): at least one token is needed")
    fields, ending = _fields(space, tokenize, opening)
    builder = _Builder()
    ids = tuple(int(token) for token in tokenize(trigger)) if reasoning_tokens else ()
    entry = _add_reasoning(builder, reasoning_tokens, ids) if ids else None
    start = _Configurations(builder, space, fields, ending, stop_ids, exact_fractions).start()
    if entry is not None:
        builder.redirect(entry, start)
    longest = reasoning_tokens + len(ids) + len(ending) + 1
    longest += sum(len(f.literal) + max(map(len, f.middles)) for f in fields)
    return builder.tables(longest)


def _values(space: ConfigurationSpace, cell: Cell) -> list[tuple[int, str]]:
    """(units, text) of every value that one number may have, ascending."""
    bounds, decimals = space.bounds(*cell), space.parameter(cell[1]).decimals
    first, last = grid_range(bounds, decimals)
    if first > last:  # no number of so many decimals lies within the bounds
        return [(0, number_text(bounds[0], space, cell[1]))]
    if last - first >= _MAX_VALUES:
        raise ValueError(
            f"{cell[1]} of {cell[0]}: {last - first + 1} values, allowed are {_MAX_VALUES}; fewer "
            "decimals or narrower bounds are needed"
        )
    return [(u, f"{u / 10**decimals:.{decimals}f}") for u in range(first, last + 1)]


def _fields(
    space: ConfigurationSpace, tokenize: Tokenize, opening: str
) -> tuple[list[_Field], tuple[int, ...]]:
    """The numbers in their order, and the tokens after the last one."""
    values = {cell: _values(space, cell) for cell in space.cells}
    chosen = {cell: options[0][1] for cell, options in values.items()}

    def tokens(changed: dict[Cell, str]) -> tuple[int, ...]:
        texts = chosen | changed
        rows = (row_text(row, {n: texts[row, n] for n in space.names}) for row in space.rows)
        return tuple(int(token) for token in tokenize(opening + "\n".join(rows)))

    base = tokens({})
    fields, done = [], 0
    for cell, options in values.items():
        whole = [tokens({cell: text}) for _, text in options]
        if len(whole) == 1:  # nothing to choose: part of the literal before the next number
            fields.append(_Field(cell, (), (options[0][0],), ((),)))
            continue
        before = _common(whole)
        after = _common([sequence[::-1] for sequence in whole])
        after = min(after, min(map(len, whole)) - before)
        while after >= 0 and not _prefix_free(_cut(whole, before, after)):
            after -= 1
        if before < done or after < 0:
            raise ValueError(f"{cell}: the tokenizer joins it with the number before it")
        middles = _cut(whole, before, after)
        fields.append(
            _Field(cell, base[done:before], tuple(units for units, _ in options), tuple(middles))
        )
        done = len(base) - after
    return fields, base[done:]


def _cut(whole: Sequence[tuple[int, ...]], before: int, after: int) -> list[tuple[int, ...]]:
    return [sequence[before : len(sequence) - after] for sequence in whole]


def _common(sequences: Sequence[tuple[int, ...]]) -> int:
    """Length of the longest common beginning."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def _prefix_free(sequences: Sequence[tuple[int, ...]]) -> bool:
    ordered = sorted(sequences)
    return all(b[: len(a)] != a for a, b in itertools.pairwise(ordered))


class _Builder:
    """States as they come: for each a mapping from listed tokens to targets."""

    def __init__(self) -> None:
        self._listed: list[dict[int, int]] = []
        self._otherwise: dict[int, int] = {}
        self._redirected: dict[int, int] = {}

    def state(self) -> int:
        if len(self._listed) >= MAX_STATES:
            raise ValueError(
                f"grammar: more than {MAX_STATES} states; with shares that need not sum to 1 in "
                "the grammar there are far fewer"
            )
        self._listed.append({})
        return len(self._listed) - 1

    def arc(self, source: int, token: int, target: int) -> None:
        self._listed[source][token] = target

    def target(self, source: int, token: int) -> int | None:
        return self._listed[source].get(token)

    def release(self, source: int, otherwise: int) -> None:
        """Makes a state free."""
        self._otherwise[source] = otherwise

    def redirect(self, source: int, target: int) -> None:
        """Whatever led to `source` leads to `target`; `source` is left as its copy."""
        self._redirected[source] = target

    def tables(self, longest: int) -> TokenTables:
        for source, target in self._redirected.items():
            self._listed[source] = self._listed[target]
        count = len(self._listed)
        width = max(map(len, self._listed))
        tokens = np.full((count, width), -1, np.int32)
        targets = np.zeros((count, width), np.int32)
        for i, listed in enumerate(self._listed):
            tokens[i, : len(listed)] = list(listed)
            targets[i, : len(listed)] = list(listed.values())
        free = np.zeros(count, bool)
        otherwise = np.zeros(count, np.int32)
        for source, target in self._otherwise.items():
            free[source], otherwise[source] = True, target
        return TokenTables(tokens, targets, free, otherwise, longest)


def _add_reasoning(builder: _Builder, budget: int, trigger: tuple[int, ...]) -> int:
    """Adds states (tokens of reasoning so far, tokens of the trigger matched); returns the end.

    The trigger is found wherever it stands (as Knuth, Morris and Pratt find a pattern). Where the
    budget is used up, what is missing of the trigger is forced.
    """
    length = len(trigger)
    states = [[builder.state() for _ in range(length)] for _ in range(budget + 1)]
    end = builder.state()
    for used, matched in itertools.product(range(budget + 1), range(length)):
        here = states[used][matched]
        if used == budget:
            target = end if matched + 1 == length else states[used][matched + 1]
            builder.arc(here, trigger[matched], target)
            continue
        for token in set(trigger):
            seen = (*trigger[:matched], token)
            now = max(k for k in range(len(seen) + 1) if k == 0 or seen[-k:] == trigger[:k])
            builder.arc(here, token, end if now == length else states[used + 1][now])
        builder.release(here, states[used + 1][0])
    return end


class _Configurations:
    """Adds the states of all configurations.

    A state is (field, place within it, units left of every group of shares). States of equal
    meaning are made once.
    """

    def __init__(
        self,
        builder: _Builder,
        space: ConfigurationSpace,
        fields: Sequence[_Field],
        ending: Sequence[int],
        stop_ids: Sequence[int],
        exact_fractions: bool,
    ) -> None:
        self._builder = builder
        self._fields = fields
        self._ending = ending
        self._stop_ids = tuple(dict.fromkeys(int(token) for token in stop_ids))
        self._groups = space.simplexes if exact_fractions else ()
        self._units = [10 ** space.parameter(group[0][1]).decimals for group in self._groups]
        order = {field.cell: i for i, field in enumerate(fields)}
        self._last = [max(order[cell] for cell in group) for group in self._groups]
        self._group_of = {cell: g for g, group in enumerate(self._groups) for cell in group}
        self._made: dict[tuple[int, tuple[int, ...]], int] = {}

    def start(self) -> int:
        # One state beforehand, so that an automaton without reasoning begins in state 0.
        first = self._builder.state()
        self._grow(first, 0, tuple(self._units))
        return first

    def _state(self, field: int, left: tuple[int, ...]) -> int:
        """The state before the literal of a field."""
        known = self._made.get((field, left))
        if known is None:
            known = self._made[field, left] = self._builder.state()
            self._grow(known, field, left)
        return known

    def _grow(self, state: int, index: int, left: tuple[int, ...]) -> None:
        """Adds everything after a state."""
        builder = self._builder
        if index == len(self._fields):
            for token in self._ending:
                following = builder.state()
                builder.arc(state, token, following)
                state = following
            for token in self._stop_ids:
                builder.arc(state, token, state)
            return
        field = self._fields[index]
        allowed = list(self._allowed(index, left))
        if len(field.middles) == 1:  # nothing to decode; `state` stands before the next field
            self._grow(state, index + 1, allowed[0][1])
            return
        for token in field.literal:
            following = builder.state()
            builder.arc(state, token, following)
            state = following
        for middle, remaining in allowed:
            node = state
            for token in middle[:-1]:
                shared = builder.target(node, token)
                if shared is None:
                    shared = builder.state()
                    builder.arc(node, token, shared)
                node = shared
            builder.arc(node, middle[-1], self._state(index + 1, remaining))

    def _allowed(
        self, index: int, left: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(tokens, units left afterwards) of the values that a field may have."""
        field = self._fields[index]
        group = self._group_of.get(field.cell)
        for units, middle in zip(field.units, field.middles, strict=True):
            if group is None:
                yield middle, left
            elif units == left[group] or (units < left[group] and index != self._last[group]):
                yield middle, (*left[:group], left[group] - units, *left[group + 1 :])
