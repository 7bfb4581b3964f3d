"""A whole study in small: killed, resumed, with a run that fails; its scheduler; its tables."""

import dataclasses
import gzip
import json
import os
import re
import runpy
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from absl import flags
from absl.testing import flagsaver
from whole_runs import PLAN, ROOT, compilation_cache, environment, finish, python, start, story

from engineer.space import Configuration
from experiments import measurements
from experiments.configs.studies import bases, designers
from experiments.families.lakes.family import Lakes
from experiments.families.lakes.options import LakesOptions
from experiments.run.status import Reporter
from experiments.run.store import RunStore
from experiments.settings import Settings, from_config
from experiments.study import __main__ as command
from experiments.study import processes, submission, variants
from experiments.study import results as study_results
from experiments.study import runs as study_runs
from experiments.study.variants import Study, Variant
from experiments.text.errors import UserError

TEMPLATES = [
    path
    for path in sorted((ROOT / "experiments" / "configs" / "studies").glob("[a-z]*.py"))
    if path.stem != "bases"
]
FINISHED = sorted((ROOT / "docs" / "studies").glob("*/study.py"))
#: These count answers within a seed too, and have fewer seeds.
FEW_SEEDS = ("designers_smollm2",)
V4_WITH_T_IN_FULL_BEFORE = {
    "engineer.context": "own",
    "engineer.modules.guideline": True,
    "engineer.modules.history": "designed",
    "engineer.modules.training": "full",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(folder, what the end of the study printed); one seed."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "plan.py").write_text(PLAN)
    code, out, err = finish(start(folder))
    assert code == 1, err[-3000:]  # One variant fails.
    return folder, out


def read(folder):
    return json.loads((folder / "study" / "study.json").read_text())


@pytest.mark.slow
def test_a_failure_stops_no_other_run(done):
    folder, out = done
    found = read(folder)
    assert found["state"] == {"planned": 3, "finished": 2, "failed": 1, "missing": 0}
    for run in found["runs"]:
        broken = run["variant"] == "broken"
        assert run["status"] == ("failed" if broken else "finished")
        assert ("max_new_tokens" in (run["error"] or "")) == broken
        assert len(run["points"]) == (1 + 1 if broken else 1 + 2)
        assert run["seconds"] > 0
    assert "broken, seed 0 failed" in out


@pytest.mark.slow
def test_runs_share_their_beginning(done):
    folder, _ = done
    runs = folder / "study" / "runs"
    first, second = story(runs / "fixed" / "seed-0", 2), story(runs / "failures" / "seed-0", 2)
    for name in first:
        if "design" not in name and not name.startswith(("rounds/1", "train 1")):
            assert first[name] == second[name]
    assert first["rounds/1/environment.yaml"] != second["rounds/1/environment.yaml"]
    (shared,) = {run["shared"]["folder"] for run in read(folder)["runs"]}
    assert [f"shared/{path.name}" for path in (folder / "study/shared").iterdir()] == [shared]


def test_a_shared_beginning_outlives_a_new_option(monkeypatch):
    made = from_config({"training": {"group_size": 4}})
    to_dict = Settings.to_dict
    before = study_runs._key(made)
    monkeypatch.setattr(Settings, "to_dict", lambda own: {**to_dict(own), "new": 0})
    assert study_runs._key(made) == before
    assert study_runs._key(dataclasses.replace(made, seed=1)) == before
    assert study_runs._key(Settings()) != before


@pytest.mark.slow
def test_a_killed_study_goes_on(done, tmp_path):
    (tmp_path / "plan.py").write_text(PLAN)
    process = start(tmp_path)
    while not list(tmp_path.glob("study/runs/*/seed-0/rounds/0/design/design.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "study" / "study.json").exists()
    code, _, err = finish(start(tmp_path))
    assert code == 1, err[-3000:]
    assert read(tmp_path)["state"] == read(done[0])["state"]
    for variant in ("fixed", "failures"):
        run = f"study/runs/{variant}/seed-0"
        assert story(tmp_path / run, 2) == story(done[0] / run, 2)


@pytest.fixture(scope="module")
def grown(done, tmp_path_factory):
    """The folder of the study after a second seed was computed."""
    folder = shutil.copytree(done[0], tmp_path_factory.mktemp("grown") / "study")
    code, _, err = finish(start(folder, "--seeds=0,1"))
    assert code == 1, err[-3000:]
    return folder


@pytest.mark.slow
def test_another_seed_is_added_and_a_run_is_as_if_alone(done, grown, tmp_path, monkeypatch):
    before = story(done[0] / "study/runs/failures/seed-0", 2)
    assert story(grown / "study/runs/failures/seed-0", 2) == before
    other = story(grown / "study/runs/failures/seed-1", 2)
    for name in before:
        if name.startswith(("validation", "initial")):  # One for all seeds.
            assert before[name] == other[name]
        elif name.startswith(("rounds/0", "train 0")) and "design" not in name:
            assert before[name] != other[name]

    # Alone, from the start to the end.
    study = variants.load(str(grown / "plan.py"))
    (alone,) = (
        dataclasses.replace(job, shared=None)
        for job in study_runs.jobs(study, study.settings(base_of(grown / "plan.py")))
        if job.variant == "failures"
    )
    for name, value in environment(JAX_COMPILATION_CACHE_DIR=compilation_cache(grown)).items():
        monkeypatch.setenv(name, value)
    # On as many cores as before: how sums are divided over threads decides how they are rounded.
    slots = processes.slots(grown, 2, alone.settings)
    assert study_runs.Runner(tmp_path / "alone", [alone], slots[1:], Reporter()).run()
    assert story(tmp_path / "alone" / alone.folder, 2) == before


@pytest.mark.slow
def test_jobs_compute_what_processes_compute(done, tmp_path):
    """Two variants, to the last digit; a third variant fails as it does there."""
    (tmp_path / "plan.py").write_text(PLAN)
    code, _, err = finish(start(tmp_path, "--launcher=submitit"))
    assert code == 1, err[-3000:]
    assert read(tmp_path)["state"] == read(done[0])["state"]
    assert len(list((tmp_path / "study/submitit").glob("*_submitted.pkl"))) == 1 + 3
    for run in ("fixed/seed-0", "failures/seed-0"):
        one, other = (story(folder / "study/runs" / run, 2) for folder in (done[0], tmp_path))
        assert one == other


FAKE = """
import json, os, signal, sys, threading, time
from pathlib import Path

request = json.loads(sys.stdin.readline())
folder, settings = Path(request["folder"]), request["settings"]
assert os.environ["PLACE"]
name = f"{folder.parent.name}/{folder.name}"
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
(folder / "config.json").write_text("{}")
(folder / "begins_with").write_text(" ".join(sorted(path.name for path in folder.glob("rounds/*"))))
rounds = [f"rounds/{index}" for index in range(settings["loop"]["rounds"])]
for part in ("validation", "initial", "checkpoints/0", *rounds):
    (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / part / "made").write_text(str(sorted(os.sched_getaffinity(0))))
    (folder / part / "validation.json").touch()
if "killed" in name:
    os.kill(os.getpid(), signal.SIGKILL)
if "wrong" in name or settings["seed"] == 3:
    sys.exit("error: it cannot be")
begin = time.time()
time.sleep(60 if settings["seed"] == 4 else 0.3)
(folder / "times").write_text(f"{begin} {time.time()}")
(folder / "cores").write_text(str(sorted(os.sched_getaffinity(0))))
(folder / "finished.json").write_text("{}")
"""


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Makes a runner of a study with these variants and seeds whose processes only pretend."""
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(processes, "WORKER", (sys.executable, str(tmp_path / "fake.py")))

    def make(names, seeds, submitter=None, kept_rounds=1):
        changes = [{"engineer.designer": designer} for designer in ("fixed", "random", "failures")]
        study = Study("", tuple(map(Variant, names, names, changes)), names[0], seeds)
        base = bases.tiny_base()
        base.engineer.kept_rounds = kept_rounds
        jobs = study_runs.jobs(study, study.settings(base))
        cores = measurements.cores()
        places = [processes.Slot((cores[i % len(cores)],), {"PLACE": str(i)}) for i in range(2)]
        return study_runs.Runner(tmp_path, jobs, places, Reporter(), submitter)

    return make


def test_runs_are_computed_at_the_same_time_and_fail_alone(runner, tmp_path, capsys):
    assert runner(("good", "wrong", "killed"), (0, 3)).run()
    out = capsys.readouterr().out
    assert "/8 wrong, seed 0: failed: it cannot be" in out
    assert "/8 killed, seed 0: failed: its process died (signal 9); what it printed is in" in out
    assert "\n8/8 " in out
    files = {path.relative_to(tmp_path) for path in tmp_path.glob("*/*/*/finished.json")}
    assert files == {Path("runs/good/seed-0/finished.json")}
    for name in ("good", "wrong", "killed"):  # Without their beginning none of them can begin.
        error = (tmp_path / f"runs/{name}/seed-3/error.txt").read_text()
        assert re.fullmatch(r"its shared beginning \(shared/[\w-]+\) failed: it cannot be\n", error)
    assert (tmp_path / "runs/killed/seed-0/error.txt").read_text().startswith("its process died")
    # What is finished stays, what failed is tried again.
    before = (tmp_path / "runs/good/seed-0/times").read_text()
    assert runner(("good", "wrong", "killed"), (0,)).run()
    assert "2 runs are finished already" in capsys.readouterr().out  # And the shared beginning.
    assert (tmp_path / "runs/good/seed-0/times").read_text() == before


@pytest.mark.parametrize("kept", [1, 2, 7])  # The runs have six rounds.
def test_runs_begin_with_the_rounds_that_nobody_designs(runner, tmp_path, kept):
    assert runner(("a", "b"), (0,), kept_rounds=kept).run()
    (shared,) = (path.read_text() for path in tmp_path.glob("shared/*/begins_with"))
    begin = {path.read_text() for path in tmp_path.glob("runs/*/*/begins_with")}
    assert (shared, begin) == ("", {"0 1 2 3 4 5"[: 2 * kept - 1]})


def test_two_processes_at_a_time_on_their_own_cores(runner, tmp_path):
    assert runner(("a", "b", "c"), (0, 1)).run()
    spans = [tuple(map(float, p.read_text().split())) for p in tmp_path.glob("*/*/*/times")]
    spans += [tuple(map(float, p.read_text().split())) for p in tmp_path.glob("shared/*/times")]
    assert len(spans) == 6 + 2
    together = [sum(b <= begin < e for b, e in spans) for begin, _ in spans]
    assert max(together) == 2
    # Shared beginnings too: where processes start slowly, they may be all that ran together.
    places = {path.read_text() for path in tmp_path.glob("*/*/*/cores")}
    places |= {path.read_text() for path in tmp_path.glob("shared/*/cores")}
    assert all(len(json.loads(cores)) == 1 for cores in places)
    assert len(places) == min(2, len(measurements.cores()))


SERVING = """
import json, os, sys
from pathlib import Path

for line in sys.stdin:
    request = json.loads(line)
    if request["settings"]["seed"] == 1:
        (Path(request["folder"]) / "log.txt").write_text("error: it cannot be")
        sys.exit(1)
    for part in ("validation", "initial", "checkpoints/0", "rounds/0"):
        (Path(request["folder"]) / part).mkdir(parents=True, exist_ok=True)
    (Path(request["folder"]) / "rounds/0/validation.json").touch()
    (Path(request["folder"]) / "process").write_text(str(os.getpid()))
    (Path(request["folder"]) / "finished.json").write_text("{}")
    print("finished", flush=True)
"""


def test_a_process_computes_one_run_after_another_until_one_fails(runner, tmp_path):
    (tmp_path / "fake.py").write_text(SERVING)
    made = runner(("a", "b"), (0, 1, 2))
    made._idle.pop()
    assert made.run()
    written = {path.parent: path.read_text() for path in tmp_path.glob("**/process")}
    of_seeds = [{told for of, told in written.items() if f"seed-{i}" in of.name} for i in range(3)]
    assert [len(numbers) for numbers in of_seeds] == [1, 0, 1]
    assert len(written) == 2 * 3
    assert of_seeds[0] != of_seeds[2]
    assert not any(Path("/proc", number).exists() for number in written.values())


@pytest.mark.slow
def test_a_worker_is_found_from_a_folder_with_another_package_of_its_name(tmp_path):
    """And what stands in the working folder can be imported after all packages."""
    (tmp_path / "rich.py").write_text("raise ValueError('not this one')")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise ValueError('not this one')")
    (tmp_path / "helper.py").touch()
    program = '''
import json, os, subprocess, sys
from experiments.study import processes

*python, _, module = processes.WORKER
code = f"""
import importlib, sys
worker = importlib.import_module({module!r})
def told(options):
    import helper, rich
    sys.exit(print(worker.__file__))
worker.settings_lib.from_config = told
worker.main()
"""
environment = os.environ | processes.environment(processes.Slot((), {}))
process = subprocess.Popen([*python, "-c", code], env=environment, stdin=subprocess.PIPE)
request = {"folder": ".", "settings": {}, "last": True}
process.stdin.write(json.dumps(request).encode() + b"\\n")
process.stdin.flush()
sys.exit(process.wait())
'''
    python("-P", "-c", program, cwd=tmp_path)
    assert (tmp_path / "log.txt").read_text().strip() == str(
        ROOT / "experiments" / "study" / "worker.py"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_study_that_is_asked_to_leave_lets_its_runs_leave(runner, tmp_path, number):
    before = signal.getsignal(number)
    made = runner(("a", "b"), (4, 5))
    threading.Timer(1.0, os.kill, (os.getpid(), number)).start()
    begin = time.monotonic()
    assert not made.run()
    assert time.monotonic() - begin < 20
    assert signal.getsignal(number) == before
    assert not list(tmp_path.rglob("error.txt"))


def test_a_study_that_is_left_early_compares_nothing(tmp_path, monkeypatch, capsys):
    state = {"finished": 1, "planned": 4, "failed": 0}
    monkeypatch.setattr(study_runs, "compute", lambda *_: ({"state": state}, False))
    with flagsaver.flagsaver(workdir=str(tmp_path)):
        flags.FLAGS.mark_as_parsed()  # Parsing would ask for what other commands require.
        with pytest.raises(SystemExit) as error:
            command.run(["study"], lambda _: (None, None))
    assert error.value.code == 75
    told = "asked to leave: 1 of 4 runs are saved; the same command goes on from here\n"
    assert capsys.readouterr().out.endswith(told)


@pytest.mark.slow
def test_jobs_of_a_cluster_end_as_processes_do(runner, tmp_path, capsys):
    """In submitit's executor for this machine: runs that finish, fail, and die."""
    submitter = submission.Submitter(tmp_path / "submitit", ["timeout_min=5"])
    assert runner(("good", "wrong", "killed"), (0,), submitter).run()
    out = capsys.readouterr().out
    assert "/4 wrong, seed 0: failed: it cannot be" in out
    assert "/4 killed, seed 0: failed: its process died (signal 9)" in out
    assert {path.parent.parent.name for path in tmp_path.glob("runs/*/*/finished.json")} == {"good"}
    made = (tmp_path / "runs/good/seed-0/validation/made").read_text()
    assert len(json.loads(made)) == 1  # Jobs share this machine as processes do.


@pytest.mark.slow
def test_jobs_leave_with_their_study(runner, tmp_path):
    submitter = submission.Submitter(tmp_path / "submitit", [])
    started = runner(("a", "b"), (4, 5), submitter)

    def leave():
        while not list(tmp_path.glob("shared/*-seed-4/rounds/0/validation.json")):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=leave, daemon=True).start()
    begin = time.monotonic()
    assert not started.run()
    assert time.monotonic() - begin < 50  # The run itself would take a minute.
    assert not list(tmp_path.rglob("error.txt"))


PREEMPTED = """
import os, signal, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
assert sys.stdin.readline() == '{"seed": 0}\\n'
with (folder / "starts").open("a") as file:
    file.write("x")
signal.signal(signal.SIGTERM, lambda *_: ((folder / "saved").touch(), sys.exit(75)))
if (folder / "saved").exists():
    (folder / "finished").touch()
    sys.exit()
(folder / "pids").write_text(f"{os.getpid()} {os.getppid()}")
(folder / "pids").rename(folder / "begun")
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", ["the queue", "a signal to the worker"])
def test_a_preempted_job_saves_and_runs_again(by, tmp_path):
    """By submitit, which queues it again, or by the study, which submits it again after a 75."""
    (tmp_path / "worker.py").write_text(PREEMPTED)
    submitter = submission.Submitter(tmp_path / "submitit", [])
    command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path)]
    submitted = submitter.start(command, '{"seed": 0}\n', {}, tmp_path / "log.txt")

    def wait_for(what):
        end = time.monotonic() + 60
        while not what():
            assert time.monotonic() < end, (tmp_path / "log.txt").read_text()
            time.sleep(0.1)

    wait_for((tmp_path / "begun").exists)
    worker, job = map(int, (tmp_path / "begun").read_text().split())
    number, process = (signal.SIGUSR2, job) if by == "the queue" else (signal.SIGTERM, worker)
    os.kill(process, number)  # As Slurm does before it preempts a job.
    wait_for(lambda: submitted.poll() is not None)
    assert submitted.returncode == 0, (tmp_path / "log.txt").read_text()
    assert (tmp_path / "starts").read_text() == "xx"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (["gpus=1"], r"submitit=gpus=1: .*gpus"),
        (["timeout_min=a day"], r"submitit=timeout_min=a day: .*timeout_min"),
    ],
)
def test_parameters_of_jobs_are_checked_before_any_is_submitted(parameters, message, tmp_path):
    with pytest.raises(UserError, match=message):
        submission.Submitter(tmp_path, parameters)


def test_what_jobs_need_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"launcher=submitit: needs submitit; .*\[submitit\]"):
        submission.Submitter(tmp_path, [])


def base_of(path):
    return runpy.run_path(str(path))["get_config"]()


@pytest.fixture
def begun(tmp_path):
    """Writes the tables of some seeds of a study in which runs of seeds 0 and 1 have begun."""
    study, base = dataclasses.replace(designers.STUDY, seeds=(0, 1)), bases.tiny_base()
    for job in study_runs.jobs(study, study.settings(base)):
        (tmp_path / job.folder).mkdir(parents=True)
        (tmp_path / job.folder / "config.json").write_text("{}")

    def tables(*seeds):
        wanted = study.with_seeds(seeds)
        return study_runs.compute(tmp_path, wanted, base, None, Reporter())[0]

    return tables


@pytest.mark.parametrize("seeds", ["0", "12", "2"])
def test_tables_leave_out_no_seed(begun, tmp_path, seeds):
    given = ", ".join(seeds)
    with pytest.raises(UserError, match=f": there are runs of seeds 0, 1, but seeds={given}$"):
        begun(*seeds)
    assert not list(tmp_path.glob("*.*"))


def test_tables_are_written_while_the_study_runs(begun, tmp_path):
    with RunStore(tmp_path).locked():
        found = begun("0", "1", "2")
    assert found["state"]["planned"] == found["state"]["missing"] == 3 * len(found["variants"])
    assert (tmp_path / "comparison.md").exists()


@pytest.mark.slow
def test_what_is_finished_stays(done):
    folder, _ = done
    before = (folder / "study" / "comparison.md").read_text()
    with (folder / "study/runs/fixed/seed-0/times.jsonl").open("a") as file:
        file.write('{"seconds": 1')  # Killed while it was written.
    marks = {path: path.stat().st_mtime_ns for path in folder.glob("study/runs/*/*/times.jsonl")}
    code, _, err = finish(start(folder, "--tables_only"))
    assert code == 1, err[-3000:]
    assert (folder / "study" / "comparison.md").read_text() == before
    assert marks == {path: path.stat().st_mtime_ns for path in marks}
    code, _, err = finish(start(folder, "--tables_only", "--config.training.group_size=8"))
    assert code == 1
    assert "started with other options (training.group_size was 4 and is 8)" in err
    assert "Traceback" not in err
    nowhere = f"--workdir={folder / 'elsewhere'}"
    code, _, err = finish(start(folder, "--tables_only", nowhere))
    assert (code, (folder / "elsewhere").exists()) == (1, False)
    assert "no study is there" in err


def answers(folder, variant, seed, part, name):
    path = folder / "study" / "runs" / variant / f"seed-{seed}" / part / "answers.jsonl"
    return np.array([json.loads(line)[name] for line in path.read_text().splitlines()], float)


@pytest.fixture(scope="module")
def two_seeds(done, tmp_path_factory):
    """The study with a second seed: the first one with some of its answers turned round."""
    folder = shutil.copytree(done[0], tmp_path_factory.mktemp("two") / "seeds")
    for variant, every in (("fixed", 5), ("failures", 3)):
        source = folder / "study/runs" / variant
        for path in shutil.copytree(source / "seed-0", source / "seed-1").rglob("answers.jsonl"):
            records = [json.loads(line) for line in path.read_text().splitlines()]
            for record in records[::every]:
                record["valid"] = record["optimal"] = not record["valid"]
                record["failed"] = [] if record["valid"] else ["goals_reached"]
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
            found = Lakes(LakesOptions(sizes=(3, 4, 5))).breakdown(records).to_dict()
            found = {**found, "greedy": found}
            path.with_name("validation.json").write_text(json.dumps(found))
    plan = folder / "plan.py"
    plan.write_text(plan.read_text().replace("seeds=(0,)", "seeds=(0, 1)"))
    study = variants.load(str(plan))
    study_results.write(folder / "study", study, study.settings(base_of(plan)), {})
    return folder


@pytest.mark.slow
def test_tables(two_seeds):
    folder = two_seeds
    found = read(folder)
    assert found["state"] == {"planned": 6, "finished": 4, "failed": 1, "missing": 1}
    assert found["schema"] == study_results.SCHEMA
    assert found["budget"]["differs"] == {}
    assert found["budget"]["equal"] == {
        "rounds": 2,
        "instances": 32,
        "steps": 4,
        "updates": 4,
        "answers": 128,
        "validated": 72,
        "engineer_steps": 0,
    }
    run = found["runs"][0]
    assert run["used"] == {
        "instances_asked": 32,
        "instances": 32,
        "steps": 4,
        "updates": run["used"]["updates"],
        "answers": 128,
    }
    assert [point["steps"] for point in run["points"]] == [0, 2, 4]
    assert [point["round"] for point in run["points"]] == [None, 0, 1]
    assert run["points"][2]["design"]["source"] == "fixed"
    for point in run["points"]:
        assert sum(row["valid"] for row in point["by_row"].values()) == point["valid"]
        assert point["answers"] == 24
    entries = {(one["metric"], one["variant"]): one for one in found["comparison"]}
    parts = ["initial", "rounds/0", "rounds/1"]
    for name in ("valid", "optimal"):
        differences = []
        for seed in (0, 1):
            final = {}
            for variant in ("fixed", "failures"):
                curve = [answers(folder, variant, seed, part, name).mean() for part in parts]
                final[variant] = curve[-1]
                values = entries[f"{name}_final", variant]["values"]
                assert values[str(seed)] == pytest.approx(curve[-1])
                area = np.trapezoid(curve, [0, 0.5, 1])
                assert entries[f"{name}_area", variant]["values"][str(seed)] == pytest.approx(area)
            differences.append(final["failures"] - final["fixed"])
        difference = entries[f"{name}_final", "failures"]["difference"]
        assert difference["mean"] == pytest.approx(np.mean(differences))
        if np.ptp(differences) > 1e-9:
            expected = scipy.stats.ttest_1samp(differences, 0)
            assert difference["p"] == pytest.approx(expected.pvalue)
            low, high = expected.confidence_interval()
            assert (difference["low"], difference["high"]) == pytest.approx((low, high))
        else:
            assert difference["p"] == (None if any(differences) else 1)
        assert entries[f"{name}_final", "fixed"]["difference"] is None
        assert entries[f"{name}_final", "broken"]["mean"] is None
    page = (folder / "study" / "comparison.md").read_text()
    assert "4 of 6 runs are finished" in page
    assert "instances 32; steps 4; updates 4" in page
    assert re.search(r"\nSeconds of a run, .* included: [a-z, ]+ \d+; ", page)
    assert "- broken, seed 0 failed: " in page


@pytest.mark.slow
def test_less_than_the_budget_is_named(two_seeds):
    found = read(two_seeds)
    for run in found["runs"]:
        run["used"] |= {"instances": 32, "steps": 4, "updates": 4}
    assert study_results.shortfalls(found) == []
    found["runs"][0]["used"] |= {"instances": 30, "steps": 3, "updates": 3}
    found["runs"][3]["used"] |= {"updates": 2}  # Two steps without a signal.
    page = study_results.markdown(found)
    less = "trained on less than its budget: seed"
    assert f"- fixed {less} 0: 30 instances, 3 steps, 3 updates.\n" in page
    assert f"- failures {less} 1: 32 instances, 4 steps, 2 updates.\n" in page


def test_how_a_design_follows_its_validation():
    by_row = {"3": {"answers": 10, "valid": 5}, "4": {"answers": 10, "valid": 9}}
    by_row["5"] = {"answers": 20, "valid": 0}
    config = Configuration(("3", "4", "5"), ("part",), ((0.6,), (0.3,), (0.1,)))
    signals, parts = [0.25, 0.09, 0.0], [0.6, 0.3, 0.1]
    found = study_results.follows(by_row, config, "part")
    assert found == pytest.approx(scipy.stats.pearsonr(parts, signals).statistic, abs=1e-4)
    even = Configuration(("3", "4", "5"), ("part",), ((1 / 3,),) * 3)
    assert study_results.follows(by_row, even, "part") is None
    mastered = {row: {"answers": 5, "valid": 5} for row in by_row}
    assert study_results.follows(mastered, config, "part") is None


@pytest.mark.parametrize(
    ("path", "base"),
    [(path, base) for path in TEMPLATES for base in bases.BASES]
    + [(path, "tiny") for path in FINISHED],
    ids=lambda given: given if isinstance(given, str) else "/".join(given.parts[-2:]),
)
def test_every_study_has_equal_budgets(path, base, tmp_path):
    study = variants.load(f"{path}:{base}")
    config = base_of(path) if base == "tiny" else bases.get_config(base)
    if base != "tiny":
        with pytest.raises(UserError, match=r"model\.path"):
            study.settings(config)
        (tmp_path / "config.json").write_text("{}")
        config.model.path = str(tmp_path)
    settings = study.settings(config)
    assert len(study.seeds) >= (3 if path.parent.name in FEW_SEEDS else 5)
    jobs = study_runs.jobs(study, settings)
    assert len({job.folder for job in jobs}) == len(jobs)
    runs = len(study.variants) * len(study.seeds)
    if study.branches:
        of = study.branches
        each = sum(len(of.horizons_of(variant.name)) for variant in study.variants)
        runs = len(study.seeds) * (1 + len(of.rounds) * each)  # And the trunk.
    assert len([job for job in jobs if job.variant]) == runs
    if path.stem == "designers":
        alone = {job.variant for job in jobs if job.variant and job.shared is None}
        assert alone == {"fixed_uniform"}


@pytest.mark.parametrize("path", FINISHED, ids=lambda path: path.parent.name)
def test_a_finished_study_depends_on_no_other_one_and_is_that_of_its_results(path):
    text = path.read_text()
    imported = set(re.findall(r"^(?:from|import) (experiments[\w.]*)", text, re.MULTILINE))
    assert imported <= {
        "experiments.configs",
        *(
            f"experiments.configs.{name}"
            for name in ("smollm2", "sums", "sums_ladder", "studies.bases")
        ),
        "experiments.study.variants",
    }
    record = path.with_name("study.json.gz")
    if not record.exists():
        return
    found = json.loads(gzip.decompress(record.read_bytes()))
    study = variants.load(str(path))
    assert (found["question"], found["reference"]) == (study.question, study.reference)
    assert found["seeds"] == list(study.seeds)

    def comparable(name, label, changes):
        """As options are called now; a set that is kept, by the ending of its file, which moved."""
        if changes == V4_WITH_T_IN_FULL_BEFORE:
            changes = {"engineer.context": "V4+training=full"}
        if changes.get("engineer.training.hindsight") == "progress":
            changes = {**changes, "engineer.training.hindsight": "learning_progress"}
        start = changes.get("engineer.start", "")
        kept = {"engineer.start": ".yaml"} if start.endswith(".yaml") else {}
        return name, label, {**changes, **kept}

    assert [comparable(x["name"], x["label"], x["changes"]) for x in found["variants"]] == [
        comparable(x.name, x.label, x.changes) for x in study.variants
    ]


def test_bases_are_named_after_the_file():
    assert bases.get_config().model.path == "tiny"
    with pytest.raises(ValueError, match="'qwen9' after the file's name: allowed are tiny, qwen3"):
        bases.get_config("qwen9")


def test_unequal_budgets_are_refused():
    variants = (Variant("a", "a"), Variant("b", "b", {"environment.num_instances": 960}))
    study = Study("", variants, "a")
    with pytest.raises(
        UserError, match=r"instances differs between variants, \{'a': 1920, 'b': 5760"
    ):
        study.settings(bases.tiny_base())
    apart = Study(
        "", (Variant("a", "a"), Variant("b", "b", {"lakes.validation_hole_ratios": (0.1,)})), "a"
    )
    with pytest.raises(
        UserError, match=r"lakes\.validation_hole_ratios differs between variants, \{'a': \(0"
    ):
        apart.settings(bases.tiny_base())
    again = {"training.degenerate_groups": "resample", "training.max_resamples": 3}
    further = Study("", (Variant("a", "a"), Variant("b", "b", again)), "a")
    with pytest.raises(
        UserError, match=r"answers differs between variants, \{'a': 30720, 'b': 122880\}"
    ):
        further.settings(bases.tiny_base())
    best = {"training.curriculum.method": "learnability", "training.curriculum.candidates": 4}
    chosen = Study("", (Variant("a", "a"), Variant("b", "b", best)), "a")
    with pytest.raises(UserError, match=r"steps differs between variants, \{'a': 120, 'b': 30\}"):
        chosen.settings(bases.tiny_base())
    quarter = Variant("b", "b", best | {"training.prompts_per_step": 8})  # The same candidates.
    dataclasses.replace(chosen, variants=(Variant("a", "a"), quarter)).settings(bases.tiny_base())
    blocks = {1: {"loop.rounds": 3}}  # Variants count before their blocks.
    variants = (Variant("a", "a"), Variant("b", "b", {"loop.rounds": 6}))
    with pytest.raises(
        UserError, match=r"rounds differs between variants, \{'a': 6, 'a, seed 1': 3, 'b': 6"
    ):
        Study("", variants, "a", (0, 1), blocks).settings(bases.tiny_base())
    free = ("instances", "steps", "updates", "answers")
    dataclasses.replace(study, may_differ=free).settings(bases.tiny_base())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Variant("Big Name", ""), "small letters"),
        (lambda: Variant("a", "", {"engineer.desinger": 1}), "did you mean engineer.designer"),
        (lambda: Variant("a", "", {"seed": 1}), "those of the study"),
        (lambda: Study("", (Variant("a", ""),), "a"), "at least two"),
        (lambda: Study("", (Variant("a", "a"), Variant("b", "b")), "c"), "reference='c'"),
        (lambda: Study("", (Variant("a", "x"), Variant("b", "x")), "a"), "labels .* distinct"),
        (lambda: dataclasses.replace(designers.STUDY, seeds=(1, 1)), "seeds"),
        (lambda: dataclasses.replace(designers.STUDY, may_differ=("time",)), "may_differ"),
        (lambda: variants.load("experiments/configs/tiny.py"), "holds no STUDY"),
    ],
)
def test_bad_variants_and_studies(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_where_processes_compute(tmp_path, monkeypatch):
    settings = designers.STUDY.settings(bases.tiny_base())["current"][0]

    def slots(workers):
        return processes.slots(tmp_path, workers, settings)

    monkeypatch.setattr(processes, "_devices", lambda: ("cpu", 1))
    monkeypatch.setattr(processes.measurements, "cores", lambda: [0, 1, 4, 5, 6])
    assert [slot.cores for slot in slots(2)] == [(0, 1), (4, 5)]
    assert len(slots(0)) == 5
    assert [slot.cores for slot in slots(7)][5:] == [(0,), (1,)]
    monkeypatch.setattr(processes, "_devices", lambda: ("gpu", 2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    visible = [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots(0)]
    assert visible == ["3", "5"]
    shared = [slot.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] for slot in slots(4)]
    assert shared == ["0.450"] * 4
    monkeypatch.setattr(processes, "_devices", lambda: ("tpu", 4))
    assert len(slots(0)) == 1
    with pytest.raises(UserError, match="workers=2"):
        slots(2)
