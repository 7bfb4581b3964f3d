"""Fixed configurations side by side: which there are, their analysis, and the command."""

import json

import numpy as np
import pytest
import scipy.stats
from whole_runs import PLAN, python

from engineer.space import Configuration
from experiments import settings as settings_lib
from experiments.study import sensitivity
from experiments.text.errors import UserError


@pytest.fixture(scope="module")
def family():
    return settings_lib.family_of({"lakes": {"sizes": (3, 4, 5)}})


def test_configurations_lie_in_the_space(family):
    found = sensitivity.configurations(family, 2)
    for config in found.values():
        family.space.check(config)
    assert list(found) == [
        "validation", "only_3", "only_4", "only_5", "hole_ratio_low", "hole_ratio_high",
        "wait_ratio_low", "wait_ratio_high", "random_0", "random_1",
    ]  # fmt: skip
    assert found["only_4"].column("data_ratio") == (0, 1, 0)
    assert found["only_4"].column("hole_ratio") == family.validation.column("hole_ratio")
    low, high = (found[f"hole_ratio_{end}"].column("hole_ratio") for end in ("low", "high"))
    assert all(a < b for a, b in zip(low, high, strict=True))
    assert found["hole_ratio_high"].column("data_ratio") == pytest.approx((1 / 3,) * 3)


def effects(rng, configurations=6, seeds=4, spread=0.05, noise=0.02):
    return (
        0.5
        + spread * rng.normal(size=(configurations, 1))
        + 0.03 * rng.normal(size=(1, seeds))
        + noise * rng.normal(size=(configurations, seeds))
    )


def test_variance_is_that_of_nested_linear_models():
    values = effects(np.random.default_rng(0))
    k, n = values.shape
    rows = np.repeat(np.eye(k), n, axis=0)
    columns = np.tile(np.eye(n), (k, 1))

    def squares(*designs):
        design = np.hstack([np.ones((k * n, 1)), *designs])
        fitted = design @ np.linalg.lstsq(design, values.ravel(), rcond=None)[0]
        return float(((values.ravel() - fitted) ** 2).sum())

    free, freedom = squares(rows, columns), (k - 1) * (n - 1)
    statistic = (squares(columns) - free) / (k - 1) / (free / freedom)
    residual, explained, p = sensitivity.variance(values)
    assert residual == pytest.approx(free / freedom)
    assert p == pytest.approx(scipy.stats.f.sf(statistic, k - 1, freedom))
    assert 0 < explained < 1


def test_explained_variance_is_unbiased_enough():
    rng = np.random.default_rng(1)
    found = [sensitivity.variance(effects(rng, 40, 8))[1] for _ in range(50)]
    assert np.mean(found) == pytest.approx(0.05**2 / (0.05**2 + 0.03**2 + 0.02**2), abs=0.04)


def test_best_minus_worst_is_not_the_luck_of_the_draw():
    rng = np.random.default_rng(2)
    alike = [effects(rng, spread=0) for _ in range(400)]
    held_out = [np.mean(sensitivity.held_out_gap(values)) for values in alike]
    naive = [np.ptp(values.mean(1)) for values in alike]
    assert abs(np.mean(held_out)) < 3 * np.std(held_out) / 20
    assert np.mean(naive) > 0.02
    apart = effects(rng, spread=0) + np.array([[0.4], [0], [0], [0], [0], [-0.4]])
    assert np.mean(sensitivity.held_out_gap(apart)) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("difference", [0.01, 0.02, 0.05])
def test_seeds_needed_give_the_power(difference):
    rng, residual = np.random.default_rng(3), 0.02**2
    seeds = sensitivity.seeds_needed(difference, residual)

    def power(n):
        draws = difference + np.sqrt(2 * residual) * rng.normal(size=(20_000, n))
        return np.mean(scipy.stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05)

    assert power(seeds) > 0.79
    assert seeds == 2 or power(seeds - 1) < 0.81


def test_the_detectable_difference_is_detected_with_its_power():
    rng, residual = np.random.default_rng(4), 0.02**2
    difference = sensitivity.detectable_difference(residual, 5)
    draws = difference + np.sqrt(2 * residual) * rng.normal(size=(20_000, 5))
    power = np.mean(scipy.stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05)
    assert power == pytest.approx(0.8, abs=0.015)


def test_seeds_needed_without_a_difference_or_noise():
    assert sensitivity.seeds_needed(0.0, 1.0) is None
    assert sensitivity.seeds_needed(1e-6, 1.0) is None
    assert sensitivity.seeds_needed(0.1, 0.0) == 2


def study(family, values, missing=()):
    """What `study.json` holds of runs that ended at these valid rates."""
    configurations = sensitivity.configurations(family, 0)
    by_row = {row: {"answers": 100, "valid": 50 + 20 * i} for i, row in enumerate("345")}
    start = {"answers": 300, "valid": 210, "by_row": by_row}
    runs = []
    for name, of_seed in zip(configurations, values, strict=True):
        for seed, value in enumerate(of_seed):
            end = {
                "answers": 1000,
                "valid": round(1000 * value),
                "greedy": round(1100 * value),
                "config": configurations[name].to_dict(),
                "training": {"nondegenerate_fraction": 0.5},
            }
            status = "failed" if (name, seed) in missing else "finished"
            runs.append({"variant": name, "seed": seed, "status": status, "points": [start, end]})
    names = [{"name": name, "label": name.replace("_", " ")} for name in configurations]
    seeds = list(range(len(values[0])))
    return {"variants": names, "runs": runs, "seeds": seeds, "reference": "validation"}


