"""The publication's tables in miniature: made up ones, and a whole reproduction that is killed."""

import collections
import json
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from local_server import Handler, LocalServer
from whole_runs import ROOT, SMALL, compilation_cache, environment, python

import mapf_jax
from engineer.analysis import QUESTIONS, analyse, rules
from engineer.context import VARIANTS as CONTEXTS
from engineer.designers import NoAnswerError
from engineer.proposal import render_config
from experiments import measurements, settings
from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import reproduction
from experiments.benchmark.questions import BUILTIN, BenchmarkQuestions
from experiments.benchmark.study import BEFORE, MeasuredStudy
from experiments.benchmark.table import Outcomes
from experiments.families.demonstrations import random_record, rule_design
from experiments.families.lakes.published import Group
from experiments.families.lakes.texts import TEXTS, lake_space
from experiments.run import store as files

VARIANTS = ("fixed_random", "base", "v1", "v2", "v3", "v4", "v5", "v6", "full", "by-m")


def made_up(seeds=(0, 1, 2)):
    """A study of two rounds whose runs begin alike, and what its checkpoints answered."""
    points = [{"round": r, "config": {"3": {"data_ratio": 0.5}}} for r in (None, 0, 1)]
    found = {
        "seeds": list(seeds),
        "reference": "fixed_random",
        "rows": ["3"],
        "variants": [{"name": name, "label": name.upper()} for name in VARIANTS],
        "runs": [
            {"variant": name, "seed": seed, "folder": f"runs/{name}/seed-{seed}", "points": points}
            | {"status": "finished", "error": None, "shared": {"folder": f"shared/ab-seed-{seed}"}}
            for name in VARIANTS
            for seed in seeds
        ],
    }
    groups = [Group(a, 3, w, 0.1) for a in (2, 3) for w in (0.25, 0.5, 0.75) for _ in range(10)]
    status = np.full(len(groups), mapf_jax.Status.OPTIMAL)
    questions = BenchmarkQuestions(
        names=tuple(f"q{i}" for i in range(len(groups))),
        instances=types.SimpleNamespace(solution=types.SimpleNamespace(status=status)),
        groups=tuple(groups),
        about={"options": {"set": "small"}, "of": len(groups)},
    )
    study = MeasuredStudy(Path("study"), found)
    rng, outcomes = np.random.default_rng(0), {}
    checks = dict.fromkeys(mapf_jax.CHECKS, True)
    for name in study.models:
        good = rng.random(len(groups)) < 0.5
        records = [
            {"id": q, "valid": g, "optimal": g, "checks": checks, "truncated": False}
            | {"tokens": 9, "prompt_tokens": None}
            for q, g in zip(questions.names, good.tolist(), strict=True)
        ]
        noted = {"name": name, "options": {"kind": "run"}, "versions": {}}
        outcomes[name] = Outcomes(noted, records, questions)
    return study, questions, outcomes


def test_what_runs_have_in_common_is_asked_once():
    study, _, _ = made_up()
    # The start, round 0 of each seed, and round 1 of each variant and seed.
    assert len(study.models) == 1 + 3 + len(VARIANTS) * 3
    assert study.models[BEFORE].endswith("@start")
    assert study.models["ab-seed-2.round-0"] == "study/shared/ab-seed-2@0"
    assert study.models["v6.seed-1.round-1"] == "study/runs/v6/seed-1@1"


