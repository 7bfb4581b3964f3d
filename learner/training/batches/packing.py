"""Which completions share a sequence, and which sequences a micro-batch: best fit, few shapes.

A *part* is a prompt with some of its completions, and is packed as a whole. All of it is NumPy on
lengths that every process knows, so that every process makes the same sequences.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

# Tokens of a sequence where attention costs as much as everything else, of Qwen3-4B on TPUs.
_LINEAR = 16384
# Numbers of the longest sequences that are tried.
_TRIALS = 6
# Sequences of at least so many tokens are cut into fractions that are multiples of 512, the largest
# tile of the attention kernel of TPUs.
_LONG, _TILES = 2304, (512, 128)
# Fractions of the longest sequence. Together they make up nearly any number of tokens.
_LENGTHS = (1, 2 / 3, 4 / 9, 2 / 9)
# Micro-batches of the longest sequences and the longest completions that a step has at least.
_MICRO_BATCHES = 8

Shape = tuple[int, int]
"""Sequences of a micro-batch, and tokens of a sequence."""


def shapes(sequences: int, shards: int, length: int, completions: int) -> list[Shape]:
    """The shapes of a run, at most four, the largest first; each is compiled once.

    Long sequences become shorter, of others there are fewer.

    Args:
      sequences: most sequences of a micro-batch, a multiple of `shards`.
      shards: the number of sequences of every shape is a multiple of this.
      length: tokens of the longest sequences.
      completions: of a step. Where they are few for so many sequences there are fewer, so that a
        step fills its micro-batches.
    """
    sequences = max(shards, min(sequences, completions // _MICRO_BATCHES // shards * shards))
    if length >= _LONG or sequences % (2 * shards):
        tile = _TILES[length < _LONG]
        lengths = {max(tile, round(length * x / tile) * tile) for x in _LENGTHS[1:]} | {length}
        return [(sequences, x) for x in sorted(lengths, reverse=True) if x <= length]
    halves = [sequences >> n for n in range(len(_LENGTHS)) if sequences % (shards << n) == 0]
    return [(x, length) for x in halves]


def split_groups(
    prompts: np.ndarray, lengths: np.ndarray, groups: np.ndarray, length: int, shared: bool
) -> list[np.ndarray]:
    """Cuts completions into parts that fit a sequence.

    Args:
      prompts: i64[n], tokens of each completion's prompt.
      lengths: i64[n], tokens of each completion; with its prompt at most `length`.
      groups: i64[n], completions with one number have one prompt.
      length: tokens of a sequence.
      shared: whether completions of a part share their prompt; else each is a part.

    Returns:
      The numbers of each part's completions.
    """
    if not shared:
        return [np.array([i]) for i in range(len(lengths))]
    parts = []
    for group in np.unique(groups):
        (own,) = np.nonzero(groups == group)
        own = own[np.argsort(-lengths[own], kind="stable")]
        capacity = length - int(prompts[own[0]])
        sequence_of = np.array(_best_fit(lengths[own], [capacity] * len(own)))
        # One after another, not the fullest first: the rest is small, and fills other sequences.
        parts += [own[sequence_of == sequence] for sequence in np.unique(sequence_of)]
    return parts


def pack(sizes: np.ndarray, allowed: Sequence[Shape]) -> list[tuple[Shape, list[list[int]]]]:
    """Assigns parts to the sequences of micro-batches, for little padding and attention.

    Attention goes through whole sequences, so it costs less in short ones. Some numbers of the
    longest sequences are tried, down to what the long parts need; shorter sequences take the rest.

    Args:
      sizes: i64[n], tokens of each part, at most those of the longest sequence.
      allowed: of `shapes`.

    Returns:
      For each micro-batch its shape and, for each of its sequences, the numbers of the parts in it.
      Every part is in one sequence; every micro-batch has a part.
    """
    order = np.argsort(-sizes, kind="stable")
    parts, total = sizes[order], int(sizes.sum())
    longest, fewest, unit = allowed[0][1], allowed[-1][0], _tokens(allowed[-1])
    long, short = ([x for x in allowed if (x[1] == longest) == same] for same in (True, False))

    def of_longest(some: np.ndarray) -> int:
        """The fewest of the longest sequences that hold some parts."""
        sequences = 1 + max(_best_fit(some, [longest] * len(some)) or [-1])
        return -(-sequences // fewest) * fewest

    most = of_longest(parts)
    least = of_longest(parts[parts > short[0][1]]) if short else most
    best: tuple[float, list[Shape], list[int]] = math.inf, [], []
    for count in np.unique(np.linspace(most, least, _TRIALS).astype(int) // fewest)[::-1]:
        first = _micro_batches(int(count) * fewest * longest, long)
        units = max(0, -(-(total - sum(map(_tokens, first))) // unit))
        while True:
            batches = first + _micro_batches(units * unit, short)
            cost = sum(_tokens(shape) * (_LINEAR + shape[1]) for shape in batches)
            if cost >= best[0]:
                break
            found = _best_fit(
                parts, [length for sequences, length in batches for _ in range(sequences)]
            )
            if found is not None:
                best = cost, batches, found
                break
            units += 1 + units // 64
    _, batches, sequences_of = best
    contents: list[list[int]] = [[] for _ in range(sum(sequences for sequences, _ in batches))]
    for part, sequence in zip(order, sequences_of, strict=True):
        contents[sequence].append(int(part))
    sequences = iter(contents)
    made = [(shape, list(itertools.islice(sequences, shape[0]))) for shape in batches]
    return [(shape, of) for shape, of in made if any(of)]


def _tokens(shape: Shape) -> int:
    return shape[0] * shape[1]


def _micro_batches(total: int, allowed: Sequence[Shape]) -> list[Shape]:
    """The largest shapes that make up a number of tokens, or little more."""
    found: list[Shape] = []
    while total > 0:
        found.append(next((s for s in allowed if _tokens(s) <= total), allowed[-1]))
        total -= _tokens(found[-1])
    return found


def _best_fit(sizes: np.ndarray, lengths: Sequence[int]) -> list[int] | None:
    """The sequence in which each part leaves the least space; None if one fits nowhere.

    Of equally good sequences it is the first, so sequences of one length are used in order.
    """
    free = np.array(lengths)
    assigned = []
    for size in sizes:
        fits = np.where(free >= size, free, np.iinfo(free.dtype).max)
        sequence = int(fits.argmin())
        if free[sequence] < size:
            return None
        free[sequence] -= size
        assigned.append(sequence)
    return assigned
