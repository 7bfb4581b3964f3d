"""Records of runs on lakes, by the outcomes of their rounds, and spaces with further bounds."""

import dataclasses

from engineer.evidence import Evidence, FailureBreakdown, GroupOutcome
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from experiments.families.lakes import texts as lakes

SPACE = lakes.lake_space((3, 4, 5))


def bounded(space, name, *bounds):
    """The space with other bounds of one parameter, a (low, high) for each row or one for all."""
    parameters = tuple(
        dataclasses.replace(parameter, bounds=bounds) if parameter.name == name else parameter
        for parameter in space.parameters
    )
    return dataclasses.replace(space, parameters=parameters)


def config(*fractions, holes=0.2, waits=0.4):
    values = tuple((fraction, holes, waits) for fraction in fractions)
    return Configuration(SPACE.rows, SPACE.names, values)


def breakdown(*valid):
    """A validation with so many valid answers out of 100 for sizes 3, 4, ..."""
    rows = [
        GroupOutcome(str(3 + i), 100, v, 0, {**dict.fromkeys(lakes.CHECKS, 0), "parsable": 100 - v})
        for i, v in enumerate(valid)
    ]
    return FailureBreakdown(tuple(rows), "size")


def record(*rounds, initial=None, configs=None):
    configs = configs or [config(0.2, 0.3, 0.5)] * len(rounds)
    history = tuple(
        RoundRecord(i, c, Evidence(breakdown(*valid)), i == 0)
        for i, (c, valid) in enumerate(zip(configs, rounds, strict=True))
    )
    start = None if initial is None else breakdown(*initial)
    return RunRecord(history, len(rounds), len(rounds) + 2, 1, initial=start)
