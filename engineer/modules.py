"""The modules of a context: texts of the record of a run, in the words of `modules.txt`.

F failure breakdown, G guideline, H history, S summary, T training details, as in "From Trainee
to Trainer" (arXiv 2606.17682), and beyond the publication D details of the validation, R what
training showed, and E examples of failures.
"""

from typing import Any

from engineer.record import RoundRecord, RunRecord
from engineer.space import ordered_rows
from engineer.texts import NO_HISTORY, NO_SUMMARY, macros

TRAINING_DETAILS = ("objective", "reward", "schedule")
"""What the full form of module T shows; `RunRecord.training` holds a text for each."""


def block(name: str, *arguments: Any) -> str:
    """The text of one module.

    Args:
      name: of its macro in `modules.txt`, which says what the module shows.
      arguments: of the macro: the record of the run, the texts of the family, and so on.

    Raises:
      ValueError: module T is to be in full, and `record.training` lacks one of `TRAINING_DETAILS`.
    """
    if name == "training" and arguments[-1]:
        missing = [one for one in TRAINING_DETAILS if one not in (arguments[0].training or {})]
        if missing:
            raise ValueError(f"training: {missing} missing, needed: {TRAINING_DETAILS}")
    return getattr(_MODULES, name)(*arguments).removesuffix("\n")


def shown_history(record: RunRecord, cold_start: bool) -> tuple[RoundRecord, ...]:
    """The rounds that module H shows, with or without those that nobody designed."""
    return tuple(past for past in record.history if cold_start or not past.cold_start)


_MODULES = macros(
    "modules.txt",
    NO_HISTORY=NO_HISTORY,
    NO_SUMMARY=NO_SUMMARY,
    failing=lambda row, checks: sum(row.failed[check] for check in checks),
    ordered_rows=ordered_rows,
    shown_history=shown_history,
)
