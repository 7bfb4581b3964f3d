"""Designs as completions of a task."""

import numpy as np
import pytest

from engineer.proposal import render_config
from experiments.families.lakes.texts import lake_space
from experiments.trials import DesignTask
from learner.chat import Completion
from learner.training.task import Task

SPACE = lake_space((3, 4))
BEFORE, WANTED, OTHER = (SPACE.random(seed) for seed in (1, 2, 3))
CHAT = [{"role": "user", "content": "Design."}]


def completions(*texts):
    return [Completion(text, 5, False) for text in texts]


def test_rewards_are_learning_progress():
    tried = []

    def progress(config):
        tried.append(config)
        return config["3", "data_ratio"] - 0.1

    task = DesignTask(CHAT, BEFORE, SPACE, progress)
    assert isinstance(task, Task)
    assert len(task) == 1
    assert task.messages(0) == CHAT
    text = render_config(WANTED, SPACE)
    answers = completions(text, "no", render_config(OTHER, SPACE), f"<think>hm</think>{text}")
    scores = task.score(np.zeros(4, int), answers)
    wanted = [WANTED["3", "data_ratio"] - 0.1, -1.0, OTHER["3", "data_ratio"] - 0.1]
    np.testing.assert_allclose(scores.rewards, [*wanted, wanted[0]], rtol=1e-6)
    assert scores.rewards.dtype == np.float32
    assert tried == [WANTED, OTHER]  # Equal designs are tried once.
    assert scores.metrics["readable"] == 0.75
    assert scores.records[1]["reason"].startswith("no configuration")
    assert scores.records[0]["config"] == WANTED.to_dict()
    task.restore(task.state())


def test_rewards_are_bounded_and_finite():
    text = render_config(WANTED, SPACE)
    for found, reward in ((7.0, 1.0), (-3.0, -1.0)):
        task = DesignTask(CHAT, BEFORE, SPACE, lambda config, found=found: found)
        assert task.score(np.zeros(1, int), completions(text)).rewards.tolist() == [reward]
    task = DesignTask(CHAT, BEFORE, SPACE, lambda config: float("nan"))
    with pytest.raises(ValueError, match="allowed are finite numbers"):
        task.score(np.zeros(1, int), completions(text))


def test_what_stands_before_the_trigger_is_no_design():
    text = f"{render_config(WANTED, SPACE)}\nSo: nothing yet"
    for trigger, readable in (("So:", 0.0), ("", 1.0)):
        task = DesignTask(CHAT, BEFORE, SPACE, lambda config: 0.5, trigger)
        assert task.score(np.zeros(1, int), completions(text)).metrics["readable"] == readable
