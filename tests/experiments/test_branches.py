"""A study whose variants branch from one run: its statistics by hand, and a small one whole."""

import dataclasses
import json
import runpy
import sys

import numpy as np
import pytest
import scipy.stats
from whole_runs import ROOT, finish, start

from experiments import statistics
from experiments.benchmark.study import MeasuredStudy
from experiments.configs.studies import bases
from experiments.report.study import figures
from experiments.run.status import Reporter
from experiments.settings import from_config
from experiments.study import branches, processes, results, runs, variants
from experiments.study.variants import Branches, Study, Variant
from experiments.text.errors import UserError

OF = Branches((2, 6), (1, 4), (("b", "a"), ("c", "a"), ("b", "c")), ("b", "c"), 0.02)
STUDY = Study("?", tuple(Variant(name, name.upper()) for name in "abc"), "a", range(5), branches=OF)
RATES = (
    np.random.default_rng(0)
    .normal(np.array([0.4, 0.45, 0.46])[:, None, None, None], 0.02, (3, 5, 2, 2))
    .round(3)
)
"""Valid rates by variant, seed, round and horizon."""


def run(variant, seed):
    """A run of made-up branches in which row 4 is the worst on average, row 3 in the first."""
    done = [
        {
            "round": index,
            "horizon": horizon,
            "design": {"3": {"part": 0.1 * seed if variant else 0.5}},
            "test": {
                "answers": 1000,
                "valid": round(1000 * (rate := RATES[variant, seed, i, j])),
                "by_row": {"3": rate + (above := (-0.0025, 0.0075)[i]), "4": rate - above},
            },
            "fall": 0.01 * (i + j),
            "cpu_seconds": 3.0 + i + 10 * j,
        }
        for i, index in enumerate(OF.rounds)
        for j, horizon in enumerate(OF.horizons)
    ]
    known = {"variant": "abc"[variant], "seed": seed, "status": "finished"}
    return {**known, "branches": done}


RUNS = [run(v, s) for v in range(3) for s in range(5)]
FOUND = branches.compare(STUDY, OF, RUNS)


def entry(metric, variant):
    (found,) = [
        one for one in FOUND["comparison"] if (one["metric"], one["variant"]) == (metric, variant)
    ]
    return found


@pytest.mark.parametrize("horizon", [0, 1])
def test_gains_are_means_over_branches_paired_by_seed(horizon):
    gains = (RATES[1] - RATES[0])[:, :, horizon].mean(axis=1)
    found = entry(f"valid_{OF.horizons[horizon]}", "b")["difference"]
    assert list(found["values"].values()) == pytest.approx(gains.tolist())
    low, high = scipy.stats.ttest_1samp(gains, 0).confidence_interval()
    assert (found["mean"], found["low"], found["high"]) == pytest.approx((gains.mean(), low, high))
    worst = entry(f"valid_worst_{OF.horizons[horizon]}", "b")
    assert worst["mean"] == pytest.approx(RATES[1][:, :, horizon].mean() - 0.0025)
    assert entry(f"valid_fall_{OF.horizons[horizon]}", "c")["mean"] == pytest.approx(
        0.005 + 0.01 * horizon
    )


def test_each_branch_alone():
    found = entry("valid_1_after_6", "c")
    assert list(found["values"].values()) == pytest.approx(RATES[2, :, 1, 0].tolist())


def test_a_branch_of_one_round_is_what_costs():
    assert entry("cpu_seconds", "b")["mean"] == 3.5


def test_primary_hypotheses_are_corrected_together():
    first = RATES[:, :, :, 0].mean(axis=2)
    p = [scipy.stats.ttest_rel(first[i], first[j]).pvalue for i, j in ((1, 0), (2, 0), (1, 2))]
    order, adjusted = np.argsort(p), [0.0] * 3
    for place, i in enumerate(order):
        adjusted[i] = min(1.0, max(p[j] * (3 - k) for k, j in enumerate(order[: place + 1])))
    assert [one["p"] for one in FOUND["primary"]] == pytest.approx(p)
    assert [one["p_holm"] for one in FOUND["primary"]] == pytest.approx(adjusted)


