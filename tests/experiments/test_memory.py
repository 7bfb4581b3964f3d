"""Out of memory: one line with what was asked for, what there is, and what needs less."""

import resource
import sys
import types

import jax
import pytest
from whole_runs import python

from experiments import probe, settings
from experiments.benchmark import __main__ as benchmark
from experiments.ring import loop
from experiments.run.status import Reporter
from experiments.run.store import RunStore
from experiments.text.errors import OutOfMemoryError, memory_errors

FULL = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.")


@pytest.fixture
def program():
    """What samples: it needs more than there is."""
    parts = {"state": 3, "gradients": 1, "weights": 1, "cache": 9, "device": 16}
    figures = {name: gib << 30 for name, gib in parts.items()}
    sampler = types.SimpleNamespace(capacities=[64])
    return types.SimpleNamespace(memory=lambda: figures, sampler=sampler)


def test_a_run_names_the_options_that_need_less(program, tmp_path, monkeypatch):
    def sampled(*_):
        raise FULL

    monkeypatch.setattr(loop.Loop, "_load", lambda self: None)
    monkeypatch.setattr(loop.Loop, "_trainer", program, raising=False)
    monkeypatch.setattr(loop.Loop, "_first", None, raising=False)
    monkeypatch.setattr(loop, "ProblemSets", sampled)
    chosen = settings.from_config({"training": {"sampling_slots": 96}, "model": {"remat": "dots"}})
    store = RunStore(tmp_path)
    with pytest.raises(OutOfMemoryError) as caught:
        loop.Loop(chosen, store, Reporter(quiet=True)).run()
    message = str(caught.value)
    assert message.startswith("out of memory: Out of memory allocating 17179869184 bytes (this pro")
    for part in ("device of 17.2 GB", "micro_batch_size=8", "remat='dots'", "sampling_slots=96"):
        assert part in message
    assert "\n" not in message


COMMAND = """
from absl import app
from experiments import main
from experiments.settings import command_line
from experiments.text.errors import OutOfMemoryError

def run(reporter):
    raise OutOfMemoryError("out of memory: 5 bytes")

main._run = run
app.run(main.main, flags_parser=command_line.parse_flags)
"""


def test_the_command_ends_with_the_line(tmp_path):
    done = python(
        "-c", COMMAND, "--config=tiny", f"--workdir={tmp_path}/run", cwd=tmp_path, fails=True
    )
    assert (done.returncode, done.stderr) == (1, "error: out of memory: 5 bytes\n")


@pytest.mark.parametrize(
    ("module", "function", "arguments", "less"),
    [
        (probe, "_probe_all", ["--model=tiny", "--families=lakes"], "--max_new_tokens"),
        (benchmark, "run", ["--model=exact", "--out=out"], "--slots"),
    ],
)
def test_other_commands_say_it_in_one_line(module, function, arguments, less, monkeypatch, capsys):
    def full(*_):
        raise FULL

    monkeypatch.setattr(module, function, full)
    with pytest.raises(SystemExit) as ended:
        sys.exit(module.main(arguments))
    said = str(ended.value) if isinstance(ended.value.code, str) else capsys.readouterr().err
    assert said.startswith("error: out of memory: Out of memory allocating 17179869184 bytes")
    assert less in said
    assert said.count("\n") <= 1


def test_errors_about_memory_are_told_from_others():
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    for error in (MemoryError("Unable to allocate 8.00 EiB for an array"), FULL):
        with pytest.raises(OutOfMemoryError, match=r"GiB\); use less$"), memory_errors("use less"):
            raise error
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == limit
    other = jax.errors.JaxRuntimeError("INTERNAL: a bug")
    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"), memory_errors("use less"):
        raise other
