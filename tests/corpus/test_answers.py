"""Each shape of `answers.yaml` is read as it says; a new shape is a new line there."""

from pathlib import Path

import numpy as np
import pytest
import strict_reader
import yaml

from experiments.families import last_answer
from mapf_jax import plans_from_texts
from mapf_jax.text import parse_answer

CORPUS = yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text("utf-8"))
PLAN = [[[0, 0], [2, 2]], [[1, 0], [2, 1]]]


def shapes(group):
    return pytest.mark.parametrize("shape", CORPUS[group].values(), ids=CORPUS[group].keys())


@shapes("plan")
def test_holds_the_plan(shape):
    assert parse_answer(shape).tolist() == PLAN
    assert np.array(strict_reader.read(shape)).tolist() == PLAN


@shapes("no plan")
def test_holds_no_plan(shape):
    assert parse_answer(shape) is None
    assert strict_reader.read(shape) is None


@shapes("answer")
def test_holds_the_answer(shape):
    assert last_answer(shape["text"]) == shape["answer"]


def test_parsable_counts_the_answers_that_hold_a_plan():
    texts = [*CORPUS["plan"].values(), *CORPUS["no plan"].values()]
    parsable = plans_from_texts(texts, 2).parsable
    assert parsable.tolist() == [text in CORPUS["plan"].values() for text in texts]
