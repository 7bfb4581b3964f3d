"""A tiny model is made for a family other than lakes, and goes through the loop."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from absl import flags
from absl.testing import flagsaver
from whole_runs import ROOT, environment, python

from experiments import warm_start
from experiments.configs import sums
from experiments.families import sandbox, template
from experiments.run.status import Reporter
from experiments.settings import from_config
from experiments.text.errors import UserError
from learner.training.checkpoints import Checkpoints
from learner.training.train_state import TrainState

pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize("name", ["reasoning_gym:propositional_logic", "own.py:family"])
def test_a_family_without_solutions_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sandbox, "WORKERS", 1)
    text = Path(template.__file__).read_text()
    Path("own.py").write_text(text.replace("def solutions", "def no_solutions"))
    options = {"family": name, "validation": {"num_instances": 8}, "reasoning_gym": {"levels": 1}}
    with flagsaver.flagsaver(out="model"):
        flags.FLAGS.mark_as_parsed()  # Parsing would ask for what other commands require.
        with pytest.raises(UserError, match=f"^family='{name}': .*: a warm start needs them"):
            warm_start._make(from_config(options), Reporter(quiet=True))


@pytest.mark.parametrize(
    ("flag", "options", "file", "said"),
    [
        ({}, {"training": {"micro_batch_size": 4}}, "", ""),
        ({"seed": 1}, {}, "", "--seed was 0 and is 1"),
        ({}, {"engineer": {"context": "V4"}}, "", "engineer.context was 'V6' and is 'V4'"),
        ({}, {}, "own.py", "the family's file was '.*' and is '.*'"),
        ({}, {}, "config.json", "the model's files.config.json was '.*' and is '.*'"),
    ],
)
def test_only_the_same_warm_start_goes_on(flag, options, file, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("own.py", "config.json"):
        Path(name).write_text("{}")

    def decisive(**more):
        made = {"family": "own.py:family", "model": {"path": str(tmp_path)}, **more}
        return warm_start._decisive(from_config(made))

    state = TrainState(*(jnp.ones((), int) for _ in range(4)))
    with flagsaver.flagsaver(out="out", model=str(tmp_path), steps=1):
        flags.FLAGS.mark_as_parsed()
        with Checkpoints(tmp_path / "out" / "unfinished") as begun:
            begun.save(1, state, {"decisive": decisive(), "curve": [], "seconds": 0})
        Path(file or "other").write_text("[]")

        def train(abstract):
            warm_start._train(
                SimpleNamespace(abstract_state=abstract), state, {}, decisive(**options), None,
                tmp_path / "out", Reporter(quiet=True), None,
            )  # fmt: skip

        with pytest.raises(UserError, match="checkpoint 1 is of another configuration"):
            train(TrainState(*(jnp.ones(2, int) for _ in range(4))))
        expected = pytest.raises(UserError, match=rf"another warm start \({said}\); remove it")
        with flagsaver.flagsaver(**flag), expected if said else contextlib.nullcontext():
            train(state)


@pytest.mark.parametrize(
    ("changes", "given", "said"),
    [
        ({"training.temperature": -1.0}, {}, r"error: training\.temperature=-1\.0: allowed are"),
        (
            {"training.thinking_tokens": 4, "validation.thinking_tokens": 4},
            {},
            "error: thinking_tokens=4: the tokenizer has no token </think>",
        ),
        (
            {},
            {"learning_rate": 0.0},
            r"error: learning_rate=0\.0: allowed are finite numbers",
        ),
        ({}, {"out": "tests"}, "error: out=tests: the folder is not empty"),
        ({}, {"contexts": ["V9"]}, "error: context='V9': allowed are"),
        ({"training.lora.rank": 2}, {"model": None}, r"error: training\.lora\.rank: adapters need"),
    ],
)
def test_what_a_run_would_refuse_ends_it_in_one_line_before_training(
    changes, given, said, tmp_path, monkeypatch
):
    config = sums.get_config()
    config.update_from_flattened_dict({"family": "words:sums", **changes})
    monkeypatch.setattr(warm_start, "_CONFIG", SimpleNamespace(value=config))
    for name in ("quieten", "keep_freed_memory"):  # Not in this process.
        monkeypatch.setattr(warm_start.process, name, lambda *_: None)
    monkeypatch.setattr(warm_start, "load_params", lambda *_: None)  # To be refused before.
    given = {"out": str(tmp_path), "model": "sums", **given}
    with flagsaver.flagsaver(solutions=8, designs=2, **given):
        flags.FLAGS.mark_as_parsed()
        with pytest.raises(SystemExit, match=said):
            warm_start.main(["warm_start"])


def test_a_width_that_heads_do_not_divide_is_refused_at_once():
    with pytest.raises(flags.IllegalFlagValueError, match="width=160: allowed are multiples of 64"):
        flagsaver.flagsaver(width=160).__enter__()


@pytest.mark.slow
def test_a_model_is_made_for_sums_and_designs_them(tmp_path):
    commands = {
        "warm_start": (
            *("--layers=1", "--width=64", "--steps=6", "--batch_size=16", "--solutions=64"),
            *("--designs=32", "--contexts=V1,V4+training=full", "--out=model"),
        ),
        "main": (
            *("--config.model.path=model", "--workdir=run", "--config.loop.rounds=2"),
            *("--config.environment.num_instances=8", "--config.training.prompts_per_step=4"),
            *("--config.training.epochs=1.0", "--config.training.degenerate_groups=keep"),
            "--config.engineer.designer=current",
        ),
    }
    common = (
        *("--config.family=reasoning_gym:chain_sum", "--config.reasoning_gym.levels=4"),
        "--config.validation.num_instances=8",
    )
    for name, options in commands.items():
        python("-m", f"experiments.{name}", *common, *options, cwd=tmp_path)
    card = json.loads((tmp_path / "model/warm_start.json").read_text())
    assert card["parameters"] < 100_000
    rates = card["validation"]
    assert [name for name in rates if name.startswith("valid_")] == [f"valid_{n}" for n in "2345"]
    design = json.loads((tmp_path / "run/rounds/0/design/design.json").read_text())
    assert list(design["config"]) == ["2", "3", "4", "5"]
    assert design["raw_texts"]
    made = [json.loads(line) for line in (tmp_path / "run/rounds/1/instances.jsonl").open()]
    assert {problem["group"] for problem in made} <= set(design["config"])
    assert "num_terms" in (tmp_path / "run/report.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_the_run_of_sums_tiny_gains_in_a_sixth_of_its_steps(tmp_path):
    options = ("--config=sums_tiny", "--workdir=run", "--config.loop.rounds=1")
    options += ("--config.environment.num_instances=1824",)
    python("-m", "experiments.main", *options, cwd=tmp_path)
    rates = [
        json.loads((tmp_path / "run" / name / "validation.json").read_text())["valid_rate"]
        for name in ("initial", "rounds/0")
    ]
    assert rates[1] > rates[0] + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_an_existing_model_is_trained_further_and_a_stopped_run_goes_on(tmp_path, rank):
    """With SIGTERM between two steps, the weights are those of a run that was not stopped."""
    command = [
        *(sys.executable, "-m", "experiments.warm_start", "--config=sums_tiny"),
        *("--model=sums_tiny", "--steps=6", "--batch_size=4", "--solutions=32", "--designs=8"),
        *("--design_every=3", f"--config.training.lora.rank={rank}"),
        "--config.validation.num_instances=8",
    ]
    variables = environment(PYTHONUNBUFFERED="1")

    def run(out, **options):
        full = [*command, f"--out={out}"]
        return subprocess.Popen(
            full, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True, **options
        )

    whole = run("whole")
    assert whole.wait(timeout=300) == 0, whole.stdout.read()
    stopped = run("stopped")
    for line in stopped.stdout:
        if line.startswith("training, step 1 to 6"):
            time.sleep(2)  # Now it compiles the first step, which ends first.
            stopped.send_signal(signal.SIGTERM)
            break
    assert stopped.wait(timeout=300) == 75
    again = run("stopped")
    said = again.stdout.read()
    assert again.wait(timeout=300) == 0
    assert re.search("training, step [2-6] to 6", said)
    assert re.search(r"step 6, greedy: valid \d+.\d% \(num_terms 2 \d+%, ", said)
    assert re.search(
        r"designs: \d+% readable, \d+% without repair; mean error .*fraction \S+\n", said
    )
    assert not (tmp_path / "stopped/unfinished").exists()
    files = [
        safetensors.numpy.load_file(tmp_path / n / "model.safetensors")
        for n in ("whole", "stopped")
    ]
    base = safetensors.numpy.load_file(ROOT / "experiments/models/sums_tiny/model.safetensors")
    assert files[0].keys() == base.keys()
    for name, value in files[0].items():
        np.testing.assert_array_equal(value, files[1][name])
    assert any((value != base[name]).any() for name, value in files[0].items())
