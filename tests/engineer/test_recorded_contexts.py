"""The contexts in docs/contexts are of the run recorded there, without its held-out items."""

import json
from pathlib import Path

import pytest

from engineer import context
from engineer.context import VARIANTS, compose
from engineer.record import RunRecord
from experiments.families.lakes import texts as lakes

FOLDER = Path(__file__).parent.parent.parent / "docs" / "contexts"
RECORD = RunRecord.from_dict(json.loads((FOLDER / "record.json").read_text()))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_files_are_what_the_record_gives(name):
    text = (FOLDER / f"{name}.md").read_text()
    assert text == compose(VARIANTS[name], RECORD, lakes.TEXTS)[0]["content"] + "\n"


def test_they_hold_no_held_out_item():
    held_out = [
        failure.text
        for past in RECORD.history
        for failure in past.evidence.failures
        if failure.held_out
    ]
    assert held_out
    everything = context.ContextSpec(True, "all", True, "full", True, True, 99)
    shown = compose(everything, RECORD, lakes.TEXTS)[0]["content"]
    for text in held_out:
        first_drawing = "\n".join(text.splitlines()[1:4])
        assert text not in shown
        for name in VARIANTS:
            assert first_drawing not in (FOLDER / f"{name}.md").read_text()