def test_analysis(family):
    values = np.full((8, 3), 0.5) + 0.001 * np.random.default_rng(0).normal(size=(8, 3))
    values[1] -= 0.2
    values[3] += 0.2
    result = sensitivity.analyse(study(family, values, missing=[("only_3", 2)]), family.space)
    assert result["seeds"] == [0, 1]
    assert next(iter(result["configurations"])) == "only_5"
    assert list(result["configurations"])[-1] == "only_3"
    assert result["start"] == 0.7
    assert result["best_minus_worst"]["mean"] == pytest.approx(0.4, abs=0.01)
    assert result["explained"] > 0.95
    assert result["p"] < 1e-6
    assert result["ratio"] > sensitivity.ENOUGH
    assert result["configurations"]["only_5"]["greedy"] == pytest.approx(0.77, abs=0.01)
    assert result["configurations"]["only_3"]["signal"] == 1.0  # 4 p (1 - p) at p = 0.5.
    assert not sensitivity.verdict(result).startswith("FLAT")
    assert result["seeds_for_best"] == 2


def test_an_analysis_can_lack_the_reference(family):
    values = np.tile(np.linspace(0.2, 0.9, 8)[:, None], 3)
    found = study(family, values, missing=[("validation", seed) for seed in range(3)])
    result = sensitivity.analyse(found, family.space)
    assert (len(result["configurations"]), result["seeds_for_best"]) == (7, None)


def test_a_flat_regime_is_said_loudly(family):
    values = 0.5 + 0.02 * np.random.default_rng(0).normal(size=(8, 5))
    result = sensitivity.analyse(study(family, values), family.space)
    assert sensitivity.verdict(result).startswith("FLAT: best minus worst")


@pytest.mark.parametrize("values", [np.full((8, 3), 0.7), np.tile([0.1, 0.3, 0.8], (8, 1))])
def test_a_regime_without_any_difference_is_flat(family, values):
    result = sensitivity.analyse(study(family, values), family.space)
    assert sensitivity.verdict(result).startswith("FLAT: best minus worst 0.0 points, 0.0 times")
    assert (result["p"], result["explained"], result["signal_correlation"]) == (1, 0, None)
    lead = values + np.eye(8, 1)
    result = sensitivity.analyse(study(family, lead), family.space)
    assert (result["p"], result["ratio"], sensitivity.is_flat(result)) == (0, None, False)


def test_a_study_of_a_flat_regime_is_refused(family, tmp_path):
    values = 0.5 + 0.02 * np.random.default_rng(0).normal(size=(8, 5))
    path = tmp_path / "sensitivity.json"
    with pytest.raises(UserError, match="there is no sensitivity"):
        sensitivity.refuse_flat(tmp_path)
    path.write_text(json.dumps(sensitivity.analyse(study(family, values), family.space)))
    with pytest.raises(UserError, match="FLAT: best minus worst"):
        sensitivity.refuse_flat(tmp_path)
    values[0] -= 0.4
    path.write_text(json.dumps(sensitivity.analyse(study(family, values), family.space)))
    sensitivity.refuse_flat(tmp_path)


def test_too_few_runs_are_refused(family):
    with pytest.raises(ValueError, match="8 configurations over 1 common seeds"):
        sensitivity.analyse(study(family, np.full((8, 1), 0.5)), family.space)


#: In the place of a run with these options: copies a round of a whole run as its own.
WORKER = """
import json, shutil, sys
from pathlib import Path

request = json.loads(sys.stdin.readline())
whole, folder, options = Path(sys.argv[1]), Path(request["folder"]), request["settings"]
start = Path(options["engineer"]["start"])
chosen = whole / "rounds" / str((len(start.stem) + options["seed"]) % 3)
for name in ("validation", "initial"):
    shutil.copytree(whole / name, folder / name)
shutil.copytree(chosen, folder / "rounds" / "0", ignore=shutil.ignore_patterns("design"))
shutil.copy(start, folder / "rounds" / "0" / "environment.yaml")
for name in ("config.json", "finished.json"):
    (folder / name).write_text(json.dumps(options))
"""
COMMAND = """
import sys
from absl import app
from experiments import sensitivity
from experiments.settings import command_line
from experiments.study import processes

processes.WORKER = (sys.executable, *sys.argv.pop().split(","))
app.run(sensitivity.main, flags_parser=command_line.parse_flags)
"""


def test_the_command(undisturbed, tmp_path):
    """Its study of fixed configurations, of which no run is computed here."""
    for name, text in (("plan.py", PLAN), ("worker.py", WORKER)):
        (tmp_path / name).write_text(text)
    options = (f"--config={tmp_path}/plan.py", f"--workdir={tmp_path}/study", "--seeds=0,1")
    options += ("--random=0", "--workers=2", f"{tmp_path}/worker.py,{undisturbed[0]}")
    done = python("-c", COMMAND, *options)
    assert "best minus worst" in done.stdout + done.stderr
    result = json.loads((tmp_path / "study" / "sensitivity.json").read_text())
    assert set(result["configurations"]) == {
        "validation", "only_3", "only_4", "hole_ratio_low", "hole_ratio_high",
        "wait_ratio_low", "wait_ratio_high",
    }  # fmt: skip
    found = json.loads((tmp_path / "study" / "study.json").read_text())
    assert found["budget"]["equal"]["instances"] == 32  # Two rounds' worth, in one.
    family = settings_lib.family_of({"lakes": {"sizes": (3, 4)}})
    wanted = sensitivity.configurations(family, 0)
    for run in found["runs"]:
        options = json.loads((tmp_path / "study" / run["folder"] / "config.json").read_text())
        assert (options["loop"]["rounds"], options["environment"]["num_instances"]) == (1, 32)
        of_run = Configuration.from_dict(run["points"][1]["config"])
        assert of_run == wanted[run["variant"]]
    assert "**" in (tmp_path / "study" / "sensitivity.md").read_text()
