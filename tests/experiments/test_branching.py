"""Branches of a run: the same story where nothing differs, another where the designer does."""

import json
import shutil

import pytest
import whole_runs
from whole_runs import story

from experiments import export
from experiments import settings as settings_lib
from experiments.ring.loop import Loop
from experiments.run.status import Reporter
from experiments.run.store import RunStore
from experiments.settings import MeshSettings


def start(workdir, *options):
    code, out, err = whole_runs.three_rounds(workdir, *options).end()
    assert "Traceback" not in err
    return code, out, err


@pytest.fixture(scope="module")
def whole(undisturbed):
    return undisturbed[0]


@pytest.mark.slow
def test_a_branch_of_the_same_options_tells_the_same_story(whole, tmp_path):
    options = (f"--branch={whole}@1", "--config.checkpoint.of_rounds=weights")
    code, out, err = start(tmp_path / "same", *options)
    assert code == 0, err[-3000:]
    lines = out.splitlines()
    assert lines[1] == f"  branch of {whole}@1"
    assert "  checkpoint.of_rounds was 'state' and is 'weights'" in lines
    assert "resuming after step 4 of round 2 (rounds/1)" in lines
    assert story(tmp_path / "same") == story(whole)
    # The weights of a round are those of the checkpoint that the other run kept.
    export.export(f"{whole}@1", tmp_path / "exported", MeshSettings(), "bfloat16")
    kept = tmp_path / "same" / "rounds" / "1" / "weights"
    for path in (tmp_path / "exported").iterdir():
        assert path.read_bytes() == (kept / path.name).read_bytes()
    # The same command again finds its own run.
    code, out, _ = start(tmp_path / "same", *options)
    assert (code, "the run is finished" in out) == (0, True)


@pytest.mark.slow
def test_a_branch_of_kept_weights_starts_afresh_from_them(whole, tmp_path):
    source = shutil.copytree(whole, tmp_path / "source")
    kept = source / "rounds" / "1" / "weights"
    export.export(f"{whole}@1", tmp_path / "exported", MeshSettings(), "bfloat16")
    (tmp_path / "exported").rename(kept)
    shutil.rmtree(source / "checkpoints" / "8")
    folder = tmp_path / "fresh"
    code, out, err = start(folder, f"--branch={source}@1")
    assert code == 0, err[-3000:]
    note = json.loads((folder / "branch.json").read_text())
    (change,) = note["changed"]
    assert change.startswith("training starts afresh from rounds/1/weights in bfloat16")
    assert {f"  {change}", "resuming after step 4 of round 2 (rounds/1)"} <= set(out.splitlines())
    assert story(folder, 2) == story(whole, 2)
    assert len(story(folder)["train 2"]) == 4
    for path in kept.iterdir():
        assert path.samefile(folder / "rounds" / "1" / "weights" / path.name)
    config = json.loads((source / "config.json").read_text())
    config["training"]["lora"]["rank"] = 2
    (source / "config.json").write_text(json.dumps(config))
    options = (f"--branch={source}@1", "--config.training.lora.rank=2")
    code, _, err = start(tmp_path / "adapters", *options)
    assert (code, "only the merged weights of rounds/1 are left" in err) == (1, True)
    # Without its checkpoints it would start again from exactly these weights.
    shutil.rmtree(folder / "checkpoints")
    settings = settings_lib.from_config(json.loads((folder / "config.json").read_text()))
    loop = Loop(settings, RunStore(folder), Reporter(quiet=True))
    params, loop._begun = loop._load(), 0
    begun = loop._start(params)
    assert (begun.round, begun.step, begun.total, int(begun.state.updates)) == (1, 4, 8, 0)
    loop._policy.save(tmp_path / "begun", begun.state.params, "bfloat16")
    weights = (folder / "model.safetensors" for folder in (tmp_path / "begun", kept))
    assert len({path.read_bytes() for path in weights}) == 1


@pytest.mark.slow
def test_another_designer_takes_over(whole, tmp_path):
    options = (f"--branch={whole}@1", "--config.engineer.designer=random", "--config.seed=7")
    code, _, err = start(tmp_path / "other", *options)
    assert code == 0, err[-3000:]
    other = tmp_path / "other"
    assert story(other, 2) == story(whole, 2)
    name = "rounds/2/environment.yaml"
    assert (other / name).read_text() != (whole / name).read_text()
    design = json.loads((tmp_path / "other/rounds/1/design/design.json").read_text())
    assert design["source"] == "random"
    note = json.loads((tmp_path / "other/branch.json").read_text())
    assert note == {
        "run": str(whole),
        "round": 1,
        "changed": ["engineer.designer was 'current' and is 'random'", "seed was 0 and is 7"],
    }


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("{}", (), "allowed is RUN@ROUND"),
        ("{}@7", (), "the run has not finished rounds/7"),
        ("{}gone@0", (), "no run is there"),
        ("{}@2", (), "loop.rounds=3 leaves no round after rounds/2; allowed are"),
        (
            "{}@0",
            ("--config.training.group_size=8",),
            "started with other options (training.group_size was 4 and is 8)",
        ),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_branched_is_refused(whole, tmp_path, spec, options, message):
    code, _, err = start(tmp_path / "new", f"--branch={spec.format(whole)}", *options)
    assert code == 1
    assert err.startswith(("error: branch=", f"error: {whole}@7"))
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_branch_overwrites_nothing(whole, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.md").write_text("years of work")
    for folder, held in ((whole, "checkpoints"), (tmp_path / "mine", "thesis.md")):
        code, _, err = start(folder, f"--branch={whole}@0")
        assert code == 1
        assert f"it needs a new folder and {folder} holds " in err
        assert held in err
    assert (tmp_path / "mine" / "thesis.md").read_text() == "years of work"