def test_tables_in_the_published_shape():
    study, questions, outcomes = made_up()
    tables = {t.title: t for t in reproduction.tables(study, questions, outcomes, {})}
    ends = {
        name: [outcomes[f"{name}.seed-{s}.round-1"].success["valid"].mean() for s in range(3)]
        for name in VARIANTS
    }
    # Means over seeds with Student's interval, and published ones beside.
    contexts = tables["Contexts"]
    assert [line[1] for line in contexts.lines[:6]] == [f"V{i}, 3 seeds" for i in range(1, 7)]
    assert contexts.lines[-1][2:] == ("45.20", "35.70", "27.30")
    lines = {line[0]: line for line in tables["Valid answers, who designs"].lines}
    expected = scipy.stats.ttest_1samp(np.subtract(ends["v6"], ends["base"]), 0)
    low, high = (100 * bound for bound in expected.confidence_interval())
    mean = 100 * np.mean(np.subtract(ends["v6"], ends["base"]))
    assert lines["V6"][2] == f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
    assert lines["V6"][3] == f"{expected.pvalue:.3f}"
    assert lines["BASE"][2] is None
    assert list(lines) == ["BASE", "V6", "BY-M"]
    assert lines["V6"][5] == ", ".join(f"{100 * value:.1f}" for value in ends["v6"])
    main = tables["Main results"]
    assert "2 agents, valid" in main.columns
    ours = next(
        one for one in main.lines if one[1].endswith("redesigned by the current checkpoint")
    )
    assert dict(zip(main.columns, ours, strict=True))["3 agents, valid"] == "51.67"
    ratios = tables["Data ratio by lake size that V6 designs, mean over seeds"]
    assert ratios.lines[0][:3] == ["measured", 1, "0.50 (0.50 to 0.50)"]
    lacking = reproduction.missing(study, questions, outcomes, {}, list(tables.values()))
    assert [sentence.split(":")[0] for sentence in lacking] == [
        "Proprietary models, asked zero-shot",
        "Behaviours that no rule can tell",
        "No published figure is comparable",
    ]
    del outcomes["v6.seed-1.round-1"]
    study.found["runs"][0] |= {"status": "failed", "error": "no room"}
    lacking = reproduction.missing(study, questions, outcomes, {}, list(tables.values()))
    assert "FIXED_RANDOM, seed 0: failed (no room)." in lacking
    assert "Not asked everything: v6.seed-1.round-1." in lacking


def test_variants_are_compared_on_parts_of_the_benchmark(tmp_path):
    study, questions, outcomes = made_up()
    tables, _ = benchmark.write(tmp_path, study, questions, outcomes, measurements.facts())
    found = json.loads((tmp_path / "results.json").read_text())["tables"]
    assert [one["title"] for one in found] == [table.title for table in tables]
    lines = {
        one["title"]: {line["variant"]: line for line in one["rows"] if "variant" in line}
        for one in found
    }
    groups = ["", ", 2 agents", ", 3 agents"]
    groups += [f", {ratio}% need a wait" for ratio in (25, 50, 75)] + [", after round 0"]
    for metric in ("Valid", "Optimal"):
        assert {f"{metric} by variant{group}" for group in groups} <= set(lines)
    here = [group.num_agents == 3 for group in questions.groups]
    of = {
        name: [outcomes[f"{name}.seed-{s}.round-1"].success["valid"][here].mean() for s in range(3)]
        for name in ("fixed_random", "v6")
    }
    line = lines["Valid by variant, 3 agents"]["V6"]
    assert line["by seed"] == ", ".join(f"{100 * value:.1f}" for value in of["v6"])
    test = scipy.stats.ttest_rel(of["v6"], of["fixed_random"])
    assert line["p"] == f"{test.pvalue:.3f}"
    # After round 0 all of a seed are one checkpoint.
    assert lines["Valid by variant, after round 0"]["V6"]["minus FIXED_RANDOM (95 %)"][:4] == "+0.0"


