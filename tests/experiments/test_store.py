"""What the files of a run are believed, and what is said of those that are damaged."""

import json

import pytest
import whole_runs

from engineer.evidence import FailureBreakdown
from engineer.proposal import render_config
from engineer.space import Configuration
from experiments import report
from experiments.families.lakes.options import LakesOptions
from experiments.families.lakes.texts import lake_space
from experiments.ring import designing
from experiments.run import store
from experiments.run.store import RunStore
from experiments.settings import Settings, from_config
from experiments.text.errors import UserError
from learner.checks import one_line

ANSWERS = [
    {"id": f"a-{i}", "group": "3", "valid": i % 2 == 0, "failed": [] if i % 2 == 0 else ["parses"]}
    for i in range(6)
]
COUNTED = FailureBreakdown.from_records(ANSWERS, checks=["parses"], label="size").to_dict()


@pytest.mark.parametrize("read", [store.read_file, store.read_log])
@pytest.mark.parametrize(
    ("name", "stated", "value"),
    [
        ("answers.jsonl", "validation.json", COUNTED),
        ("instances.jsonl", "generated.json", {"asked": 9, "made": 6}),
    ],
)
def test_shortened_files_are_refused(tmp_path, read, name, stated, value):
    store.write_file(tmp_path / name, ANSWERS)
    assert read(tmp_path / name) == ANSWERS
    store.write_file(tmp_path / stated, value)
    assert read(tmp_path / name) == ANSWERS
    store.write_file(tmp_path / name, ANSWERS[:-1])
    with pytest.raises(UserError, match=rf"{name}: damaged: 5 records, .*{stated} states 6"):
        read(tmp_path / name)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_only_finite_numbers_are_logged(tmp_path, value):
    path = tmp_path / "train.jsonl"
    store.open_steps(path, 0)
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.append_log(path, [{"step": 0}, {"step": 1, "kl": value}])
    assert path.read_text() == ""


def test_steps_without_gaps(tmp_path):
    path = tmp_path / "train.jsonl"
    store.open_steps(path, 0)
    store.append_log(path, [{"step": step, "reward": 0.5} for step in range(4)])
    lines = path.read_text().splitlines(keepends=True)
    assert len(store.read_file(path)) == 4
    path.write_text("".join(lines) + '{"step": 4, "rew')  # What a kill leaves behind.
    store.open_steps(path, 3)
    assert path.read_text() == "".join(lines[:3])
    for kept in (lines[1:], lines[:1] + lines[2:], [lines[1], lines[0], *lines[2:]]):
        path.write_text("".join(kept))
        for read in (store.read_file, store.read_log):
            with pytest.raises(UserError, match=r"train\.jsonl: damaged: its steps are not 0 to"):
                read(path)
    path.write_text("".join(lines[:2]))
    with pytest.raises(UserError, match=r"2 steps, the checkpoint stands after 3.*resume_from"):
        store.open_steps(path, 3)


