"""The example of `docs/tasks.md`: short, on the learner alone, and it learns."""

import ast
import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest
from whole_runs import ROOT, environment

from learner.training.task import Completion, PromptTask, Task

PATH = ROOT / "docs" / "task_example" / "sums.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("sums", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_needs_the_learner_alone():
    text = PATH.read_text()
    assert len(text.splitlines()) <= 64
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


def percents(printed):
    return [float(x) for x in re.findall(r"([\d.]+)% of unseen", printed)]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_it_learns():
    command = [sys.executable, str(PATH)]
    variables = environment(XLA_FLAGS="")  # It computes for long.
    printed = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE)
    curve = percents(printed.stdout.decode())
    assert curve[0] < 20
    assert curve[-1] > 90


def test_prompts_with_a_reward_are_a_task():
    task = PromptTask(["a", "bb"], lambda prompt, text: (prompt + text).count("b"))
    assert isinstance(task, Task)
    assert (len(task), task.state()) == (2, {})
    assert task.messages(1) == [{"role": "user", "content": "bb"}]
    completions = [Completion(text, 1, False) for text in ("b", "b", "")]
    assert task.score(np.array([0, 1, 1]), completions).rewards.tolist() == [1, 3, 2]
