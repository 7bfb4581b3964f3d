"""Spaces and configurations of any family."""

import json
import math

import numpy as np
import pytest
from lake_records import bounded

from engineer.space import Configuration, ConfigurationSpace, Parameter, ordered_rows
from experiments.families.lakes.texts import lake_space

ROWS = ("add", "carry", "borrow")
SPACE = ConfigurationSpace(
    "topic",
    ROWS,
    (
        Parameter("fraction", decimals=3),
        Parameter("digits", ((1, 6), (2, 6), (2, 9)), decimals=0),
        Parameter("noise", ((-1.0, 0.5),), decimals=1, random_high=0.0),
    ),
    "fraction",
)


def test_random_and_uniform_configurations_are_of_the_space():
    drawn = [SPACE.random(seed) for seed in range(300)]
    for config in (SPACE.uniform(), *drawn):
        SPACE.check(config)
        assert Configuration.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert Configuration.from_cells(config.cells()) == config
    assert {c["borrow", "digits"] for c in drawn} == {float(d) for d in range(2, 10)}
    noise = [c["add", "noise"] for c in drawn]
    assert (min(noise), max(noise)) == (-1.0, 0.0)
    assert all(round(sum(c.column("fraction")), 9) == 1 for c in drawn)
    assert SPACE.random(np.random.default_rng(3)) == SPACE.random(3)
    uniform = SPACE.uniform()
    assert uniform.column("fraction") == (1 / 3,) * 3
    assert uniform.column("digits") == (4.0, 4.0, 6.0)  # the middle, halves to even


@pytest.mark.parametrize(
    ("cell", "value", "message"),
    [
        (("add", "digits"), 7.0, r"digits of topic add: 7.0 is outside \[1, 6\]"),
        (("add", "digits"), 2.5, "2.5 is no whole number"),
        (("carry", "noise"), -2.0, "outside"),
        (("carry", "fraction"), 0.5, r"fraction: the fractions sum to 1.16667"),
    ],
)
def test_what_is_not_of_the_space_is_told(cell, value, message):
    config = Configuration.from_cells(SPACE.uniform().cells() | {cell: value})
    with pytest.raises(ValueError, match=message):
        SPACE.check(config)


def test_bad_spaces_are_refused():
    one = (Parameter("x"),)
    for arguments, message in (
        (("topic", (), one), "rows"),
        (("topic", ("a", "A"), one), "rows"),
        (("size", ("01", "1"), one), r"rows=\('01', '1'\): distinct names"),
        (("topic", ("xy", "X"), one), r"rows=\('xy', 'X'\): \['x'\] cannot be parameters"),
        (("size", ("4", "3"), one), "ascending"),
        (("size", (3, 4), one), r"rows=\(3, 4\): names are needed"),
        (("size", "34", one), "rows='34': names are needed"),
        (("topic", ("a b",), one), "'a b'"),
        (("topic", ("a",), ()), "parameters"),
        (("topic", ("a",), one[0]), r"parameters=Parameter\(.*: a tuple is needed"),
        (("topic", ("a", "b", "c"), (Parameter("x", ((0, 1), (0, 1))),)), "2 pairs of bounds"),
        (("topic", ("a",), one, "y"), "parameter='y' is unknown"),
        (("topic", ("a",), (Parameter("x", ((0, 0.5),)),)), r"need bounds \(0, 1\)"),
        (("topic", ("a",), (Parameter("x", decimals=0),)), "and decimals"),
    ):
        with pytest.raises(ValueError, match=message):
            ConfigurationSpace(*arguments, *["x"] * (4 - len(arguments)))
    for options, message in (
        ({"name": "a-b"}, "a-b"),
        ({"bounds": ((1, 0),)}, "low <= high"),
        ({"bounds": ((0, math.inf),)}, "low <= high"),
        ({"bounds": ((0.5, 2),), "decimals": 0}, "whole numbers"),
        ({"decimals": 7}, "decimals=7"),
        ({"bounds": ((0, 1, 2),)}, "pairs"),
        ({"bounds": (0, "1")}, "pairs"),
        ({"bounds": 3}, "x: bounds=3, pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            Parameter(**{"name": "x", **options})


def test_lists_and_a_single_pair_are_taken():
    single = Parameter("x", (0, 5))
    assert single == Parameter("x", ((0, 5),)) == Parameter("x", [[0, 5]])
    space = ConfigurationSpace("size", ["3", "4"], [Parameter("part"), single], "part")
    assert space == ConfigurationSpace("size", ("3", "4"), (Parameter("part"), single), "part")
    assert hash(space)


def test_bad_configurations_are_refused():
    for arguments, message in (
        ((("a",), ("x",), ((float("nan"),),)), "x of a: nan is not finite"),
        ((("a",), ("x",), ((True,),)), "not a number"),
        ((("a", "a"), ("x",), ((1.0,), (1.0,))), "distinct"),
    ):
        with pytest.raises(ValueError, match=message):
            Configuration(*arguments)
    with pytest.raises(ValueError, match=r"row b=.*needed"):
        Configuration.from_dict({"a": {"x": 1}, "b": {"y": 1}})
    for bad in ({}, [1], {"a": 1}, {"a": {}}, {"a": {}, "b": {"x": 1}}, {"a": {"x": "1"}}):
        with pytest.raises(ValueError, match=r"needed|not a number"):
            Configuration.from_dict(bad)


def test_bad_lakes_are_refused():
    for arguments, message in (
        (((4, 3),), "ascending"),
        (((3,), {3: (0.5, 0.4)}), "hole_ratio: bounds"),
    ):
        with pytest.raises(ValueError, match=message):
            lake_space(*arguments)
    with pytest.raises(ValueError, match="wait_ratio: bounds"):
        bounded(lake_space((3,)), "wait_ratio", (0.0, float("nan")))


def test_rows_are_in_numerical_order_or_as_they_come():
    assert ordered_rows(["10", "3", "3"]) == ("3", "10")
    assert ordered_rows(["b", "a", "3"]) == ("b", "a", "3")