def test_equivalence_is_the_larger_of_two_one_sided_tests():
    difference = (RATES[1] - RATES[2])[:, :, 0].mean(axis=1)
    error = difference.std(ddof=1) / np.sqrt(5)
    above, below = (difference.mean() + 0.02) / error, (0.02 - difference.mean()) / error
    wanted = max(scipy.stats.t.sf(above, 4), scipy.stats.t.sf(below, 4))
    assert FOUND["equivalent"]["p"] == pytest.approx(wanted)
    # As significant at 5 % as the 90 % interval is within the bound.
    low, high = scipy.stats.ttest_1samp(difference, 0).confidence_interval(0.9)
    assert (wanted < 0.05) == (low > -0.02 and high < 0.02)
    assert statistics.equivalent({0: 0.5}, {0: 0.4}, 0.02) is None
    assert statistics.equivalent({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.5}, 0.02) is None


def test_distinct_designs_are_counted():
    assert FOUND["designs"] == [
        {"variant": "a", "designs": 10, "distinct": 1},
        {"variant": "b", "designs": 10, "distinct": 5},
        {"variant": "c", "designs": 10, "distinct": 5},
    ]


def test_the_registered_regime_gives_no_credit_for_prefixes():
    folder = ROOT / "docs" / "studies" / "branch_sums"
    base = runpy.run_path(str(folder / "study.py"))["get_config"]()
    family = from_config(base).load_family()
    problem = {"group": "3", "terms": [123, 456]}  # 579, ones first.
    assert family.verify(problem, "975") == {"failed": []}
    assert family.verify(problem, "974") == {"failed": ["right_value"]}
    trials = variants.load(str(folder / "regime.py"))
    assert {of[100].engineer.designer for of in trials.settings(base).values()} == {"fixed"}


def test_the_registered_blocks_are_the_warm_starts():
    """Four seeds each, in turn; a variant with a designer of its own has them too."""
    folder = ROOT / "docs" / "studies" / "branch_sums"
    study = variants.load(str(folder / "study.py"))
    every = study.settings(runpy.run_path(str(folder / "study.py"))["get_config"]())
    made = every["base"]
    assert made[200].model.path == made[203].model.path == "sums_ladder"
    assert all(made[seed].model.path.endswith("climbing_ladder/model") for seed in range(204, 208))
    assert all(made[seed].model.path.endswith("learning_ladder/model") for seed in range(208, 212))
    assert study.seeds[:4] == (200, 204, 208, 201)
    assert len(list(runs.jobs(study, every))) == 12 * (1 + 3 * (11 + 3))


def test_blocks_are_compared_alone():
    changes = {"model.path": "sums"}
    study = dataclasses.replace(STUDY, blocks=dict.fromkeys((1, 3), changes))
    one, other = branches.compare(study, OF, RUNS)["blocks"]
    assert (one["changes"], one["seeds"]) == ({}, [0, 2, 4])
    assert (other["changes"], other["seeds"]) == (changes, [1, 3])
    gains = (RATES[1] - RATES[0])[[1, 3], :, 0].mean(axis=1)
    first = other["primary"][0]
    assert (first["variant"], first["other"]) == ("b", "a")
    assert first["mean"] == pytest.approx(gains.mean())
    assert list(first["values"].values()) == pytest.approx(gains.tolist())


def test_the_page_has_a_line_for_each_block(tmp_path):
    made = tuple(Variant(name, name, {"engineer.designer": "fixed"}) for name in "abc")
    study = dataclasses.replace(STUDY, variants=made, blocks={3: {"model.path": "sums"}})
    branches.write(tmp_path, study, OF, study.settings(base()))
    page = (tmp_path / "comparison.md").read_text()
    assert page.count("| model.path=sums |") == 3
    assert "## Blocks of seeds" in page


