"""Families of environments; what a person who writes one needs is here."""

from experiments.families.family import (
    Family,
    Generated,
    GeneratedRow,
    NoProblemError,
    Problem,
    ProblemTask,
    Record,
)

__all__ = [
    "Family",
    "Generated",
    "GeneratedRow",
    "NoProblemError",
    "Problem",
    "ProblemTask",
    "Record",
]
