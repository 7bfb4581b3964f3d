"""The scripts of docs/benchmarks at toy size: what they print, what they leave behind."""

import concurrent.futures
import dataclasses
import json
import sys
import time
import venv

import jax
import micro_model
import numpy as np
import pytest

import compiled
import generator
import peers
import pretrained
import runner
import sampler
import simulator
import trainer
from experiments import measurements
from learner.decoder import model, weights
from learner.plan import programs
from learner.tokens import character_tokenizer
from runner import Case, Outcome

TINY = micro_model.config(
    vocab_size=256,
    num_attention_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    initializer_range=0.2,
)


@pytest.mark.slow
def test_the_simulator_writes_its_speed_and_its_circumstances(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(peers, "LIBRARIES", {"gymnasium": peers.gymnasium})
    simulator.main(["--quick", f"--out={tmp_path}"])
    content = json.loads((tmp_path / "simulator.json").read_text())
    own, others = (table["rows"] for table in content["tables"])
    assert [line["batch"] for line in own] == [1, 1024]
    for line in own:
        assert line["env steps/s"] > 0
        assert line["agent steps/s"] == pytest.approx(4 * line["env steps/s"])
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
        ("--python=python3", "'python3': NAME=INTERPRETER"),
        ("--python=gymnax=/nowhere/python", "INTERPRETER a file"),
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
        ("nothing:engine", "failed: ModuleNotFoundError: No module named 'nothing'"),
    ],
)
def test_an_engine_that_fails_says_why_and_gets_no_further_turn(engine, obstacle):
    outcome = runner.compare({"x": Case(engine, {})}, 2)["x"]
    assert outcome.measurements == []
    assert outcome.obstacle.startswith(obstacle)


def test_an_engine_needs_nothing_but_its_library(tmp_path):
    venv.create(tmp_path, with_pip=False)
    case = Case("peers:measure", {"library": "gymnasium"}, str(tmp_path / "bin" / "python"))
    outcome = runner.compare({"x": case})["x"]
    assert "PackageNotFoundError: No package metadata was found for gymnasium" in outcome.obstacle


def test_the_first_call_is_not_timed():
    calls = []

    def work():
        calls.append(time.sleep(0.2 if not calls else 0.01))
        return {"tokens": len(calls)}

    (measurement,) = runner.timed(work)
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
    assert [line[0] for line in speeds.lines] == [4, 2]
    assert others.columns[-1] == "note"
    assert others.lines[-1] == ["d", None, None, None, None, None, None, "not installed"]
    (line,) = by_agent.lines
    assert "b 1 fast" in line[3]
    assert line[-1] == pytest.approx(4 * 8e6 / (2 * 2e5))


@pytest.mark.slow
def test_the_generator_counts_rates_and_outcomes(monkeypatch):
    monkeypatch.setattr(generator, "_HOLE_RATIOS", (0.1,))
    monkeypatch.setattr(generator, "_REPEATS", 1)
    monkeypatch.setattr(generator, "_W9_CELL_SECONDS", 0.1)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    for agents, count in ((2, 128), (3, 64)):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            (line,) = lines(generator.labels(agents, (3,), count, pool))
        assert (line["agents"], line["size"], line["instances"]) == (agents, 3, count)
        assert line["undecided"] == line["costs that differ"] == 0
        assert 0 <= line["unsolvable"] < 1
        assert 0 < line["connected fraction"] <= 1
        theirs, reached = line["w9-pathfinding CBS, instances/s"], line["w9's instances"]
        assert line["ratio"] == (theirs and pytest.approx(line["instances/s of these"] / theirs))
        assert (line["costs compared"] > 0) == (reached > 0) == (theirs is not None)
        assert line["costs compared"] <= reached <= count


def lines(table):
    return [dict(zip(table.columns, line, strict=True)) for line in table.lines]


@pytest.mark.slow
def test_tables_of_the_sampler_on_a_cpu(monkeypatch):
    monkeypatch.setattr(measurements, "cores", lambda: list(range(6)))
    (table,) = sampler.tables(
        sys.executable, rounds=1, slots=4, prompt_tokens=8, new_tokens=12, config=TINY
    )
    own, transformers, tunix = lines(table)
    assert own["this project is faster by"] == 1
    assert own["same tokens"] == transformers["same tokens"] == 1
    assert transformers["this project is faster by"] == pytest.approx(
        own["tokens/s, best"] / transformers["tokens/s, best"]
    )
    assert tunix["tokens/s, best"] is None
    assert tunix["note"].startswith("failed: ModuleNotFoundError: No module named")
    assert "the CPU is 2 devices of JAX" in table.note


