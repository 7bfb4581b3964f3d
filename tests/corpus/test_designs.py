"""Each shape of `designs.yaml` is read as it says; a new shape is a new line there."""

from pathlib import Path

import pytest
import yaml

from engineer.proposal import Unreadable, parse
from experiments.families.lakes.texts import lake_space

CORPUS = yaml.safe_load(Path(__file__).with_name("designs.yaml").read_text("utf-8"))
SPACE = lake_space((3, 4))
DESIGN = {"3": (0.4, 0.1, 0.25), "4": (0.6, 0.2, 0.5)}


def shapes(group):
    return pytest.mark.parametrize("shape", CORPUS[group].values(), ids=CORPUS[group].keys())


def numbers(text):
    """The numbers of the rows of the space, in the order of its parameters."""
    values = parse(text, SPACE).values
    return {row: tuple(values[row][name] for name in SPACE.names) for row in SPACE.rows}


@shapes("design")
def test_holds_the_design(shape):
    assert numbers(shape) == DESIGN


@shapes("numbers")
def test_holds_the_numbers(shape):
    assert numbers(shape["text"]) == {row: tuple(shape[int(row)]) for row in SPACE.rows}


@shapes("unreadable")
def test_holds_no_design(shape):
    reading = parse(shape["text"], SPACE)
    assert isinstance(reading, Unreadable)
    assert shape["reason"] in reading.reason
