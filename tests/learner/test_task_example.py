"""The example of `docs/tasks.md`: short, on the learner alone, and it learns.

The whole of it takes minutes, so that is for `WHOLE_EXAMPLE=1 python -m pytest -s ...`; otherwise
only a few steps are taken.
"""

import ast
import importlib.util
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from learner.training.task import Completion, Task

PATH = Path(__file__).parents[2] / "docs" / "task_example" / "sums.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("sums", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_needs_the_learner_alone():
    text = PATH.read_text()
    assert len(text.splitlines()) < 60
    modules = {
        node.module.split(".")[0] if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert modules == {"jax", "numpy", "learner"}


def test_its_score(example):
    task = example.Sums([(123, 456), (999, 1)])
    assert isinstance(task, Task)
    assert task.messages(1) == [{"role": "user", "content": "999+1"}]
    completions = [Completion(text, 4, False) for text in ("975", "970", "0001", "", "00011")]
    scores = task.score(np.array([0, 0, 1, 1, 1]), completions)
    np.testing.assert_allclose(scores.rewards, [1, 2 / 3, 1, 0, 4 / 5])
    assert scores.metrics["right"] == 2 / 5


def test_it_learns(example, capsys):
    begin = time.monotonic()
    whole = "WHOLE_EXAMPLE" in os.environ
    example.main(**({} if whole else {"warm_up": 2, "steps": 2}))
    curve = [float(x) for x in re.findall(r"([\d.]+)% of unseen", capsys.readouterr().out)]
    if not whole:
        assert len(curve) == 1
        assert curve[0] < 2  # Of four or five digits almost none are guessed.
        return
    with capsys.disabled():
        print(f"\n{curve} % in {time.monotonic() - begin:.0f} s")
    assert curve[0] < 20
    assert curve[-1] > 90
