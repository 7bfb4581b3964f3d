"""The command line: the four commands, what goes between them, and what bad input is answered."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from small_records import CORRIDOR, PATHS, RECORD

import mapf_jax
from mapf_jax import EnvironmentConfig, benchmark, fingerprints, formats, generate
from mapf_jax.cli import main


def run(capsys, *args):
    status = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def write(path, *records):
    path.write_text("".join(json.dumps(r) + "\n" if isinstance(r, dict) else r for r in records))
    return path


def records(text):
    return [json.loads(line) for line in text.splitlines()]


def test_version(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"mapf_jax {mapf_jax.__version__}\n"


def test_generate_then_verify_then_solve(tmp_path, capsys):
    made, report = tmp_path / "out" / "made.jsonl", tmp_path / "asked" / "report.json"
    options = ["--sizes", "3,5", "--hole-ratio", "0.2", "--wait-ratio", "0.5", "--seed", "7"]
    options += ["--num-instances", "8", "--report", report]
    status, out, err = run(capsys, "generate", *options, "--out", made)
    assert (status, out) == (0, "")
    assert err.startswith("8 of 8 instances\n")
    assert json.loads(report.read_text())["made"] == 8
    lines = records(made.read_text())
    assert [list(line) for line in lines] == [
        [*RECORD, "cost", "makespan", "needs_wait", "paths"]
    ] * 8
    assert sorted(len(line["map"]) for line in lines) == [3] * 4 + [5] * 4
    assert sum(line["needs_wait"] for line in lines) == 4
    assert len({line["id"] for line in lines}) == 8
    assert formats.from_records(lines).solution is not None
    status, again, _ = run(capsys, "generate", *options)
    assert again == made.read_text()

    status, out, err = run(capsys, "verify", made)
    assert (status, err) == (0, "8 plans, 8 valid, 8 of 8 with a known optimum optimal\n")
    assert all(all(line["checks"].values()) and line["gap"] == 0 for line in records(out))

    status, out, err = run(capsys, "solve", made)
    assert (status, err) == (0, "8 optimal, 0 feasible, 0 unsolvable, 0 unknown\n")
    for line, before in zip(records(out), lines, strict=True):
        assert line.pop("status") == "optimal"
        del line["paths"], before["paths"]
        assert line == before


def test_generate_from_a_configuration(tmp_path, capsys):
    rows = {3: {"data_ratio": 1.0, "hole_ratio": 0.12, "wait_ratio": 0.0}}
    yaml = tmp_path / "c.yaml"
    yaml.write_text("3:\n  data_ratio: 1.0\n  hole_ratio: 0.12\n  wait_ratio: 0.0\n")
    (tmp_path / "c.json").write_text(json.dumps(rows))
    outputs = []
    for config in (yaml, tmp_path / "c.json"):
        status, out, _ = run(capsys, "generate", "--config", config, "--num-instances", "3")
        assert status == 0
        assert [sum(row.count("H") for row in r["map"]) for r in records(out)] == [1] * 3
        outputs.append(out)
    assert outputs[0] == outputs[1]
    status, _, err = run(capsys, "generate", "--config", yaml, "--sizes", "3")
    assert (status, err) == (2, "error: --sizes cannot go with --config\n")
    yaml.write_text("3:\n  data_ratio: 1.0\n  hole_ratio: 2\n  wait_ratio: 0.0\n")
    status, _, err = run(capsys, "generate", "--config", yaml)
    assert (status, err) == (2, f"error: {yaml}: hole_ratio of size 3: 2 is outside [0, 1]\n")
    yaml.write_text("{")
    status, _, err = run(capsys, "generate", "--config", yaml)
    assert status == 2
    assert err.startswith(f"error: {yaml}: while parsing")


def test_generate_the_benchmark(tmp_path, monkeypatch, capsys):
    """What is written of it; a set of two agents stands for the real one, which takes minutes."""

    def small(seed):
        config = EnvironmentConfig.uniform((3, 5), 0.2, 0.5)
        instances, report = generate(jax.random.key(seed), config, 6)
        ids, ratio = (
            tuple(f"bench-{i}" for i in range(len(instances))),
            np.full(len(instances), 0.5),
        )
        return benchmark.BenchmarkSet(instances, ids, ratio, ratio, report.sizes)

    monkeypatch.setattr(benchmark, "benchmark_instances", small)
    made, report = tmp_path / "made.jsonl", tmp_path / "report.json"
    options = ["--seed", "5", "--out", made, "--report", report]
    status, _, err = run(capsys, "generate", "--benchmark", *options)
    lines = records(made.read_text())
    expected = small(5)
    assert status == 0
    assert err.startswith("6 of 6 instances\n")
    assert err.endswith(f"version 1, checksum {benchmark.checksum(expected)}\n")
    assert [line["id"] for line in lines] == list(expected.ids)
    read = formats.from_records(lines)
    assert fingerprints(read) == fingerprints(expected.instances)
    assert sum(row["made"] for row in json.loads(report.read_text())["sizes"]) == 6
    for option in ("--num-instances", "--num-agents"):
        status, _, err = run(capsys, "generate", "--benchmark", option, "3")
        assert (status, err) == (2, f"error: {option} cannot go with --benchmark\n")


def test_verify_says_what_went_wrong(tmp_path, capsys):
    swap = RECORD | {
        "id": "swap",
        "map": ["F F F"] * 3,
        "goals": [[0, 2], [0, 1]],
        "paths": [[[0, 0], [0, 1], [0, 1], [0, 2]], [[2, 2], [1, 2], [0, 2], [0, 1]]],
    }
    longer = RECORD | {"cost": 5, "paths": [[*PATHS[0][:1], *PATHS[0]], PATHS[1]]}
    alone = RECORD | {"paths": PATHS[:1]}
    nothing = CORRIDOR | {"paths": None, "status": "unsolvable", "note": "kept"}
    path = write(tmp_path / "in.jsonl", swap, RECORD | {"paths": PATHS}, longer, alone, nothing)
    status, out, err = run(capsys, "verify", path, "--out", tmp_path / "out.jsonl")
    assert (status, out) == (0, "")
    assert err == "5 plans, 2 valid, 0 of 1 with a known optimum optimal\n"
    first, good, late, half, none = records((tmp_path / "out.jsonl").read_text())
    assert [name for name, holds in first["checks"].items() if not holds] == ["conflict_free"]
    assert first["violation"] == {"time": 3, "agent": 0, "kind": "swap"}
    assert (first["valid"], first["plan_cost"], first["gap"]) == (False, None, None)
    assert (good["valid"], good["plan_cost"], good["plan_makespan"]) == (True, 5, 3)
    assert (good["gap"], good["violation"]) == (None, None)
    assert (late["cost"], late["plan_cost"], late["gap"]) == (5, 6, 1)
    assert half["checks"]["parsable"]
    assert not half["checks"]["agent_count"]
    assert not none["checks"]["parsable"]
    assert none["note"] == "kept"
    status, _, err = run(capsys, "verify", write(path, good))
    assert (status, err) == (0, "1 plans, 1 valid, 0 of 0 with a known optimum optimal\n")


def test_verify_reads_answers_in_text(tmp_path, capsys):
    answer = (
        "So: <answer>\n0: (0,0) (2,2)\n1: (1,0) (1,2)\n2: (2,0) (0,2)\n3: (2,0) (0,1)\n</answer>"
    )
    path = write(tmp_path / "x", RECORD | {"reply": answer}, RECORD | {"reply": "No."}, RECORD)
    status, out, err = run(capsys, "verify", path, "--text", "reply")
    assert [line["valid"] for line in records(out)] == [True, False]
    assert (status, err) == (2, f"error: {path}:3: reply: None is not a text\n")


BAD = {
    "no json": ("{", "{where}: not JSON"),
    "not square": (RECORD | {"map": ["F F"]}, "{where}: map=['F F']: the map must be square"),
    "no goals": ({k: v for k, v in RECORD.items() if k != "goals"}, "{where}: goals: missing"),
    "no paths": (RECORD, "{where}: paths: missing"),
    "paths of words": (RECORD | {"paths": [["x"]]}, "{where}: paths[0]: 'x' is not [row, column]"),
    "cost too high": (
        RECORD | {"paths": PATHS, "cost": 6},
        "{where}: cost: 6 is stored as the optimum, but the paths are valid and cost 5",
    ),
    "not unsolvable": (
        RECORD | {"paths": PATHS, "status": "unsolvable"},
        "{where}: status: unsolvable is stored, but the paths are valid",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_lines_are_named_and_lose_nothing(name, tmp_path, capsys):
    record, message = BAD[name]
    good = RECORD | {"paths": PATHS}
    path = write(tmp_path / "in.jsonl", good, good, "\n", record, good)
    status, out, err = run(capsys, "verify", path)
    assert status == 2
    assert err.startswith("error: " + message.format(where=f"{path}:4"))
    assert err.count("\n") == 1
    assert [line["valid"] for line in records(out)] == [True, True]


def test_what_is_not_solved_in_time_has_a_plan(tmp_path, capsys):
    path = write(tmp_path / "in.jsonl", RECORD, RECORD)
    for options in (["--seconds", "0"], ["--max-states", "0"]):
        status, out, err = run(capsys, "solve", *options, path)
        assert (status, err) == (0, "0 optimal, 2 feasible, 0 unsolvable, 0 unknown\n")
        assert [record["status"] for record in records(out)] == ["feasible"] * 2
    planned = write(tmp_path / "out.jsonl", *records(out))
    status, out, err = run(capsys, "verify", planned)
    assert (status, err) == (0, "2 plans, 2 valid, 0 of 0 with a known optimum optimal\n")
    assert [line["plan_cost"] for line in records(out)] == [r["cost"] for r in records(out)]
    status, _, err = run(capsys, "solve", "--seconds", "nan", path)
    assert (status, err) == (2, "error: --seconds=nan: allowed are numbers from 0 up\n")


def test_standard_input_and_unsolvable_instances(monkeypatch, capsys):
    noted = CORRIDOR | {"note": "kept"}

    class Input:
        buffer = io.BytesIO("".join(json.dumps(r) + "\n" for r in (RECORD, noted)).encode())

    monkeypatch.setattr(sys, "stdin", Input)
    status, out, err = run(capsys, "solve", "-")
    assert (status, err) == (0, "1 optimal, 0 feasible, 1 unsolvable, 0 unknown\n")
    solved, unsolvable = records(out)
    assert solved == RECORD | {
        "status": "optimal",
        "cost": 5,
        "makespan": 3,
        "needs_wait": False,
        "paths": solved["paths"],
    }
    nothing = dict.fromkeys(("cost", "makespan", "needs_wait", "paths"))
    assert unsolvable == noted | {"status": "unsolvable"} | nothing


def test_other_formats(tmp_path, capsys):
    path = write(tmp_path / "in.jsonl", RECORD)
    assert run(capsys, "render", path, "--out", tmp_path / "a.scen") == (0, "", "")
    status, from_scenario, _ = run(capsys, "solve", tmp_path / "a.scen")
    assert status == 0
    text = "The map:\nS g F\nF H F\nG F s\n"
    question = {"sample_id": "2ag_3x3_hr0.2_007", "num_agents": 2, "text": text, "answer": "?"}
    status, from_published, _ = run(capsys, "solve", write(tmp_path / "p.jsonl", question))
    assert status == 0
    first, second = records(from_scenario + from_published)
    assert (first.pop("id"), second.pop("id")) == ("a", "2ag_3x3_hr0.2_007")
    assert second.pop("hole_ratio") == 0.2
    assert first | question == second
    assert first["cost"] == 5
    status, out, _ = run(capsys, "render", tmp_path / "a.scen", "--agents", "1")
    assert out == "a\nS F F\nF H F\nG F F\n\n"
    status, _, err = run(capsys, "solve", path, "--agents", "1")
    assert (status, err) == (2, f"error: --agents is for a .scen, not for {path}\n")


def test_render(tmp_path, capsys):
    second = RECORD | {"id": "b/1", "paths": PATHS}
    path = write(tmp_path / "in.jsonl", RECORD, second)
    status, out, _ = run(capsys, "render", path)
    assert status == 0
    assert out.startswith("a\nS g F\nF H F\nG F s\n\nb/1\nS g F\nF H F\nG F s\n\nt = 0\n0 g F\n")
    assert run(capsys, "render", path, "--out", tmp_path / "d" / "{id}.png") == (0, "", "")
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["a.png", "b_1.png"]
    status, _, err = run(capsys, "render", path, "--out", tmp_path / "one.txt")
    assert (status, err.count("\n")) == (0, 1)
    assert run(capsys, "render", path, "--id", "b/1", "--out", tmp_path / "b.gif") == (0, "", "")
    assert (tmp_path / "b.gif").read_bytes().startswith(b"GIF89a")
    for options, message in (
        (["--id", "z"], f"{path}: no instance with the id 'z'"),
        (["--out", "x.bmp"], "--out=x.bmp: suffix '.bmp' is not allowed, only .png"),
        (["--out", tmp_path / "a.gif"], f"{path}:1: {tmp_path}/a.gif: an animation needs a plan"),
    ):
        status, _, err = run(capsys, "render", path, *options)
        assert status == 2
        assert err.startswith(f"error: {message}")


def test_files_that_cannot_be_used(tmp_path, capsys):
    path = write(tmp_path / "in.jsonl", RECORD)
    for args, message in (
        (["solve", tmp_path / "none"], f"{tmp_path}/none: No such file or directory"),
        (["solve", tmp_path], f"{tmp_path}: Is a directory"),
        (["solve", path, "--out", path], f"--out={path}: the input cannot be the output"),
        (["generate", "--report", path / "x"], f"{path}: File exists"),
        (["generate", "--sizes", "2"], "sizes: 2 is not allowed, only 3 to 32"),
        (["generate", "--hole-ratio", "1.5"], "hole_ratio of size 3: 1.5 is outside [0, 1]"),
    ):
        status, out, err = run(capsys, *args)
        assert (status, out, err) == (2, "", f"error: {message}\n")
    assert records(path.read_text()) == [RECORD]
    for args in (["generate", "--num-instances", "0"], ["fly"], []):
        with pytest.raises(SystemExit) as exit:
            main(args)
        assert exit.value.code == 2
    capsys.readouterr()


def test_settings_of_jax_from_outside_change_no_draw(tmp_path):
    for name, kind, partitionable in (("plain", "threefry2x32", True), ("odd", "rbg", False)):
        jax.config.update("jax_default_prng_impl", kind)
        jax.config.update("jax_threefry_partitionable", partitionable)
        options = ["--num-instances=2", "--seed=1", "--sizes=3", f"--out={tmp_path / name}"]
        assert main(["generate", *options]) == 0
    assert (tmp_path / "plain").read_text() == (tmp_path / "odd").read_text()


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    many = [RECORD | {"id": str(i), "paths": PATHS} for i in range(2000)]
    path = write(tmp_path / "in.jsonl", *many)
    root = Path(__file__).parents[2]
    command = subprocess.Popen(
        [sys.executable, "-m", "mapf_jax", "verify", str(path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert json.loads(command.stdout.readline())["valid"]
    command.stdout.close()
    assert command.stderr.read() == b""
    assert command.wait(60) == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (f"--seed={1 << 32}", "allowed are integers from 0 to 2**32 - 1"),
        ("--seed=-1", "allowed are integers from 0 to 2**32 - 1"),
        (f"--seed={10**400}", "allowed are integers from 0 to 2**32 - 1"),
        (f"--num-instances={10**400}", "allowed are integers from 1 to 2**31 - 1"),
        ("--sizes=3-99999999999", "sizes: 99999999999 is not allowed, only 3 to 32"),
        ("--seed=x", "--seed: 'x' is not an integer from 0 to 2**32 - 1"),
        ("--num-agents=2.5", "--num-agents: '2.5' is not an integer from 1 up"),
        ("--sizes=3-x", "--sizes: 'x' is not an integer from 3 to 32"),
        ("--sizes=,4", "--sizes: '' is not an integer from 3 to 32"),
        ("--sizes=33", "sizes: 33 is not allowed, only 3 to 32"),
        ("--sizes=3,5-4", "sizes: 5-4 is empty; ranges ascend, as 3-8"),
        (f"--num-agents={10**400}", "num_agents=1000"),
    ],
)
def test_numbers_that_are_not_allowed_are_refused(option, message, tmp_path, capsys):
    with contextlib.suppress(SystemExit):  # Of the parser.
        assert main(["generate", option, f"--out={tmp_path / 'out.jsonl'}"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last
    assert len(last) < 2100


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nested.json", "[" * 100_000),
        ("nested.yaml", "[" * 3_000),
        (
            "digits.json",
            '{"3": {"data_ratio": %s, "hole_ratio": 0, "wait_ratio": 0}}' % ("9" * 4000),
        ),
    ],
)
def test_configurations_that_cannot_be_read_are_named(name, text, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    status, _, err = run(capsys, "generate", f"--config={tmp_path / name}")
    assert status == 2
    assert err.startswith(f"error: {tmp_path / name}: ")
    assert err.count("\n") == 1
    assert len(err) < 2100


def test_a_lake_too_large_to_solve_is_named_after_the_others_are_written(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("mapf_jax.types.MAX_LAKE_SIZE", 256)
    large = RECORD | {"map": [" ".join("F" * 257)] * 257}
    path = write(tmp_path / "in.jsonl", RECORD, RECORD, large, RECORD)
    status, out, err = run(capsys, "solve", path)
    assert status == 2
    assert [record["cost"] for record in records(out)] == [5, 5]
    assert f"error: {path}:3: map: 257 x 257 cells, at most 256 a side are allowed" in err


def test_lakes_larger_than_the_generator_makes_are_solved(tmp_path, capsys):
    large = {"map": [" ".join("F" * 127)] * 127, "starts": [[0, 0], [126, 0]]}
    large["goals"] = [[126, 126], [0, 126]]
    path = write(tmp_path / "in.jsonl", RECORD, RECORD | large)
    status, out, _ = run(capsys, "solve", path)
    assert status == 0
    assert [record["cost"] for record in records(out)] == [5, 504]


def test_no_picture_overwrites_that_of_another_instance(tmp_path, capsys):
    path = write(tmp_path / "in.jsonl", RECORD | {"id": "a/b"}, RECORD | {"id": "a_b"})
    status, _, err = run(capsys, "render", path, f"--out={tmp_path / '{id}.svg'}")
    assert status == 2
    assert err == f"error: {path}:2: id: {tmp_path / 'a_b.svg'} is of 'a/b' already\n"
