"""Glue that whole runs, compared with one another, would not notice to be wrong in all of them."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest

from engineer import designers, grammar
from engineer.proposal import render_config
from engineer.reading import Reading
from experiments.families.demonstrations import random_record
from experiments.families.lakes.family import Lakes
from experiments.families.lakes.options import LakesOptions
from experiments.families.template import family
from experiments.ring import (
    designing,
    hindsight,
    loop,
    outcomes,
    problem_sets,
    reading,
    validation,
)
from experiments.ring.hindsight import Hindsight, best_in_hindsight
from experiments.ring.validation import validate
from experiments.run import branching, policy
from experiments.run.status import Reporter, plan
from experiments.run.store import RunStore, append_log, open_steps, read_log
from experiments.settings import from_config
from experiments.study import results, runs
from experiments.study.variants import Budget
from learner.chat import Completion
from mapf_jax.answer_reward import RewardConfig, reward_weights

PROBLEMS = [{"id": f"validation-{i}", "group": "3", "terms": [100, 200 + i]} for i in range(2)]
LAKE = {
    "map": ["F F F F"] * 4,
    "starts": [[0, 0], [3, 3]],
    "goals": [[0, 2], [3, 1]],
    "cost": 4,
    "makespan": 2,
    "needs_wait": False,
    "paths": [[[0, 0], [0, 1], [0, 2]], [[3, 3], [3, 2], [3, 1]]],
}


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path)


# How a model is computed


def test_how_a_model_is_computed_reaches_it():
    chosen = {
        "dtype": "bfloat16",
        "cache_dtype": "float8_e4m3fn",
        "remat": "dots",
        "scan_unroll": 2,
    }
    settings = from_config({"model": chosen})
    assert chosen.keys() == {field.name for field in dataclasses.fields(settings.model)} - {"path"}
    config = policy.load_policy(settings).config
    assert {name: getattr(config, name) for name in chosen} == chosen


# What a designer reads, and what it learns from


def test_a_lesson_shows_no_outcome_of_the_design_that_it_asks_for(monkeypatch):
    runs = (random_record(seed, family.space, family.texts) for seed in range(99))
    run = next(one for one in runs if len(one.history) == 3)
    shown = []
    monkeypatch.setattr(hindsight, "fitted", lambda _, record, *__: shown.append(record) or [[]])
    monkeypatch.setattr(hindsight.sft, "encode_examples", lambda _, pairs: [pairs[0][1]])
    lessons = object.__new__(Hindsight)
    settings = from_config({"engineer": {"context": "V4"}})
    vars(lessons).update(_settings=settings, _family=family, _fits=None)
    lessons._policy = types.SimpleNamespace(tokenizer=None)
    rounds = iter((1, 2))
    rng = types.SimpleNamespace(random=lambda: 1.0, integers=lambda *_: next(rounds))
    answers = lessons._lessons(run, rng)
    for index in (1, 2):
        best = best_in_hindsight(run, index, family.space)
        assert next(answers) == render_config(best, family.space)
        assert shown[-1].history == run.history[:index]
        assert shown[-1].round == index


def test_the_reward_of_the_last_quarter_is_that_of_the_last_steps(store):
    write_training(store, store.round(0))
    found = outcomes._training_evidence(store, store.round(0))
    assert (found.steps, found.reward, found.reward_last) == (8, 3.5, 6.5)


def test_only_rounds_on_the_first_configuration_started_cold(store):
    rates = family.breakdown([answer("validation-0", valid=True)]).to_dict()
    for folder in (store.root / "initial", store.round(0), store.round(1)):
        store.write(folder / "validation.json", rates)
    for index in range(2):
        write_training(store, store.round(index))
        store.write(store.round(index) / "answers.jsonl", [answer("validation-0", valid=True)])
        store.write(store.round(index) / "train_failures.json", [])
    store.write(store.root / "validation" / "instances.jsonl", PROBLEMS)
    store.write(store.round(0) / "design" / "design.json", {"summary": "more of 3"})
    record = outcomes.run_record(store, from_config({}), family, 2)
    assert [(one.round, one.cold_start) for one in record.history] == [(0, True), (1, False)]
    assert [one.summary for one in record.history] == [None, "more of 3"]
    late = from_config({"engineer": {"kept_rounds": 2}})
    assert all(one.cold_start for one in outcomes.run_record(store, late, family, 2).history)


def test_failures_in_training_are_drawn_with_their_own_problems():
    result = types.SimpleNamespace(
        indices=np.array([1, 0]),
        completions=[Completion("of 1", 1, False), Completion("of 0", 1, True)],
        scores=types.SimpleNamespace(records=[answer("", valid=False)] * 2),
    )
    drawn = outcomes.training_failures(family, PROBLEMS, result)
    texts = [family.text(PROBLEMS[1], "of 1"), family.text(PROBLEMS[0], "of 0")]
    assert [one["text"] for one in drawn] == texts
    assert [one["failed"] for one in drawn] == [["is_number"], ["is_number", "truncated"]]


@pytest.mark.parametrize(
    ("fractions", "percent"), [([], None), ([0.1, 0.3], None), ([0.1, 0.2], "15 %")]
)
def test_a_round_of_few_groups_with_a_signal_is_remarked_on(fractions, percent):
    said = f"rewards differed in {percent} of the groups of answers; the others taught nothing"
    found = outcomes.faint_signal([{"nondegenerate_fraction": one} for one in fractions])
    assert found == (said if percent else "")


def test_a_design_that_was_not_used_explains_nothing(store):
    for index, summary in enumerate(("used", "refused")):
        store.write(store.round(index) / "design" / "design.json", {"summary": summary})
    for index, note in enumerate(("", "", "previous configuration kept: ...")):
        store.write(store.round(index) / "generated.json", {"note": note})
    assert outcomes._explanation(store, 2) == "used"


def answer(name, valid):
    known = {"id": name, "group": "3", "text": "", "tokens": 1, "truncated": False}
    return {**known, "valid": valid, "optimal": valid, "failed": [] if valid else ["is_number"]}


def write_training(store, folder):
    steps = [{"step": i, "reward": float(i), "nondegenerate_fraction": 1.0} for i in range(8)]
    store.write(folder / "train.jsonl", steps)
    store.write(folder / "environment.yaml", render_config(family.space.uniform(), family.space))
    store.write(folder / "generated.json", {"note": "", "rows": {}})


# Who designs


@pytest.fixture
def designing_loop(store, monkeypatch):
    """Makes a loop with these options of the engineer; its designers are (settings, params)."""

    def make(**engineer):
        one = loop.Loop(from_config({"engineer": engineer}), store, Reporter(quiet=True))
        one._trainer = types.SimpleNamespace(policy_params=lambda state: f"of {state}")
        one._engineer, one._policy = "completer", None
        one._write_metrics = lambda *_: None
        return one

    monkeypatch.setattr(policy, "load_params", lambda *_: "of the start")
    made = designing, "make_designer", lambda settings, *_, params=None, **__: params
    monkeypatch.setattr(*made)
    return make


def test_the_checkpoint_designs_with_its_own_weights_and_base_with_the_first(designing_loop):
    at = types.SimpleNamespace(state="training")
    assert designing_loop(designer="current")._designer(0, at) == "of training"
    assert designing_loop(designer="base")._designer(0, at) == "of the start"


def test_nobody_designs_before_the_kept_rounds_are_over(designing_loop):
    one, at = designing_loop(kept_rounds=3), types.SimpleNamespace(state="training")
    kept = [one._designer(index, at) is designers.fixed for index in range(4)]
    assert kept == [True, True, False, False]


def test_each_round_is_designed_with_a_seed_of_its_own(designing_loop, monkeypatch):
    seeds = []

    def design_round(*given):
        seeds.append(given[-1])
        raise InterruptedError

    monkeypatch.setattr(designing, "design_round", design_round)
    monkeypatch.setattr(outcomes, "run_record", lambda *_: None)
    one = designing_loop(reading_questions=0)
    one._family = family
    for index in range(2):
        with pytest.raises(InterruptedError):
            one._design(index, types.SimpleNamespace(state="training", total=0))
    settings = one._settings
    assert seeds == [problem_sets.round_seed(settings, problem_sets.DESIGN, i) for i in (1, 2)]


def test_the_weights_that_design_are_asked_whether_they_read(designing_loop, monkeypatch):
    asked = []

    def measure(settings, family, model, params):
        asked.append(params)
        return {"target": Reading(24, 0.5, 12, 0.0)}

    def design_round(*_):
        raise InterruptedError

    monkeypatch.setattr(reading, "measure", measure)
    monkeypatch.setattr(designing, "design_round", design_round)
    monkeypatch.setattr(outcomes, "run_record", lambda *_: None)
    at = types.SimpleNamespace(state="training", total=0)
    for designer, kept, expected in (
        ("base", 1, []),  # Its weights were asked before training.
        ("current", 2, []),
        ("current", 1, ["of training"]),
        ("current", 1, ["of training"]),  # It is in its file by now.
    ):
        with pytest.raises(InterruptedError):
            designing_loop(designer=designer, kept_rounds=kept)._design(0, at)
        assert asked == expected


def test_only_one_of_the_grammars_decodes_fractions_that_sum_to_one(monkeypatch):
    asked = []

    def build(*_, exact_fractions, **__):
        asked.append(exact_fractions)
        raise InterruptedError

    monkeypatch.setattr(grammar, "build", build)
    monkeypatch.setattr(designing, "_budget", lambda *_: None)
    monkeypatch.setattr(designing.tokens, "stop_token_ids", lambda _: ())
    model = types.SimpleNamespace(tokenizer=types.SimpleNamespace(encode=str))
    for decoding in ("grammar", "grammar_rescaled"):
        settings = from_config({"engineer": {"decoding": decoding}})
        with pytest.raises(InterruptedError):
            designing.design_completer(settings, family, model)
    assert asked == [True, False]


def test_a_greedy_model_is_asked_once():
    for temperature, tries in ((0.0, 1), (0.6, 3)):
        engineer = {"designer": "current", "temperature": temperature, "tries": 3}
        settings = from_config({"engineer": engineer})
        assert designing.make_designer(settings, family).tries == tries


# Training and validation


def test_the_reward_of_lakes_follows_its_moving_average():
    short, long = Completion("", 10, False), Completion("", 900, False)
    completions = [short, short, short, long]
    options = LakesOptions(reward=RewardConfig(100, 200, average_decay=0.5))
    task = Lakes(options).task([LAKE])
    scored = [task.score(np.zeros(4, int), completions) for _ in range(3)]
    assert [of.metrics["short_fraction"] for of in scored] == [0.375, 0.5625, 0.65625]
    # The weights of a list are those before it.
    weights = [reward_weights(fraction)[0] for fraction in (0.0, 0.375, 0.5625)]
    assert [of.metrics["weight_accuracy"] for of in scored] == weights
    assert weights[1] != weights[2]
    assert task.state() == {"short_fraction": 0.65625}


def test_validation_is_alike_for_all_seeds_and_checkpoints():
    asked, tasks = [], []

    class Counting(type(family)):
        def task(self, problems):
            tasks.append(super().task(problems))
            return tasks[-1]

    def respond(params, chats, key, count):
        asked.append(jax.random.key_data(key).tolist())
        return [Completion("1", 1, False) for _ in chats]

    for seed in (0, 1):
        settings = from_config({"seed": seed})
        for _ in range(2):
            validate(settings, Counting(), respond, PROBLEMS, None)
    assert asked == asked[:1] * 4
    assert len(set(map(id, tasks))) == 4  # A task may have a state.
    other = from_config({"validation": {"seed": 1}})
    validate(other, Counting(), respond, PROBLEMS, None)
    assert asked[-1] != asked[0]


def test_answers_go_with_their_problems():
    def respond(params, chats, key, count):
        return [Completion(f"{i} {j}", 1, False) for i in range(len(chats)) for j in range(count)]

    records = validate(from_config({}), family, respond, PROBLEMS, None, 3)
    expected = [(f"validation-{i}", f"{i} {j}") for i in range(2) for j in range(3)]
    assert [(record["id"], record["text"]) for record in records] == expected


def test_processor_seconds_are_those_since_the_step_before(store, monkeypatch):
    one = loop.Loop(from_config({}), store, Reporter(quiet=True))
    moments = iter((one._processor + 2, one._processor + 5))
    monkeypatch.setattr(loop.time, "process_time", lambda: next(moments))
    assert [one._processor_seconds() for _ in range(2)] == pytest.approx([2, 3])


def test_the_test_set_has_a_key_of_its_own():
    asked = []

    def validation_set(key, count, exclude=()):
        asked.append(tuple(jax.random.key_data(key).tolist()))
        return types.SimpleNamespace(rows={})

    space = types.SimpleNamespace(rows=(), fraction_parameter="")
    stub = types.SimpleNamespace(validation_set=validation_set, space=space, validation=space)
    settings = from_config({"validation": {"test_instances": 4}})
    validation.validation_set(settings, stub)
    validation.test_set(settings, stub, [])
    assert len(set(asked)) == 2


def test_no_two_purposes_and_no_two_rounds_share_a_key():
    settings, purposes = from_config({}), range(6)
    at = [(purpose, index) for purpose in purposes for index in range(3)]
    found = [problem_sets.round_key(settings, *one) for one in at]
    keys = {tuple(jax.random.key_data(key).tolist()) for key in found}
    seeds = {problem_sets.round_seed(settings, *one) for one in at}
    assert len(keys) == len(seeds) == len(at)


def test_a_round_has_a_key_of_its_own_and_the_tasks_state_from_before(store):
    """One that goes on keeps its step and its scores of prompts; a new one begins without."""
    asked, begun, restored = [], [], []
    one = loop.Loop(from_config({"seed": 7}), store, Reporter(quiet=True))

    class Stop(Exception):
        pass

    def run(state, task, key, start_step, num_steps, release, prompt_scores):
        asked.append(jax.random.key_data(key).tolist())
        begun.append((start_step, prompt_scores))
        raise Stop

    store.write(store.round(0) / "train.jsonl", [{"step": 0}, {"step": 1}])
    one._problems = types.SimpleNamespace(training=lambda _: [])
    one._trainer, one._begun = types.SimpleNamespace(run=run), -1
    one._family = types.SimpleNamespace(
        task=lambda _: types.SimpleNamespace(restore=restored.append)
    )
    for index in range(2):
        at = types.SimpleNamespace(round=0, task={"x": 1}, step=2, total=2, state=0)
        at.prompt_scores = "of round 0"
        with pytest.raises(Stop):
            one._train(index, at)
    keys = [problem_sets.round_key(one._settings, problem_sets.TRAINING, i) for i in range(2)]
    assert asked == [jax.random.key_data(key).tolist() for key in keys]
    assert begun == [(2, "of round 0"), (0, None)]
    assert restored == [{"x": 1}] * 2


# Branches and studies


def test_a_branch_copies_no_design_of_its_last_round(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("validation/instances.jsonl", "initial/validation.json", "checkpoints/4/state"):
        put(source / name)
    for index in range(3):
        put(source / "rounds" / str(index) / "validation.json")
        put(source / "rounds" / str(index) / "design" / "design.json")
    store = RunStore(source)
    steps = [{"step": i} for i in range(2)]
    for index in range(3):
        store.write(store.round(index) / "train.jsonl", steps)
    put(tmp_path / "target.tmp/of_a_user")
    branching.copy_rounds(source, target, 2, {"run": "source", "round": 1})
    assert {path.name for path in tmp_path.iterdir()} == {"source", "target", "target.tmp"}
    copied = {str(path.relative_to(target)) for path in target.rglob("*.json")}
    assert copied == {
        "branch.json",
        "initial/validation.json",
        "rounds/0/validation.json",
        "rounds/0/design/design.json",
        "rounds/1/validation.json",
    }
    assert (target / "checkpoints/4/state").exists()
    # Files are shared; what a branch writes of its own is not.
    logs = [folder / "rounds/1/train.jsonl" for folder in (source, target)]
    assert logs[0].samefile(logs[1])
    open_steps(logs[1], 2)
    append_log(logs[1], [{"step": 2}])
    assert [len(read_log(log)) for log in logs] == [2, 3]


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_study_counts_a_refused_design_as_not_used():
    design = {"source": "current", "kept_previous": False, "reason": "", "repairs": []}
    design["raw_texts"] = ["an answer"]
    used = [results._design(design, note)["kept_previous"] for note in ("", "too few problems")]
    assert used == [False, True]


def test_variants_share_their_beginning_and_not_their_designer():
    one, other, later = (
        from_config({"engineer": engineer})
        for engineer in (
            {"designer": "current", "kept_rounds": 2},
            {"designer": "mastery", "kept_rounds": 2},
            {"designer": "mastery", "kept_rounds": 3},
        )
    )
    assert runs.beginning(one) == runs.beginning(other) != runs.beginning(later)
    assert runs.beginning(one).loop.rounds == 2
    uniform = dataclasses.replace(other.engineer, start="uniform")
    assert runs.beginning(dataclasses.replace(other, engineer=uniform)) != runs.beginning(other)


@pytest.mark.parametrize("name", ["training", "validation", "engineer"])
def test_a_budget_beyond_the_window_is_named_in_full(name, tmp_path):
    parts = ("training", "validation", "engineer")
    options = {part: {"max_new_tokens": 5000 if part == name else 64} for part in parts}
    settings = from_config(options | {"engineer": options["engineer"] | {"designer": "current"}})
    run = loop.Loop(settings, RunStore(tmp_path / "run"), Reporter(quiet=True))
    words = rf"{name}\.max_new_tokens=5000: the model's window has 2048 tokens"
    with pytest.raises(ValueError, match=words):
        run._load_model()


def test_a_start_may_name_rows_and_parameters_in_any_order(tmp_path):
    space = Lakes(LakesOptions()).space
    config = space.random(3)
    path = tmp_path / "start.yaml"
    turned = {row: dict(reversed(of.items())) for row, of in reversed(config.to_dict().items())}
    path.write_text(json.dumps(turned))
    settings = from_config({"engineer": {"start": str(path)}})
    assert designing.start_config(settings, space, 0) == config


@pytest.mark.parametrize(
    ("engineer", "said"),
    [
        ({"designer": "current", "context": "V2"}, "design: current, from context V2"),
        ({"designer": "mastery"}, "design: mastery, a rule; what a model needs to design"),
        ({"designer": "current", "kept_rounds": 3}, "design: current, never asked: all rounds"),
    ],
)
def test_a_run_says_who_designs(engineer, said):
    settings = from_config({"loop": {"rounds": 3}, "engineer": engineer})
    trainer = types.SimpleNamespace(
        memory=lambda: dict.fromkeys(("device", "state", "gradients", "weights", "cache"), 1),
        sampler=types.SimpleNamespace(capacities=[1]),
    )
    (line,) = (line for line in plan(settings, trainer) if line.startswith("design: "))
    assert line.startswith(said)


def test_a_budget_counts_every_validation():
    settings = from_config(
        {"loop": {"rounds": 2}, "validation": {"num_instances": 10, "temperature": 1.0}}
    )
    samples = dataclasses.replace(settings.validation, samples=4)
    assert Budget.of(dataclasses.replace(settings, validation=samples)).validated == 3 * 10 * 4
