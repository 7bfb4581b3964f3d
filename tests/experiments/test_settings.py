"""Options: defaults, files, and errors that name field, value and what is allowed."""

import importlib
import pkgutil
import re

import pytest

import experiments.configs
from experiments import settings
from experiments.families.lakes.family import Lakes
from experiments.families.lakes.options import LakesOptions
from experiments.settings import page

CONFIGS = [  # Those of studies are a package of their own, see test_study.py.
    module.name for module in pkgutil.iter_modules(experiments.configs.__path__) if not module.ispkg
]


def test_defaults_round_trip():
    assert settings.from_config(settings.default_config()) == settings.Settings()
    assert settings.from_config(settings.Settings().to_dict()) == settings.Settings()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_file_is_valid(name, tmp_path):
    config = importlib.import_module(f"experiments.configs.{name}").get_config()
    if config.model.path != settings.TINY_MODEL:  # Real weights lie where the user puts them.
        (tmp_path / "config.json").write_text("{}")
        config.model.path = str(tmp_path)
    settings.from_config(config)


def test_models_that_were_taught_to_design_do_so_and_a_rule_for_the_others():
    found = {
        name: importlib.import_module(f"experiments.configs.{name}").get_config().engineer.designer
        for name in CONFIGS
        if name != "hardware"
    }
    taught = {"sums", "sums_ladder", "sums_tiny", "smollm2_lakes", "qwen3_4b_thinking"}
    assert found == {name: "current" if name in taught else "learnability" for name in found}
    assert {"tiny", "smollm2", "qwen3_4b", "qwen3_0_6b", *taught} <= set(found)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"loops": {}}, r"loops=\{\}: unknown field \(did you mean loop\?\); allowed are"),
        ({"loop": {"rouns": 3}}, r"loop.rouns=3: unknown field \(did you mean loop.rounds\?\)"),
        ({"training": {"learning_rate": 1.0}}, "did you mean training.optimizer.learning_rate"),
        ({"training": {"learn_rate": 1.0}}, "did you mean training.optimizer.learning_rate"),
        ({"agents": [3]}, r"did you mean lakes.agents\?"),
        ({"loop": {"seed": 1}}, r"did you mean seed\?"),
        ({"engineer": {"levels": 1}}, r"did you mean reasoning_gym.levels\?"),
        ({"engineer": {"zzz": 1}}, r"engineer.zzz=1: unknown field; allowed are"),
        ({"loop": {"rounds": "3"}}, "loop.rounds='3': int is needed, this is str"),
        ({"loop": {"rounds": True}}, "loop.rounds=True: int is needed"),
        ({"loop": {"rounds": 0}}, "loop.rounds=0: allowed are integers from 1 up"),
        ({"loop": 3}, "loop=3: a group of fields is needed"),
        ({"lakes": {"sizes": [3, "x"]}}, r"lakes.sizes\[1\]='x': int is needed"),
        ({"lakes": {"sizes": [5, 3]}}, r"lakes.sizes=\(5, 3\): allowed are 3 to 10, ascending"),
        ({"lakes": {"agents": [6]}}, r"lakes.agents=\(6,\): allowed are 2 to 5"),
        ({"engineer": {"designer": "me"}}, "engineer.designer='me': allowed are"),
        ({"engineer": {"context": "V9"}}, "engineer.context='V9': allowed are"),
        (
            {"lakes": {"validation_wait_ratio": 1.5}},
            "lakes.validation_wait_ratio=1.5: allowed are numbers in",
        ),
        ({"mesh": {"fsdp": 3}}, "training.micro_batch_size=8: allowed are multiples of .* 3"),
        ({"seed": 2**32}, "seed=4294967296: allowed are integers from 0 to"),
        ({"training": {"group_size": 1}}, "training.group_size=1: allowed are integers from 2"),
        ({"training": {"objective": {"clip_low": 2.0}}}, "training.objective.clip_low=2.0"),
        ({"training": {"objective": {"ratio_level": "x"}}}, "training.objective.ratio_level='x'"),
        ({"model": {"path": "/nowhere"}}, "model.path='/nowhere': allowed are folders with"),
    ],
)
def test_errors_name_the_field(config, message):
    with pytest.raises(ValueError, match=message):
        settings.from_config(config)


def test_there_are_at_most_110_options():
    def count(values):
        return sum(count(v) if isinstance(v, dict) else 1 for v in values.values())

    assert count(settings.Settings().to_dict()) <= 110


@pytest.mark.parametrize("path", settings.RENAMED)
def test_what_is_gone_is_said_with_what_does_the_same(path):
    value = {"details": True} if path == "engineer.modules" else 1
    *groups, name = path.split(".")
    config = {name: value}
    for group in reversed(groups):
        config = {group: config}
    told = rf"{path}=.*: gone; instead of it: {re.escape(settings.RENAMED[path])}"
    with pytest.raises(ValueError, match=told):
        settings.from_config(config)
    with pytest.raises(ValueError, match=f"{path}: gone; instead"):
        settings.check_field(path)
    for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", settings.RENAMED[path]):
        settings.check_field(word)


def test_every_option_is_on_the_page_once():
    text = page.options_page()

    def check(values, path):
        for name, value in values.items():
            if isinstance(value, dict):
                check(value, f"{path}{name}.")
            else:
                assert text.count(f"\n- `{path}{name}=") == 1, path + name

    check(settings.Settings().to_dict(), "")
    assert "- `engineer.endpoint.tries=8`: requests for one answer, at least 1." in text


def test_the_space_leaves_cells_for_starts_and_goals():
    space = Lakes(LakesOptions(sizes=(3, 5))).space
    assert space.bounds("3", "hole_ratio") == (0.0, 5 / 9)
    assert space.bounds("5", "hole_ratio") == (0.0, 0.6)


def test_a_model_may_have_a_name_on_the_hub(tmp_path, monkeypatch):
    """It is downloaded when its folder is needed, not when the options are read."""
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: tmp_path)
    model = settings.ModelSettings(path="someone/a-model")
    assert model.folder == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "folder").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"path='a/folder': allowed are folders with a config"):
        settings.ModelSettings(path="a/folder")
