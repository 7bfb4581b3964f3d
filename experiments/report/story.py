"""The first screen of a run: its learning curve, and what the engineer changed after each round."""

import itertools
from collections.abc import Iterator

from engineer.evidence import Shortfall
from experiments.report.charts import Lines, Series, running_mean
from experiments.ring.change import Change, Made, change_of
from experiments.ring.outcomes import faint_signal
from experiments.run.reading import Round, Run


def ends(run: Run) -> list[int]:
    """Numbers of training steps before each round and after the last one."""
    return [0, *itertools.accumulate(len(each.steps) for each in run.rounds)]


def learning_curve(run: Run, window: int) -> Lines:
    """Sampled and greedy validation over training, with the training batches behind them."""
    steps = ends(run)
    places = [float(steps[number]) for number, _ in run.validations]
    found = [validation for _, validation in run.validations]
    lines = []
    for i, kind in enumerate(run.kinds):
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
    lines.append(Series("valid, in training", numbers, batches, faint="-", in_legend=True))
    begins = [step + 0.5 for step in steps[1:-1]]
    return Lines(
        "learning", "answers in validation", "training step", "percent", lines, begins=begins
    )


def changes(run: Run) -> Iterator[tuple[int, Change]]:
    """Yields (number of the round before, what changed) for every design."""
    refused = {each.index - 1: each.generated["note"] for each in run.rounds if each.generated}
    made = {each.index: _made(each) for each in run.rounds}
    shuffled = run.settings["engineer"]["shuffle_evidence"]
    for each in run.rounds:
        if each.design is not None and each.config is not None:
            found = each.validation.breakdown if each.validation else None
            note = refused.get(each.index)
            both = made[each.index], made.get(each.index + 1, {})
            change = change_of(each.config, each.design, found, run.family, note, both, shuffled)
            yield each.number, change


def _made(one: Round) -> Made:
    rows = one.generated["rows"] if one.generated else {}
    return {
        (name, parameter): value
        for name, row in rows.items()
        for parameter, value in row["achieved"].items()
    }


def faint_rounds(run: Run) -> Iterator[tuple[int, str]]:
    """(number of a round, that few of its groups had a signal), in words."""
    for each in run.rounds:
        if remark := faint_signal(each.steps):
            yield each.number, remark


def shortfalls(run: Run) -> Iterator[tuple[int, str]]:
    """(number of a round, what its configuration could not give), in words."""
    for each in run.rounds:
        # Older runs lack this field.
        for one in (each.generated or {}).get("shortfalls", ()):
            yield each.number, Shortfall.from_dict(one).text(run.label)
