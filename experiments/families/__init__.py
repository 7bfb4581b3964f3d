"""Families of environments: everything that a new one needs to import."""

from experiments.families.data_set import DataSet as DataSet
from experiments.families.family import Family as Family
from experiments.families.family import Generated as Generated
from experiments.families.family import GeneratedRow as GeneratedRow
from experiments.families.family import NoProblemError as NoProblemError
from experiments.families.family import Problem as Problem
from experiments.families.family import ProblemTask as ProblemTask
from experiments.families.family import Record as Record
from experiments.families.family import last_answer as last_answer
from experiments.families.shapes import FamilyError as FamilyError
from experiments.families.words import read_number as read_number
