"""Constrained decoding of well-formed configurations.

A finite automaton over token ids, built once for a space and a vocabulary as plain NumPy tables,
which a sampler can use on the device without asking the host. It accepts configurations in exactly
the requested form: every row, every parameter, every number within its bounds with the decimals of
its parameter. With `exact_fractions` the fractions sum to 1: the automaton counts the remainder in
units of the last decimal, and the last fraction gets the rest. Otherwise each is free and the
projection rescales them. The sampler handles reasoning before the configuration.

Texts are tokenized as whole configurations by the tokenizer itself, as the model has seen them, so
any vocabulary works: numbers that are one token, digits that are tokens, digits that merge.
`docs/engineer.md` explains why no library does this.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from engineer.proposal import number_text, row_text
from engineer.space import Cell, ConfigurationSpace, grid_range

Tokenize = Callable[[str], Sequence[int]]
MAX_STATES = 2_000_000
_MAX_VALUES = 10_001


@dataclasses.dataclass(frozen=True)
class TokenTables:
    """A finite automaton over token ids; an answer begins in state 0.

    Attributes:
      tokens: i32[Q, K], allowed tokens of each state, padded with -1.
      targets: i32[Q, K], the state after each; 0 for padding.
      longest: maximum number of tokens of an answer, stop token included.
    """

    tokens: np.ndarray
    targets: np.ndarray
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
    opening: str = "",
) -> TokenTables:
    """Builds the automaton of all configurations of the space.

    Args:
      space: the configurations.
      tokenize: token ids of a text, without added special tokens.
      stop_ids: tokens that end an answer, at least one.
      exact_fractions: whether the fractions sum to 1.
      opening: text before the configuration.

    Raises:
      ValueError: a parameter has too many values, the automaton has too many states, or the
        tokenizer joins two numbers in one token.
    """
    fields, ending = _fields(space, tokenize, opening)
    whole = 10 ** space.parameter(space.fraction_parameter).decimals
    counted = [exact_fractions and f.cell[1] == space.fraction_parameter for f in fields]
    states = _configurations(fields, ending, stop_ids, counted, whole)
    shape = len(states), max(map(len, states))
    tokens, targets = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
    for i, arcs in enumerate(states):
        tokens[i, : len(arcs)] = list(arcs)
        targets[i, : len(arcs)] = list(arcs.values())
    longest = sum(len(f.literal) + max(map(len, f.middles)) for f in fields)
    return TokenTables(tokens, targets, longest + len(ending) + 1)


def _values(space: ConfigurationSpace, cell: Cell) -> list[tuple[int, str]]:
    """(units, text) of every allowed value of one number, ascending."""
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
    """The numbers to be chosen in order, and the tokens after the last one."""
    values = {cell: _values(space, cell) for cell in space.cells}
    chosen = {cell: options[0][1] for cell, options in values.items()}

    def tokens(changed: dict[Cell, str]) -> tuple[int, ...]:
        texts = chosen | changed
        rows = (row_text(row, {n: texts[row, n] for n in space.names}) for row in space.rows)
        return tuple(int(token) for token in tokenize(opening + "\n".join(rows)))

    base = tokens({})
    fields, done = [], 0
    for cell, options in values.items():
        if len(options) == 1:  # nothing to choose: part of the literal before the next number
            continue
        whole = [tokens({cell: text}) for _, text in options]
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
    """Length of the longest common prefix."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def _prefix_free(sequences: Sequence[tuple[int, ...]]) -> bool:
    ordered = sorted(sequences)
    return all(b[: len(a)] != a for a, b in itertools.pairwise(ordered))


def _configurations(
    fields: Sequence[_Field],
    ending: Sequence[int],
    stop_ids: Sequence[int],
    counted: Sequence[bool],
    whole: int,
) -> list[dict[int, int]]:
    """The next state by state and token, over all configurations.

    A state is (field, position in it, units left of the whole); equal states are shared. `counted`
    marks the fields whose numbers sum to 1, which is `whole` units.
    """
    states: list[dict[int, int]] = []
    made: dict[tuple[int, int], int] = {}

    def new() -> int:
        if len(states) >= MAX_STATES:
            raise ValueError(
                f"grammar: more than {MAX_STATES} states; with fractions that need not sum to 1 "
                "in the grammar there are far fewer"
            )
        states.append({})
        return len(states) - 1

    def chain(state: int, tokens: Sequence[int]) -> int:
        """The state after some tokens; missing states are added."""
        for token in tokens:
            if token not in states[state]:
                states[state][token] = new()
            state = states[state][token]
        return state

    def grow(state: int, index: int, left: int) -> None:
        """Adds everything that follows a state before field `index`."""
        if index == len(fields):
            state = chain(state, ending)
            states[state] |= dict.fromkeys(map(int, stop_ids), state)
            return
        field, last = fields[index], not any(counted[index + 1 :])
        state = chain(state, field.literal)
        for units, middle in zip(field.units, field.middles, strict=True):
            remaining = left
            if counted[index]:
                remaining = left - units
                if remaining < 0 or (remaining and last):
                    continue
            key = (index + 1, remaining)
            if key not in made:
                made[key] = new()
                grow(made[key], *key)
            states[chain(state, middle[:-1])][middle[-1]] = made[key]

    grow(new(), 0, whole)
    return states
