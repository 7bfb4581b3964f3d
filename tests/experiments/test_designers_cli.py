"""Every designer in the same loop, from the command line, with a minimal budget."""

import json
import re
import shutil
import time

import pytest
import whole_runs
import yaml
from local_server import Handler, LocalServer

from engineer import context
from engineer.endpoint import RefusedError
from engineer.proposal import parse, render_config
from engineer.record import RunRecord
from engineer.space import Configuration
from experiments import settings
from experiments.families.lakes import texts as lakes
from experiments.ring import designing, outcomes
from experiments.run.store import RunStore
from experiments.settings import DESIGNERS
from experiments.text.errors import UserError
from mapf_jax import formats
from mapf_jax.draw import render

SPACE = lakes.lake_space((3, 4))
WHOLE = ("current", "base")
"""Those of whole runs; the rules design in the place of these."""
ANSWER = SPACE.random(4)


class _Designing(Handler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = render_config(ANSWER, SPACE)
        raw = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send(401 if asked["model"] == "unknown" else 200, raw)


@pytest.fixture(scope="module")
def url():
    """The address of a server that designs."""
    with LocalServer(_Designing) as server:
        yield server.url


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a run of each designer of `WHOLE`, and of some further ways of designing."""
    folder = tmp_path_factory.mktemp("designers")
    start = folder / "start.yaml"
    start.write_text(render_config(SPACE.random(8), SPACE))
    options = {name: [f"--config.engineer.designer={name}"] for name in WHOLE}
    options["base"] += [
        f"--config.engineer.start={start}",
        "--config.engineer.decoding=grammar",
        "--config.engineer.context=V1+details+results",
    ]
    options["current"] += [
        "--config.loop.rounds=3",  # A second design, for which there are lessons.
        "--config.engineer.training.hindsight_steps=1",
        "--config.engineer.reading_questions=4",
    ]
    for name, extra in options.items():
        run = whole_runs.Run(folder / name, "--config.loop.rounds=2", *extra)
        code, _, err = run.end()
        assert code == 0, err[-3000:]
    return folder


def read(folder, *names):
    return json.loads(folder.joinpath(*names).read_text())


def environment(run, index):
    """The configuration that a round was trained on."""
    made = (run / "rounds" / str(index) / "environment.yaml").read_text()
    return Configuration.from_dict(yaml.safe_load(made))


def check_design(run, index):
    """Holds that a round was trained on the design before it; returns that."""
    design = read(run, "rounds", str(index - 1), "design", "design.json")
    assert environment(run, index) == Configuration.from_dict(design["config"])
    assert (run / "rounds" / str(index) / "validation.json").exists()
    analysis = read(run, "rounds", str(index - 1), "design", "analysis.json")
    assert analysis["fraction_moved"] >= 0
    assert (run / "report.html").exists()
    return design


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_designer_designs_the_next_round(runs, name):
    design = check_design(runs / name, 1)
    assert design["source"] == name
    assert design["raw_texts"]


@pytest.mark.slow
def test_the_designs_are_those_of_their_designers(runs):
    assert environment(runs / "base", 0) == SPACE.random(8)
    assert environment(runs / "current", 0) not in (SPACE.uniform(), SPACE.random(8))
    design = read(runs / "base", "rounds", "0", "design", "design.json")
    (text,) = design["raw_texts"]
    assert text == render_config(Configuration.from_dict(parse(text, SPACE).values), SPACE)
    assert "Latest training" in design["context_messages"][0]["content"]


@pytest.mark.slow
def test_the_second_design_comes_after_lessons_from_the_first(runs):
    first, second = (
        [json.loads(line) for line in (runs / "current" / path).read_text().splitlines()]
        for path in (f"rounds/{i}/engineer_training.jsonl" for i in (0, 1))
    )
    assert first == []
    assert [step["metrics"]["loss"] > 0 for step in second] == [True]
    assert "loss of lessons from hindsight" in (runs / "current" / "report.html").read_text()


@pytest.mark.slow
def test_a_checkpoint_is_asked_whether_it_reads_before_each_design(runs):
    run = runs / "current"
    found = [read(run, folder, "reading.json") for folder in ("initial", "rounds/0", "rounds/1")]
    for rule in ("target", "mastery"):
        assert [each[rule]["questions"] for each in found] == [4, 4, 4]
        assert len({each[rule]["margin"] for each in found}) == 3  # Of three checkpoints.
    assert not (run / "rounds" / "2" / "reading.json").exists()
    report = (run / "report.html").read_text()
    assert report.count("it may not read") <= 1
    lines = re.findall(r"<li>(.*): designs follow", report)
    assert lines == ["Before training", "After round 1", "After round 2"]
    assert not list(runs.glob("base/**/reading.json"))


def design_again(folder, **engineer):
    """Designs after round 0 of a run with other options of the engineer; the folder of that."""
    options = read(folder, "config.json")
    options["engineer"] |= engineer
    chosen = settings.from_config(options)
    family, store = chosen.load_family(), RunStore(folder)
    usage = store.root / designing.USAGE
    designer = designing.make_designer(chosen, family, usage=usage)
    record = outcomes.run_record(store, chosen, family, 1)
    made = folder / "again"
    designing.design_round(store, made, designer, record, family.space, 0)
    return made


@pytest.mark.parametrize("name", sorted({*DESIGNERS} - {*WHOLE, "endpoint", "first", "local"}))
def test_a_rule_designs_from_the_evidence_of_a_run(undisturbed, tmp_path, name):
    folder = shutil.copytree(undisturbed[0], tmp_path / "run")
    design = read(design_again(folder, designer=name), "design.json")
    config = Configuration.from_dict(design["config"])
    first = yaml.safe_load((folder / "rounds" / "0" / "environment.yaml").read_text())
    first = Configuration.from_dict(first)
    assert (design["source"], design["raw_texts"]) == (name, [])
    assert (config == first) == (name == "fixed")
    assert (config.column("data_ratio") == first.column("data_ratio")) == (name == "fixed")
    if name != "target":  # It moves the other numbers where answers fail.
        kept = config.column("hole_ratio") == first.column("hole_ratio")
        assert kept == (name != "random")


def models_asked(folder):
    """The models that have answered, in order."""
    return [json.loads(line)["model"] for line in (folder / designing.USAGE).open() if line.strip()]


def test_a_server_designs(undisturbed, tmp_path, url):
    folder = shutil.copytree(undisturbed[0], tmp_path / "run")
    options = {"designer": "endpoint", "endpoint": {"url": url, "model": "m"}}
    design = read(design_again(folder, **options), "design.json")
    assert models_asked(folder) == ["m"]
    assert design["source"] == "endpoint"
    assert design["raw_texts"] == [render_config(ANSWER, SPACE)]
    assert Configuration.from_dict(design["config"]) == ANSWER


def test_a_server_is_asked_for_a_word_at_the_start(url):
    def asked(model, **options):
        server = {"url": url, "model": model, **options}
        engineer = {"designer": "endpoint", "endpoint": server}
        return designing.ask_server(settings.from_config({"engineer": engineer}))

    assert asked("m") is None
    with pytest.raises(RefusedError, match=r"engineer\.endpoint: .* refused with status 401"):
        asked("unknown")
    line = asked("m", url="http://127.0.0.1:9")
    assert "engineer.endpoint: http://127.0.0.1:9 gave no answer: no connection" in line


def test_a_run_stops_at_its_limit_of_tokens_and_goes_on_with_a_higher_one(
    undisturbed, tmp_path, url
):
    folder = shutil.copytree(undisturbed[0], tmp_path / "run")
    server = {"url": url, "model": "m", "token_limit": 1}
    made = design_again(folder, designer="endpoint", endpoint=server)
    shutil.rmtree(made)
    with pytest.raises(UserError, match=r"token_limit=1: 'm' .* has used .* tokens; .*goes on"):
        design_again(folder, designer="endpoint", endpoint=server)
    server["token_limit"] = 100_000
    assert read(design_again(folder, designer="endpoint", endpoint=server), "design.json")


def test_a_refusal_or_an_outage_is_told_as_an_error_of_the_user(undisturbed, tmp_path, url):
    folder = shutil.copytree(undisturbed[0], tmp_path / "run")
    for server, message in (
        ({"url": url, "model": "unknown"}, r"model 'unknown', .* status 401: .*; started again"),
        ({"url": "http://127.0.0.1:9", "model": "m"}, "gave no answer: no conn.*; started again"),
    ):
        with pytest.raises(UserError, match=message):
            design_again(folder, designer="endpoint", endpoint=server | {"tries": 1})
        assert not (folder / "again").exists()


class _Hostile(LocalServer):
    """Designs in the end: knows neither of two fields, limits, hangs, and dies for a minute."""

    def __init__(self, texts):
        self.acts = []
        self.answers = iter(texts)
        outer = self

        class Acting(Handler):
            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                act = "probe" if "the word: ready" in str(asked["messages"]) else outer.act(asked)
                outer.acts.append(act)
                if act in ("max_tokens", "temperature"):
                    self.send(400, f"Unsupported parameter: {act}".encode())
                elif act == "limit":
                    self.send(429, b"slow down", [("Retry-After", "2")])
                elif act == "hang":
                    time.sleep(30)
                elif act == "die":
                    outer.die(60.0)
                    self.close_connection = True
                else:
                    text = next(outer.answers) if act == "design" else "ready"
                    raw = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
                    self.send(200, raw)

        super().__init__(Acting)

    def act(self, asked):
        """What happens to a request for a design."""
        refused = [field for field in ("max_tokens", "temperature") if field in asked]
        left = [act for act in ("limit", "hang", "die") if act not in self.acts]
        return [*refused, *left, "design"][0]


@pytest.mark.slow
def test_a_run_ends_well_with_a_hostile_server(tmp_path):
    designs, run = [SPACE.random(seed) for seed in (4, 5)], tmp_path / "run"
    with _Hostile(render_config(design, SPACE) for design in designs) as server:
        options = ["designer=endpoint", "endpoint.model=m", f"endpoint.url={server.url}"]
        options += ["endpoint.timeout=5", "start=uniform"]
        options = [f"--config.engineer.{one}" for one in options]
        code, _, err = whole_runs.Run(run, "--config.loop.rounds=3", *options).end()
    assert code == 0, err[-3000:]
    fields = ["max_tokens", "temperature"]
    assert server.acts == ["probe", *fields, "limit", "hang", "die", "design", *fields, "design"]
    assert models_asked(run) == ["m", "m"]
    assert environment(run, 0).column("data_ratio") == pytest.approx((0.5, 0.5))
    for index, wanted in enumerate(designs, 1):
        design = check_design(run, index)
        assert design["source"] == "endpoint"
        assert design["raw_texts"] == [render_config(wanted, SPACE)]
        assert not design["kept_previous"]
        assert environment(run, index) == wanted


def test_contexts_of_a_run_hold_no_validation_item(undisturbed):
    run, _ = undisturbed
    record = RunRecord.from_dict(read(run, "rounds", "0", "design", "record.json"))
    shown = (run / "rounds" / "0" / "design" / "context.md").read_text()
    assert (
        shown == context.compose(context.VARIANTS["V6"], record, lakes.TEXTS)[0]["content"] + "\n"
    )
    assert any(failure.held_out for failure in record.history[0].evidence.failures)
    everything = context.ContextSpec(
        guideline=True, history="all", summary=True, training="full", details=True, results=True,
        examples=99,
    )  # fmt: skip
    texts = [
        context.compose(spec, record, lakes.TEXTS)[0]["content"]
        for spec in (everything, *context.VARIANTS.values())
    ]
    assert "failed" in texts[0]
    answers = {one["id"]: one["text"] for one in formats.read_jsonl(run / "rounds/0/answers.jsonl")}
    for problem in formats.read_jsonl(run / "validation" / "instances.jsonl"):
        instance = formats.from_records([problem])[0]
        drawing = render.ascii_instance(instance)
        for text in texts:
            assert drawing not in text
            assert problem["id"] not in text
            assert len(answers[problem["id"]]) < 20 or answers[problem["id"]] not in text


def test_settings_that_do_not_go_together_are_refused(tmp_path):
    for engineer, message in (
        ({"designer": "endpoint"}, "endpoint.url"),
        ({"reasoning_tokens": 3}, "not for decoding='parsed'"),
        (
            {"decoding": "grammar", "reasoning_tokens": 3, "thinking_tokens": 3},
            "only with thinking_tokens=0",
        ),
        (
            {"decoding": "grammar", "thinking_tokens": 9, "max_new_tokens": 9},
            "needs a limit below max_new_tokens",
        ),
        ({"designer": "fixed", "training": {"hindsight_steps": 1}}, "only for designer='current'"),
        ({"start": str(tmp_path / "none")}, "start="),
        ({"context": "V7"}, "context='V7': allowed are .*V6"),
        ({"context": "V1+history=some"}, "'history=some' is unknown; allowed are .*designed"),
        ({"tries": 0}, "tries=0: allowed are"),
    ):
        with pytest.raises(ValueError, match=message):
            settings.from_config({"engineer": engineer})
