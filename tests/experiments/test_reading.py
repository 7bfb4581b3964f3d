"""Whether a model reads its evidence, as a command."""

import re

import forward_pass
import jax
import micro_model
import numpy as np
import pytest

from engineer.reading import CONTROLS, Reading
from experiments import reading
from experiments.run import policy
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
    examples = [
        sft.encode_example(model.tokenizer, chat, answer)
        for chat, answers in pairs
        for answer in answers
    ]
    ids = np.zeros((len(examples), 64), int)
    for row, (prompt, completion) in zip(ids, examples, strict=True):
        row[: len(prompt) + len(completion)] = [*prompt, *completion]
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

    assert reading.verdict(found(112, 190, 190)).startswith("reading is at chance: use a rule")
    assert reading.verdict(found(190, 110, 190)).endswith("at chance with rows in another order")
    assert reading.verdict(found(190, 180, 190)).startswith("reads")
    assert "95% (91% to 97%)" in list(reading.table(found(190, 110, 190)))[1]


def test_what_is_wrong_is_one_line():
    model = ["--model=tiny", "--contexts=2"]
    with pytest.raises(SystemExit, match="error: --rule=learnability: only 0 of 20 made-up"):
        reading.main([*model, "--family=words:sums_1"])
    with pytest.raises(SystemExit, match="error: --contexts=0: allowed are"):
        reading.main(["--model=tiny", "--family=lakes", "--contexts=0"])


@pytest.mark.slow
def test_the_command_says_whether_a_model_reads(capsys):
    reading.main(["--model=tiny", "--family=lakes", "--rule=target", "--contexts=24"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("as in runs")
    low = int(re.search(r"\((\d+)% to", lines[2])[1])
    assert lines[-1].startswith("reading is at chance") == (low <= 50)
