"""Text is UTF-8 whatever the locale: every reader and writer names its encoding."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("mapf_jax", "engineer", "learner", "experiments")
# Not files of text: a family's own, a document of the browser, a device.
OTHERS = ("webbrowser", "Image", "tarfile", "zipfile", "os")


def nameless(call):
    """Whether a call opens, reads or writes text and names no encoding."""
    function = call.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") in OTHERS:
        return False
    names = {keyword.arg for keyword in call.keywords}
    if names & {"text", "universal_newlines"} and name in ("run", "Popen", "check_output"):
        return "encoding" not in names
    if name in ("read_text", "write_text"):
        return "encoding" not in names and len(call.args) < (1 if name == "read_text" else 2)
    if name != "open":
        return False
    at = 0 if isinstance(function, ast.Attribute) else 1
    modes = [*call.args[at : at + 1], *(k.value for k in call.keywords if k.arg == "mode")]
    binary = any("b" in str(getattr(mode, "value", "")) for mode in modes)
    return "encoding" not in names and not binary


def test_every_reader_and_writer_of_text_names_its_encoding():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and nameless(node)
    ]
    assert not found


def test_the_search_tells_text_from_bytes():
    texts = ("open(p)", "p.open('w')", "p.read_text()", "p.write_text(x)", "open(p, mode='r')")
    texts += ("subprocess.run(c, text=True)",)
    others = ("open(p, 'rb')", "p.open('wb')", "p.read_text('utf-8')", "p.open(encoding='utf-8')")
    assert all(nameless(ast.parse(text).body[0].value) for text in texts)
    assert not any(nameless(ast.parse(text).body[0].value) for text in others)


def test_a_terminal_without_a_character_shows_its_number():
    program = (
        "import experiments; experiments.begin_command();"
        "from experiments.run.status import Reporter; Reporter().line('a \\u2013 b')"
    )
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONIOENCODING": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **plain}, capture_output=True, check=True)
    assert done.stdout == b"a \\u2013 b\n"
