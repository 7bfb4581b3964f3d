"""Whether a model reads its evidence, as a command."""

import importlib
import re

import forward_pass
import jax
import micro_model
import numpy as np
import pytest
from whole_runs import python

from engineer.reading import CONTROLS, Reading
from experiments import reading as command
from experiments.families import demonstrations
from experiments.ring import loop, reading
from experiments.run import policy, store
from experiments.run.status import Reporter
from experiments.run.store import RunStore
from experiments.settings import from_config
from experiments.text.errors import UserError
from learner.training import sft


@pytest.mark.slow
def test_answers_have_the_likelihood_that_the_model_gives_their_tokens(tmp_path):
    micro_model.write(tmp_path)
    settings = from_config({"model": {"path": str(tmp_path)}})
    model = policy.load_policy(settings)
    params = policy.load_params(settings, model)
    chats = [[{"role": "user", "content": text}] for text in ("size 3: 0.50", "size", "3 4 5")]
    pairs = [(chats[0], ("3: 0.1", "3: 0.25")), (chats[1], ("", "4")), (chats[2], ("5", "5: 1"))]
    scores = reading.scorer(model, params)(pairs)
    asked = [(chat, answer) for chat, answers in pairs for answer in answers]
    examples = sft.encode_examples(model.tokenizer, asked)
    ids = np.zeros((len(examples), 64), int)
    for sequence, (prompt, completion) in zip(ids, examples, strict=True):
        sequence[: len(prompt) + len(completion)] = [*prompt, *completion]
    positions = np.broadcast_to(np.arange(64), ids.shape)
    logprobs = jax.nn.log_softmax(forward_pass.logits(params, model.config, ids, positions))
    for (prompt, completion), each, score in zip(
        examples, np.asarray(logprobs), np.ravel(scores), strict=True
    ):
        places = len(prompt) - 1 + np.arange(len(completion))
        np.testing.assert_allclose(score, each[places, list(completion)].sum(), rtol=1e-4)
    with pytest.raises(UserError, match="tokens, the model has 2048"):
        reading.scorer(model, params)([([{"role": "user", "content": "3 " * 3000}], ("3", "4"))])


def test_the_verdict_follows_the_intervals():
    def found(*follows):
        each = [Reading(200, 0.5, count, 0.1) for count in follows]
        return dict(zip(CONTROLS, each, strict=True))

    assert command.verdict(found(112, 190, 190)).startswith("reading is at chance: use a rule")
    assert command.verdict(found(190, 110, 190)).endswith("at chance with rows in another order")
    assert command.verdict(found(190, 180, 190)).startswith("reads")
    assert "95% (91% to 97%)" in list(command.table(found(190, 110, 190)))[1]


def test_a_run_remarks_on_a_model_that_may_not_read():
    def found(*follows):
        each = [Reading(24, 0.5, count, 0.1) for count in follows]
        return dict(zip(reading.RULES, each, strict=True))

    assert reading.advice(found(13, 21)) == []
    assert reading.summary(found(13, 21)) == (
        "designs follow made-up evidence in 13 of 24 cases by the rule target (95 %: 35% to 72%), "
        "in 21 of 24 cases by the rule mastery (95 %: 69% to 96%); 50 % is chance"
    )
    told = (
        r"it may not read: ask more with (mapf-|python -m experiments\.)reading, or use a rule \("
    )
    (line,) = reading.advice(found(13, 16))
    assert re.match(told, line)


def test_a_run_says_why_it_did_not_read(tmp_path, monkeypatch, capsys):
    def score(_):
        raise UserError("a context with its design takes 9 tokens")

    monkeypatch.setattr(reading, "scorer", lambda *_: score)
    run = loop.Loop(settings_of("sums"), RunStore(tmp_path), Reporter())
    run._engineer = run._policy = object()
    run._write_metrics = lambda *_: None
    run._read(None, tmp_path, 0)
    assert capsys.readouterr().out == (
        "reading was not measured: a context with its design takes 9 tokens\n"
    )
    assert not (tmp_path / store.READING).exists()


def test_what_is_wrong_is_one_line():
    settings = from_config({"model": {"path": "tiny"}, "family": "words:sums_1"})
    with pytest.raises(UserError, match="--rule=learnability: only 0 of 20 made-up"):
        command.measure(settings, "learnability", 2)


def test_contexts_and_designs_are_those_of_the_configuration():
    settings = settings_of("sums")
    family = settings.load_family()
    texts = family.texts
    spec = settings.engineer.spec
    (asked,) = reading.questions(family, spec, "target", 1, "plain")
    # As a warm start poses it; its rule reads rates with two decimals.
    chat, answer = demonstrations.demonstration(0, spec, family.space, texts)
    assert asked.contexts[0] == chat
    numbers = [re.findall(r"\d\.\d\d", text) for text in (asked.answers[0], answer)]
    np.testing.assert_allclose(*np.asarray(numbers, float), atol=0.011)


@pytest.mark.slow
def test_a_model_that_was_taught_a_rule_reads():
    found = command.measure(settings_of("sums"), "target", 24)
    assert command.verdict(found) == (
        "reads contexts as they are in runs, but is at chance with rows in another order"
    )
    assert found["plain"].follows >= 23
    assert found["plain"].margin > 5


@pytest.mark.slow
def test_the_command_says_whether_a_model_reads(tmp_path):
    micro_model.write(tmp_path)
    options = (f"--config.model.path={tmp_path}", "--config.model.scan_unroll=1", "--questions=8")
    done = python("-m", "experiments.reading", "--config=sums", *options)
    lines = done.stdout.splitlines()
    assert lines[0].endswith("8 pairs of contexts V1, designs by target; without reading 50 %")
    assert lines[2].startswith("as in runs")
    assert lines[-1].startswith("reading is at chance")


def settings_of(name):
    return from_config(importlib.import_module(f"experiments.configs.{name}").get_config())
