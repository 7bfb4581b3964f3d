"""Speed measurements at toy size: what the commands print, what they leave behind."""

import concurrent.futures
import json
import time
import venv

import numpy as np
import pytest

from experiments import measurements
from experiments.speed import commands, compiled, engines, generator, peers, simulator
from experiments.speed.engines import Case, Outcome
from learner.plan import programs


def test_the_simulator_writes_its_speed_and_its_circumstances(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(peers, "LIBRARIES", {"gymnasium": peers.gymnasium})
    simulator.main(["--quick", f"--out={tmp_path}"])
    content = json.loads((tmp_path / "simulator.json").read_text())
    own, others = (table["rows"] for table in content["tables"])
    assert [row["batch"] for row in own] == [1, 1024]
    for row in own:
        assert row["env steps/s"] > 0
        assert row["agent steps/s"] == pytest.approx(4 * row["env steps/s"])
    assert own[1]["env steps/s"] > own[0]["env steps/s"]
    (gymnasium,) = others
    assert gymnasium["env steps/s"] > 0
    assert (gymnasium["batch"], gymnasium["shared grid"]) == (1, False)
    assert content["facts"]["backend"] == "cpu"
    page = (tmp_path / "simulator.md").read_text()
    assert "A quick run" in page
    assert content["facts"]["processor"] in page
    assert "## Other libraries" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--peer_python=python3", "'python3': NAME=INTERPRETER"),
        ("--peer_python=gymnax=/nowhere/python", "INTERPRETER a file"),
    ],
)
def test_bad_options_end_in_one_line(option, message, capsys):
    with pytest.raises(SystemExit):
        simulator.main([option])
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("engine", "obstacle"),
    [
        ("peers:measure", "failed: KeyError: 'library'"),
        ("nothing:engine", "failed: ModuleNotFoundError: No module named 'experiments.speed.noth"),
    ],
)
def test_an_engine_that_fails_says_why_and_gets_no_further_turn(engine, obstacle):
    outcome = engines.compare({"x": Case(engine, {})}, 2)["x"]
    assert outcome.measurements == []
    assert outcome.obstacle.startswith(obstacle)


def test_an_engine_needs_nothing_but_its_library(tmp_path):
    venv.create(tmp_path, with_pip=False)
    case = Case("peers:measure", {"library": "gymnasium"}, str(tmp_path / "bin" / "python"))
    outcome = engines.compare({"x": case})["x"]
    assert "PackageNotFoundError: No package metadata was found for gymnasium" in outcome.obstacle


def test_the_first_call_is_not_timed():
    calls = []

    def work():
        calls.append(time.sleep(0.2 if not calls else 0.01))
        return {"tokens": len(calls)}

    (measurement,) = engines.timed(work)
    assert measurement["tokens"] == 2
    assert 0.01 <= measurement["seconds"] < 0.2


def test_the_ratios_are_against_the_best_grids_that_agents_share():
    def peer(library, environment, agents, shared, batch, speed):
        return {
            "library": library,
            "environment": environment,
            "agents": agents,
            "shared grid": shared,
            "batch": batch,
            "env steps/s": speed,
            "agent steps/s": agents * speed,
        }

    own = [
        {"agents": 4, "batch": 1024, "env steps/s": 8e6, "agent steps/s": 32e6},
        {"agents": 2, "batch": 64, "env steps/s": 5e6, "agent steps/s": 10e6},
    ]
    outcomes = {
        "a": Outcome([peer("a 1", "slow", 4, True, 1, 1e4)]),
        "b": Outcome(
            [peer("b 1", "fast", 2, True, 64, 2e5), peer("b 1", "alone", 1, False, 64, 9e6)]
        ),
        "d": Outcome([], "not installed"),
    }
    speeds, others, by_agent = simulator.tables(own, outcomes)
    assert [row[0] for row in speeds.rows] == [4, 2]
    assert others.columns[-1] == "note"
    assert others.rows[-1] == ["d", None, None, None, None, None, None, "not installed"]
    (row,) = by_agent.rows
    assert "b 1 fast" in row[3]
    assert row[-1] == pytest.approx(4 * 8e6 / (2 * 2e5))


