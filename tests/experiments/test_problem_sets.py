"""Training sets: what a configuration cannot give, and who is told."""

import contextlib
import dataclasses
import json
import types

import pytest

from engineer.context import VARIANTS, compose
from engineer.designers import Design
from engineer.space import Configuration
from experiments.report.charts import Drawn, Gallery
from experiments.report.run import page
from experiments.ring import loop, outcomes
from experiments.ring.problem_sets import ProblemSets
from experiments.ring.validation import write_validation
from experiments.run.reading import read_run
from experiments.run.status import Reporter
from experiments.run.store import RunStore
from experiments.settings import from_config
from experiments.study.variants import Budget
from experiments.text.errors import UserError

FAMILY = """
from experiments.families.data_set import DataSet

class Facts(DataSet):
    def prompt(self, problem):
        return str(problem["index"])

    def verify(self, problem, text):
        return {"failed": ["right"]}

problems = [{"group": "1"} for _ in range(300)] + [{"group": "2"} for _ in range(13)]
family = Facts(problems, "level", "to know", ("right",))
"""
#: Validation keeps 6 of the 13 problems of level 2 for itself.
ONLY_LEVEL_2 = {"1": {"fraction": 0.0}, "2": {"fraction": 1.0}}
LITTLE_OF_LEVEL_2 = {"1": {"fraction": 0.95}, "2": {"fraction": 0.05}}
NO_SIGNAL = "rewards differed in 0 % of the groups of answers; the others taught nothing"

FAILED = {"valid": False, "failed": ["right"], "optimal": False}
FAILED |= {"tokens": 1, "truncated": False, "text": ""}


def write_training(store, index):
    """What a round of six steps leaves."""
    metrics = {"reward": 0.0, "nondegenerate_fraction": 0.0, "task/valid": 0.0, "draws": 1}
    metrics |= {"completion_tokens_mean": 1.0, "updates": 1}
    metrics |= {f"machine/{part}_seconds": 1.0 for part in ("sample", "score", "update")}
    folder = store.round(index)
    store.write(folder / "train.jsonl", [{"step": i, **metrics} for i in range(6)])
    store.write(folder / "train_failures.json", [])


class NoCharts(Gallery):
    """Names the charts of a page and draws none, to be quick."""

    def add(self, chart):
        self.names.append(chart.name)
        return Drawn("", chart.title)


@pytest.fixture
def given(tmp_path):
    """Settings of a run of rounds of six steps, its family and its empty folder."""
    path = tmp_path / "facts.py"
    path.write_text(FAMILY)
    settings = from_config(
        {
            "family": f"{path}:family",
            "loop": {"rounds": 3},
            "environment": {"num_instances": 96},
            "validation": {"num_instances": 12},
            "training": {"prompts_per_step": 16, "epochs": 1.0},
        }
    )
    return settings, settings.load_family(), RunStore(tmp_path / "run")


def steps_of_a_round(settings, family, store, sets, index):
    """The steps that the loop asks of a trainer for a round."""
    asked = []

    def run(state, task, key, begin, steps, *rest):
        asked.append((len(task), steps))
        return iter(())

    one = loop.Loop(settings, store, Reporter(quiet=True))
    one._family, one._problems, one._begun = family, sets, -1
    one._trainer = types.SimpleNamespace(run=run)
    one._checkpoints = types.SimpleNamespace(
        saved_if_preempted=lambda *_: contextlib.nullcontext(),
        batch_kept=lambda *_: contextlib.nullcontext(),
    )
    at = types.SimpleNamespace(round=index, task={}, step=0, total=0, state=0, prompt_scores=None)
    one._train(index, at)
    return asked[0]


def test_a_round_keeps_its_steps_or_its_configuration_and_says_so(given, capsys):
    settings, family, store = given
    first = family.space.uniform()
    sets = ProblemSets(settings, family, store, Reporter(), first)
    design = Design(Configuration.from_dict(ONLY_LEVEL_2), "current").to_dict()
    store.write(store.round(0) / "design" / "design.json", design)
    records = [{**FAILED, "id": "validation-0", "group": row} for row in "12"]
    for index in range(2):
        folder = store.round(index)
        # 7 problems of level 2 are left and as many of level 1 as a row of 48 asks for.
        steps = steps_of_a_round(settings, family, store, sets, index)
        assert steps == (55, Budget.of(settings).steps / 3) == (55, 6)
        assert store.read(folder / "environment.yaml", Configuration.from_dict) == first
        write_training(store, index)
        for place in (store.root / "initial", folder):
            write_validation(store, place, family, lambda *_: records, None, None)
    kept = "previous configuration kept: 7 of 96 distinct problems (level 2 7 of 96), at least 24"
    repeat = "problems repeat: 55 of 96 distinct problems (level 2 7 of 48)"
    out = capsys.readouterr().out
    assert f"round 1: {repeat}" in out
    assert f"round 2: {kept}" in out
    record = store.read(store.round(1) / "generated.json")
    assert record["note"].startswith(kept)
    assert [one["refused"] for one in record["shortfalls"]] == [True, False]
    seen = compose(VARIANTS["V1"], outcomes.run_record(store, settings, family, 2), family.texts)
    assert f"Latest training set\n{kept} are needed\n{repeat}\n" in seen[0]["content"]
    store.write(store.root / "config.json", settings.to_dict())
    shown = page(read_run(store.root), NoCharts(store.root)).partition("<section")[0]
    assert f"kept an earlier configuration: {kept.partition(': ')[2]}" in shown
    assert f"<b>Round 2:</b> {repeat}" in shown
    assert f"<b>Round 2:</b> {NO_SIGNAL}." in shown
    one = loop.Loop(settings, store, Reporter())
    one._family = family
    one._report("round 2", store.round(1), one._validated(store.round(1)))
    assert f"  {NO_SIGNAL}\n" in capsys.readouterr().out


