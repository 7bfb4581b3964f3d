"""The benchmark commands in a tiny form: what they print, what they leave behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.speed import generator, peers, records, simulator

ROOT = Path(__file__).parents[2]


def run(module, *arguments):
    return subprocess.run(
        [sys.executable, "-m", f"experiments.speed.{module}", *arguments],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_simulator_writes_figures_with_their_circumstances(tmp_path):
    done = run(
        "simulator", "--quick", "--agents=4", "--batches=1,64", "--peers=gymnasium,xminigrid",
        f"--peer_python=xminigrid={tmp_path / 'python'}", f"--out={tmp_path / 'pages'}",
    )  # fmt: skip
    assert done.returncode != 0  # There is no such interpreter, and that is said in one line.
    assert done.stderr.splitlines()[-1].startswith("error: peer_python")

    done = run(
        "simulator", "--quick", "--agents=4", "--batches=1,64", "--peers=gymnasium",
        f"--out={tmp_path / 'pages'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "pages" / "simulator.json").read_text())
    own, others = (table["rows"] for table in content["tables"])
    assert [row["batch"] for row in own] == [1, 64]
    for row in own:
        assert row["env steps/s"] > 0
        assert row["agent steps/s"] == pytest.approx(4 * row["env steps/s"])
        speed = row["share of roofline"] * row["bandwidth GB/s"] * 1e9
        assert speed == pytest.approx(row["env steps/s"] * row["bytes per step"])
    assert own[1]["env steps/s"] > own[0]["env steps/s"]
    assert all(row["env steps/s"] > 0 for row in others)
    assert {row["batch"] for row in others} == {1, 64}
    assert content["facts"]["backend"] == "cpu"
    assert "experiments.speed.simulator --quick" in content["facts"]["command"]
    page = (tmp_path / "pages" / "simulator.md").read_text()
    assert "A quick run" in page
    assert content["facts"]["processor"] in page


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--batches=1,x", "error: batches=1,x: integers"),
        ("--agents=0", "error: agents=0: numbers of at least 1"),
        ("--peers=gym", "error: peers='gym': known are jumanji"),
        ("--peer_python=python3", "error: peer_python='python3': NAME=INTERPRETER"),
    ],
)
def test_bad_options_end_in_one_line(option, message):
    done = run("simulator", option)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(message)


def test_a_peer_that_is_not_there_or_breaks_is_reported(monkeypatch):
    effort = peers.Effort(batches=(1,), steps=64, repeats=1)
    monkeypatch.setenv("PYTHONPATH", "")
    if not any(Path(entry, "pogema").exists() for entry in sys.path):
        assert simulator.measure_peer("pogema", sys.executable, effort) == ([], "not installed")
    rows, problem = simulator.measure_peer(
        "gymnasium", sys.executable, peers.Effort(batches=(1,), steps=0, repeats=0)
    )
    assert rows == []
    assert problem.startswith("failed: ")


def test_the_ratios_are_against_the_best_grids_that_agents_share():
    own = [
        simulator.Measurement(4, 1024, 8e6, 100, 1e10),
        simulator.Measurement(2, 64, 5e6, 60, 1e10),
    ]
    rows = [
        peers.Row("a 1", "slow", 4, True, 1, 1e4),
        peers.Row("b 1", "fast", 2, True, 64, 2e5),
        peers.Row("c 1", "alone", 1, False, 64, 9e6),
    ]
    speeds, others, same, by_agent = simulator.tables(own, rows, {"d": "not installed"})
    assert speeds.rows[0][-1] == pytest.approx(8e6 * 100 / 1e10)
    assert others.rows[-1][0] == "d"
    assert others.rows[-1][-1] == "not installed"
    # As many agents: environment steps; other numbers of agents: steps of agents.
    (row,) = same.rows
    assert "a 1 slow" in row[3]
    assert row[-1] == pytest.approx(800)
    (row,) = by_agent.rows
    assert "b 1 fast" in row[3]
    assert row[-1] == pytest.approx(4 * 8e6 / (2 * 2e5))


def test_generator_tells_rates_and_what_became_of_the_instances(monkeypatch):
    monkeypatch.setattr(generator, "_HOLE_RATIOS", (0.1,))
    monkeypatch.setattr(generator, "_W9_CELL_SECONDS", 0.1)
    for agents, count in ((2, 128), (3, 64)):
        (row,) = generator.rows_of_labels(agents, (3,), count, repeats=1)
        number, size, _, share, instances, unsolvable, undecided, ours, theirs, ratio = row
        assert (number, size, instances, undecided) == (agents, 3, count, 0)
        assert 0 <= unsolvable < 1
        assert 0 < share <= 1
        assert ratio is None if theirs is None else ratio == pytest.approx(ours / theirs)
    assert [row[1] for row in generator.training_set(40)] == [40, 40]


def test_records_refuse_ragged_rows_and_write_plain_values(tmp_path):
    with pytest.raises(ValueError, match="1 values for the 2 columns"):
        records.Table("t", ("a", "b"), [(1,)])
    table = records.Table("t", ("a", "b", "c"), [(np.int64(1234), None, np.float32(0.5))], "note")
    path, page = records.write("x", "X", [table], tmp_path, about={"command": "python x"})
    assert json.loads(path.read_text())["tables"][0]["rows"] == [{"a": 1234, "b": None, "c": 0.5}]
    assert "| 1,234 | - | 0.5 |" in page.read_text()
    assert records.seconds(lambda: None, repeats=1, least=0.01) < 0.01
