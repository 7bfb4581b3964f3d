"""Every config.json of `configurations.yaml` is read as it says there, or refused in one line."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml

from learner.decoder.config import DecoderConfig

CORPUS = yaml.safe_load(Path(__file__).with_name("configurations.yaml").read_text("utf-8"))
READ = [name for name, case in CORPUS.items() if "is" in case]


def contents(name):
    """The file of a shape: its own fields over those of another one."""
    case = CORPUS[name]
    over = contents(case["over"]) if "over" in case else {}
    found = over | case.get("json", {})
    return {field: value for field, value in found.items() if field not in case.get("without", ())}


def read(folder, written):
    (folder / "config.json").write_text(json.dumps(written))
    return DecoderConfig.from_folder(folder)


@pytest.mark.parametrize("name", READ)
def test_is_read(name, tmp_path):
    config = read(tmp_path, contents(name))
    found = json.loads(json.dumps(dataclasses.asdict(config)))
    for field, value in CORPUS[name]["is"].items():
        if isinstance(value, dict):
            assert found[field].items() >= value.items()
        else:
            assert found[field] == value, field
    assert read(tmp_path, config.to_hf()) == config  # Our own export.


@pytest.mark.parametrize("name", sorted(CORPUS.keys() - set(READ)))
def test_is_refused_in_one_line(name, tmp_path):
    words = re.escape(CORPUS[name]["refused"])
    with pytest.raises(ValueError, match=rf"\A.*{words}.*\Z") as caught:
        read(tmp_path, contents(name))
    assert len(str(caught.value)) < 400
