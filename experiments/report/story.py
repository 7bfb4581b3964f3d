"""The first screen of a run: its learning curve, and what the engineer changed after each round.

The reason given for a change is the evidence on the changed row, by the rules of
`engineer.analysis`; the reasoning inside a model is unknown.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from engineer.analysis import CHANGED, relative_moves
from engineer.evidence import Shortfall
from experiments.report.charts import Lines, Series, running_mean
from experiments.run.reading import Round, Run

_BLIND = ("fixed", "random")
"""Designers that read no evidence and therefore cannot have it as a reason."""


def ends(run: Run) -> list[int]:
    """Numbers of training steps before each round and after the last one."""
    return [0, *itertools.accumulate(len(each.steps) for each in run.rounds)]


def learning_curve(run: Run, window: int) -> Lines:
    """Sampled and greedy validation over training, with the training batches behind them."""
    steps = ends(run)
    places = [float(steps[number]) for number, _ in run.validations]
    found = [validation for _, validation in run.validations]
    lines = []
    differ = any(each.rate("optimal") != each.rate("valid") for each in found)
    for i, kind in enumerate(("valid", "optimal") if differ else ("valid",)):
        intervals = [each.interval(kind) for each in found]
        lines += [
            Series(
                f"{kind}, sampled",
                places,
                [100 * each.rate(kind) for each in found],
                [100 * low for low, _ in intervals],
                [100 * high for _, high in intervals],
                look=2 * i,
            ),
            Series(
                f"{kind}, greedy",
                places,
                [100 * getattr(each.greedy, f"{kind}_rate") for each in found],
                look=2 * i + 1,
            ),
        ]
    batches = running_mean([100 * step["task/valid"] for step in run.steps], window)
    numbers = [float(number) for number in range(1, len(batches) + 1)]
    lines.append(Series("valid, in training", numbers, batches, faint="-"))
    begins = [step + 0.5 for step in steps[1:-1]]
    return Lines(
        "learning", "answers in validation", "training step", "percent", lines, begins=begins
    )


def changes(run: Run) -> Iterator[dict[str, Any]]:
    """Yields the largest changes of every design and their reason, for the text of `run.html`.

    Each item has `number`, of the round before the design; `kept`, why an earlier configuration was
    kept, if it was; `nothing`, why a model designed nothing, if it did not; `moves`, (row,
    parameter, value before, value after) of the fraction and of the other number that changed most,
    the latter from the same row if possible; `rest`, how many more numbers changed; and `evidence`
    on the row of the first move, if it was validated.
    """
    refused = {each.index - 1: each.generated["note"] for each in run.rounds if each.generated}
    for each in run.rounds:
        if each.design is None or each.config is None:
            continue
        kept = each.design["reason"] if each.design["kept_previous"] else refused.get(each.index)
        was, now, space = each.config, each.design["config"], run.family.space
        sizes = {cell: abs(move) for cell, move in relative_moves(was, now, space).items()}
        moved = [cell for cell, size in sizes.items() if size >= CHANGED]
        of_fractions = [cell for cell in moved if cell[1] == space.fraction_parameter]
        chosen = [max(of_fractions, key=sizes.__getitem__)] if of_fractions else []
        others = [cell for cell in moved if cell not in of_fractions]
        near = [cell for cell in others if chosen and cell[0] == chosen[0][0]]
        chosen += [max(near or others, key=sizes.__getitem__)] if others else []
        yield {
            "number": each.number,
            "kept": (kept or "").removeprefix("previous configuration kept: "),
            "nothing": each.design.get("nothing"),  # Older runs lack this field.
            "moves": [(*cell, was[cell], now[cell]) for cell in chosen],
            "rest": len(moved) - len(chosen),
            "evidence": _evidence(run, each, chosen[0][0]) if chosen else None,
        }


def shortfalls(run: Run) -> Iterator[tuple[int, str]]:
    """(number of a round, what its configuration could not give), in words."""
    for each in run.rounds:
        # Older runs lack this field.
        for one in (each.generated or {}).get("shortfalls", ()):
            yield each.number, Shortfall.from_dict(one).text(run.label)


def _evidence(run: Run, each: Round, row: str) -> Mapping[str, Any] | None:
    """The result of a row in the validation before a design, relative to the other rows."""
    rows = each.validation.breakdown.by_group if each.validation else ()
    rates = {outcome.name: outcome.valid_rate for outcome in rows}
    if row not in rates or each.design is None:
        return None
    failed = next(outcome.failed for outcome in rows if outcome.name == row)
    check = max(failed, key=failed.__getitem__)
    low, high = min(rates.values()), max(rates.values())
    return {
        "read": each.design["source"] not in _BLIND,
        "place": {low: "most", high: "least"}.get(rates[row]) if low < high else None,
        "failing": 1 - rates[row],
        "mostly": run.family.failure(check) if failed[check] else None,
    }
