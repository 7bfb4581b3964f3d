"""Measures how a design used its evidence, by rules and optionally by an LLM judge.

The questions follow "From Trainee to Trainer" (arXiv 2606.17682): do designs follow the evidence of
failures, stay local, keep what works, back off where there is no signal, name causes and understand
the task? The definitions are this project's own: `measures.yaml` has the measures, `questions.yaml`
the questions for the judge.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from engineer.designers import Generate, NoAnswerError
from engineer.record import RunRecord
from engineer.space import Cell, Configuration, ConfigurationSpace
from engineer.texts import macros

SATURATED, HOPELESS = 0.9, 0.1
"""A row is saturated at or above the first valid rate, hopeless at or below the second."""
CHANGED = 0.005
"""Smallest move that counts as a change, in units of the width of the bounds."""
MISTAKE = 0.02
"""A design is a mistake for a row whose valid rate then falls by at least this much."""

LOCAL = {"fraction_moved": 0.2, "value_moved": 0.1}
"""Upper limits on the measures of a local design."""
YES = 4
"""Lowest judge score that counts as yes."""

_FOLDER = Path(__file__).parent
MEASURES: dict[str, dict[str, Any]] = yaml.safe_load(
    (_FOLDER / "measures.yaml").read_text(encoding="utf-8")
)
"""Name and meaning of each measure of a design, with p the latest valid rate of a row."""
QUESTIONS: dict[str, str] = yaml.safe_load((_FOLDER / "questions.yaml").read_text(encoding="utf-8"))
"""Questions for the LLM judge, by name."""
_JUDGE = macros("judge.txt")
_JUDGE_TRIES = 3


def analyse(
    record: RunRecord, config: Configuration, space: ConfigurationSpace
) -> dict[str, float | str | None]:
    """Measures the design `config` for round `record.round`.

    Rows that were not validated are left out. Moves are in units of the width of the bounds; those
    below `CHANGED` are rounding.

    Returns:
      Values under the names of `MEASURES`; None where there is nothing to measure.
    """
    space.check(config)
    moves = relative_moves(record.config, config, space)
    name = space.fraction_parameter
    outcomes = {row.name: row for row in record.breakdown.by_group}
    rates = {row: outcomes[row].valid_rate for row in space.rows if row in outcomes}
    fraction_moves = [moves[row, name] for row in rates]
    signals = [p * (1.0 - p) for p in rates.values()]
    others = [cell for cell in space.cells if cell[1] != name]

    followed: tuple[str | None, float | None] = (None, None)
    for check in record.breakdown.checks:
        counts = [outcomes[row].failed[check] / outcomes[row].answers for row in rates]
        found = rank_correlation(counts, fraction_moves)
        if found is not None and (followed[1] is None or abs(found) > abs(followed[1])):
            followed = check, found

    def shrunk(row: str) -> bool:
        return moves[row, name] <= -CHANGED

    def eased(row: str) -> bool:
        values = [moves[cell] for cell in others if cell[0] == row]
        lower = any(v <= -CHANGED for v in values) and not any(v >= CHANGED for v in values)
        return lower or shrunk(row)

    saturated = [row for row, rate in rates.items() if rate >= SATURATED]
    hopeless = [row for row, rate in rates.items() if rate <= HOPELESS]
    mistakes = _mistakes(record, space)
    return {
        "failure_following": rank_correlation([1.0 - p for p in rates.values()], fraction_moves),
        "signal_following": rank_correlation(signals, fraction_moves),
        "followed": followed[0],
        "followed_correlation": followed[1],
        "fraction_moved": math.fsum(abs(moves[row, name]) for row in space.rows) / 2,
        "value_moved": math.fsum(abs(moves[cell]) for cell in others) / max(len(others), 1),
        "cells_changed": sum(abs(move) >= CHANGED for move in moves.values()) / len(moves),
        "saturated_rows": len(saturated),
        "saturated_shrunk": _mean(shrunk(row) for row in saturated),
        "hopeless_rows": len(hopeless),
        "hopeless_eased": _mean(eased(row) for row in hopeless),
        "mistakes": len(mistakes),
        "mistakes_reversed": _mean(
            moves[cell] * move < 0 and abs(moves[cell]) >= CHANGED
            for cell, move in mistakes.items()
        ),
        "signal_before": expected_signal(rates, record.config, space),
        "signal_after": expected_signal(rates, config, space),
    }


def expected_signal(
    valid_rates: Mapping[str, float], config: Configuration, space: ConfigurationSpace
) -> float:
    """Sum over rows of fraction x 4 p (1 - p), where p is the valid rate of the row.

    This is the expected variance of success, scaled to [0, 1].
    """
    name = space.fraction_parameter
    return math.fsum(4.0 * p * (1.0 - p) * config[row, name] for row, p in valid_rates.items())


def relative_moves(
    before: Configuration, after: Configuration, space: ConfigurationSpace
) -> dict[Cell, float]:
    """Change of each number, in units of the width of its bounds."""
    moves = {}
    for cell in space.cells:
        low, high = space.bounds(*cell)
        moves[cell] = (after[cell] - before[cell]) / (high - low) if high > low else 0.0
    return moves


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation in [-1, 1]; ties get their mean rank.

    None for fewer than two values, or if all values on one side are equal.
    """
    from scipy.stats import spearmanr  # Slow to import.

    # Differences due to rounding are ties.
    columns = [np.round(np.asarray(values, np.float64), 9) for values in (first, second)]
    if len(first) < 2 or any(np.ptp(column) == 0 for column in columns):
        return None
    return float(spearmanr(*columns).statistic)


