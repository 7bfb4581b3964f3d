"""What results depend on besides options: fixed, or compared at every start and said once."""

import json
import shutil
from pathlib import Path

import jax
import pytest
from whole_runs import python

import experiments
from experiments.ring.loop import Loop
from experiments.run import versions
from experiments.run.status import Reporter
from experiments.run.store import RunStore
from experiments.settings import from_config
from experiments.text.errors import UserError

TINY = Path(experiments.__file__).parent / "models" / "tiny"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def begun(tmp_path, cache):
    """A store whose run has begun."""
    store = RunStore(tmp_path / "run")
    store.claim(from_config({}))
    (store.root / "validation").mkdir()
    return store


def recorded(store):
    return json.loads((store.root / "versions.json").read_text())


def test_draws_are_the_same_whatever_is_set_outside():
    code = "import experiments; experiments.begin_command(); import jax, numpy; key = jax.random"
    code += ".key(1); print(key.dtype, jax.random.bits(key, 3).tolist(), jax.numpy.ones(1).dtype"
    code += ", jax.numpy.asarray(numpy.ones(1)).dtype, jax.random.uniform(key, (5,)).tolist())"
    odd = {"ENABLE_X64": "1", "DEFAULT_PRNG_IMPL": "rbg", "THREEFRY_PARTITIONABLE": "0"}
    told = [
        python("-c", code, **{f"JAX_{name}": value for name, value in given.items()}).stdout
        for given in ({}, odd)
    ]
    assert told[0] == told[1]
    assert told[0].startswith("key<fry> [")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"jax": "0.0.1"}, f"jax was '0.0.1' and is '{jax.__version__}'"),
        ({"processor": "abacus"}, "processor was 'abacus' and is "),
        ({"devices": "9 x abacus"}, "devices was '9 x abacus' and is "),
        ({"variables": {"XLA_FLAGS": "--odd"}}, "variables was {'XLA_FLAGS': '--odd'} and is"),
        ({"model": {"model.safetensors": "0"}}, "the model has another "),
        ({"platform": "elsewhere", "cpus": 0}, None),
    ],
)
def test_a_difference_from_the_last_start_is_said_in_one_line_and_recorded(begun, change, said):
    before = recorded(begun)
    (begun.root / "versions.json").write_text(json.dumps({**before, **change}))
    lines = begun.claim(from_config({}))
    assert len(lines) == (said is not None)
    if said:
        assert lines[0].startswith(f"results may differ from here on: {said}")
        kept = json.loads((begun.root / "changes.jsonl").read_text())
        assert kept == {"changed": lines}
    assert recorded(begun) == before
    assert begun.claim(from_config({})) == []


def test_what_an_older_version_did_not_record_does_not_differ(begun):
    old = {name: recorded(begun)[name] for name in ("jax", "family")}
    (begun.root / "versions.json").write_text(json.dumps(old))
    assert begun.claim(from_config({})) == []


def test_variables_that_change_no_result_are_not_recorded(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "x")
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "high")
    found = versions.machine()["variables"]
    assert found["JAX_DEFAULT_MATMUL_PRECISION"] == "high"
    assert "JAX_COMPILATION_CACHE_DIR" not in found


def test_a_start_is_checked_without_writing(begun):
    kept = {path.name: path.read_bytes() for path in begun.root.iterdir() if path.is_file()}
    lines = begun.check_start(from_config({"mesh": {"data": 2}}))
    assert lines == ["mesh.data was 1 and is 2"]
    with pytest.raises(UserError, match="seed was 0 and is 1"):
        begun.check_start(from_config({"seed": 1}))
    assert kept == {path.name: path.read_bytes() for path in begun.root.iterdir() if path.is_file()}


def test_every_byte_of_a_model_counts_and_is_read_once(tmp_path, cache, monkeypatch):
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    weights = folder / "model.safetensors"
    first = versions.model_files(folder)
    assert set(first) >= {"config.json", "model.safetensors"}
    monkeypatch.setattr(versions.hashlib, "file_digest", None)  # It is not called again.
    assert versions.model_files(folder) == first
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1  # Far from the middle.
    weights.write_bytes(raw)
    assert versions.model_files(folder)["model.safetensors"] != first["model.safetensors"]
    (tmp_path / "cache" / "mapf-frozenlake-rl" / "digests.json").write_text("[1")
    assert set(versions.model_files(folder)) == set(first)


def test_a_changed_family_goes_on_only_if_that_is_accepted(tmp_path, cache):
    path = tmp_path / "own.py"
    path.write_text("family = 1")
    settings, store = from_config({"family": f"{path}:family"}), RunStore(tmp_path / "run")
    store.claim(settings)
    (store.root / "validation").mkdir()  # It has begun.
    store.claim(settings)
    moved = tmp_path / "moved.py"
    moved.write_text("family = 1")
    assert store.claim(from_config({"family": f"{moved}:family"})) == []
    assert json.loads((store.root / "config.json").read_text())["family"] == f"{moved}:family"
    with pytest.raises(UserError, match="with other options"):
        store.claim(from_config({"family": f"{moved}:other"}))
    assert store.claim(settings) == []
    path.write_text("family = 2")
    words = r"the file of family=.* has changed since the run .*; --accept_family_change goes on"
    with pytest.raises(UserError, match=words):
        store.claim(settings)
    accepting = RunStore(store.root, accept_family_change=True)
    line = f"the file of family='{path}:family' was changed, as accepted"
    assert accepting.claim(settings) == [line]
    assert json.loads((store.root / "changes.jsonl").read_text()) == {"changed": [line]}
    assert store.claim(settings) == []


def test_a_start_that_is_refused_for_its_devices_has_written_nothing(tmp_path, cache):
    store = RunStore(tmp_path / "run")
    options = from_config({"mesh": {"data": 16}, "training": {"micro_batch_size": 16}})
    with pytest.raises(UserError, match="devices"):
        Loop(options, store, Reporter(quiet=True)).run()
    assert not [path for path in store.root.iterdir() if path.suffix in (".json", ".jsonl")]


def test_the_processor_and_its_generation(tmp_path, monkeypatch):
    """Virtual machines shorten the name, and that of several generations is the same."""
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(versions, "Path", lambda _: file)
    monkeypatch.setattr(versions.platform, "processor", lambda: "abacus")
    assert (versions.processor(), versions.generation()) == ("abacus", "")
    core = "model\t\t: {}\ncpu family\t: 25\nmodel name\t: AMD EPYC\n\n"
    file.write_text(core.format(17) + core.format(18))
    assert (versions.processor(), versions.generation()) == ("AMD EPYC", "family 25, model 17")
