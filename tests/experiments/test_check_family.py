"""`experiments.check_family`: a family is tried without a model, and errors say where they are."""

import re
import sys
from pathlib import Path

import pytest

from experiments import check_family
from experiments.families import sandbox, template
from experiments.families.loading import FamilySettings
from experiments.ring import loop
from experiments.run.status import Reporter
from experiments.run.store import RunStore
from experiments.settings import from_config
from experiments.text.errors import UserError

TEMPLATE = Path(template.__file__).read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    monkeypatch.setattr(sandbox, "WORKERS", 1)


def lines(tmp_path, capsys, before="", after=""):
    """What the command prints for the template with a change."""
    assert before in TEMPLATE
    path = tmp_path / "own.py"
    path.write_text(TEMPLATE.replace(before, after, 1), encoding="utf-8")
    check_family.main(["check_family", f"{path}:family"])
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_template_is_usable(tmp_path, capsys):
    out = lines(tmp_path, capsys)
    assert "only length 3: 4 of 4 problems" in out
    assert "configuration: 200 of 200\n" in out
    assert re.search(r"empty completions: 0 of 200 valid, [\d.e-]+ s each", out)
    assert "\nsolutions: 200 of 200 valid\n" in out
    assert out.endswith("solutions of other problems: 0 of 200 valid\nthe family is usable\n")


OWN = 'reward = "the part of the digits that stand before the first error"'


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('problem["terms"]), strict', 'problem["txt"]), strict', r"KeyError: 'txt' .*in prompt\)$"),
        ("        right, text", "        return\n        right, text", "verify=None: allowed are"),
        slow('"reward": reward', '"reward": 5', "verify.reward=5: allowed are numbers from 0 to 1"),
        slow("return [str(sum", "return [str(1 + sum", "only 0 of 200 are valid by `verify`"),
        ("return [str(sum", "1 / 0\n        return [str(sum", r"Zero.*own\.py:\d+, in solutions\)"),
        slow('" ".join(map', 'len(map', r"TypeError: .*own\.py:\d+, in prompt\)"),
        ("default_rng(np.asarray(jax.random.key_data(key)))", "default_rng()", "the same key"),
        slow("seen = {tuple", "seen = set() and {tuple", "a problem of `exclude` is there"),
        slow("if text != right else", "if text and text != right else", "an empty completion"),
        (OWN, f"{OWN}\n    def text(self, *_): return _[0]['q']\n", r"KeyError: 'q' .*in text\)"),
        (OWN, f"{OWN}\n    failure = {{'right_value': 3}}.get\n", r"failure\('is_nu.*=None: "),
        ('"right_value" if', '"value" if', r"another problem.*failed\[0\]='value': allowed are"),
        ('"group": length, ', "", r"a problem has no 'group'.*own\.py:\d+, in generate"),
        slow(OWN, f"{OWN}\n    def example(self, *_): pass\n", "example=None: allowed are values"),
        slow(OWN, f"{OWN}\n    def draw(self, *_): raise SystemError\n", "SystemError: .*in draw"),
        slow("if text.isdecimal()", "if int(text or 0)", "a completion in prose.*ValueError"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_its_place(before, after, said, tmp_path, capsys):
    with pytest.raises(SystemExit, match="error: ") as caught:
        lines(tmp_path, capsys, before, after)
    assert re.search(said, str(caught.value))
    assert "\n" not in str(caught.value)


def test_modules_beside_the_file_are_found(tmp_path, capsys, monkeypatch):
    (tmp_path / "of_its_own.py").write_text("TRIES = 1000\n")
    monkeypatch.setattr(sys, "path", sys.path[:])  # As a console script: without the folder.
    told = lines(tmp_path, capsys, "TRIES = 1000", "from of_its_own import TRIES\n")
    assert "the family is usable" in told


def test_families_need_no_words_for_what_could_not_be_scored(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(TEMPLATE.replace(OWN, "failure = dict(is_number='no', right_value='bad').get"))
    family = FamilySettings(f"{path}:family").load_family()
    failures = {"scored": "could not be scored", "is_number": "no", "right_value": "bad"}
    assert {name: family.failure(name) for name in family.texts.checks} == failures


def test_a_file_that_exits_is_told(tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"error: .*SystemExit: 3"):
        lines(tmp_path, capsys, "TRIES = 1000", "raise SystemExit(3)")


def test_a_run_tries_its_family_first(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(TEMPLATE.replace("        right, text", "        return\n        right, text"))
    options = from_config({"family": f"{path}:family"})
    run = loop.Loop(options, RunStore(tmp_path / "run"), Reporter(quiet=True))
    with pytest.raises(UserError, match="an empty completion could not be scored: verify=None"):
        run._load()