def test_a_judge_is_asked_once_and_compared_with_the_rules(tmp_path):
    space, asked = lake_space((3, 4)), []
    study, _, _ = made_up(seeds=(0, 1))
    study = MeasuredStudy(tmp_path, study.found)
    options = settings.from_config({"lakes": {"sizes": (3, 4)}}).to_dict()
    measured = []
    for seed in (0, 1):
        folder = tmp_path / f"runs/v6/seed-{seed}"
        record = random_record(seed, space, TEXTS)
        config = rule_design(record, space, CONTEXTS["V3"])
        measured.append(analyse(record, config, space))
        for name, value in (
            ("config.json", options),
            ("rounds/0/design/design.json", {"config": config.to_dict()}),
            ("rounds/0/design/analysis.json", measured[-1]),
            ("rounds/0/design/context.md", "what was shown"),
            ("rounds/0/design/answers.md", render_config(config, space)),
        ):
            files.write_file(folder / name, value)

    def generate(chat, seed):
        asked.append(chat[0]["content"])
        return json.dumps(dict.fromkeys(QUESTIONS, 5 if seed else 1))

    def mute(chat, seed):
        raise NoAnswerError("overload")

    path = tmp_path / "judgements.jsonl"
    judges = {
        name: types.SimpleNamespace(generate=one, options={"model": name})
        for name, one in (("a", generate), ("b", mute))
    }
    files.write_file(path, [{"folder": "runs/v6/seed-0", "round": 0, "scores": {"cause": 1}}])
    for name in "aab":  # Nothing is asked again, and nothing of another judge counts.
        reproduction.judge(study, judges[name], path)
    assert len(asked) == 2
    assert all("what was shown" in one and "Used next:" in one for one in asked)
    failed = reproduction.judgements(path)
    for none in (failed, {}):
        assert len(reproduction.behaviours(study, none)) == 1
    lacking = reproduction.missing(study, made_up()[1], {}, failed, [])
    assert "No readable judgement: 2 of 2 designs." in lacking
    judges["b"].generate = generate
    reproduction.judge(study, judges["b"], path)
    assert len(asked) == 4
    by_rules, by_judge, agreement = reproduction.behaviours(
        study, reproduction.judgements(path, {"model": "a"})
    )
    moved = np.mean([one["fraction_moved"] for one in measured])
    assert [f"{moved:.2f}"] == [
        one[1] for one in by_rules.lines if one[0] == "fraction of the set moved"
    ]
    assert {line[1] for line in by_judge.lines} == {"3.00"}
    said = [rules(one)["locality"] for one in measured]
    found = {line[0]: line[1:] for line in agreement.lines}
    assert found["locality"][:2] == [2, np.mean([said[0] is False, said[1] is True])]
    assert found["cause"] == [0, None, None]


def test_the_numbers_of_instances():
    assert reproduction.count("builtin", None) == 3150
    made = BUILTIN["small"](0, per_hole_ratio=1)
    assert reproduction.count("small", 1) == len(made.ids) == 90
    assert sorted(set(made.instances.active.sum(1).tolist())) == [2, 3]


#: Loads with flags of several starts, and prints the error or the budget of the last variant. Then
#: the work of a benchmark that was begun with more variants.
LOADS = """
import json, sys
from pathlib import Path
from absl.testing import flagsaver
from experiments import reproduce
from experiments.study import runs
from experiments.text.errors import UserError

reproduce._parse(["reproduce", "--model=tiny", "--out=none", "--dry_run"])
for chosen in json.loads(sys.argv[1]):
    reproduce.command.CONFIG.value.family = chosen.pop("family", "lakes")
    with flagsaver.flagsaver(**chosen):
        try:
            study, _ = reproduce._load(Path("none"))
            last = study.variants[-1]
            print(last.name, last.changes.get("engineer.max_new_tokens"))
        except UserError as error:
            print(error)
root = Path(sys.argv[2])
with flagsaver.flagsaver(variants=["base", "v6"], per_cell=1):
    study, base = reproduce._load(root)
    print(*reproduce._benchmark(root, runs.jobs(study, study.settings(base))))
"""


def test_what_is_asked_last_is_checked_first_and_what_is_left_counted(tmp_path):
    for name, answers in (("v6.seed-0.round-1", 90), ("v6.seed-1.round-2", 40), ("v5.seed-0", 90)):
        path = tmp_path / "benchmark" / "models" / name / "answers.jsonl"
        files.write_file(path, [{}] * answers)
    server, budget = ["http://127.0.0.1:9/v1#M.1"], "--max_new_tokens=16384"
    expected = (
        ({"endpoint": server}, "by-m-1 4096"),
        ({"endpoint": server, "ask": budget}, "by-m-1 16384"),
        (
            {"ask": "--max_new_token=5 --slots=a"},
            "ask='--max_new_token=5 --slots=a': argument --slots",
        ),
        ({"ask": "--words"}, "ask='--words': unrecognized arguments: --words"),
        ({"ask": "--extra='{"}, 'ask="--extra=\'{": No closing quotation'),
        ({"per_cell": -1}, "per_cell=-1: allowed"),
        ({"endpoint": ["nowhere#m"]}, "url='nowhere': must be"),
        ({"endpoint": server * 2}, "variants=["),
        ({"judge": "none/runs/v6/seed-0"}, "full None"),  # It is trained first.
        ({"judge": "elsewhere"}, "model=elsewhere: neither"),
        ({"family": "words:sums"}, "config.family=words:sums: allowed is lakes"),
        ({"judge": "exact"}, "judge=exact: allowed are models"),
    )
    done = python("-c", LOADS, json.dumps([chosen for chosen, _ in expected]), tmp_path)
    *lines, work = done.stdout.splitlines()
    # The start, round 0 of each seed, and rounds 1 and 2 of both variants.
    total = 1 + 5 + 5 * 2 * 2
    assert work == f"benchmark 1 {total} {total * 90 - 90 - 40} 0.0"
    for line, (_, words) in zip(lines, expected, strict=True):
        assert line.startswith(words), line


