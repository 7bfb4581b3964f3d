"""The whole loop on a family from a file outside the packages."""

import dataclasses
import functools
import html
import json
import re

import jax
import micro_model
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from whole_runs import ROOT, python

from engineer import context
from engineer.evidence import Evidence, FailureBreakdown
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from experiments import families, warm_start
from experiments.families import loading
from experiments.families.loading import FamilySettings
from experiments.ring.problem_sets import ProblemSets
from experiments.ring.validation import validate, write_validation
from experiments.run.status import Reporter
from experiments.run.store import RunStore
from experiments.settings import from_config, of_run
from experiments.study.results import rate
from experiments.text.errors import UserError
from learner.chat import Completion
from learner.training.task import Scores

SUMS = "experiments/families/template.py:family"
OPTIONS = [
    "--config.model.scan_unroll=1",
    "--config.loop.rounds=2",
    "--config.environment.num_instances=16",
    "--config.validation.num_instances=12",
    "--config.validation.max_new_tokens=8",
    "--config.training.max_new_tokens=8",
    "--config.training.epochs=1.0",
    "--config.training.prompts_per_step=8",
    "--config.training.group_size=4",
    "--config.training.degenerate_groups=keep",
    "--config.engineer.designer=base",
    "--config.engineer.context=V1+examples=2",
    "--config.engineer.decoding=grammar",
    "--config.engineer.max_new_tokens=256",
]


@pytest.fixture(scope="module")
def family():
    return FamilySettings(str(ROOT / SUMS)).load_family()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sums")
    micro_model.write(folder / "model")
    command = functools.partial(python, "-m", cwd=folder)
    written = command("experiments.new_family", "my_task")
    again = command("experiments.new_family", "my_task", fails=True)
    assert "my_task.py: the file is already there" in again.stderr
    flags = re.findall(r"--\S+", written.stdout.splitlines()[-1])
    done = command("experiments.main", *flags, *OPTIONS, "--config.model.path=model")
    return folder / "runs" / "my_task", done.stdout


@pytest.mark.slow
def test_the_template_is_short_and_named_after_the_task(run):
    text = (run[0].parent.parent / "my_task.py").read_text()
    assert len(text.splitlines()) <= 80
    assert "class MyTask(families.Family)" in text


def test_a_failure_is_named_after_its_check_unless_a_family_knows_better(family):
    checks = ("right_value", "is_number", "has_answer", "in_order", "right")
    assert list(map(family.failure, checks)) == [
        "wrong value", "not a number", "no answer", "fails in order", "fails right"
    ]  # fmt: skip


@pytest.mark.slow
def test_the_loop_runs_on_it_and_hears_of_no_lake(run):
    folder, out = run
    assert "round 2: valid" in out
    design = json.loads((folder / "rounds/0/design/design.json").read_text())
    assert design["source"] == "base"
    assert len(design["raw_texts"]) == 1
    rows = ["3", "4", "5", "6", "7", "8"]
    assert list(design["config"]) == rows
    first = yaml.safe_load((folder / "rounds/0/environment.yaml").read_text())
    before, after = (
        np.array(Configuration.from_dict(config).column("fraction"))
        for config in (first, design["config"])
    )
    assert np.abs(after - before).max() > 0
    assert not design["kept_previous"]
    evidence = json.loads((folder / "rounds/0/evidence.json").read_text())
    assert list(evidence["validation"]["by_length"]) == rows
    context = (folder / "rounds/0/design/context.md").read_text()
    assert "to add numbers" in context
    assert "failed is_number" in context
    made = [json.loads(line) for line in (folder / "rounds/1/instances.jsonl").open()]
    assert {len(str(term)) for problem in made for term in problem["terms"]} <= set(map(int, rows))
    texts = [context, out, *(json.dumps(problem) for problem in made)]
    # In the last section are all options, those of other families too.
    page, section, _ = (folder / "report.html").read_text().partition('<section id="set-up">')
    assert section
    answers = [
        json.loads(line)
        for path in (folder / "rounds").rglob("answers.jsonl")
        for line in path.open()
    ]
    texts += [json.dumps({**answer, "text": ""}) for answer in answers]
    words, page = r"\b(lakes?|holes?|agents?)\b", html.unescape(page)
    for answer in answers:  # The model may say anything.
        if re.search(words, answer["text"]):
            page = page.replace(answer["text"], "")
    for text in [*texts, page]:
        assert not re.search(words, text)


