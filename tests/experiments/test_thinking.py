"""A whole run of a model whose chat template opens its thought, and whose thoughts are limited."""

import dataclasses
import json

import jax.numpy as jnp
import pytest
import whole_runs

from experiments.configs import qwen3_4b_thinking, tiny
from experiments.ring.validation import validation_completers
from experiments.run.policy import load_params, load_policy
from experiments.settings import from_config
from experiments.text.errors import UserError
from learner import tokens
from learner.decoder import weights

LIMIT = 6
GROUPS = ("training", "validation", "engineer")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """The tiny model with a token more for each end of a thought, which it begins always."""
    settings = from_config(tiny.get_config())
    policy = load_policy(settings)
    params = load_params(settings, policy)
    table = params["embedding"]
    params["embedding"] = jnp.concatenate([table, table[:8]])
    config = dataclasses.replace(policy.config, vocab_size=len(table) + 8)
    tokenizer = policy.tokenizer
    tokenizer.add_tokens([tokens.THINK_BEGIN, tokens.THINK_END])
    opened = "{{- '<|im_start|>assistant\\n<think>\\n' -}}"
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{- '<|im_start|>assistant\\n' -}}", opened
    )
    assert opened in tokenizer.chat_template
    folder = tmp_path_factory.mktemp("thinker")
    weights.save(folder, params, config, tokenizer)
    return folder


def test_the_configuration_is_whole(thinker):
    config = qwen3_4b_thinking.get_config()
    config.model.path = str(thinker)
    settings = from_config(config)
    assert {getattr(settings, name).thinking_tokens for name in GROUPS} == {8192}


def test_training_and_validation_think_both_or_neither():
    config = tiny.get_config()
    config.validation.thinking_tokens = 8
    with pytest.raises(UserError, match=r"thinking_tokens=8, .*=0: allowed are both above 0"):
        from_config(config)


def test_a_limit_that_a_completion_cannot_reach_is_none(thinker):
    tokenizer = tokens.load_tokenizer(thinker)
    assert tokens.thinking_budget(tokenizer, 31, 32).max_tokens == 31
    assert tokens.thinking_budget(tokenizer, 32, 32) is None
    assert tokens.thinking_budget(tokenizer, 0, 32) is None


def test_a_model_whose_template_knows_no_thinking_is_refused():
    config = tiny.get_config()
    config.training.thinking_tokens = config.validation.thinking_tokens = 64
    settings = from_config(config)
    with pytest.raises(ValueError, match="but the tokenizer's chat template neither"):
        validation_completers(settings, load_policy(settings))


@pytest.mark.slow
def test_a_run_that_thinks(thinker, tmp_path):
    closing = tokens.thinking_budget(tokens.load_tokenizer(thinker), LIMIT, 99).closing_ids
    budget = {"training": 32, "validation": 32, "engineer": 160}
    options = [f"--config.model.path={thinker}", "--config.loop.rounds=2"]
    for name, answer in budget.items():
        options += [
            f"--config.{name}.thinking_tokens={LIMIT}",
            f"--config.{name}.max_new_tokens={LIMIT + len(closing) + answer}",
        ]
    code, _, err = whole_runs.Run(tmp_path / "run", *options).end()
    assert code == 0, err[-3000:]
    lines = (tmp_path / "run/rounds/1/answers.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert all(text.startswith("<think>\n") for text in texts)
    cut = [text for text in texts if "Considering the limited time by the user" in text]
    assert cut
    assert all(text.count("</think>") == 1 for text in cut)
    assert all(len(text.partition("\n\nConsidering")[0]) < 40 * LIMIT for text in cut)
    design = json.loads((tmp_path / "run/rounds/0/design/design.json").read_text())
    assert all(text.startswith("<think>\n") for text in design["raw_texts"])
