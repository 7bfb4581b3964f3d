"""The contexts in docs/contexts are of the run recorded there."""

import json
from pathlib import Path

import pytest

from engineer.context import VARIANTS, compose
from engineer.record import RunRecord
from experiments.families.lakes import texts as lakes

FOLDER = Path(__file__).parent.parent.parent / "docs" / "contexts"
RECORD = RunRecord.from_dict(json.loads((FOLDER / "record.json").read_text()))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_files_are_what_the_record_gives(name):
    text = (FOLDER / f"{name}.md").read_text()
    assert text == compose(VARIANTS[name], RECORD, lakes.TEXTS)[0]["content"] + "\n"