def test_the_generator_counts_rates_and_outcomes(monkeypatch):
    monkeypatch.setattr(generator, "_HOLE_RATIOS", (0.1,))
    monkeypatch.setattr(generator, "_REPEATS", 1)
    monkeypatch.setattr(generator, "_W9_CELL_SECONDS", 0.1)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    for agents, count in ((2, 128), (3, 64)):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            (row,) = generator.labels(agents, (3,), count, pool).rows
        (
            number,
            size,
            _,
            fraction,
            instances,
            unsolvable,
            undecided,
            _,
            reached,
            ours,
            theirs,
            ratio,
            compared,
            differ,
        ) = row
        assert (number, size, instances, undecided) == (agents, 3, count, 0)
        assert 0 <= unsolvable < 1
        assert 0 < fraction <= 1
        assert ratio is None if theirs is None else ratio == pytest.approx(ours / theirs)
        assert (compared > 0) == (reached > 0) == (theirs is not None)
        assert compared <= reached <= count
        assert differ == 0


def test_a_comparison_is_with_the_first_engine():
    def outcome(*seconds, **more):
        return Outcome([{"tokens": 12, "seconds": s, **more} for s in seconds])

    nothing = Outcome([], "failed: it is not there")
    outcomes = {"own": outcome(2, 4, 3, parts=5), "a": outcome(6), "b": nothing}
    table = commands.comparison("t", outcomes, "tokens/s", "")
    assert table.columns == [
        "engine", "tokens/s, best", "median", "own is faster by", "parts", "note",
    ]  # fmt: skip
    assert table.rows == [
        ["own", 6, 4, 1, 5, ""],
        ["a", 2, 2, 3, None, ""],
        ["b", None, None, None, None, "failed: it is not there"],
    ]
    with pytest.raises(RuntimeError, match="own could not run: failed: it is not there"):
        commands.comparison("t", {"own": nothing}, "tokens/s", "")


def test_pages_hold_plain_values(tmp_path):
    with pytest.raises(ValueError, match="shorter"):
        measurements.Table("t", ("a", "b"), [(1,)]).to_dict()
    rows = [{"a": np.int64(1234), "c": np.float32(0.5)}, {"a": True, "b": "x|y"}]
    made = [measurements.Table.of("t", rows, "note")]
    commands.run("x", "", lambda options: made, [f"--out={tmp_path / 'pages'}"])
    content = json.loads((tmp_path / "pages" / "x.json").read_text())
    assert content["notes"] == []
    assert content["tables"][0]["rows"] == [
        {"a": 1234, "c": 0.5, "b": None},
        {"a": True, "c": None, "b": "x|y"},
    ]
    page = (tmp_path / "pages" / "x.md").read_text()
    assert "| 1,234 | 0.5 | \N{EN DASH} |\n| yes | \N{EN DASH} | x\\|y |\n\nnote" in page


def test_chips_that_there_are_not_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        compiled.main(["--chips=v9"])
    assert "chips='v9': allowed are" in capsys.readouterr().err


@pytest.mark.aot
def test_tpus_step_all_environments_at_once(tmp_path, monkeypatch):
    """No loop over the lakes: with one a step of 65,536 takes a third of a second."""
    pytest.importorskip("libtpu")
    texts = []

    def compile_program(*args):
        made = programs.compile_program(*args)
        texts.append(made.executable.as_text())
        return made

    monkeypatch.setattr(compiled, "compile_program", compile_program)
    compiled.main(["--quick", "--chips=v5e", f"--out={tmp_path}"])
    step, search = json.loads((tmp_path / "compiled.json").read_text())["tables"][0]["rows"]
    assert " while(" not in texts[0]
    assert step["lakes/s"] > 1e6
    assert search["predicted ms"] > 0