@pytest.mark.parametrize("rows", [("3_2", "3_3", "10_2"), ("no", "null", "0x10", "1e3")])
def test_a_configuration_keeps_rows_that_yaml_takes_for_other_values(tmp_path, rows):
    space = lake_space(rows)
    config = space.random(0)
    path = tmp_path / "start.yaml"
    store.write_file(path, render_config(config, space) + "\n")
    assert store.read_file(path, Configuration.from_dict) == config
    settings = from_config({"engineer": {"start": str(path)}})
    assert designing.start_config(settings, space, 0) == config


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"a": '),
        ("a.json", "\x00"),
        ("a.json", "[" * 100_000),
        ("a.json", "[1]"),
        ("a.json", "{}"),
        ("a.jsonl", '{"a": 1}\n{"a": \n'),
        ("a.yaml", "a: ["),
        ("a.yaml", "a: {}"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        RunStore(tmp_path).read(path, FailureBreakdown.from_dict)
    assert str(caught.value).startswith(f"{path}: damaged: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["no\n{}\n", "{}\n", '{"seconds": []}\n'])
def test_damaged_times_do_not_keep_a_report_from_being_made(tmp_path, text):
    store.write_file(tmp_path / "config.json", Settings().to_dict())
    (tmp_path / store.TIMES).write_text(text)
    assert report.write(tmp_path).is_file()


def test_times_after_a_truncated_line_are_kept(tmp_path):
    path = tmp_path / store.TIMES
    path.write_text('{"seconds": 1, "cpu_seconds": 1}\n{"seco')
    with RunStore(tmp_path).timed():
        pass
    assert [line["seconds"] for line in store.read_log(path)] == [1, 0]


def test_errors_are_one_line_of_bounded_length(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(OSError, match="directory") as caught, RunStore(tmp_path).locked():
        pass
    assert one_line(caught.value) == f"{tmp_path}/.lock: Is a directory"
    assert len(one_line(ValueError("x\ny " * 10_000))) == 2000


def test_a_run_that_cannot_begin_says_so_in_one_line(tmp_path):
    locked, damaged = tmp_path / "locked", tmp_path / "damaged"
    (locked / ".lock").mkdir(parents=True)
    (damaged / "validation").mkdir(parents=True)
    config = json.dumps(Settings().to_dict())
    (damaged / "config.json").write_text(config[:-9])
    for folder, options, message in (
        (locked, (), f"{locked}/.lock: Is a directory"),
        (damaged, (), f"{damaged}/config.json: damaged: "),
        (tmp_path / "empty", ("--workdir=",), "workdir='': the folder of the run is needed"),
    ):
        code, _, err = whole_runs.Run(folder, *options).end()
        assert code == 1
        assert err.splitlines()[-1].startswith(f"error: {message}"), err
        assert "Traceback" not in err


def test_a_problem_set_is_as_it_was_made_or_refused(tmp_path):
    run, path = RunStore(tmp_path), tmp_path / "validation" / "instances.jsonl"
    problems = [{"id": f"p-{i}", "holes": [0, i]} for i in range(3)]
    about = {"made": 3, "sha256": store.set_digest(problems)}
    run.write(path.with_name("generated.json"), about)
    run.write(path, problems)
    assert run.read(path) == problems
    path.write_text(path.read_text().replace("[0, 1]", "[0, 2]"))
    with pytest.raises(UserError, match=r"it is not as the run made it; put it back .*remove it"):
        run.read(path)
    path.unlink()
    assert run.kept(path, lambda: problems) == problems


def test_a_path_may_be_relative_once_and_absolute_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("sets/one.jsonl", "sets/two.jsonl"):
        store.write_file(tmp_path / name, "")
    (tmp_path / "run" / "validation").mkdir(parents=True)
    run, absolute = RunStore(tmp_path / "run"), f"{tmp_path}/sets"
    for folder in ("sets", absolute, "sets"):
        assert run.claim(Settings(lakes=LakesOptions(exclude=f"{folder}/one.jsonl"))) == []
    with pytest.raises(UserError, match=r"lakes\.exclude was 'sets/one\.jsonl' and is"):
        run.claim(Settings(lakes=LakesOptions(exclude=f"{absolute}/two.jsonl")))


def test_a_start_says_what_it_resumes_from(tmp_path):
    """Only a complete checkpoint counts, whatever the logs hold."""
    run = RunStore(tmp_path)
    assert run.opening() == "starting"
    store.write_file(tmp_path / "rounds/0/train.jsonl", [{"step": step} for step in range(4)])
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "4.orbax-checkpoint-tmp").mkdir(parents=True)  # What a kill leaves behind.
    assert run.opening() == "starting; 4 training steps were not saved and are repeated"
    repeated = "training steps after it were not saved and are repeated"
    for step in (1, 3):
        (checkpoints / str(step)).mkdir()
    assert run.opening() == (
        "resuming from checkpoint 3; 1 training step after it was not saved and is repeated"
    )
    store.write_file(tmp_path / "rounds/1/train.jsonl", [{"step": step} for step in range(2)])
    assert run.opening() == f"resuming from checkpoint 3; 3 {repeated}"
    assert run.opening(resume_from=1) == f"resuming from checkpoint 1; 5 {repeated}"
    (checkpoints / "6").mkdir()
    assert run.opening() == "resuming from checkpoint 6"


def test_a_branch_of_weights_alone_starts_where_they_were(tmp_path):
    store.write_file(tmp_path / store.BRANCH, {store.FRESH: {"round": 0, "step": 4, "total": 4}})
    store.write_file(tmp_path / "rounds/0/train.jsonl", [{"step": step} for step in range(4)])
    assert RunStore(tmp_path).opening() == "resuming from checkpoint 4"


def test_a_run_is_finished_once_its_report_shows_its_last_round(tmp_path):
    store, settings = RunStore(tmp_path), from_config({"loop": {"rounds": 2}})
    page, last = tmp_path / "report.html", store.round(1) / "evidence.json"
    page.write_text('<meta name="finished-rounds" content="2">', encoding="utf-8")
    assert store.finished(settings) is None
    store.write(last, {})
    assert store.finished(settings) == page
    # A report that began before the last round ended, and ended after it.
    page.write_text('<meta name="finished-rounds" content="1">', encoding="utf-8")
    assert store.finished(settings) is None
