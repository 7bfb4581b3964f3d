"""Every reader of texts, on texts that nobody would write: right, or refused; never an escape."""

import json
import math
import random
import re
import time
from pathlib import Path

import pytest
import strict_reader
from hostile_texts import hostile_text

from engineer import endpoint
from engineer.proposal import Unreadable, parse, project, render_config
from experiments import store
from experiments.families import loading
from experiments.settings import ModelSettings
from learner import checks, tokens
from mapf_jax.text import MAX_STEPS, parse_answer, render_answer

ROOT = Path(__file__).parents[2]
SECONDS = 5.0
LAKES = loading.FamilySettings().load_family()
SUMS = loading.FamilySettings(f"{ROOT}/experiments/families/template.py:family").load_family()
PLAN = [[(0, 0), (2, 2)], [(0, 1), (1, 2)], [(1, 1), (1, 2)]]
PLANS = ["<answer>\n0: (0,0) (2,2)\n1: (0,1) (1,2)\n2: (1,1) (1,2)\n</answer>"]


def designs(family):
    config = render_config(family.space.uniform(), family.space)
    return [config, f"```yaml\n{config}\n```", f"I cut what is hard.\n{config}\nDone."]


def read_design(family):
    """A configuration of the space with finite numbers, or a reason."""

    def read(text):
        found = parse(text, family.space)
        if isinstance(found, Unreadable):
            assert found.reason.strip()
            return
        assert all(math.isfinite(n) for row in found.values.values() for n in row.values())
        config, _ = project(found, family.space.uniform(), family.space)
        family.space.check(config)
        assert not isinstance(parse(render_config(config, family.space), family.space), Unreadable)

    return read


def read_plan(text):
    """What a reader by single characters finds, but for numbers of seven digits and more."""
    plan, other = parse_answer(text), strict_reader.read(text)
    if plan is not None:
        assert plan.tolist() == [[list(cell) for cell in cells] for cells in other]
        again = parse_answer(render_answer(plan, len(plan) - 1))
        assert (again == plan).all()
    elif other is not None:
        assert len(other) > MAX_STEPS or re.search("[0-9]{7}", text)


def read_sum(text):
    """One check fails unless it is the sum; the reward is below that of the sum then."""
    found = SUMS.verify({"terms": [123, 456]}, text)
    assert bool(found["failed"]) == (text.strip() != "975")
    assert 0 <= found["reward"] <= 1
    assert bool(found["failed"]) == (found["reward"] < 1)


def read_tokens(text):
    """A tokenizer takes what was healed, and gives valid text back."""
    ids = tokens.encode_chat(TOKENIZER, [{"role": "user", "content": endpoint._healed(text)}])
    tokens.decode(TOKENIZER, ids).encode()


def read_line(text):
    """One line of bounded length, and a record that comes back as it was."""
    assert len(checks.one_line(ValueError(text)).splitlines()) <= 1
    assert len(checks.shortened(text)) < 200
    record = {"text": endpoint._healed(text)}
    line = store.json_line(record)
    assert line.count("\n") == 1
    assert json.loads(line) == record


TOKENIZER = tokens.load_tokenizer(ModelSettings("tiny").folder)
READERS = {
    "design of lakes": (read_design(LAKES), designs(LAKES)),
    "design of sums": (read_design(SUMS), designs(SUMS)),
    "plan": (read_plan, PLANS),
    "sum": (read_sum, ["975", "975\n", "579"]),
    "tokens": (read_tokens, [*PLANS, *designs(LAKES)]),
    "line": (read_line, PLANS),
}


@pytest.mark.parametrize("count", [200, pytest.param(8_400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", READERS)
def test_reader(name, count):
    read, examples = READERS[name]
    chosen = random.Random(name)
    for number in range(count):
        text = hostile_text(chosen, examples)
        begin = time.monotonic()
        try:
            read(text)
        except BaseException as error:
            error.add_note(f"text {number}: {text[:500]!r}")
            raise
        assert time.monotonic() - begin < SECONDS, text[:500]
