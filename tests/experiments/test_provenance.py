"""Where the results of a study come from: registration, amendments, revisions, dates."""

import dataclasses
import hashlib

import pytest
from whole_runs import PLAN

from experiments import measurements
from experiments.configs.studies import bases
from experiments.run.status import Reporter
from experiments.study import processes, provenance, results, runs, variants
from experiments.study.variants import Study, Variant
from experiments.text.errors import UserError

STUDY = Study(
    question="Who?",
    variants=(
        Variant("fixed", "fixed", {"engineer.designer": "fixed"}),
        Variant("random", "random", {"engineer.designer": "random"}),
    ),
    reference="fixed",
    seeds=(0,),
    registration="Written down before it was run.",
)


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


class Begins(runs.Runner):
    """Begins every run and ends none."""

    def run(self):
        for job in self._waiting:
            runs.RunStore(self._root / job.folder).claim(job.settings)
        return True


def test_a_study_says_by_which_code_and_when_it_was_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "Runner", Begins)
    monkeypatch.setattr(processes, "slots", lambda *_: [])
    monkeypatch.setattr(measurements, "revision", lambda: {"revision": "abc", "clean": False})

    def compute(study, workers=1, amendment=None):
        base = bases.tiny_base()
        return runs.compute(tmp_path, study, base, workers, Reporter(quiet=True), amendment)[0]

    found = compute(STUDY)
    assert found["provenance"]["registration"]["sha256"] == sha256(STUDY.registration)
    assert found["provenance"]["registration"]["before_first_run"]
    (session,) = found["provenance"]["sessions"]
    assert (session["revision"], session["clean"]) == ("abc", False)
    assert session["started"] <= session["ended"]
    other = dataclasses.replace(STUDY, registration="Measure: another one.")
    for workers in (1, None):  # None writes the tables alone.
        with pytest.raises(UserError, match="has changed since its first run began"):
            compute(other, workers)
    found = compute(other, amendment="a better measure")
    page = results.markdown(found)
    assert f"before the first run: SHA-256 {sha256(STUDY.registration)}." in page
    assert f"(a better measure): SHA-256 {sha256(other.registration)}." in page
    assert "revision abc with changes." in page
    assert len(found["provenance"]["sessions"]) == 2
    assert compute(other, None, "a better measure")["provenance"] == found["provenance"]
    with pytest.raises(UserError, match="the registration has not changed"):
        compute(other, amendment="yet another")


def test_a_registration_may_change_until_a_run_begins(tmp_path):
    for text in ("one", "another"):
        provenance.register(tmp_path, text, begun=False)
    found = provenance.of_study(tmp_path)
    assert found["registration"]["sha256"] == sha256("another")
    assert found["amendments"] == []
    late = tmp_path / "late"
    provenance.register(late, "one", begun=True)
    assert not provenance.of_study(late)["registration"]["before_first_run"]


def test_the_registration_is_the_docstring_of_the_studys_file(tmp_path):
    path = tmp_path / "plan.py"
    path.write_text(f'"""Question: who?"""\n{PLAN}')
    assert variants.load(str(path)).registration == "Question: who?"


def test_a_changed_checkout_is_no_clean_one(monkeypatch):
    printed = iter(["1234\n", " M file\n", "1234\n", "\n"])

    def run(command, **_):
        return type("Done", (), {"stdout": next(printed)})

    monkeypatch.setattr(measurements.subprocess, "run", run)
    assert [measurements.revision()["clean"] for _ in range(2)] == [False, True]
