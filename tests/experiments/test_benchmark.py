"""The benchmark of models: oracles, resumption, a failing server, the tiny model, the tables."""

import argparse
import contextlib
import json
import re
import shutil
import threading
import time
import types

import jax
import numpy as np
import pytest
from local_server import Handler, LocalServer

import mapf_jax
from experiments import settings as settings_lib
from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import asking, solvers
from experiments.benchmark import table as benchmark_table
from experiments.benchmark.asking import ask
from experiments.benchmark.questions import BUILTIN, BenchmarkQuestions, open_set
from experiments.configs import tiny
from experiments.families.lakes import published
from experiments.run import store as files
from experiments.run.policy import load_params, load_policy
from experiments.run.status import Reporter
from experiments.text.errors import UserError
from learner.training import train_state
from learner.training.checkpoints import Checkpoints
from mapf_jax import formats

KEY = "sk-very-secret-0123456789"


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def unsolved_records():
    """Two agents on 3x3 and 4x4 lakes, the last one walled in; optima are left to the benchmark."""
    generator = np.random.default_rng(0)
    records = []
    for size in (3, 4):
        for wait in (0.25, 0.5):
            for number in range(6):
                cells = [(r, c) for r in range(size) for c in range(size)]
                chosen = [cells[i] for i in generator.permutation(len(cells))[:5]]
                rows = [["F"] * size for _ in range(size)]
                rows[chosen[4][0]][chosen[4][1]] = "H"
                instance = mapf_jax.make_instance([" ".join(r) for r in rows], *chunks(chosen))
                name = f"2ag_{size}x{size}_hr0.1_wr{wait}_{number:03d}"
                records.append(formats.to_record(instance, name))
    walled = mapf_jax.instance_from_ascii("S H g F\nH H F F\nF F F F\nF F G s")
    records[-1] = formats.to_record(walled, records[-1]["id"])
    return records


def chunks(cells):
    return cells[0:2], cells[2:4]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "mine.jsonl"
    files.write_file(path, unsolved_records())
    return path


def run(source, out, *options):
    arguments = [f"--out={out}", *([f"--set={source}"] if source else []), *options]
    return benchmark.main(arguments)