class Helpful(LocalServer):
    """Is ready, designs, judges, and answers no question."""

    def __init__(self):
        self.asked = asked = []
        space = lake_space((3, 4))
        answers = {
            "the word: ready": ("probe", "ready"),
            "Used next:": ("judgement", json.dumps(dict.fromkeys(QUESTIONS, 3))),
            "data_ratio": ("design", render_config(space.random(5), space)),
            "": ("question", "I see no way."),
        }

        class Fitting(Handler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = body["messages"][-1]["content"]
                kind, text = next(one for words, one in answers.items() if words in prompt)
                asked.append(kind)
                choice = {"message": {"content": text}, "finish_reason": "stop"}
                self.send(200, json.dumps({"choices": [choice]}).encode())

        super().__init__(Fitting)


def start(folder, *options):
    # Not the configuration: that is the study's own.
    own = [option for option in SMALL if not option.startswith("--config=")]
    words = ["--model=tiny", f"--out={folder / 'out'}", "--workers=2", "--seeds=0"]
    words += ["--variants=base,by-m", "--per_cell=1", "--config.loop.rounds=2"]
    # So that two steps a round lead somewhere.
    own += ["--config.training.optimizer.learning_rate=1e-3"]
    own += ["--config.training.optimizer.warmup_steps=0"]
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.reproduce", *words, *own, *options],
        cwd=ROOT,
        env=environment(JAX_COMPILATION_CACHE_DIR=compilation_cache(folder.parent)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err[-3000:]
    return out


def tables(folder):
    """What it found, without what depends on the day and the folder."""
    found = json.loads((folder / "out" / "tables.json").read_text())
    measured = json.loads((folder / "out" / "benchmark" / "results.json").read_text())["measured"]
    for one in measured:
        del one["asked"]
    return found["tables"], found["missing"], measured


#: What has just appeared when the process is killed.
MOMENTS = (
    "benchmark/instances.jsonl",
    "shared/*/rounds/0/train.jsonl",
    "runs/by-m/*/rounds/0/design/design.json",
    "benchmark/models/*/answers.jsonl",
    "benchmark/models/*round-1/answers.jsonl",
)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_killed_five_times_the_tables_are_the_same(tmp_path):
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    with Helpful() as server:
        asked = [f"--endpoint={server.url}#m", f"--judge=endpoint:{server.url}#m"]
        plan = finish(start(alone, *asked, "--dry_run"))
        assert not (alone / "out").exists()
        assert re.search(r"\| benchmark \| 0 \| 5 \| 450 \| unknown \|", plan)
        printed = finish(start(alone, *asked))
        assert "tables.md" in printed
        # A judgement of the server's design and of the base model's.
        expected = {"probe": 1, "design": 1, "judgement": 2, "question": 90}
        assert collections.Counter(server.asked) == expected
        for moment in MOMENTS:
            process = start(killed, *asked)
            while not list((killed / "out").glob(moment)):
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        finish(start(killed, *asked))
        assert tables(killed) == tables(alone)
        plan = finish(start(killed, *asked, "--dry_run"))
        assert re.search(r"\| all \| 8 \| 8 \| 0 \| 0 \|", plan)
    (compared,) = (t for t in tables(alone)[0] if t["title"].startswith("Valid answers, who"))
    assert [line["variant"] for line in compared["rows"]] == ["base checkpoint", "designed by m"]