def test_a_longer_horizon_may_be_missing():
    """Where every branch has its first round, that is compared, whatever else is to come."""
    cut = [
        {
            **one,
            "status": "missing",
            "branches": [
                branch if branch["horizon"] == 1 else {**branch, "test": None}
                for branch in one["branches"]
            ],
        }
        for one in RUNS
    ]
    found = branches.compare(STUDY, OF, cut)
    assert found["primary"] == FOUND["primary"]
    means = {(one["metric"], one["variant"]): one["mean"] for one in found["comparison"]}
    assert means["valid_4", "b"] is None


def test_only_some_variants_go_on():
    of = dataclasses.replace(OF, longer=("a", "b"))
    assert [of.horizons_of(name) for name in "abc"] == [(1, 4), (1, 4), (1,)]
    study = dataclasses.replace(STUDY, branches=of)
    folders = [str(job.folder) for job in runs.jobs(study, study.settings(base()))]
    assert sum("/c/" in folder for folder in folders) == 5 * 2
    assert sum("rounds-4" in folder for folder in folders) == 2 * 5 * 2
    assert ["rounds-4" in folder for folder in folders[-21:]] == [False] + 20 * [True]
    assert branches._scores(of, RUNS[10]).keys() == {
        *(f"valid{kind}_1" for kind in ("", "_worst", "_fall")),
        *("valid_1_after_2", "valid_1_after_6", "cpu_seconds"),
    }


def test_its_figures_and_its_benchmark_are_refused(tmp_path):
    (tmp_path / "study.json").write_text(json.dumps({"schema": results.SCHEMA, "branches": {}}))
    for read in (lambda: list(figures(tmp_path)), lambda: MeasuredStudy.read(str(tmp_path))):
        with pytest.raises(UserError, match="a study of branches has no figures and no benchmark"):
            read()


def test_tables_are_written_before_anything_is_finished(tmp_path):
    runs_of = [branches._run(tmp_path, OF, name, 0) for name in "abc"]
    assert [one["status"] for one in runs_of] == ["missing"] * 3
    found = branches.compare(STUDY, OF, runs_of)
    assert [one["mean"] for one in found["comparison"]] == [None] * len(found["comparison"])
    assert [one["p_holm"] for one in found["primary"]] == [None] * 3
    assert found["equivalent"]["p"] is None


def base():
    config = bases.tiny_base()
    config.loop.rounds = 7
    config.validation.test_instances = 24
    return config


def test_a_branch_starts_from_the_trunk_and_a_longer_one_from_a_shorter():
    designers = zip("abc", ("fixed", "failures", "current"), strict=True)
    made = tuple(Variant(name, name, {"engineer.designer": of}) for name, of in designers)
    study = dataclasses.replace(STUDY, variants=made, seeds=(3,))
    jobs = {str(job.folder): job for job in runs.jobs(study, study.settings(base()))}
    assert len(jobs) == 1 + 3 * 2 * 2
    one, more = (jobs[f"branches/c/seed-3/after-6/rounds-{n}"] for n in (1, 4))
    assert (str(one.shared), one.copied) == ("runs/a/seed-3", 7)
    assert (str(more.shared), more.copied) == (str(one.folder), 8)
    assert [job.settings.loop.rounds for job in (one, more)] == [8, 11]
    assert [job.settings.engineer.designer for job in (one, more)] == ["current", "first"]
    work = {one.what: one for one in runs.forecast(runs.Path("nowhere"), list(jobs.values()), 1)}
    of, training = one.settings, one.settings.training
    trained = of.steps_per_round * training.prompts_per_step * training.group_size
    validated = of.validation.num_instances * (of.validation.samples + 1)  # And greedy.
    assert work["b"].completions == 2 * 4 * (trained + validated)
    assert work["a"].completions == work["b"].completions + 7 * trained + 8 * validated


FAKE = """
import json, sys
from pathlib import Path

request = json.loads(sys.stdin.readline())
folder, settings = Path(request["folder"]), request["settings"]
found = sorted(path.name for path in folder.glob("rounds/*"))
(folder / "found.json").write_text(json.dumps(found))
(folder / "config.json").write_text("{}")
for part in ("validation", "initial", "checkpoints/0"):
    (folder / part).mkdir(parents=True, exist_ok=True)
for index in range(len(found), settings["loop"]["rounds"]):
    (folder / f"rounds/{index}").mkdir(parents=True)
    (folder / f"rounds/{index}/validation.json").touch()
if settings["engineer"]["designer"] == "random":
    sys.exit("error: it cannot be")
(folder / "finished.json").write_text("{}")
"""


