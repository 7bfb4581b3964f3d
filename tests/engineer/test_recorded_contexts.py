"""The contexts in docs/contexts are of the run recorded there, and differ by modules alone."""

import json
from pathlib import Path

import pytest

from engineer import context
from engineer.context import VARIANTS, blocks, compose
from engineer.record import RunRecord
from engineer.texts import SUMMARY_REQUEST
from experiments.families.lakes import texts as lakes

FOLDER = Path(__file__).parent.parent.parent / "docs" / "contexts"
RECORD = RunRecord.from_dict(json.loads((FOLDER / "record.json").read_text()))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_files_are_what_the_record_gives(name):
    text = (FOLDER / f"{name}.md").read_text()
    assert text == compose(VARIANTS[name], RECORD, lakes.TEXTS)[0]["content"] + "\n"


def test_they_differ_exactly_by_their_modules():
    family = lakes.TEXTS
    module = {
        "F": context.module("failures", RECORD, family),
        "G": lakes.TEXTS.guideline,
        "H0": context.module("history", RECORD, family, True),
        "H": context.module("history", RECORD, family, False),
        "S": context.module("summary", RECORD),
        "T": context.module("training", RECORD, False),
    }
    wanted = {
        "V1": "F", "V2": "G F", "V3": "G H0 F", "V4": "G H F", "V5": "G H F S", "V6": "G H F T",
    }  # fmt: skip
    assert len(set(module.values())) == len(module)
    for name, letters in wanted.items():
        texts = [lakes.TEXTS.instruction, *(module[letter] for letter in letters.split())]
        texts += [context.module("rows", RECORD, family), lakes.TEXTS.output_format]
        texts += [SUMMARY_REQUEST] if name == "V5" else []
        assert blocks(VARIANTS[name], RECORD, family) == texts
        assert (FOLDER / f"{name}.md").read_text() == "\n\n".join(texts) + "\n"


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
