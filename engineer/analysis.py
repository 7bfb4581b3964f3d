"""What a design did with its evidence, in numbers; and, as an option, as a reader sees it.

Five questions about every design, after "From Trainee to Trainer" (arXiv 2606.17682), which judges
designs by whether they follow the evidence of failures, stay local, keep what works and back off
where there is no signal. The definitions are this project's own and stand at `DesignAnalysis`.
"""

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engineer.choice import relative_moves
from engineer.designers import Generate, NoAnswerError
from engineer.evidence import FailureBreakdown
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace

SATURATED, HOPELESS = 0.9, 0.1
"""Valid rates from which a row counts as saturated, and up to which as hopeless."""
CHANGED = 0.005
"""Changes of less, in units of the width of the bounds, are rounding."""
MISTAKE = 0.02
"""Fall of a row's valid rate that makes the design before it a mistake for that row."""


@dataclasses.dataclass(frozen=True)
class DesignAnalysis:
    """Measures of one design against the configuration and the validation before it.

    p is the latest valid rate of a row; a row that was not validated takes no part. A number's
    change is in units of the width of its bounds, and counts as one from `CHANGED` up. A measure
    is None where there is nothing to measure.

    Attributes:
      failure_following: Spearman's rank correlation, over rows, of the share of failed answers
        (1 - p) with the change of the data share, in [-1, 1]. Near 1: data went where failures
        are. None if all rows are equal in one of the two.
      signal_following: the same for p (1 - p), the variance of success: near 1, data went where
        there is something to learn.
      followed: the check whose rate of failures by row correlates most, in absolute value, with
        the change of the data share, the first of equal ones; None if none is defined.
      followed_correlation: its correlation.
      fraction_moved: total variation distance of the data shares, half the sum of their absolute
        changes: the part of the set that went elsewhere, in [0, 1].
      value_moved: mean absolute change of all numbers that are no data shares.
      cells_changed: share of all numbers that changed.
      saturated_rows: number of rows with p >= 0.9.
      saturated_shrunk: share of those whose data share fell.
      hopeless_rows: number of rows with p <= 0.1.
      hopeless_eased: share of those whose data share fell, or with a number that is no share
        which fell while none rose: where higher numbers are harder, the row was backed off.
      mistakes: cells that the design before changed, in rows whose valid rate then fell by at
        least 0.02.
      mistakes_reversed: share of those that this design moves back, by any change of the other
        sign.
      signal_before: sum over rows of share x 4 p (1 - p) under the previous shares, in [0, 1].
      signal_after: the same under the new shares.
    """

    failure_following: float | None
    signal_following: float | None
    followed: str | None
    followed_correlation: float | None
    fraction_moved: float
    value_moved: float
    cells_changed: float
    saturated_rows: int
    saturated_shrunk: float | None
    hopeless_rows: int
    hopeless_eased: float | None
    mistakes: int
    mistakes_reversed: float | None
    signal_before: float
    signal_after: float

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON, numbers with four decimals."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(self).items()
        }


