"""Controls for designers, shuffled evidence and small steps; and lessons without names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from engineer.analysis import relative_moves
from engineer.designers import Design, Designer, projected
from engineer.evidence import Evidence, FailureBreakdown
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration, ConfigurationSpace

MOST_MOVED = 0.1
"""The largest move of a number in a local edit, in units of the width of its bounds."""


def local(inner: Designer) -> Designer:
    """A designer that edits the current configuration locally, towards the inner design.

    No number moves by more than `MOST_MOVED`. All numbers of a parameter go the same part of the
    way, so that fractions keep their sum.
    """

    def design_locally(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        design, now = inner(record, space, seed), record.config
        moves = relative_moves(now, design.config, space)
        cells = dict(now.cells())
        for name in space.names:
            farthest = max(abs(moves[row, name]) for row in space.rows)
            part = min(1.0, MOST_MOVED / farthest) if farthest else 0.0
            for cell in ((row, name) for row in space.rows):
                cells[cell] += part * (design.config[cell] - now[cell])
        found = projected(space, cells, design.source)
        return dataclasses.replace(
            design, config=found.config, repairs=(*design.repairs, *found.repairs)
        )

    return design_locally


def shuffled(inner: Designer) -> Designer:
    """A designer that sees the outcomes of each row under the name of another.

    The inner designer's gain over this control is at most the value of reading the evidence, as
    wrong evidence may mislead. Configurations and the texts of drawn failures stay as they are.
    """

    def design_blindly(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        names = exchanged(space, np.random.default_rng(seed))  # The same in all rounds.
        return inner(with_rows_renamed(record, names), space, seed)

    return design_blindly


def exchanged(space: ConfigurationSpace, rng: np.random.Generator) -> dict[str, str]:
    """A random permutation of the row names; some may keep their own."""
    return dict(zip(space.rows, rng.permutation(list(space.rows)).tolist(), strict=True))


def with_rows_renamed(
    record: RunRecord, names: Mapping[str, str], configs: bool = False
) -> RunRecord:
    """A record with renamed rows in its evidence, the same in all rounds.

    Args:
      names: the new name of every row, in the order of the space. If the rows exchange their names,
        tables keep the order of the names; with new names, that of the rows.
      configs: rename the rows of the configurations too.
    """
    order = _in_order(names)

    def renamed(past: RoundRecord) -> RoundRecord:
        config = past.config
        if configs:
            cells = {(names[row], name): value for (row, name), value in config.cells().items()}
            config = Configuration.from_cells(
                {(row, name): cells[row, name] for row in order for name in config.parameters}
            )
        return dataclasses.replace(
            past, config=config, evidence=_renamed_evidence(past.evidence, names, configs)
        )

    initial = None if record.initial is None else _renamed(record.initial, names)
    history = tuple(map(renamed, record.history))
    return dataclasses.replace(record, history=history, initial=initial)


def _in_order(names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names if set(names) == set(names.values()) else names.values())


def _renamed(found: FailureBreakdown, names: Mapping[str, str]) -> FailureBreakdown:
    outcomes = {names[row.name]: row for row in found.by_group}
    order = [name for name in _in_order(names) if name in outcomes]
    rows = tuple(dataclasses.replace(outcomes[name], name=name) for name in order)
    return dataclasses.replace(found, by_group=rows)


def _renamed_evidence(found: Evidence, names: Mapping[str, str], configs: bool) -> Evidence:
    training = found.training

    def by_row(values: Mapping[str, Any]) -> dict[str, Any]:
        return {names[row]: value for row, value in values.items()}

    if training is not None:
        training = dataclasses.replace(training, valid_rate=by_row(training.valid_rate))
    if training is not None and configs:  # What was asked and made of the configuration.
        training = dataclasses.replace(
            training,
            asked=by_row(training.asked),
            achieved=by_row(training.achieved),
            shortfalls=tuple(
                dataclasses.replace(one, rows=by_row(one.rows)) for one in training.shortfalls
            ),
        )
    return dataclasses.replace(
        found,
        validation=_renamed(found.validation, names),
        training=training,
        failures=tuple(dataclasses.replace(one, name=names[one.name]) for one in found.failures),
    )
