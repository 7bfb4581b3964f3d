"""Which completions share a sequence, and which sequences a micro-batch: best fit, few shapes.

All of it is NumPy on lengths that every process knows, so that every process makes the same
sequences.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

# Tokens of a sequence where attention costs as much as everything else: by the plan for Qwen3-4B on
# v5e-8, it is 16 % of the gradients of sequences of 4,608.
_LINEAR = 24576
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


def pack(
    prompts: np.ndarray, lengths: np.ndarray, groups: np.ndarray, allowed: Sequence[Shape]
) -> list[tuple[Shape, list[list[np.ndarray]]]]:
    """Assigns completions to the sequences of micro-batches, for little padding and attention.

    Those in one sequence share their prompt, if it is the same. Attention costs less in short
    sequences. Some numbers of the longest sequences are tried, down to what long completions need;
    shorter sequences take the rest.

    Args:
      prompts: i64[n], tokens of each completion's prompt.
      lengths: i64[n], tokens of each completion; with its prompt at most the longest sequence.
      groups: i64[n], completions with one number have one prompt.
      allowed: of `shapes`.

    Returns:
      For each micro-batch its shape and, for each of its sequences, its parts: the numbers of the
      completions to one prompt. Every completion is in one part; every micro-batch has a part.

    Raises:
      ValueError: a completion and its prompt are longer than the longest sequence.
    """
    if (most_tokens := int((prompts + lengths).max(initial=0))) > allowed[0][1]:
        raise ValueError(
            f"a prompt and its completion have {most_tokens} tokens, sequences at most "
            f"{allowed[0][1]}"
        )
    # Group by group, so that much is shared, those with the longest completions first.
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    largest = np.zeros(len(first), np.int64)
    np.maximum.at(largest, group, lengths)
    order = np.lexsort((-lengths, group, -largest[group]))
    ordered = np.stack([prompts, lengths, group])[:, order]
    total = int(lengths.sum() + prompts[first].sum())
    longest, fewest, unit = allowed[0][1], allowed[-1][0], _tokens(allowed[-1])
    long, short = ([x for x in allowed if (x[1] == longest) == same] for same in (True, False))

    def of_longest(some: np.ndarray) -> int:
        """The fewest of the longest sequences that hold some completions."""
        sequences = 1 + max(_best_fit(some, [longest] * some.shape[1]) or [-1])
        return -(-sequences // fewest) * fewest

    most = of_longest(ordered)
    least = of_longest(ordered[:, ordered[:2].sum(axis=0) > short[0][1]]) if short else most
    best: tuple[float, list[Shape], list[int]] = math.inf, [], []
    for count in np.unique(np.linspace(most, least, _TRIALS).astype(int) // fewest)[::-1]:
        begun = _micro_batches(int(count) * fewest * longest, long)
        low = max(0, -(-(total - sum(map(_tokens, begun))) // unit))
        # The least number of units that suffices: first by doubling steps, then by halving.
        high, step = None, 1
        while high is None or low < high:
            middle = low + step - 1 if high is None else (low + high) // 2
            step *= 2
            batches = begun + _micro_batches(middle * unit, short)
            cost = sum(_tokens(shape) * (_LINEAR + shape[1]) for shape in batches)
            of_sequences = [length for sequences, length in batches for _ in range(sequences)]
            found = _best_fit(ordered, of_sequences) if cost < best[0] else None
            if found is not None:
                best = cost, batches, found
            if cost >= best[0]:
                high = middle
            else:
                low = middle + 1
    _, batches, sequences_of = best
    parts: list[dict[int, list[int]]] = [{} for _ in range(sum(n for n, _ in batches))]
    for number, sequence in zip(order.tolist(), sequences_of, strict=True):
        parts[sequence].setdefault(int(groups[number]), []).append(number)
    contents = iter([list(map(np.array, of_sequence.values())) for of_sequence in parts])
    made = [(shape, list(itertools.islice(contents, shape[0]))) for shape in batches]
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


def _best_fit(completions: np.ndarray, of_sequences: Sequence[int]) -> list[int] | None:
    """The sequence of each completion; None if one fits nowhere.

    It is the one in which the least space is left, and the first of equally good ones, so sequences
    of one length are used in order.

    Args:
      completions: i64[3, n], the tokens of each one's prompt, its own, and the prompt's number.
      of_sequences: tokens of each sequence.
    """
    free = np.array(of_sequences, np.int64)
    lacks = np.ones((1 + completions[2].max(initial=0), len(free)), np.int64)
    assigned, far = [], np.iinfo(np.int64).max
    for prompt, length, group in completions.T:
        left = free - length - lacks[group] * prompt
        sequence = int(np.where(left < 0, far, left).argmin())
        if left[sequence] < 0:
            return None
        free[sequence], lacks[group, sequence] = left[sequence], 0
        assigned.append(sequence)
    return assigned
