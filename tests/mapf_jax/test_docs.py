"""The page of the package: its examples run, its pictures show what it says."""

import re
import shlex
from pathlib import Path

import pytest

from mapf_jax import ViolationKind, formats
from mapf_jax.cli import main
from mapf_jax.padding import stack_padded, stack_plans

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "mapf_jax.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_python_blocks_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("PIL")
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    code = blocks("python")
    assert len(code) >= 8
    space = {"__name__": "page"}
    for number, block in enumerate(code):
        exec(compile(block, f"mapf_jax.md, block {number}", "exec"), space)
    printed = capsys.readouterr().out
    # What the page promises in a comment beside a print is what is printed.
    for promise in re.findall(r"^print\(.*\)  # (.*)$", "".join(code), re.MULTILINE):
        if re.fullmatch(r"[\d.\[\](), A-Z_]+", promise):
            assert promise in printed
    assert Path("wrong.gif").stat().st_size > 1000


def test_the_commands_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("PIL")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("python -m mapf_jax")]
    assert len(commands) >= 7
    for command in commands:
        assert main(command[3:]) == 0, command
    assert len(list(Path("pictures").glob("*.png"))) == 20
    assert "error" not in capsys.readouterr().err


def test_the_record_of_the_page_is_one():
    (text,) = blocks("json")
    (record,) = [r for _, r in formats.numbered_records([text.encode()], "page")]
    assert formats.from_records([record]).solution.cost[0] == 5


def test_the_pictures_of_the_rules():
    expected = {
        "follow": "NONE",
        "rotate": "NONE",
        "vertex": "VERTEX",
        "swap": "SWAP",
        "hole": "HOLE",
        "outside": "OUT_OF_BOUNDS",
    }
    records = list(formats.read_jsonl(DOCS / "images" / "rules.jsonl"))
    assert [record["id"] for record in records] == list(expected)
    instances = stack_padded([formats.instance_from_record(r, r["id"]) for r in records])
    plans = stack_plans([formats.paths_from_record(r, r["id"]) for r in records], 4)
    kinds = formats.verify_in_blocks(instances, plans).violation_kind
    assert [ViolationKind(int(kind)).name for kind in kinds] == list(expected.values())
    pictures = re.findall(r"\]\((images/.*?)\)", PAGE)
    assert len(pictures) >= 8
    for picture in pictures:
        assert (DOCS / picture).is_file()
