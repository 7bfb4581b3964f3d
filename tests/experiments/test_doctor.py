"""The doctor of runs: what it finds, and that its advice brings a damaged run back."""

import shutil
from pathlib import Path

import pytest
import whole_runs

FILES = (
    "validation/instances.jsonl",
    "initial/validation.json",
    "rounds/0/environment.yaml",
    "rounds/0/generated.json",
    "rounds/0/instances.jsonl",
    "rounds/0/train.jsonl",
    "rounds/0/train_failures.json",
    "rounds/0/answers.jsonl",
    "rounds/0/greedy.jsonl",
    "rounds/0/validation.json",
    "rounds/0/evidence.json",
    "rounds/0/design/record.json",
    "rounds/0/design/design.json",
    "rounds/1/instances.jsonl",
    "rounds/1/answers.jsonl",
    "rounds/1/validation.json",
)
OPTIONS = (
    "--config.loop.rounds=2",
    "--config.environment.num_instances=16",
    "--config.checkpoint.every_steps=1",
    "--config.checkpoint.keep=9",
    "--config.engineer.designer=failures",
)


def doctor(folder):
    """(exit code, lines) of the command."""
    printed = folder.parent / f"doctor_of_{folder.name}"
    code, out, err = whole_runs.Command(printed, "doctor", str(folder)).end()
    assert "Traceback" not in err
    return code, (out + err).splitlines()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor") / "run"
    code, _, err = whole_runs.Run(folder, *OPTIONS).end()
    assert code == 0, err[-3000:]
    return folder


def contents(folder):
    """Every file that tells of the run, without what a clock or the page says."""
    kept = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name.startswith(("rounds", "validation", "initial")):
            kept[name] = path.read_text()
            if path.name == "train.jsonl":
                kept[name] = [line.split('"machine/')[0] for line in kept[name].splitlines()]
    return kept


def test_a_whole_run_has_nothing_to_mend(undisturbed):
    whole, _ = undisturbed
    code, lines = doctor(whole)
    assert code == 0
    assert lines == [f"{whole}: 38 files are whole, and checkpoints [4, 8, 10, 12]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"), [(name, ("cut", "gone")[i % 2]) for i, name in enumerate(FILES)]
)
def test_a_run_is_whole_again_after_its_advice(small, tmp_path, name, damage):
    folder = shutil.copytree(small, tmp_path / "run")
    path = folder / name
    before = contents(folder)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3] + b"\n")
    else:
        path.unlink()
    code, lines = doctor(folder)
    assert code == 1
    assert any(line.startswith(f"  {name}: ") for line in lines), lines
    steps = [line.split(". ", 1)[1] for line in lines if line[0].isdigit()]
    options = []
    for step in steps:
        if step.startswith("remove "):
            gone = folder / step.removeprefix("remove ")
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        options += [word for word in step.split() if word.startswith("--")]
    assert steps[-1].startswith("start the run's command")
    code, _, err = whole_runs.Run(folder, *OPTIONS, *options).end()
    assert code == 0, err[-3000:]
    assert contents(folder) == before
    assert doctor(folder)[0] == 0


def test_a_damaged_checkpoint_is_named(undisturbed, tmp_path):
    folder = shutil.copytree(undisturbed[0], tmp_path / "run")
    newest = folder / "checkpoints" / "12"
    largest = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    code, lines = doctor(folder)
    assert code == 1
    assert "and checkpoints [4, 8, 10]" in lines[0]
    assert "checkpoint 12 is damaged" in lines[1]
    assert lines[2:] == [
        "1. remove checkpoints/12",
        "2. start the run's command once with --resume_from=10",
    ]


def test_what_no_run_is_said_in_one_line(tmp_path):
    code, lines = doctor(tmp_path)
    assert code == 1
    assert lines == [f"error: {tmp_path}: no run is there, it has no config.json"]
    Path(tmp_path, "config.json").write_text("{")
    code, lines = doctor(tmp_path)
    assert code == 1
    assert len(lines) == 1
    assert "config.json: damaged" in lines[0]