def _mistakes(record: RunRecord, space: ConfigurationSpace) -> dict[Cell, float]:
    """Moves of the previous design in rows that then got worse."""
    if len(record.history) < 2:
        return {}
    earlier, latest = record.history[-2:]
    moves = relative_moves(earlier.config, latest.config, space)
    worse = set()
    for row in space.rows:
        was, now = earlier.breakdown.outcome(row), latest.breakdown.outcome(row)
        if was is not None and now is not None and was.valid_rate - now.valid_rate >= MISTAKE:
            worse.add(row)
    return {c: move for c, move in moves.items() if abs(move) >= CHANGED and c[0] in worse}


def _mean(flags: Iterable[bool]) -> float | None:
    values = list(flags)
    return sum(values) / len(values) if values else None


def rules(measures: Mapping[str, Any]) -> dict[str, bool | None]:
    """Answers each of the `QUESTIONS` from the measures of a design.

    Returns:
      None where the question did not arise, and for questions that only a judge can answer: whether
      the text names the cause of failures and understands the task.
    """
    followed = [measures["failure_following"], measures["signal_following"]]
    half = {
        "saturation": "saturated_shrunk",
        "backing_off": "hopeless_eased",
        "correction": "mistakes_reversed",
    }
    known = {
        "evidence": None if followed == [None, None] else max(f or 0.0 for f in followed) > 0,
        "locality": all(measures[name] <= most for name, most in LOCAL.items()),
        **{
            question: None if measures[name] is None else measures[name] >= 0.5
            for question, name in half.items()
        },
    }
    return {question: known.get(question) for question in QUESTIONS}


def agreement(
    ruled: Sequence[bool | None], scores: Sequence[int | None]
) -> dict[str, float | int | None]:
    """Agreement of rules and judge on one question, over the designs that both answer for.

    Returns:
      `designs` (how many), `agreement` (fraction of them; None without designs) and Cohen's `kappa`
      (1960), the agreement beyond chance (None without designs, or if both give all designs one and
      the same answer).
    """
    both = [
        (rule, score >= YES)
        for rule, score in zip(ruled, scores, strict=True)
        if rule is not None and score is not None
    ]
    if not both:
        return {"designs": 0, "agreement": None, "kappa": None}
    observed = sum(rule == judged for rule, judged in both) / len(both)
    rule_yes, judge_yes = (sum(column) / len(both) for column in zip(*both, strict=True))
    chance = rule_yes * judge_yes + (1 - rule_yes) * (1 - judge_yes)
    kappa = None if chance == 1 else (observed - chance) / (1 - chance)
    return {"designs": len(both), "agreement": observed, "kappa": kappa}


def judge_design(generate: Generate, context: str, answer: str, seed: int) -> dict[str, Any] | None:
    """Asks a model to judge the answer to a context.

    Returns:
      `scores`, a score or None by question, and `text`, the whole reply; None if no try gives a
      readable judgement.
    """
    content = _JUDGE.request(QUESTIONS, context, answer)
    for attempt in range(_JUDGE_TRIES):
        try:
            text = generate([{"role": "user", "content": content}], seed + attempt)
        except NoAnswerError:
            continue
        for written in reversed(re.findall(r"\{[^{}]*\}", text)):
            scores = {name: _score(written, name) for name in QUESTIONS}
            if "" not in scores.values():
                numbers = {name: score and int(score) for name, score in scores.items()}
                return {"scores": numbers, "text": text}
    return None


def _score(written: str, name: str) -> str | None:
    """The score under a name in a loosely written JSON object: a digit, None for null, "" for none.

    Trailing commas, single quotes, whole floats, comments and other keys do no harm.
    """
    value = r"""["']?([1-5])(?:\.0+)?["']?|null|none"""
    pattern = rf"""\b{name}["']?\s*:\s*(?:{value})\s*(?:[,}}#]|//|$)"""
    found = re.search(pattern, written, re.IGNORECASE | re.MULTILINE)
    return found[1] if found else ""
