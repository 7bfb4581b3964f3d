"""Rounds that a model designs inside TRL's trainer."""

import re

import jax
import numpy as np
import pytest
from whole_runs import ROOT, python

from engineer import curricula
from experiments.families.family import NoProblemError
from experiments.families.lakes.options import LakesOptions
from experiments.families.loading import FamilySettings
from learner.chat import Completion
from mapf_jax.answer_reward import RewardConfig

pytest.importorskip("trl")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lakes():
    reward = RewardConfig(short_length=48, long_length=64)
    options = LakesOptions(sizes=(3, 4, 5), list_holes=True, max_candidates=1 << 12, reward=reward)
    return FamilySettings(lakes=options).load_family()


def made(family, **options):
    from experiments.bridges.trl import DesignedRounds

    chosen = {"rounds": 2, "num_instances": 6, "num_validation": 12, "max_answer_tokens": 48}
    return DesignedRounds(family, **{**chosen, "max_design_tokens": 96, **options})


def train(rounds, folder, **options):
    import trl

    chosen = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "num_generations": 4}
    trainer = trl.GRPOTrainer(
        model=str(ROOT / "experiments" / "models" / "tiny"),
        reward_funcs=rounds.reward,
        train_dataset=rounds.dataset(),
        callbacks=[rounds],
        args=trl.GRPOConfig(
            output_dir=str(folder),
            max_completion_length=48,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            **{**chosen, **options},
        ),
    )
    trainer.train()
    return trainer


def test_the_program_of_the_page(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "other_trainers.md").read_text()
    program, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    space = {"__name__": "page"}
    exec(compile(program, "other_trainers.md", "exec"), space)
    rounds, lakes = space["rounds"], space["lakes"]
    (design,) = rounds.designs
    assert design.nothing == "", (design.raw_texts, design.reason)
    assert rounds.config == design.config != lakes.space.uniform()
    assert "failed" in design.context_messages[0]["content"]
    assert [past.round for past in rounds.history] == [0, 1]
    assert rounds.history[0].config == lakes.space.uniform() != rounds.history[1].config
    for past in rounds.history:
        assert sum(row.answers for row in past.breakdown.by_group) == 12
        assert any(row.valid for row in past.breakdown.by_group)
    history = space["trainer"].state.log_history
    rewards = [line["reward"] for line in history if "reward" in line]
    assert len(rewards) == 12
    assert max(rewards) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_train_epochs": 3}, "num_train_epochs=3"),
        ({"max_steps": 2}, "max_steps=2"),
        (
            {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
            "dataloader_persistent_workers=True: .* allowed is False",
        ),
    ],
)
def test_arguments_that_do_not_fit_rounds_are_refused(lakes, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        train(made(lakes), tmp_path, **options)


def test_a_designer_that_is_only_named_is_refused_before_training(lakes):
    with pytest.raises(ValueError, match="designer='mastery': allowed are functions"):
        made(lakes, designer="mastery")


def test_the_extra_trl_alone_is_enough():
    """No package that only the extra train brings is imported."""
    hidden = (
        "flax",
        "optax",
        "orbax",
        "ml_collections",
        "rich",
        "httpx",
        "matplotlib",
        "pyseccomp",
    )
    program = f"import sys; sys.modules.update(dict.fromkeys({hidden}))\n"
    program += """
import experiments.bridges.trl as bridge
from experiments.families.loading import FamilySettings
family = FamilySettings("words:sums").load_family()
rounds = bridge.DesignedRounds(family, rounds=1, num_instances=2)
print(len(rounds.dataset()))
"""
    assert python("-c", program).stdout == "2\n"


def test_a_rule_designs_in_the_models_place(lakes, monkeypatch, capsys):
    rounds = made(lakes, designer=curricula.BY_RULE["mastery"])
    first = rounds.dataset()[:6]["prompt"]
    monkeypatch.setattr(rounds, "_validate", lambda *_: lakes.breakdown(records(lakes)))
    rounds.on_epoch_end(None, None, None, processing_class=None)
    assert rounds.config == rounds.designs[0].config != lakes.space.uniform()
    assert rounds.dataset()[:6]["prompt"] != first
    assert "designed for round 2 of 2:\n" in capsys.readouterr().out
    rounds.on_epoch_end(None, None, None, processing_class=None)
    assert (len(rounds.history), len(rounds.designs)) == (2, 1)


def test_a_design_without_problems_keeps_the_configuration(lakes, monkeypatch):
    rounds = made(lakes, designer=curricula.BY_RULE["mastery"])
    before, generate = rounds.config, type(lakes).generate
    found = lakes.breakdown(records(lakes))

    def refusing(family, key, config, *others):
        if config != before:
            raise NoProblemError("none")
        return generate(family, key, config, *others)

    monkeypatch.setattr(type(lakes), "generate", refusing)
    monkeypatch.setattr(rounds, "_validate", lambda *_: found)
    rounds.on_epoch_end(None, None, None, processing_class=None)
    assert rounds.config == before != rounds.designs[0].config
    assert len(rounds.dataset()[:6]["prompt"]) == 6


def records(family):
    """Of lakes of which the smallest are solved."""
    problems = family.validation_set(jax.random.key(5), 12).problems
    task = family.task(problems)
    texts = family.solutions(problems)
    right = [len(problem["map"]) == 3 for problem in problems]
    texts = [text if fine else "none" for text, fine in zip(texts, right, strict=True)]
    return task.score(np.arange(12), [Completion(text, 9, False) for text in texts]).records