@pytest.mark.slow
def test_tables_of_the_trainer_on_a_cpu():
    (whole,) = trainer.tables(
        sys.executable, rounds=1, num_prompts=2, group_size=2, prompt_tokens=8, new_tokens=8,
        micro_batch_size=2, config=TINY,
    )  # fmt: skip
    own, trl = lines(whole)
    assert own["this project is faster by"] == 1
    assert own["completion tokens/s, best"] > 0
    assert own["seconds of the update"] > 0
    assert own["seconds of sampling"] > 0
    assert trl["completion tokens/s, best"] > 0
    assert trl["this project is faster by"] == pytest.approx(
        own["completion tokens/s, best"] / trl["completion tokens/s, best"]
    )


@pytest.mark.slow
def test_tables_of_a_pretrained_model_on_a_cpu(tmp_path):
    tokenizer = character_tokenizer("".join(map(chr, range(256, 500))))
    config = dataclasses.replace(TINY, vocab_size=len(tokenizer))
    weights.save(tmp_path, model.init_params(jax.random.key(0), config), config, tokenizer)
    update, policy, single, grouped = pretrained.tables(
        str(tmp_path), rounds=1, steps=4, rows=2, prompt_tokens=8, new_tokens=8, slots=4,
        groups=2, group=2, chat_tokens=8, answer_tokens=8,
    )  # fmt: skip
    own, torch = lines(update)
    assert own["tokens/s, best"] > 0
    assert torch["this project is faster by"] > 0
    # The lowest of two updates that were counted: the same steps on the same tokens.
    assert own["loss"] == pytest.approx(torch["loss"], rel=1e-5)
    own, torch = lines(policy)
    assert torch["this project is faster by"] > 0
    assert own["norm of the gradient"] == pytest.approx(torch["norm of the gradient"], rel=1e-4)
    for sampling in (single, grouped):
        assert [line["same tokens"] for line in lines(sampling)] == [1, 1]


def test_a_comparison_is_with_the_first_engine():
    def outcome(*seconds, **more):
        return Outcome([{"tokens": 12, "seconds": s, **more} for s in seconds])

    nothing = Outcome([], "failed: it is not there")
    outcomes = {"own": outcome(2, 4, 3, parts=5), "a": outcome(6), "b": nothing}
    table = runner.comparison("t", outcomes, "tokens/s", "")
    assert table.columns == [
        "engine", "tokens/s, best", "median", "own is faster by", "parts", "note",
    ]  # fmt: skip
    assert table.lines == [
        ["own", 6, 4, 1, 5, ""],
        ["a", 2, 2, 3, None, ""],
        ["b", None, None, None, None, "failed: it is not there"],
    ]
    with pytest.raises(RuntimeError, match="own could not run: failed: it is not there"):
        runner.comparison("t", {"own": nothing}, "tokens/s", "")


def test_pages_hold_plain_values(tmp_path):
    with pytest.raises(ValueError, match="shorter"):
        measurements.Table("t", ("a", "b"), [(1,)]).to_dict()
    lines = [{"a": np.int64(1234), "c|d": np.float32(0.5)}, {"a": True, "b": "x|y"}]
    made = [measurements.Table.of("t", lines, "note")]
    runner.run("x", "", lambda options: made, [f"--out={tmp_path / 'pages'}"])
    content = json.loads((tmp_path / "pages" / "x.json").read_text())
    assert content["notes"] == []
    assert content["tables"][0]["rows"] == [
        {"a": 1234, "c|d": 0.5, "b": None},
        {"a": True, "c|d": None, "b": "x|y"},
    ]
    page = (tmp_path / "pages" / "x.md").read_text()
    assert "| a | c\\|d | b |" in page
    assert "| 1,234 | 0.5 | \N{EN DASH} |\n| yes | \N{EN DASH} | x\\|y |\n\nnote" in page


def test_an_interrupted_script_says_that_tables_are_missing(tmp_path):
    def tables(options):
        yield measurements.Table.of("t", [{"a": 1}])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run("x", "", tables, [f"--out={tmp_path}"])
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["notes"] == ["Not finished: further tables are missing."]
    assert content["tables"][0]["rows"] == [{"a": 1}]
    assert "Not finished" in (tmp_path / "x.md").read_text()


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