def configuration(family, fractions):
    """Fractions of some rows, none of the set in the others."""
    return Configuration.from_dict(
        {row: {"fraction": fractions.get(row, 0.0)} for row in family.space.rows}
    )


def test_problems_are_as_asked(family):
    config = configuration(family, {"3": 0.5, "5": 0.25, "8": 0.25})
    first = family.generate(jax.random.key(0), config, 400, ())
    again = family.generate(jax.random.key(0), config, 400, ())
    assert first == again
    assert [row.made for row in first.rows.values()] == [200, 100, 100]
    asked = {tuple(p["terms"]) for p in first.problems}
    assert len(asked) == 400
    for problem in first.problems:
        one, other = problem["terms"]
        assert len(str(one)) == len(str(other)) == int(problem["group"])
    other = family.generate(jax.random.key(0), config, 200, first.problems)
    assert not asked & {tuple(p["terms"]) for p in other.problems}
    few = family.generate(jax.random.key(1), family.space.uniform(), 12, ())
    assert few.report()["asked"] == 12


def test_what_falls_short_is_reported(family):
    class Short(type(family)):
        space = dataclasses.replace(family.space, rows=("1", "4", "8"))

    family = Short()
    config = configuration(family, {"1": 0.5, "8": 0.5})
    made = family.generate(jax.random.key(0), config, 400, ())
    assert made.rows["1"].made == 81  # Pairs of 1 to 9.
    assert made.notes == ["length 1: 81 of 200 problems"]
    assert made.rows["1"].achieved == {"fraction": 81 / 281}
    assert "4" not in made.rows
    with pytest.raises(families.NoProblemError, match="length 1: 0 of 50 problems"):
        family.generated([], config, 100)


def test_what_a_record_says_must_be_of_the_family(family):
    with pytest.raises(ValueError, match="group='9': allowed are the rows"):
        family.breakdown([{"group": 9, "valid": True, "failed": []}])
    with pytest.raises(ValueError, match="speed"):
        family.breakdown([{"group": 3, "valid": False, "failed": ["speed"]}])


def test_each_completion_needs_a_record(family):
    class Silent(families.ProblemTask):
        def score(self, indices, completions):
            return Scores(super().score(indices, completions).rewards)

    class Other(type(family)):
        def task(self, problems):
            return Silent(problems, str, lambda problem, text: {"failed": []})

    def respond(params, chats, key, count):
        return [Completion("1", 1, False) for _ in chats * count]

    problems = [{"id": "a", "group": "3", "terms": [1, 2]}]
    with pytest.raises(ValueError, match="score: 0 records of 1 completions"):
        validate(from_config({}), Other(), respond, problems, None)


def test_a_problem_may_have_several_sampled_answers_and_has_one_greedy_one(
    family, tmp_path, monkeypatch
):
    def respond(right):
        def answers(params, chats, key, count):
            texts = ("3", "7") if right is None else (right,)
            return [Completion(texts[i % count], 1, False) for _ in chats for i in range(count)]

        return answers

    own = {"id": "q7", "tokens": 9, "truncated": True, "text": "own"}  # Those of the run count.
    monkeypatch.setattr(
        family, "verify", lambda *asked: {**type(family).verify(family, *asked), **own}
    )
    problems = [{"id": name, "group": "3", "terms": [1, 2]} for name in "ab"]
    store, fixed = RunStore(tmp_path), (from_config({}), family)
    written = write_validation(
        store,
        tmp_path,
        family,
        lambda completer, count: validate(*fixed, completer, problems, None, count),
        respond(None),
        respond("3"),
        samples=2,
    )
    assert written.metrics["validation/valid"] == written.sampled.valid_rate == 0.5
    assert written.metrics["validation_greedy/valid"] == written.greedy.valid_rate == 1.0
    records = store.read(tmp_path / "answers.jsonl")
    assert written.records == records
    assert [(record["id"], record["text"]) for record in records] == [
        ("a", "3"), ("a", "7"), ("b", "3"), ("b", "7"),
    ]  # fmt: skip
    found = store.read(tmp_path / "validation.json")
    assert (found["completion_tokens_mean"], found["truncated_fraction"]) == (1, 0)
    outcomes = [FailureBreakdown.from_dict(each) for each in (found, found["greedy"])]
    assert [each.answers for each in outcomes] == [4, 2]
    point = {"valid": 2, "answers": 4, "greedy": 2, "greedy_answers": 2}
    assert [rate(point, name) for name in ("valid", "greedy")] == [0.5, 1.0]