def analyse(record: RunRecord, config: Configuration, space: ConfigurationSpace) -> DesignAnalysis:
    """Measures the design `config` for round `record.round`.

    Args:
      record: the run as the designer knew it.
      config: the design.
      space: the rows, parameters and bounds.

    Raises:
      ValueError: the design or the configuration before it has other rows than the space.
    """
    space.check(config)
    moves = relative_moves(record.config, config, space)
    share = space.fraction_parameter
    rates = _rates(record.breakdown)
    seen = [row for row in space.rows if row in rates]
    fraction_moves = [moves[row, share] for row in seen]
    failing = [1.0 - rates[row] for row in seen]
    signal = [rates[row] * (1.0 - rates[row]) for row in seen]

    followed: tuple[str, float] | None = None
    for check in record.breakdown.checks:
        outcomes = [record.breakdown.outcome(row) for row in seen]
        counts = [one.failures(check) / one.answers for one in outcomes if one is not None]
        found = rank_correlation(counts, fraction_moves)
        if found is not None and (followed is None or abs(found) > abs(followed[1])):
            followed = check, found

    saturated = [row for row in seen if rates[row] >= SATURATED]
    hopeless = [row for row in seen if rates[row] <= HOPELESS]
    others = [cell for cell in space.cells if cell[1] != share]

    def eased(row: str) -> bool:
        values = [moves[cell] for cell in others if cell[0] == row]
        lower = any(v <= -CHANGED for v in values) and not any(v >= CHANGED for v in values)
        return lower or moves[row, share] <= -CHANGED

    def promised(shares: Configuration) -> float:
        pairs = zip(seen, signal, strict=True)
        return math.fsum(4.0 * variance * shares[row, share] for row, variance in pairs)

    before = _mistakes(record, space)
    back = [cell for cell, move in before.items() if moves[cell] * move < 0]
    back = [cell for cell in back if abs(moves[cell]) >= CHANGED]
    return DesignAnalysis(
        failure_following=rank_correlation(failing, fraction_moves),
        signal_following=rank_correlation(signal, fraction_moves),
        followed=None if followed is None else followed[0],
        followed_correlation=None if followed is None else followed[1],
        fraction_moved=math.fsum(abs(moves[row, share]) for row in space.rows) / 2,
        value_moved=math.fsum(abs(moves[cell]) for cell in others) / len(others) if others else 0.0,
        cells_changed=sum(abs(move) >= CHANGED for move in moves.values()) / len(moves),
        saturated_rows=len(saturated),
        saturated_shrunk=_share(moves[row, share] <= -CHANGED for row in saturated),
        hopeless_rows=len(hopeless),
        hopeless_eased=_share(eased(row) for row in hopeless),
        mistakes=len(before),
        mistakes_reversed=len(back) / len(before) if before else None,
        signal_before=promised(record.config),
        signal_after=promised(config),
    )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation in [-1, 1], equal values sharing their mean rank.

    None for fewer than two values, or if all values of one side are equal.
    """
    if len(first) < 2:
        return None
    ranks = [_ranks(np.asarray(values, np.float64)) for values in (first, second)]
    centred = [rank - rank.mean() for rank in ranks]
    norm = math.sqrt(float(centred[0] @ centred[0]) * float(centred[1] @ centred[1]))
    return float(centred[0] @ centred[1]) / norm if norm > 0 else None


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    values = np.round(values, 9)  # what differs by rounding alone is equal
    less = (values[:, None] > values[None, :]).sum(axis=1)
    equal = (values[:, None] == values[None, :]).sum(axis=1)
    return less + (equal - 1) / 2


def _rates(breakdown: FailureBreakdown) -> dict[str, float]:
    return {row.name: row.valid_rate for row in breakdown.by_group}


def _mistakes(record: RunRecord, space: ConfigurationSpace) -> dict[tuple[str, str], float]:
    """The changes of the design before, in rows that then got worse."""
    if len(record.history) < 2:
        return {}
    earlier, latest = record.history[-2:]
    was, now = _rates(earlier.breakdown), _rates(latest.breakdown)
    moves = relative_moves(earlier.config, latest.config, space)
    return {
        (row, name): move
        for (row, name), move in moves.items()
        if abs(move) >= CHANGED and row in was and row in now and was[row] - now[row] >= MISTAKE
    }


def _share(flags: Any) -> float | None:
    values = list(flags)
    return sum(values) / len(values) if values else None


QUESTIONS = {
    "evidence": "Does the design respond to the failures that the context shows?",
    "locality": "Does it keep what works, and change only what the evidence speaks about?",
    "saturation": "Does it give less to what is solved already?",
    "backing_off": "Does it make easier, or give less to, what is never solved?",
    "correction": "Does it take back earlier changes after which results got worse?",
}
"""What a reader is asked; each is answered with a whole number from 1 (not at all) to 5 (fully), or
with null where the context gives no occasion."""

_OBJECT = re.compile(r"\{[^{}]*\}")


@dataclasses.dataclass(frozen=True)
class Reading:
    """A reader's judgement of one design.

    Attributes:
      scores: 1 to 5, or None, for each of `QUESTIONS`.
      text: the whole answer.
    """

    scores: dict[str, int | None]
    text: str


def read_design(
    generate: Generate, context: str, answer: str, seed: int, tries: int = 3
) -> Reading | None:
    """Has a model read a design, such as one behind `engineer.endpoint.Endpoint`.

    Args:
      generate: answers chats.
      context: what the engineer was shown.
      answer: what it answered.
      seed: of the sampling.
      tries: how often the reader is asked until its answer can be read.

    Returns:
      The judgement, or None if the reader gave no answer that can be read.
    """
    questions = "\n".join(f"{name}: {text}" for name, text in QUESTIONS.items())
    form = ", ".join(f'"{name}": 1' for name in QUESTIONS)
    content = (
        "You judge how a training environment was designed. Below are what the designer was "
        "shown and what it answered. Judge the answer by these questions, each with a whole "
        "number from 1 (not at all) to 5 (fully), or null where the designer had no occasion:\n"
        f"{questions}\nEnd with one JSON object and nothing after it, like {{{form}}}.\n\n"
        f"### What the designer was shown\n{context}\n\n### What it answered\n{answer}"
    )
    for attempt in range(tries):
        try:
            (text,) = generate([{"role": "user", "content": content}], 1, seed + attempt)
        except NoAnswerError:
            continue
        for written in reversed(_OBJECT.findall(text)):
            try:
                scores = json.loads(written)
            except ValueError:
                continue
            if set(scores) == set(QUESTIONS) and all(
                score is None or (type(score) is int and 1 <= score <= 5)
                for score in scores.values()
            ):
                return Reading(scores, text)
    return None