def test_what_is_kept_is_the_configuration_of_the_round_before(given):
    settings, family, store = given
    first, second = family.space.uniform(), Configuration.from_dict(LITTLE_OF_LEVEL_2)
    sets = ProblemSets(settings, family, store, Reporter(quiet=True), first)
    for index, config in enumerate((second, Configuration.from_dict(ONLY_LEVEL_2))):
        store.write(
            store.round(index) / "design" / "design.json", Design(config, "current").to_dict()
        )
    for index in range(3):
        sets.training(index)
    used = [
        store.read(store.round(i) / "environment.yaml", Configuration.from_dict) for i in range(3)
    ]
    assert used == [first, second, second]


def test_a_first_configuration_with_too_few_problems_is_an_error(given):
    settings, family, store = given
    first = Configuration.from_dict(ONLY_LEVEL_2)
    sets = ProblemSets(settings, family, store, Reporter(quiet=True), first)
    message = "num_instances=96: the first configuration gives 7 of 96 .*, at least 24 are needed;"
    with pytest.raises(UserError, match=message):
        sets.training(0)


def test_the_test_set_is_in_no_other_set(given):
    settings, family, store = given
    few = dataclasses.replace(settings.validation, test_instances=14)
    settings = dataclasses.replace(settings, validation=few)
    sets = ProblemSets(settings, family, store, Reporter(quiet=True), family.space.uniform())
    test = {problem["index"] for problem in sets.test}
    others = [{p["index"] for p in of} for of in (sets.validation, sets.training(0))]
    assert [len(test), *map(len, others)] == [14, 12, 48]  # Level 2 is in the first two.
    assert not test & (others[0] | others[1])
    other = dataclasses.replace(settings, seed=1)
    again = ProblemSets(other, family, RunStore(store.root / "2"), Reporter(quiet=True), None)
    assert again.test == sets.test


def test_the_test_set_is_answered_first_and_last_and_no_engineer_reads_it(given, monkeypatch):
    settings, family, store = given
    few = dataclasses.replace(settings.validation, test_instances=4)
    settings = dataclasses.replace(settings, validation=few)
    one, told = loop.Loop(settings, store, Reporter(quiet=True)), []

    def validate(settings, family, respond, problems, params, count):
        return [{**FAILED, "id": p["id"], "group": p["group"]} for p in problems]

    def train(index, position):
        one._problems.training(index)
        write_training(store, index)

    def design(index, position):
        told.append(outcomes.run_record(store, settings, family, index + 1).to_dict())
        kept = Design(family.space.uniform(), "fixed").to_dict()
        store.write(store.round(index) / "design" / "design.json", kept)

    saved = types.SimpleNamespace(done=lambda _: 0, keep_weights=lambda *_: None)
    for name, stub in {
        "plan": lambda *_: [""],
        "RunCheckpoints": lambda *_: contextlib.nullcontext(saved),
        "validate": validate,
    }.items():
        monkeypatch.setattr(loop, name, stub)
    vars(one).update(
        _load=lambda: "params",
        _trainer=types.SimpleNamespace(policy_params=lambda _: "params"),
        _start=lambda _: types.SimpleNamespace(round=0, total=0, state=0),
        _train=train,
        _train_engineer=lambda *_: None,
        _design=design,
        _report=lambda *_: None,
        _family=family,
        _first=family.space.uniform(),
        _sampled="sampled",
        _greedy="greedy",
        _policy=None,
        _engineer=None,
    )
    one.run()
    store.write(store.root / "config.json", settings.to_dict())
    found = read_run(store.root)
    assert [number for number, _ in found.validations] == [0, 1, 2, 3]
    assert [(number, test.breakdown.answers) for number, test in found.tests] == [(0, 4), (3, 4)]
    assert len(told) == 2
    assert "validation-1" in json.dumps(store.read(store.round(0) / "answers.jsonl"))
    assert "test-" not in json.dumps(told)
    assert "On a test set of 4 other problems" in page(found, NoCharts(store.root))