def test_branches_are_copies_and_only_what_is_missing_is_computed(tmp_path, monkeypatch):
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(processes, "WORKER", (sys.executable, str(tmp_path / "fake.py")))
    designers = zip("abc", ("fixed", "failures", "random"), strict=True)
    made = tuple(Variant(name, name, {"engineer.designer": of}) for name, of in designers)
    study = dataclasses.replace(STUDY, variants=made, seeds=(3,))
    jobs = runs.jobs(study, study.settings(base()))

    def compute():
        assert runs.Runner(tmp_path, jobs, [processes.Slot((), {})], Reporter()).run()

    def found():
        paths = tmp_path.glob("branches/*/seed-3/*/*/found.json")
        return {str(path.parent.relative_to(tmp_path)): path for path in paths}

    compute()
    copied = {name: len(json.loads(path.read_text())) for name, path in found().items()}
    assert copied == {
        **{
            f"branches/{name}/seed-3/after-{i}/rounds-{n}": i + 1 + (n > 1)
            for name in "ab"
            for i in (2, 6)
            for n in (1, 4)
        },
        **{f"branches/c/seed-3/after-{i}/rounds-1": i + 1 for i in (2, 6)},
    }
    folder = tmp_path / "branches/c/seed-3/after-6"
    assert (folder / "rounds-1/error.txt").read_text() == "it cannot be\n"
    assert "rounds-1) failed: it cannot be" in (folder / "rounds-4/error.txt").read_text()
    note = json.loads((tmp_path / "branches/b/seed-3/after-6/rounds-4/branch.json").read_text())
    assert note["run"] == str(tmp_path / "branches/b/seed-3/after-6/rounds-1")
    assert note["round"] == 7
    # Killed before its end: it goes on where it was, and is no new copy.
    lost = tmp_path / "branches/b/seed-3/after-2/rounds-1"
    (lost / "finished.json").unlink()
    before = {name: path.stat().st_mtime_ns for name, path in found().items()}
    compute()
    again = {n for n, path in found().items() if path.stat().st_mtime_ns != before[n]}
    assert again == {str(lost.relative_to(tmp_path)), *(n for n in before if "branches/c" in n)}
    assert len(json.loads((lost / "found.json").read_text())) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Branches((2, 1)), r"rounds=\(2, 1\): ascending"),
        (lambda: Branches((2,), (0, 1)), r"horizons=\(0, 1\): ascending integers from 1"),
        (lambda: Branches((2,), (2, 4)), r"horizons=\(2, 4\): the first one must be 1"),
        (lambda: Branches((2,), bound=0.0), "bound=0.0"),
        (
            lambda: dataclasses.replace(STUDY, branches=Branches((2,), primary=(("a", "d"),))),
            r"pair \('a', 'd'\): allowed are two of \['a', 'b', 'c'\]",
        ),
        (
            lambda: dataclasses.replace(
                STUDY, variants=(*STUDY.variants, Variant("d", "d", {"loop.rounds": 3}))
            ),
            r"variant='d': loop.rounds: .*; allowed are options of engineer but engineer.start",
        ),
        (lambda: longer("b"), r"longer=\('b',\): allowed are .*, 'a' among them"),
        (lambda: longer("a", "d"), r"longer=\('a', 'd'\): allowed are \['a', 'b', 'c'\]"),
        (lambda: blocks("model.pth"), "blocks: seed 0: .*model.pth"),
        (lambda: blocks("seed"), "blocks: seed 0: seed: the seeds are those of the study"),
        (lambda: settings(**{"loop.rounds": 6}), r"loop.rounds=6: .*integers from 7 up"),
        (lambda: settings(**{"checkpoint.of_rounds": "weights"}), "of_rounds='weights'"),
        (lambda: settings(**{"validation.test_instances": 0}), "test_instances=0"),
    ],
)
def test_what_cannot_branch_is_refused(make, message):
    with pytest.raises((ValueError, UserError), match=message):
        make()


