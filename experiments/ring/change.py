"""What a design changed, with the evidence on the changed row as its reason.

By the rules of `engineer.analysis`; the reasoning inside a model is unknown.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from engineer.analysis import CHANGED, relative_moves
from engineer.evidence import FailureBreakdown
from engineer.space import Configuration, ConfigurationSpace
from experiments.families import Family
from experiments.text.templates import paragraphs

_BLIND = ("fixed", "first", "random", "learnability_once")
"""Designers that do not read a round's evidence and therefore cannot have it as a reason."""

Made = Mapping[tuple[str, str], float]
"""What the generator made, by row and parameter."""


@dataclasses.dataclass(frozen=True)
class Change:
    """The largest changes of a design.

    Attributes:
      space: of the configurations.
      kept: why an earlier configuration was kept; empty if it was not.
      nothing: why a model designed nothing, if it did not.
      moves: (row, parameter, value before, value after) of the fraction and of the other number
        that changed most, the latter from the same row if possible.
      made: the values by (row, parameter) that the generator made before and after, where known.
      rest: how many more numbers changed.
      evidence: on the row of the first move, if it was validated: "read" by the designer or not,
        its "place" ("most" or "least" failures), the fraction "failing", and "mostly" how.
    """

    space: ConfigurationSpace
    kept: str
    nothing: str | None
    moves: Sequence[tuple[str, str, float, float]]
    made: tuple[Made, Made]
    rest: int
    evidence: Mapping[str, Any] | None

    def sentence(self) -> str:
        """The change in a sentence, as on the page of a run."""
        return " ".join(paragraphs("change.md", change=self))


def change_of(
    was: Configuration,
    design: Mapping[str, Any],
    found: FailureBreakdown | None,
    family: Family,
    refused: str | None = None,
    made: tuple[Made, Made] = ({}, {}),
    shuffled: bool = False,
) -> Change:
    """The largest changes of a design.

    Args:
      was: the configuration of the round before it.
      design: its JSON form, with a `Configuration` as "config".
      found: the validation after that round, if any.
      refused: why the next round could not use it.
      made: as in `Change`.
      shuffled: whether the designer saw other rows' outcomes.
    """
    now, space = design["config"], family.space
    sizes = {cell: abs(move) for cell, move in relative_moves(was, now, space).items()}
    moved = [cell for cell, size in sizes.items() if size >= CHANGED]
    of_fractions = [cell for cell in moved if cell[1] == space.fraction_parameter]
    chosen = [max(of_fractions, key=sizes.__getitem__)] if of_fractions else []
    others = [cell for cell in moved if cell not in of_fractions]
    near = [cell for cell in others if chosen and cell[0] == chosen[0][0]]
    chosen += [max(near or others, key=sizes.__getitem__)] if others else []
    reads = design["source"] not in _BLIND and not shuffled
    kept = (design["reason"] if design["kept_previous"] else refused) or ""
    return Change(
        space=space,
        kept=kept.removeprefix("previous configuration kept: "),
        nothing=design.get("nothing"),  # Older runs lack this field.
        moves=[(*cell, was[cell], now[cell]) for cell in chosen],
        made=made,
        rest=len(moved) - len(chosen),
        evidence=_evidence(found, reads, family, chosen[0][0]) if chosen else None,
    )


def _evidence(
    found: FailureBreakdown | None, reads: bool, family: Family, row: str
) -> Mapping[str, Any] | None:
    """The result of a row in the validation before a design, relative to the other rows.

    `reads` says whether the designer saw it.
    """
    if found is None or (own := found.outcome(row)) is None:
        return None
    check = max(own.failed, key=own.failed.__getitem__)
    rates = [outcome.valid_rate for outcome in found.by_group]
    low, high = min(rates), max(rates)
    return {
        "read": reads,
        "place": {low: "most", high: "least"}.get(own.valid_rate) if low < high else None,
        "failing": 1 - own.valid_rate,
        "mostly": family.failure(check) if own.failed[check] else None,
    }
