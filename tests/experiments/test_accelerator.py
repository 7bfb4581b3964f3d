"""The script of docs/benchmarks/accelerator.md, without an accelerator."""

import dataclasses
import functools
import json
import types
from pathlib import Path

import pytest

import accelerator
from learner.decoder import decode_gpu

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "accelerator"


def test_the_page_is_what_the_script_writes_from_its_lines(tmp_path):
    kept = json.loads(PAGE.with_suffix(".json").read_text())
    accelerator.write_page(tmp_path, kept["facts"], kept["lines"])
    for suffix in (".json", ".md"):
        written = (tmp_path / "accelerator").with_suffix(suffix).read_text()
        assert written == PAGE.with_suffix(suffix).read_text()
    assert {line["table"] for line in kept["lines"]} <= set(accelerator.TABLES)
    assert {line["step"] for line in kept["lines"]} <= {"ceilings", *accelerator.STEPS}


def test_a_part_takes_at_most_nine_minutes():
    for part in {step.part for step in accelerator.STEPS.values()}:
        limits = [step.limit for step in accelerator.STEPS.values() if step.part == part]
        assert accelerator.CEILINGS.limit + sum(limits) <= 9 * 60


def test_a_step_at_its_limit_is_a_line():
    step = accelerator.Step("a", 0.2, accelerator.search)
    (line,) = accelerator.measure_step("search", step, True)
    assert (line["table"], line["happened"]) == ("failed", "did not finish within 0 s")


def test_a_step_keeps_its_lines_and_says_how_it_failed(monkeypatch, tmp_path):
    script = tmp_path / "script.py"
    script.write_text('print(\'{"table": "search", "lakes": 1}\'); raise ValueError(\'no memory\')')
    monkeypatch.setattr(accelerator, "__file__", str(script))
    one, failed = accelerator.measure_step("search", accelerator.STEPS["search"], True)
    assert one == {"step": "search", "table": "search", "lakes": 1}
    assert failed["happened"] == "ValueError: no memory"


def test_parts_replace_their_own_lines_and_those_of_other_devices(monkeypatch, tmp_path):
    device = "one"

    def measured(name, step, tiny):
        if name == "ceilings":
            return [{"step": name, "table": "machine", "device": device}]
        return [{"step": name, "table": "search", "lakes": 1}]

    def steps(parts):
        flags = types.SimpleNamespace
        monkeypatch.setattr(accelerator, "_PARTS", flags(value=parts))
        accelerator.main([])
        found = json.loads((tmp_path / "accelerator.json").read_text())["lines"]
        return [line["step"] for line in found]

    monkeypatch.setattr(accelerator, "measure_step", measured)
    for name, value in (("_OUT", str(tmp_path)), ("_TINY", True), ("_STEP", None)):
        monkeypatch.setattr(accelerator, name, types.SimpleNamespace(value=value))
    a = ["kernels", "simulator", "search", "checksum"]
    assert steps(["a"]) == a
    assert steps(["b"]) == [*a, "plan 0.6B", "plan 4B"]
    assert sorted(steps(["a"])) == sorted([*a, "plan 0.6B", "plan 4B"])
    device = "another"
    assert steps(["d"]) == ["smollm2"]


def test_lines_of_a_run(tmp_path):
    folder = tmp_path / "rounds" / "0"
    folder.mkdir(parents=True)
    names = ("sample_seconds", "update_seconds", "sample_tokens_per_second")
    steps = [[60, 50, 1, 1], [0.1, 0.05, 3, 4], [0.2, 0.06, 2, 5]]
    columns = [f"machine/{name}" for name in (*names, "update_tokens_per_second")]
    lines = [json.dumps(dict(zip(columns, step, strict=True))) for step in steps]
    (folder / "train.jsonl").write_text("\n".join(lines))
    line = accelerator.run_line("smollm2", tmp_path, 100.0)
    assert (line["steps"], line["sampling, s a step"], line["update, s a step"]) == (3, 0.2, 0.06)
    assert line["steps that are compiled, s"] == pytest.approx(3 * 0.26)
    log = "".join(
        f"Finished XLA compilation of jit({name}) in {took} sec\n"
        for name, took in (("prefill", 12.8), ("add", 0.01), ("prefill", 13.25))
    )
    (line,) = accelerator.compilation_lines("tiny", log)
    assert (line["program"], line["times"], line["longest, s"]) == ("prefill", 2, 13.25)


@pytest.mark.slow
def test_the_kernel_of_decoding_beside_its_reference(monkeypatch):
    monkeypatch.setattr(accelerator, "_LAYERS", 2)
    monkeypatch.setattr(accelerator, "_kernel", lambda: ["cudnn"])
    kernel = functools.partial(decode_gpu.append_and_attend, interpret=True)
    monkeypatch.setattr(decode_gpu, "append_and_attend", kernel)
    monkeypatch.setattr(accelerator, "seconds", lambda call, repeats: [call(), 1.0][1])
    line = accelerator._decoding(1, 1, 2, 2, "mixed", 1e9, True)
    assert line["error"] < 1e-5
    assert line["its error"] < 1e-5
    assert line["in a program, us"] == 5e5


@pytest.mark.slow
@pytest.mark.parametrize("part", "ab")
def test_a_part_at_toy_size(part, tmp_path, monkeypatch):
    """Every step of the shorter parts runs on a CPU as it would on an accelerator."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    for name, value in (("_OUT", str(tmp_path)), ("_TINY", True), ("_STEP", None)):
        monkeypatch.setattr(accelerator, name, types.SimpleNamespace(value=value))
    monkeypatch.setattr(accelerator, "_PARTS", types.SimpleNamespace(value=[part]))
    for name, step in accelerator.STEPS.items():  # Other tests run beside it.
        longer = dataclasses.replace(step, limit=5 * step.limit)
        monkeypatch.setitem(accelerator.STEPS, name, longer)
    accelerator.main([])
    lines = json.loads((tmp_path / "accelerator.json").read_text())["lines"]
    assert [line for line in lines if line["table"] == "failed"] == []
    tables = {
        "a": {"ceilings", "decoding", "rows", "simulator", "search"},
        "b": {"ceilings", "plan", "programs"},
    }
    assert tables[part] <= {line["table"] for line in lines}