@pytest.fixture(scope="module")
def oracles(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("oracles") / "out"
    models = ["--model=exact", "--model=lacam", "--model=random"]
    assert run(source, out, *models) == 0
    return out


def test_oracles_are_parsed_and_verified(oracles):
    results = json.loads((oracles / "results.json").read_text())
    measured = {one["model"]: one for one in results["measured"]}
    assert results["instances"] == 24
    assert results["optimum_unknown"] == 1  # the one that is walled in
    whole = {name: one["figures"][0] for name, one in measured.items()}
    assert whole["exact"]["valid"]["successes"] == 23
    assert whole["exact"]["optimal"]["successes"] == whole["exact"]["optimal"]["trials"] == 23
    assert whole["lacam"]["valid"]["successes"] == 23
    ranks = [whole[name]["optimal"]["successes"] for name in ("random", "lacam", "exact")]
    assert ranks[0] < ranks[1] < ranks[2]
    for record in read_lines(oracles / "models" / "random" / "answers.jsonl"):
        alone = ("parsable", "legal_moves", "starts_correct", "agent_count", "no_holes")
        assert all(record["checks"][check] for check in (*alone, "in_bounds")), record["text"]


def test_fractions_are_those_of_the_answers(oracles):
    """Counted again from the log and the names alone."""
    records = read_lines(oracles / "models" / "lacam" / "answers.jsonl")
    results = json.loads((oracles / "results.json").read_text())
    (measured,) = [one for one in results["measured"] if one["model"] == "lacam"]
    for figure in measured["figures"]:

        def belongs(record, figure=figure):
            agents, size, hole, wait = re.fullmatch(
                r"(\d+)ag_(\d+)x\d+_hr([\d.]+)_wr([\d.]+)_\d+", record["id"]
            ).groups()
            has = {"num_agents": agents, "size": size, "hole_ratio": hole, "wait_ratio": wait}
            return all(float(has[k]) == figure[k] for k in has if k in figure)

        here = [record for record in records if belongs(record)]
        by_size = {}
        for record in here:
            by_size.setdefault(record["id"][:7], []).append(record["valid"])
        expected = np.mean([np.mean(flags) for flags in by_size.values()])
        assert figure["valid"]["mean"] == pytest.approx(expected)
        assert figure["valid"]["trials"] == len(here)
        assert figure["valid"]["low"] <= expected <= figure["valid"]["high"]
    page = (oracles / "results.md").read_text()
    exact = "100.0 (75.8 to 100.0)"  # Wilson's 12 of 12: 12 / (12 + 1.96 ** 2)
    assert f"| measured | exact | {exact} | " in page
    assert "No published lines: the 24 instances are not made up" in page
    assert f"published ({published.SOURCE})" not in page


def test_fractions_of_several_cells():
    flags = [np.arange(10) < 8, np.arange(10) < 2]
    both = benchmark_table.mean_fraction(flags)
    assert (both["mean"], both["successes"], both["trials"]) == (0.5, 10, 20)
    # As for 10 of 20 at once (Brown, Cai and DasGupta 2001, formula 4).
    assert (both["low"], both["high"]) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    uneven = benchmark_table.mean_fraction([np.arange(10) < 8, np.arange(40) < 8])
    assert uneven["mean"] == pytest.approx(0.5)
    # The variance p (1 - p) (1 / 10 + 1 / 40) / 4 is that of 32 trials, of which half succeed.
    assert uneven["high"] - uneven["low"] == pytest.approx(2 * 0.16369, abs=1e-4)
    assert benchmark_table.mean_fraction([np.zeros(0, bool)]) is None


def test_a_cut_log_is_mended_and_other_options_are_refused(source, oracles, capsys):
    log = oracles / "models" / "random" / "answers.jsonl"
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:10]) + lines[10][: len(lines[10]) // 2])
    assert run(source, oracles, "--model=random") == 0
    assert log.read_bytes() == whole
    # Answers depend on the seed and the name, not on what was asked before.
    log.write_bytes(b"".join(lines[5:9]))
    assert run(source, oracles, "--model=random") == 0
    assert sorted(log.read_bytes().splitlines()) == sorted(whole.splitlines())

    capsys.readouterr()
    assert run(source, oracles, "--model=random", "--seed=1") == 1
    assert "options.seed was 0 and is 1" in capsys.readouterr().err
    assert run(source, oracles, "--model=random", "--limit=5") == 1
    assert "limit was None and is 5" in capsys.readouterr().err
    log.write_bytes(lines[0] + b"{broken\n" + lines[1])
    assert run(source, oracles, "--model=random") == 1
    assert "answers.jsonl:2" in capsys.readouterr().err
    log.write_bytes(whole)
    # Without a model the tables are made of what is there.
    (oracles / "results.md").unlink()
    assert run(None, oracles) == 0
    assert "measured | random" in (oracles / "results.md").read_text()
    for options, words in (
        (("--model=nowhere",), "lacam"),
        (("--model=exact", "--limit=0"), "limit=0"),
        (("--model=exact", "--name=a", "--name=b"), "2 times for 1 models"),
        (("--model=endpoint:http://x/v1#m", "--thinking_tokens=5"), "--extra"),
        (("--model=endpoint:nowhere#m",), "url='nowhere'"),
        (("--model=endpoint:http://x/v1#m", "--temperature=nan"), "temperature=nan: allowed"),
        (("--model=endpoint:http://x/v1#m", "--max_cost=1"), "needs price_in"),
    ):
        assert run(source, oracles, *options) == 1
        assert words in capsys.readouterr().err
    questions = oracles / "instances.jsonl"
    kept = questions.read_text()
    for damaged in (kept[:-20], kept.replace("wait_ratio", "ratio")):
        questions.write_text(damaged)
        assert run(None, oracles) == 1
        assert f"error: {questions}: damaged: " in capsys.readouterr().err
    questions.write_text(kept)


class Server(LocalServer):
    """Answers questions from a table; `act` may do something else with the n-th request."""

    def __init__(self, answers, act):
        self.prompts, self.keys, self.most = [], set(), 0
        outer, lock, running = self, threading.Lock(), [0]

        class Table(Handler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = body["messages"][0]["content"]
                with lock:
                    number = len(outer.prompts)
                    outer.prompts.append(prompt)
                    outer.keys.add(self.headers["Authorization"])
                    running[0] += 1
                    outer.most = max(outer.most, running[0])
                time.sleep(0.03)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    status, raw = act(number, prompt) or (200, None)
                    if raw is None:
                        choice = {"message": {"content": answers[prompt]}, "finish_reason": "stop"}
                        usage = {"prompt_tokens": 500, "completion_tokens": 40}
                        raw = json.dumps({"choices": [choice], "usage": usage}).encode()
                    with lock:  # Before the client can know: it may ask again at once.
                        running[0] -= 1
                    self.send(status, raw)

        super().__init__(Table)
        self.model = f"endpoint:{self.url}#m"


def test_a_server_that_fails_now_and_then(source, oracles, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("BENCHMARK_KEY", KEY)
    out = tmp_path / "out"
    records = read_lines(oracles / "instances.jsonl")
    names = {mapf_jax.prompt(formats.instance_from_record(r, r["id"])): r["id"] for r in records}
    texts = {r["id"]: r["text"] for r in read_lines(oracles / "models/exact/answers.jsonl")}
    never = records[7]["id"]  # is refused every time

    def act(number, prompt):
        if names[prompt] == never:
            return 400, b"no such thought " + KEY.encode()
        acts = {2: (429, b"slow down"), 3: (200, b'{"choices": [{"mess'), 4: (503, b"")}
        if number == 5:
            time.sleep(2.6)
        return acts.get(number)

    options = ["--concurrency=4", "--timeout=2", "--max_new_tokens=200", "--temperature=0.5"]
    options += ["--key_variable=BENCHMARK_KEY", "--price_in=2", "--price_out=10"]
    with Server({p: texts[name] for p, name in names.items()}, act) as server:
        options += [f"--model={server.model}", "--name=server"]
        assert run(source, out, *options, "--max_cost=0.01") == 1
        assert "max_cost=0.01: 24 answers may cost" in capsys.readouterr().err
        assert not server.prompts
        assert run(source, out, *options) == 0
        assert server.most == 4
        assert server.keys == {f"Bearer {KEY}"}
        assert len(server.prompts) == 24 + 4
        printed = capsys.readouterr().out
        assert "24 questions to m: about" in printed
        assert "at most 4,800 answer tokens (200 each)" in printed
        assert "Answers are missing: server 1." in printed

        answers = read_lines(out / "models/server/answers.jsonl")
        assert sorted(a["id"] for a in answers) == sorted(set(texts) - {never})
        assert sum(a["valid"] for a in answers) == 22
        assert {a["tokens"] for a in answers} == {40}
        (failure,) = read_lines(out / "models/server/failures.jsonl")
        assert failure["id"] == never
        assert "status 400" in failure["why"]
        (measured,) = json.loads((out / "results.json").read_text())["measured"]
        assert (measured["answered"], measured["missing"]) == (23, 1)
        assert measured["figures"][0]["valid"]["trials"] == 23
        assert measured["tokens"] == {
            "mean": 40.0,
            "total": 23 * 40,
            "answers": 23,
            "prompts": 23 * 500,
        }
        everything = "".join(p.read_text() for p in out.rglob("*") if p.is_file())
        assert KEY not in everything + printed

        # What is left and refused once more keeps no tables from being made.
        (out / "results.md").unlink()
        assert run(source, out, *options) == 0
        assert (out / "results.md").exists()
        assert len(read_lines(out / "models/server/failures.jsonl")) == 2
        assert "server (23 of 24 answers)" in capsys.readouterr().out

        never = ""
        asked = len(server.prompts)
        assert run(source, out, *options) == 0
        assert [names[p] for p in server.prompts[asked:]] == [failure["id"]]
        assert len(read_lines(out / "models/server/answers.jsonl")) == 24

    with Server({}, lambda number, prompt: (401, b"who are you?")) as server:
        assert run(source, tmp_path / "refused", f"--model={server.model}") == 1
        assert "refused with status 401: who are you?" in capsys.readouterr().err
        assert len(server.prompts) == 1
    nobody = ("--model=endpoint:http://127.0.0.1:9/v1#m", "--tries=1", "--concurrency=1")
    assert run(source, tmp_path / "nobody", *nobody) == 1
    assert "3 consecutive requests have failed" in capsys.readouterr().err
    assert len(read_lines(next(tmp_path.glob("nobody/models/*/failures.jsonl")))) == 3


@pytest.mark.slow
def test_the_tiny_model_and_the_checkpoint_of_a_run(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    sampled = ["--limit=6", "--max_new_tokens=48", "--slots=8", "--temperature=0.7"]
    assert run(source, out, "--model=tiny", *sampled) == 0
    log = out / "models" / "tiny" / "answers.jsonl"
    first = {record["id"]: record for record in read_lines(log)}
    assert len(first) == 6
    assert any(record["checks"]["parsable"] for record in first.values())
    assert all(0 < record["tokens"] <= 48 for record in first.values())
    page = (out / "results.md").read_text()
    assert "# MAPF-FrozenLake benchmark (PARTIAL)" in page
    assert page.count("(PARTIAL: 6 of 24 instances)") == page.count("\n## ")
    assert json.loads((out / "results.json").read_text())["partial"]

    # One that is asked in whole blocks is asked anew only the block that is not done.
    words = [f"--set={source}", f"--out={out}", *sampled]
    options = benchmark.checked(benchmark.parser().parse_args(words))
    monkeypatch.setattr(asking, "_BLOCK", 4)
    log.unlink()
    ask(out, {"tiny": "tiny"}, options, Reporter(), whole=["tiny"])
    done, rest = read_lines(log)[:4], read_lines(log)[4:]
    assert {r["id"] for r in done} == {r["id"] for r in read_lines(out / "instances.jsonl")[:4]}
    done[0]["kept"] = True
    files.write_file(log, [*done, rest[1]])
    ask(out, {"tiny": "tiny"}, options, Reporter(), whole=["tiny"])
    assert read_lines(log) == [*done, *rest]

    # A run whose checkpoint holds the same weights answers alike.
    root = tmp_path / "run"
    settings = settings_lib.from_config(tiny.get_config())
    policy = load_policy(settings)
    state = train_state.create_train_state(
        load_params(settings, policy), policy.config, settings.training.optimizer, policy.mesh
    )
    files.write_file(root / "config.json", settings.to_dict())
    with Checkpoints(root / "checkpoints") as checkpoints:
        checkpoints.save(7, state, {})
    shutil.copytree(settings.model.folder, root / "rounds" / "0" / "weights")
    specs = {"run": f"{root}:7", "start": f"{root}@start", "kept": f"{root}@0"}
    named = [word for name, spec in specs.items() for word in (f"--model={spec}", f"--name={name}")]
    assert run(source, out, *named, *sampled) == 0
    for model in specs:
        again = {r["id"]: r for r in read_lines(out / "models" / model / "answers.jsonl")}
        assert {name: r["text"] for name, r in again.items()} == {
            name: r["text"] for name, r in first.items()
        }
    options = files.read_file(out / "models" / "run" / "options.json")["options"]
    assert (options["step"], options["temperature"], options["list_holes"]) == (7, 0.7, True)
    assert run(source, out, f"--model={root}:8", "--name=other", *sampled) == 1


def asked(*paths):
    return argparse.Namespace(set=list(map(str, paths)), set_seed=0, per_cell=None, limit=None)


def test_files_of_the_published_set(source, tmp_path):
    texts = ["S F g\nF F F\nG F s", "S F F\nF H g\nG F s"]
    paths = []
    for subset, text in zip(("wr0.25", "wr75"), texts, strict=True):
        path = tmp_path / f"benchmark_{subset}.jsonl"
        record = {
            "sample_id": "2ag_3x3_hr0.1_000",
            "num_agents": 2,
            "text": f"Plan for this lake:\n{text}\nThank you.",
        }
        files.write_file(path, [record])
        paths.append(str(path))
    questions = open_set(tmp_path / "set", asked(*paths), Reporter())
    assert questions.names == ("2ag_3x3_hr0.1_wr0.25_000", "2ag_3x3_hr0.1_wr0.75_000")
    assert questions.groups == ((2, 3, 0.25, 0.1), (2, 3, 0.75, 0.1))
    assert questions.solved.all()
    assert questions.instances.solution.cost.tolist() == [4, 3]
    records = unsolved_records()
    records[1]["hole_ratio"] = "high"
    wrong = tmp_path / "wrong.jsonl"
    files.write_file(wrong, records)
    with pytest.raises(UserError, match=r"wrong\.jsonl:2: hole_ratio: 'high' is neither a number"):
        open_set(tmp_path / "wrong", asked(wrong), Reporter())
    assert not (tmp_path / "wrong" / "set.json").exists()
    twice = asked(source, source)
    with pytest.raises(ValueError, match="occurs 2 times"):
        open_set(tmp_path / "twice", twice, Reporter())


def test_the_set_has_a_version_and_a_checksum(oracles, tmp_path, monkeypatch, capsys):
    """A few instances stand for the whole set, which takes minutes."""
    records, ratios = read_lines(oracles / "instances.jsonl")[:6], np.full(6, 0.5)
    ids, instances = tuple(record["id"] for record in records), formats.from_records(records)
    made = mapf_jax.BenchmarkSet(instances, ids, ratios, ratios, ())
    monkeypatch.setitem(BUILTIN, "builtin", lambda seed, per_hole_ratio: made)
    assert run(None, tmp_path / "other", "--model=exact") == 1
    assert f"that of version 1 is {mapf_jax.benchmark.CHECKSUM};" in capsys.readouterr().err
    assert not (tmp_path / "other" / "set.json").exists()
    checksum = mapf_jax.benchmark.checksum(made)
    monkeypatch.setattr(mapf_jax.benchmark, "CHECKSUM", checksum)
    assert run(None, tmp_path, "--model=exact") == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert (found["set"]["version"], found["set"]["checksum"]) == (1, checksum)
    assert f"builtin, 6, version 1, checksum {checksum}. " in (tmp_path / "results.md").read_text()
    # A folder made before knows neither.
    about = files.read_file(tmp_path / "set.json")
    files.write_file(tmp_path / "set.json", {name: about[name] for name in ("options", "of")})
    assert run(None, tmp_path, "--model=exact") == 0
    assert "builtin, 6. All" in (tmp_path / "results.md").read_text()


def whole_benchmark():
    """The published make-up without its instances."""
    cells = [
        (agents, size, wait)
        for agents, smallest in ((3, 3), (4, 4), (5, 5))
        for size in range(smallest, 11)
        for wait in (0.25, 0.5, 0.75)
        for _ in range(50)
    ]
    status = np.full(len(cells), mapf_jax.Status.OPTIMAL)
    solution = types.SimpleNamespace(status=status)
    return BenchmarkQuestions(
        names=tuple(f"q{i}" for i in range(len(cells))),
        instances=types.SimpleNamespace(solution=solution),
        groups=tuple(published.Group(*cell) for cell in cells),
        about={"options": {"set": "builtin"}, "of": len(cells)},
    )


def test_published_lines_stand_apart_beside_the_whole_benchmark(tmp_path):
    questions = whole_benchmark()
    assert len(questions) == 3150
    checks = dict.fromkeys(mapf_jax.CHECKS, True)
    records = [
        {"id": name, "valid": i % 2 == 0, "optimal": i % 5 == 0, "checks": checks}
        | {"truncated": False, "tokens": 10, "prompt_tokens": None}
        for i, name in enumerate(questions.names)
    ]
    noted = {"name": "ours", "options": {"kind": "run"}, "versions": {}}

    def tables_of(records, questions=questions):
        one = benchmark_table.Contender(
            "ours", {None: benchmark_table.Outcomes(noted, records, questions)}
        )
        made = benchmark_table.Results(questions, [one]).tables()
        return one, {table.title: table for table in made}

    _, tables = tables_of(records)
    by_size = tables["3 agents, valid by lake size"]
    last = by_size.lines[-1]
    assert last[0] == "published (arXiv 2606.17682)"
    assert last[1] == "Qwen3-4B + GRPO, configuration redesigned by the current checkpoint"
    assert last[2:] == ("68.67", "64.67", "62.67", "52.67", "46.00", "42.67", "44.00", "32.00",
                        "51.67")  # fmt: skip
    assert by_size.lines[0][:3] == ("measured", "ours", "50.0 (42.1 to 57.9)")
    v6 = tables["Valid by wait-ratio subset"].lines[-1]
    assert (v6[1].endswith("V6"), v6[2:]) == (True, ("45.20", "35.70", "27.30"))
    lines = [line for table in tables.values() for line in table.lines]
    # Nine models by agents, seven of them by size in both metrics; six contexts.
    assert sum(line[0] == benchmark_table.PUBLISHED for line in lines) == 9 + 7 * 3 * 2 + 6

    # The smallest lakes alone are answered so far: no mean over sizes, and every line says so.
    few = [record for i, record in enumerate(records) if questions.groups[i].size <= 5]
    one, tables = tables_of(few)
    assert one.label == "ours (900 of 3,150 answers)"
    line = tables["3 agents, valid by lake size"].lines[0]
    assert line[:3] == ("measured", one.label, "50.0 (42.1 to 57.9)")
    assert line[5:] == ("\N{EN DASH}",) * 6
    assert set(tables["By number of agents, mean over lake sizes"].lines[0][2:]) == {"\N{EN DASH}"}

    part = BenchmarkQuestions(**{**vars(questions), "about": {**questions.about, "of": 9999}})
    assert "published (" not in str(tables_of(records, part))


def test_published_means_are_those_of_the_cells():
    """As far as they are: the two exceptions are noted in the file."""
    exceptions = {("Kimi-K2.5", 5), ("Gemini-3.1-Pro", 4)}
    models = published.models()
    assert sum(len(rates) == 21 + 3 for rates in models.values()) == 7
    for name, rates in models.items():
        for agents in (3, 4, 5):
            cells = [r["valid"] for g, r in rates.items() if g.num_agents == agents and g.size]
            if cells:
                agrees = abs(np.mean(cells) - rates[published.Group(agents)]["valid"]) < 0.011
                assert agrees == ((name, agents) not in exceptions)
    ours = models["Qwen3-4B + GRPO, configuration redesigned by the current checkpoint"]
    cells = [rate["valid"] for group, rate in ours.items() if group.size]
    (v6,) = (rates for name, rates in published.contexts().items() if name.endswith("V6"))
    subsets = [rate["valid"] for rate in v6.values()]
    assert np.mean(cells) == pytest.approx(np.mean(subsets), abs=0.05)


def test_keys_depend_on_the_name_alone():
    questions = whole_benchmark()
    some, all_ = np.array([5, 900]), np.arange(len(questions))
    few = jax.random.key_data(questions.keys(3, some))
    many = jax.random.key_data(questions.keys(3, all_))
    assert (few == many[some]).all()
    assert len(np.unique(np.asarray(many), axis=0)) == len(questions)
    assert not (jax.random.key_data(questions.keys(4, some)) == few).any()


def test_what_a_folder_recommends_in_vain_is_told(tmp_path):
    shutil.copy(settings_lib.ModelSettings("tiny").folder / "config.json", tmp_path)
    options = benchmark.checked(benchmark.parser().parse_args(["--out=out"]))
    run = tmp_path / "run"
    settings = settings_lib.from_config({"model": {"path": str(tmp_path)}})
    files.write_file(run / "config.json", settings.to_dict())
    for recommended, told in (
        (
            {"repetition_penalty": 1.1, "top_k": 5, "min_p": 0.1},
            "repetition_penalty=1.1, min_p=0.1",
        ),
        ({"repetition_penalty": 1.0, "top_k": 5}, None),
    ):
        (tmp_path / "generation_config.json").write_text(json.dumps(recommended))
        solver = solvers.make_solver(str(tmp_path), options)
        line = f"{tmp_path}: of its generation_config.json, not used in sampling: {told}"
        assert solver.forecast(None, np.arange(2)) == ([line] if told else [])
        assert solver.options["top_k"] == 5
        trained = solvers.make_solver(f"{run}@start", options)
        assert trained.forecast(None, np.arange(2)) == solver.forecast(None, np.arange(2))