def longer(*names):
    return dataclasses.replace(STUDY, branches=dataclasses.replace(OF, longer=names))


def blocks(path):
    return dataclasses.replace(STUDY, blocks={0: {path: 1}})


def test_an_option_of_a_variant_counts_before_that_of_its_block():
    steps = "engineer.training.hindsight"
    made = tuple(Variant(name, name) for name in "ab")
    made += (Variant("c", "c", {steps: "learning_progress"}),)
    study = dataclasses.replace(STUDY, variants=made, seeds=(0,), blocks={0: {steps: "signal"}})
    found = study.settings(base())
    assert found["c"][0].engineer.training.hindsight == "learning_progress"


def settings(**changed):
    config = base()
    config.update_from_flattened_dict(changed)
    return STUDY.settings(config)


PLAN = """
from experiments.configs import sums
from experiments.study.variants import Branches, Study, Variant

STUDY = Study(
    question="Does it run?",
    variants=(
        Variant("uniform", "uniform", {"engineer.designer": "fixed"}),
        Variant("rlve", "RLVE's window", {"engineer.designer": "rlve"}),
    ),
    reference="uniform",
    seeds=(0,),
    branches=Branches((0,), (1, 2)),
)


def get_config():
    config = sums.get_config()
    config.engineer.start = "uniform"
    config.loop.rounds = 2
    config.environment.num_instances = 16
    config.validation.num_instances = 24
    config.validation.test_instances = 12
    config.training.prompts_per_step = 8
    config.training.group_size = 4
    return config
"""


@pytest.mark.slow
def test_a_small_study_of_branches(tmp_path):
    """Branches share states; designed rounds, answers to the test set and tables are there."""
    (tmp_path / "plan.py").write_text(PLAN)
    code, out, err = finish(start(tmp_path))
    assert code == 0, err[-3000:] + out[-3000:]
    root = tmp_path / "study"
    found = json.loads((root / "study.json").read_text())
    assert found["state"] == {"planned": 2, "finished": 2, "failed": 0, "missing": 0}
    of = {one["variant"]: {b["horizon"]: b for b in one["branches"]} for one in found["runs"]}
    uniform, designed = (
        {n: root / of[v][n]["folder"] for n in (1, 2)} for v in ("uniform", "rlve")
    )
    trunk = root / "runs/uniform/seed-0"
    environment = [(trunk / f"rounds/{i}/environment.yaml").read_text() for i in range(2)]
    assert environment[0] == environment[1]

    def steps(folder, index):
        lines = (folder / f"rounds/{index}/train.jsonl").read_text().splitlines()
        return [
            {k: v for k, v in json.loads(line).items() if not k.startswith("machine/")}
            for line in lines
        ]

    # The reference's own branch goes on as its run does; the other one has its own round alone.
    assert steps(uniform[1], 1) == steps(trunk, 1) != steps(designed[1], 1)
    assert steps(designed[2], 0) == steps(trunk, 0)
    assert steps(designed[2], 1) == steps(designed[1], 1)
    read = [(designed[2] / f"rounds/{i}/environment.yaml").read_text() for i in range(3)]
    assert read[1] != read[0] == read[2] == environment[0]
    shared = [folder / "rounds/0/answers.jsonl" for folder in (trunk, designed[1], designed[2])]
    assert len({path.stat().st_ino for path in shared}) == 1
    for one in of.values():
        for horizon, branch in one.items():
            assert branch["test"]["answers"] == 12
            answers = root / branch["folder"] / f"rounds/{horizon}/test/answers.jsonl"
            valid = [json.loads(line)["valid"] for line in answers.read_text().splitlines()]
            assert sum(valid) == branch["test"]["valid"]
    page = (root / "comparison.md").read_text()
    assert "All variants branch from the runs of uniform after rounds/0:" in page
    assert "2 of 2 variants and seeds are finished" in page
    assert "## Valid on the test set, 2 rounds after a branch" in page
