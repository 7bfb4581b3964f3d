"""The files of a run, damaged as storage and people damage them: found, or of no consequence."""

import json
import random

import pytest
import whole_runs
from hostile_texts import hostile_text

from experiments import doctor
from experiments import settings as settings_lib
from experiments.store import read_file

OPTIONS = ("--config.loop.rounds=2", "--config.engineer.designer=failures")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files") / "run"
    code, _, err = whole_runs.Run(folder, *OPTIONS).end()
    assert code == 0, err[-3000:]
    return folder


def damaged(rng, raw):
    """The bytes cut, doubled, swapped or replaced; None stands for a folder in the file's place."""
    lines = raw.splitlines(keepends=True)
    at, line = rng.randrange(len(raw)), rng.randrange(len(lines))
    return rng.choice(
        (
            lambda: raw[:at],
            lambda: b"",
            lambda: raw[:at] + bytes(len(raw) - at),  # Blocks that a crash left unwritten.
            lambda: raw[:at] + rng.randbytes(9) + raw[at + 9 :],
            lambda: hostile_text(rng, [raw.decode()]).encode("utf-8", "surrogatepass"),
            lambda: b"".join(lines[:line] + lines[line + 1 :]),
            lambda: b"".join(lines[: line + 1] + lines[line:]),
            lambda: None,
        )
    )()


def steps(raw):
    """Of a log of training, which is the only file of results that grows; None if it is broken."""
    try:
        return [json.loads(line)["step"] for line in raw.decode().splitlines()]
    except (ValueError, LookupError, TypeError):
        return None


@pytest.mark.slow
def test_a_damaged_file_of_a_run_is_found(run):
    settings = settings_lib.from_config(read_file(run / "config.json"))
    _, findings = doctor.examine(run, settings)
    assert not findings
    folders = ("validation", "initial", "rounds")
    files = [p for name in folders for p in sorted((run / name).rglob("*.[jy]*")) if p.is_file()]
    assert len(files) > 10
    believed = []
    for seed in range(2_000):
        rng = random.Random(seed)
        path = rng.choice(files)
        before = path.read_bytes()
        after = damaged(rng, before)
        if after is None:
            path.unlink()
            path.mkdir()
        else:
            path.write_bytes(after)
        _, findings = doctor.examine(run, settings)
        if after is None:
            path.rmdir()
        path.write_bytes(before)
        logged = path.name == "train.jsonl" and after is not None and steps(after) == steps(before)
        if not (findings or logged or after == before):
            believed.append((seed, path.name))
    assert not believed
