"""Readers of texts, on texts that nobody would write: right, or refused; never an escape.

`test_fuzz.py` does this with designs of lakes, `test_text.py` and `test_verify.py` with plans.
"""

import json
import math
import random
import time
from pathlib import Path

import pytest
from hostile_texts import hostile_text

from engineer import endpoint
from engineer.proposal import Unreadable, parse, project, render_config
from experiments.families import loading
from experiments.run import store
from experiments.settings import ModelSettings
from learner import checks, tokens

ROOT = Path(__file__).parents[2]
SECONDS = 5.0
SUMS = loading.FamilySettings(f"{ROOT}/experiments/families/template.py:family").load_family()
PLANS = ["<answer>\n0: (0,0) (2,2)\n1: (0,1) (1,2)\n2: (1,1) (1,2)\n</answer>"]


CONFIG = render_config(SUMS.space.uniform(), SUMS.space)
DESIGNS = [CONFIG, f"```yaml\n{CONFIG}\n```", f"I cut what is hard.\n{CONFIG}\nDone."]


def read_design(text):
    """A configuration of the space with finite numbers, or a reason."""
    found = parse(text, SUMS.space)
    if isinstance(found, Unreadable):
        assert found.reason.strip()
        return
    assert all(math.isfinite(n) for row in found.values.values() for n in row.values())
    config, _ = project(found, SUMS.space)
    SUMS.space.check(config)
    assert not isinstance(parse(render_config(config, SUMS.space), SUMS.space), Unreadable)


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
    line = store.file_text(Path("one.jsonl"), [record])
    assert line.count("\n") == 1
    assert json.loads(line) == record


TOKENIZER = tokens.load_tokenizer(ModelSettings("tiny").folder)
READERS = {
    "design": (read_design, DESIGNS),
    "sum": (read_sum, ["975", "975\n", "579"]),
    "tokens": (read_tokens, [*PLANS, *DESIGNS]),
    "line": (read_line, PLANS),
}


@pytest.mark.parametrize("count", [200, pytest.param(12_500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", READERS)
def test_reader(name, count):
    read, examples = READERS[name]
    chosen = random.Random(name)
    for number in range(count):
        text = hostile_text(chosen, examples)
        begin = time.thread_time()
        try:
            read(text)
        except BaseException as error:
            error.add_note(f"text {number}: {text[:500]!r}")
            raise
        assert time.thread_time() - begin < SECONDS, text[:500]