def test_numbers_of_numpy_can_be_kept(tmp_path):
    record = {"valid": np.bool_(True), "gap": np.int64(3), "terms": np.arange(2)}
    store = RunStore(tmp_path)
    for name, value in (("a.json", record), ("a.jsonl", [record])):
        store.write(tmp_path / name, value)
    assert store.read(tmp_path / "a.jsonl") == [store.read(tmp_path / "a.json")]
    assert store.read(tmp_path / "a.json") == {"valid": True, "gap": 3, "terms": [0, 1]}


@given(st.text(max_size=8), st.integers(0, 3))
def test_records_make_evidence(text, index):
    terms = ([123, 211], [555, 555], [999, 100], [2222, 4444])
    problems = [{"group": str(len(str(one))), "terms": [one, other]} for one, other in terms]
    family = FamilySettings(str(ROOT / SUMS)).load_family()
    task = family.task(problems)
    right = str(sum(problems[index]["terms"]))[::-1]
    scores = task.score(
        np.array([index, index]), [Completion(text, 3, False), Completion(right, 2, False)]
    )
    assert 0 <= scores.rewards[0] <= scores.rewards[1] == 1.0
    found = family.breakdown(scores.records)
    assert found.answers == 2
    assert found.valid_rate == np.mean(scores.rewards == 1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("{}:family", "family = 3", "'family' is no instance"),
        ("{}:other", "family = 3", "'other' is no instance of families.Family; the file has none"),
        (
            "{}:mine",
            "from experiments.families.template import family",
            "'mine' is no instance.*; the file has family$",
        ),
        ("{}:family", "1 / 0", r"ZeroDivisionError: division by zero \(own\.py:1, in <module>\)"),
        ("{}:family", "\n1 +", r"family': SyntaxError: invalid syntax \(own\.py, line 2\)$"),
    ],
)
def test_what_is_no_family_is_refused(name, text, message, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        FamilySettings(name.format(path)).load_family()


def test_a_generator_of_a_users_own_that_fails_has_made_nothing(tmp_path):
    path = tmp_path / "own.py"
    text = (ROOT / "experiments/families/template.py").read_text()
    path.write_text(
        text.replace("        rng = np.random", "        1 / len(exclude)\n        rng = np.random")
    )
    family = FamilySettings(f"{path}:family").load_family()
    config = family.space.uniform()
    with pytest.raises(families.NoProblemError, match="generate: ZeroDivisionError: division"):
        family.generate(jax.random.key(0), config, 12, ())
    problem = {"group": "3", "terms": [100, 200]}
    made = family.generate(jax.random.key(0), config, 12, exclude=[problem])
    assert len(made.problems) == 12


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("while True: pass", r"more than 1\.1 s of processor time"),
        ("open('made.txt', 'w')", "PermissionError: .*Operation not permitted: 'made.txt'"),
        ("import os; os._exit(3)", "its process ended with 3"),
        ("return self.generated([], config, count)", "length 3: 0 of 2 problems"),
        ("self.prompt = lambda problem: 1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_generator_of_a_users_own_neither_hangs_nor_ends_a_run(
    line, message, tmp_path, monkeypatch
):
    path = tmp_path / "own.py"
    text = (ROOT / "experiments/families/template.py").read_text()
    first = "        return self.generated(self.drawn"
    path.write_text(text.replace(first, f"        {line}\n{first}"))
    monkeypatch.setattr(loading, "_STARTING", 0.5)
    family = FamilySettings(f"{path}:family", verify_seconds=0.05).load_family()
    with pytest.raises(families.NoProblemError, match=message):
        family.generate(jax.random.key(0), family.space.uniform(), 12, ())


def test_a_verifier_of_a_users_own_neither_hangs_nor_ends_a_run(tmp_path):
    path = tmp_path / "own.py"
    text = (ROOT / "experiments/families/template.py").read_text()
    strange = (
        '        while text == "hang":\n            pass\n'
        '        if text == "numpy":\n            return {"failed": np.array([], str)}\n'
        '        1 / (text != "fail")\n'
    )
    first = "        right, text ="
    path.write_text(text.replace(first, strange + first))
    family = FamilySettings(f"{path}:family", verify_seconds=0.3).load_family()
    task = family.task([{"group": "3", "terms": [10, 20]}])
    texts = ("hang", "fail", "numpy", "x", "03")
    found = task.score(np.zeros(5, int), [Completion(text, 1, False) for text in texts])
    assert found.rewards.tolist() == [0, 0, 1, 0, 1]
    assert [record["failed"] for record in found.records[:2]] == [["scored"]] * 2
    assert found.records[0]["why"] == "family.verify: more than 0.3 s of processor time"
    where = r"own\.py:\d+, in verify"
    said = rf"family\.verify: ZeroDivisionError: division by zero \({where}\)"
    assert re.fullmatch(said, found.records[1]["why"])
    assert found.records[3]["failed"] == ["is_number"]
    breakdown = family.breakdown(found.records)
    past = RunRecord((RoundRecord(0, family.validation, Evidence(breakdown), True),), 1, 3, 1)
    assert (
        "not_scored 2" in context.compose(context.VARIANTS["V6"], past, family.texts)[0]["content"]
    )
    assert family.failure("scored") == "could not be scored"


def test_tokens_cost_what_is_said():
    task = FamilySettings(f"{ROOT / SUMS}", token_cost=0.1).load_family()
    task = task.task([{"group": "3", "terms": [10, 20]}])
    completions = [Completion(text, len(text), False) for text in ("03", "0400", "4")]
    found = task.score(np.zeros(3, int), completions)
    np.testing.assert_allclose(found.rewards, [0.8, -0.15, -0.1], rtol=1e-6)
    assert [record["accuracy"] for record in found.records] == [1, 0.25, 0]
    with pytest.raises(ValueError, match=r"token_cost=0\.1: not for lakes"):
        FamilySettings(token_cost=0.1)


def test_a_new_model_can_be_taught_a_family(family):
    validation = family.generate(jax.random.key(1), family.validation, 12, ()).problems
    pairs = warm_start.solution_pairs(family, validation, 0, 30)
    assert 20 < len(pairs) <= 30  # Some have fewer problems than were asked for.
    asked = [messages[0]["content"] for messages, _ in pairs]
    assert not set(asked) & set(map(family.prompt, validation))
    terms = [
        [int("".join(n)[::-1]) for n in zip(*question.split(), strict=True)] for question in asked
    ]
    sums = [str(sum(numbers))[::-1] for numbers in terms]
    assert [answer for _, answer in pairs] == sums
    designs = warm_start.design_pairs(from_config({}), family, 0, 4)
    tokenizer = warm_start.build_tokenizer(family, pairs + designs)
    for messages, answer in pairs + designs:
        for text in (messages[0]["content"], answer):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            assert tokenizer.eos_token_id not in ids
    for constant in family.constants:
        assert len(tokenizer.encode(constant)) == 1
    assert len(tokenizer.encode(asked[0])) == len(asked[0])


def test_a_family_says_what_there_is(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "from __future__ import annotations\n"
        "import dataclasses\n"
        "from experiments import families\n"
        "@dataclasses.dataclass\n"
        "class Own(families.Family):\n"
        "    number: int = 3\n"
        "    def generate(self, *asked): ...\n"
        "    def task(self, problems): ...\n"
        "family = Own()\n"
    )
    with pytest.raises(ValueError, match=r"family\.space must be a ConfigurationSpace"):
        FamilySettings(f"{path}:family").load_family()


@pytest.mark.parametrize(
    "name", ["nothing", "lakes:3", "reasoning_gym", "gone.py:family", f"{__file__}x:family"]
)
def test_a_family_that_is_nowhere_is_refused(name):
    with pytest.raises(
        ValueError, match=r"family=.*: allowed are 'lakes', .* and 'path/to/file.py:name'"
    ):
        from_config({"family": name})


def test_what_computes_a_run_may_change_and_rounds_may_be_added(tmp_path):
    store, start = RunStore(tmp_path), {"loop": {"rounds": 2}}
    # A run that was refused before it made anything keeps nobody from starting another one.
    assert store.claim(from_config(start | {"seed": 9})) == []
    assert store.claim(from_config(start)) == []
    (tmp_path / "validation").mkdir()
    mended = start | {"training": {"sampling_slots": 16}, "checkpoint": {"keep": 5}}
    mended |= {"log": {"tensorboard": True}}
    changes = [
        "checkpoint.keep was 2 and is 5",
        "log.tensorboard was False and is True",
        "training.sampling_slots was 512 and is 16",
    ]
    assert store.claim(from_config(mended)) == changes
    assert store.claim(from_config(mended)) == []
    longer = ["loop.rounds was 2 and is 4"]
    assert store.claim(from_config(mended | {"loop": {"rounds": 4}})) == longer
    kept = [json.loads(line) for line in (tmp_path / "changes.jsonl").read_text().splitlines()]
    assert kept == [{"changed": changes}, {"changed": longer}]
    with pytest.raises(UserError, match=r"\(loop.rounds was 4 and is 2; seed was 0 and is 1\)"):
        store.claim(from_config(mended | {"seed": 1}))


def test_options_that_came_later_have_their_defaults(tmp_path):
    store, path = RunStore(tmp_path), tmp_path / "config.json"
    store.claim(from_config({}))
    (tmp_path / "rounds").mkdir()
    options = json.loads(path.read_text())
    del options["engineer"]["shuffle_evidence"], options["training"]
    path.write_text(json.dumps(options))
    assert store.claim(from_config({})) == []
    path.write_text(json.dumps(options))
    with pytest.raises(UserError, match=r"engineer.shuffle_evidence was False and is True"):
        store.claim(from_config({"engineer": {"shuffle_evidence": True}}))


def test_a_run_of_an_older_revision_is_refused_in_one_line(tmp_path):
    store = RunStore(tmp_path)
    (tmp_path / "rounds").mkdir()
    (tmp_path / "config.json").write_text('{"environment": {"sizes": [3, 4]}}')
    with pytest.raises(UserError, match="started by a version whose options had other names"):
        store.claim(from_config({}))
    options = from_config({}).to_dict()
    # A run with all of them is of the oldest of these revisions.
    gone = {
        "engineer.training.trial_steps": "9349dbd",
        "engineer.show_current": "6917175",
        "engineer.exact_fractions": "046b148",
        "training.curriculum.staleness": "9130018",
    }
    for path in gone:
        *groups, name = path.split(".")
        functools.reduce(dict.__getitem__, groups, options)[name] = 0
    for path, revision in gone.items():
        (tmp_path / "config.json").write_text(json.dumps(options))
        told = rf"are gone, such as {re.escape(path)}; finish it with revision {revision}"
        for read in (lambda: store.claim(from_config({})), lambda: of_run(tmp_path)):
            with pytest.raises(UserError, match=told):
                read()
        *groups, name = path.split(".")
        del functools.reduce(dict.__getitem__, groups, options)[name]


def test_problem_task_without_rewards():
    task = families.ProblemTask([{"a": 1}], str, lambda p, t: {"valid": t == "1", "failed": []})
    scores = task.score(np.array([0, 0]), [Completion("1", 1, False), Completion("2", 1, False)])
    assert scores.rewards.tolist() == [1.0, 0.0]
    task.restore(task.state())


def test_equal_answers_to_a_problem_are_verified_once():
    seen = []

    def verify(problem, text):
        seen.append((problem["a"], text))
        return {"failed": [] if text == "1" else ["wrong"]}

    task = families.ProblemTask([{"a": 1}, {"a": 2}], str, verify)
    answers = [Completion(text, tokens, False) for text, tokens in (("1", 1), ("0", 2), ("1", 3))]
    scores = task.score(np.array([0, 1, 0, 1]), [*answers, answers[0]])
    assert scores.rewards.tolist() == [1.0, 0.0, 1.0, 1.0]
    assert sorted(seen) == [(1, "1"), (2, "0"), (2, "1")]
    assert scores.records[0] == scores.records[2] is not scores.records[0]


def test_no_set_repeats_what_it_is_kept_apart_from(family, tmp_path, monkeypatch):
    excluded, generate = [], family.generate

    def noted(key, config, count, exclude):
        excluded.append({problem["id"] for problem in exclude})
        return generate(key, config, count, exclude)

    monkeypatch.setattr(family, "generate", noted)
    settings = from_config(
        {"environment": {"num_instances": 4}, "validation": {"num_instances": 6}}
    )
    first = family.space.uniform()
    sets = ProblemSets(settings, family, RunStore(tmp_path), Reporter(), first)
    validation = {problem["id"] for problem in sets.validation}
    sets.training(0)
    design = {"config": first.to_dict()}
    RunStore(tmp_path).write(tmp_path / "rounds/0/design/design.json", design)
    sets.training(1)
    assert excluded == [set(), validation, validation]


class Facts(families.DataSet):
    def prompt(self, problem):
        return problem.get("question", str(problem["index"]))


def test_the_groups_of_a_data_set_may_be_numbers():
    family = Facts([{"group": level} for level in (10, 9)], "level", "to add", ["right"])
    assert family.space.rows == ("9", "10")
    made = family.generate(jax.random.key(0), family.space.uniform(), 2, ())
    assert {problem["group"] for problem in made.problems} == {"9", "10"}


def test_problems_of_one_prompt_are_in_one_set_alone():
    problems = [{"group": "easy", "question": name} for name in "aab"]
    family, key = Facts(problems, "level", "to add", ["right"]), jax.random.key(0)
    validation = family.generate(key, family.space.uniform(), 1, ()).problems
    training = family.generate(key, family.space.uniform(), 3, validation).problems
    assert sorted(problem["question"] for problem in (*validation, *training)) == ["a", "b"]


@pytest.mark.slow
def test_a_data_set_with_a_scoring_function_is_a_family(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    questions = [
        {"level": level, "question": f"{i} + {level}?", "answer": i + level, "group": "train"}
        for level in (1, 2)
        for i in range(20)
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in questions))
    monkeypatch.setenv("QUESTIONS", str(path))
    file = ROOT / "docs" / "family_example" / "questions.py"
    family = FamilySettings(f"{file}:family").load_family()
    assert family.space.rows == ("1", "2")
    config = Configuration.from_dict({"1": {"fraction": 0.75}, "2": {"fraction": 0.25}})
    first = family.generate(jax.random.key(0), config, 16, ())
    assert {row: made.made for row, made in first.rows.items()} == {"1": 12, "2": 4}
    rest = family.generate(jax.random.key(1), config, 16, first.problems)
    assert rest.rows["1"].made == 8  # What the data set has left.
    seen = {problem["index"] for problem in first.problems}
    assert not seen & {problem["index"] for problem in rest.problems}
    task = family.task(first.problems)
    texts = [f"It is {problem['answer']}" for problem in first.problems[:2]] + ["1 2 three"]
    scores = task.score(np.array([0, 1, 2]), [Completion(text, 1, False) for text in texts])
    assert scores.rewards.tolist() == [1, 1, 0]
    assert scores.records[2]["failed"] == ["right_value"]


def test_tasks_of_verifiers_are_a_family(monkeypatch):
    """Our own lakes once more, by way of their taskset."""
    vf = pytest.importorskip("verifiers.v1", reason="verifiers from 0.4 on is not installed")
    options = {"id": "verifiers_taskset", "num_instances": 8, "sizes": [3, 4]}
    monkeypatch.setenv("TASKSET", json.dumps(options))
    monkeypatch.syspath_prepend(str(ROOT / "mapf_jax" / "bridges"))
    file = ROOT / "docs" / "family_example" / "verifiers_tasks.py"
    family = FamilySettings(f"{file}:family").load_family()
    assert family.space.rows == ("3", "4")
    made = family.generate(jax.random.key(0), family.validation, 8, ())
    config = vf.SingleAgentEnvConfig.model_validate({"taskset": options})
    answers = [task.data.answer for task in vf.load_environment(config).taskset]
    task = family.task(made.problems)
    assert task.messages(0)[0]["content"].count("\n") > 3
    texts = [answers[problem["index"]] for problem in made.problems[:4]] + ["I pass."] * 4
    scores = task.score(np.arange(8), [Completion(text, 1, False) for text in texts])
    assert [record["valid"] for record in scores.records] == [True] * 4 + [False] * 4
    assert scores.rewards == pytest.approx([0.8] * 4 + [0.0] * 4)
