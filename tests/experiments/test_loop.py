"""The whole ring in small, killed and resumed; the report; errors on the command line."""

import errno
import json
import os
import re
import shutil
import signal
import time

import numpy as np
import pytest
import tensorboard_events
import whole_runs
import yaml
from whole_runs import story

from experiments.run import store


def test_three_rounds_two_designs_and_a_report(undisturbed):
    workdir, out = undisturbed
    told = story(workdir)
    assert [len(told[f"train {index}"]) for index in range(3)] == [4, 4, 4]
    for index in range(2):
        design = json.loads(told[f"rounds/{index}/design/design.json"])
        assert design["source"] == "current"
        assert design["raw_texts"]
        context = (workdir / "rounds" / str(index) / "design" / "context.md").read_text()
        assert "Latest results" in context
    assert "round 3: valid" in out
    assert "next: size 3: data_ratio 0." in out
    assert re.search(r"\n  the design (raised|cut) size [34] from \d+ % to \d+ % of the set, ", out)
    page = (workdir / "report.html").read_text()
    assert page.count('class="chart"') == len(list((workdir / "figures").glob("*.png"))) > 10
    assert page.count('class="lake"') == 12


def test_a_run_says_what_it_is_going_to_do_and_when_to_wait(undisturbed):
    workdir, out = undisturbed
    lines = out.splitlines()
    assert lines[0] == f"{workdir}: starting"
    assert lines[3:10] == [
        "  3 rounds of 4 steps on 32 problems each, validated on 24",
        "  a step: 8 problems with 4 completions each, in 32 slots of at most 64 tokens; "
        "updates: 1",
        "  design: current, from context V6",
        "  mesh: data 1 x fsdp 1 x tensor 1; micro-batches of up to 8 sequences",
        "  a device: 13.4 MB of parameters and moments; 4.5 MB of gradients, or 4.5 MB of weights "
        "and up to 4.2 MB of keys and values while it samples, compiled for up to 2 lengths",
        "making the validation set",
        "compiling the sampler, then validating the untrained model",
    ]
    compiling = "round 1: compiling the first step: the sampler, for up to 2 lengths"
    first = yaml.safe_load((workdir / "rounds/0/environment.yaml").read_text())
    place = lines.index("round 1 (rounds/0): making the training set")
    assert lines[place + 1].startswith(
        f"  configuration: size 3: data_ratio {first[3]['data_ratio']:.2f}, hole_ratio "
    )
    assert out.count("  configuration: ") == 1
    assert "\nround 3 (rounds/2): making the training set\n" in out
    assert out.count(compiling) == out.count("compiling the first") == 1


def test_the_logs_begin_with_the_validation_before_training(undisturbed):
    workdir, out = undisturbed
    pytest.importorskip("tensorboardX")
    (file,) = (workdir / "tensorboard").iterdir()
    shown, texts = {}, {}
    for event in tensorboard_events.read(file):
        for value in event.summary.value:
            texts.setdefault(value.tag, []).append(b"".join(value.tensor.string_val).decode())
            shown.setdefault(value.tag, {})[event.step] = value.simple_value
    for number, folder in enumerate(("initial", "rounds/0", "rounds/1", "rounds/2")):
        found = json.loads((workdir / folder / "validation.json").read_text())
        assert shown["validation/valid"][4 * number] == pytest.approx(found["valid_rate"], abs=1e-3)
    assert sorted(shown["reward"]) == list(range(1, 13))
    # The time between two steps is in the line of the next one, the last one's in the logs alone.
    for phase, places in (("validation", [0, 4, 8, 12]), ("design", [4, 8])):
        name = f"machine/{phase}_seconds"
        assert sorted(shown[name]) == places
        for index in range(3):
            lines = (workdir / "rounds" / str(index) / "train.jsonl").read_text().splitlines()
            first, *others = (json.loads(line) for line in lines)
            assert first.get(name) == pytest.approx(shown[name].get(4 * index))
            assert not any(name in line for line in others)
    # Three completions with every validation, and how every design came about.
    for name in ("completion/1", "completion/2", "completion/3", "completion/example"):
        assert sorted(shown[f"{name}/text_summary"]) == [0, 4, 8, 12]
    # The terminal's example and its sentence on a design are there too.
    assert len(texts["design/change/text_summary"]) == 2
    for text in texts["design/change/text_summary"] + texts["completion/example/text_summary"]:
        lines = [line.strip() for line in text.splitlines()]
        assert set(filter(None, lines)) <= {line.strip() for line in out.splitlines()}
    assert sorted(shown["design/text/text_summary"]) == sorted(shown["design/repairs"]) == [4, 8]
    config = yaml.safe_load((workdir / "rounds" / "1" / "environment.yaml").read_text())
    assert shown["configuration/hole_ratio_3"][8] == pytest.approx(config[3]["hole_ratio"])


# A run is stopped soon after each of these files has so many bytes: while the first checkpoints are
# written, in the middle of a round, between training and validation, around a design. Asked to
# leave, it does so when its step is saved, and at once while it samples the first one.
MARKS = [
    ("rounds/0/train.jsonl", 1, signal.SIGTERM),
    ("rounds/1/train.jsonl", 0, signal.SIGKILL),
    ("rounds/0/train.jsonl", 0, signal.SIGTERM),
    ("rounds/0/design/design.json", 0, signal.SIGKILL),
    ("rounds/1/validation.json", 0, signal.SIGKILL),
    ("rounds/2/train.jsonl", 0, signal.SIGKILL),
]


@pytest.mark.slow
@pytest.mark.parametrize("marks", [MARKS[:2], MARKS[2:]])
def test_killed_runs_end_like_the_undisturbed_one(undisturbed, tmp_path, marks):
    whole, _ = undisturbed
    workdir = tmp_path / "killed"
    for number, (mark, least, sent) in enumerate(marks):
        run = whole_runs.three_rounds(workdir)
        path = workdir / mark
        while run.process.is_alive():
            if path.exists() and path.stat().st_size >= least:
                break
            time.sleep(0.02)
        time.sleep(0.1 + 0.4 * number)
        begin = time.monotonic()
        os.kill(run.process.pid, sent)
        code, _, err = run.end()
        if sent == signal.SIGTERM:
            assert (code, err) == (75, "")
            steps = len(path.read_text().splitlines())
            if least:
                assert (workdir / "checkpoints" / str(steps)).is_dir()
            else:
                assert steps == 0
                assert (workdir / "initial" / "validation.json").exists()
                assert time.monotonic() - begin < 20
    code, out, err = whole_runs.three_rounds(workdir).end()
    assert code == 0, err[-3000:]
    assert "resuming" in out
    assert story(workdir) == story(whole)


@pytest.mark.slow
def test_prompts_are_replayed_the_same_after_a_resume(tmp_path):
    options = ("--config.training.curriculum.method=replay", "--config.loop.rounds=2")
    options += ("--config.engineer.designer=fixed",)
    whole, workdir = tmp_path / "whole", tmp_path / "resumed"
    code, _, err = whole_runs.three_rounds(whole, *options).end()
    assert code == 0, err[-3000:]
    told = story(whole, 2)
    for index in range(2):  # What is known of a round's prompts says nothing of the next round's.
        replayed = [line["replayed_fraction"] for line in told[f"train {index}"]]
        assert replayed == [0, 0.5, 0.5, 0.5]
    shutil.copytree(whole, workdir)
    (workdir / "report.html").unlink()  # A finished run would only say so.
    code, out, err = whole_runs.three_rounds(workdir, *options, "--resume_from=6").end()
    assert code == 0, err[-3000:]
    assert "resuming after step 2 of round 2 (rounds/1)" in out
    assert story(workdir, 2) == told


# In the order in which a run writes. The largest file that is not of a checkpoint is the report.
REFUSED = [
    ("versions.json.tmp", errno.EROFS),
    ("config.json.tmp", errno.ENOSPC),
    ("validation/generated.json.tmp", errno.EACCES),
    ("validation/instances.jsonl.tmp", errno.EDQUOT),
    ("initial/answers.jsonl.tmp", errno.EIO),
    ("initial/validation.json.tmp", errno.ENOSPC),
    ("rounds/0/generated.json.tmp", errno.ENOSPC),
    ("rounds/0/instances.jsonl.tmp", errno.ENOSPC),
    ("rounds/0/train.jsonl", errno.ENOSPC),
    ("rounds/0/train_failures.json.tmp", errno.ENOSPC),
    ("rounds/0/greedy.jsonl.tmp", errno.ENOSPC),
    ("rounds/0/validation.json.tmp", errno.EIO),
    ("rounds/0/evidence.json.tmp", errno.ENOSPC),
    ("design/context.md.tmp", errno.ENOSPC),
    ("design/design.json.tmp", errno.EACCES),
    ("rounds/1/environment.yaml.tmp", errno.ENOSPC),
    ("rounds/1/train.jsonl", errno.EIO),
    ("rounds/2/evidence.json.tmp", errno.EROFS),
    ("times.jsonl", errno.ENOSPC),
    ("report.html.tmp", errno.ENOSPC),
]
FAULTS = [whole_runs.Fault(path, code) for path, code in REFUSED]
FAULTS.insert(9, whole_runs.Fault(limit=100_000))


@pytest.mark.slow
def test_runs_that_storage_fails_end_like_the_undisturbed_one(undisturbed, tmp_path):
    whole, _ = undisturbed
    workdir = tmp_path / "failing"
    for fault in FAULTS:
        code, _, err = whole_runs.three_rounds(workdir, fault=fault).end()
        said = os.strerror(fault.code or errno.EFBIG)
        assert (code, err.count("\n")) == (1, 1), (fault, err[-3000:])
        assert re.fullmatch(f"error: {workdir}/.*{re.escape(fault.path)}: {said}\n", err), fault
    # What is left is done on storage that is slow.
    code, _, err = whole_runs.three_rounds(workdir, fault=whole_runs.Fault(seconds=0.1)).end()
    assert code == 0, err[-3000:]
    assert story(workdir) == story(whole)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_and_an_older_one_goes_on_to_the_same_end(
    undisturbed, tmp_path
):
    whole, _ = undisturbed
    workdir = tmp_path / "damaged"
    shutil.copytree(whole, workdir)
    (workdir / "report.html").unlink()  # A finished run would only say so.
    path = max(
        (workdir / "checkpoints" / "12" / "state").rglob("*"), key=lambda path: path.stat().st_size
    )
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)
    code, _, err = whole_runs.three_rounds(workdir).end()
    assert code == 1
    assert re.fullmatch(
        r"error: .*: checkpoint 12 is damaged .*; go on from it with --resume_from=10",
        err.strip().splitlines()[-1],
    )
    code, out, err = whole_runs.three_rounds(workdir, "--resume_from=10").end()
    assert code == 0, err[-3000:]
    assert "resuming after step 2 of round 3" in out
    assert story(workdir) == story(whole)
    code, _, err = whole_runs.three_rounds(workdir, "--resume_from=11").end()
    assert code == 1
    assert err.strip().endswith("no checkpoint 11, there are [4, 8, 10, 12]")


@pytest.mark.slow
def test_other_batches_change_a_resumed_run_only_by_rounding(undisturbed, tmp_path):
    whole, _ = undisturbed
    workdir = shutil.copytree(whole, tmp_path / "resumed")
    (workdir / "report.html").unlink()  # A finished run would only say so.
    rows = ("micro_batch_size=4", "sampling_slots=8")
    options = (f"--config.training.{option}" for option in rows)
    code, out, err = whole_runs.three_rounds(workdir, *options, "--resume_from=8").end()
    assert code == 0, err[-3000:]
    assert "resuming after step 4 of round 2" in out
    (line,) = store.read_log(workdir / store.CHANGES)
    assert line["changed"] == [
        "training.micro_batch_size was 8 and is 4",
        "training.sampling_slots was 512 and is 8",
    ]
    now, before = story(workdir), story(whole)
    steps, expected = (told.pop("train 2") for told in (now, before))
    assert now == before  # The same completions.
    for step, other in zip(steps, expected, strict=True):
        assert step == pytest.approx(other, rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_a_finished_run_goes_on_when_it_gets_another_round(undisturbed, tmp_path):
    whole, _ = undisturbed
    workdir = shutil.copytree(whole, tmp_path / "extended")
    options = ("--config.loop.rounds=4", "--config.training.profile_steps=13:14")
    code, out, err = whole_runs.three_rounds(workdir, *options).end()
    assert code == 0, err[-3000:]
    assert "loop.rounds was 3 and is 4" in out
    assert "resuming after step 4 of round 3" in out
    for path in (whole / "rounds").rglob("*.*"):
        assert (workdir / path.relative_to(whole)).read_bytes() == path.read_bytes()
    assert len(story(workdir, 4)["train 3"]) == 4
    assert len(list(workdir.glob("rounds/*/design/design.json"))) == 3
    assert len(list((workdir / "trace").rglob("*.xplane.pb"))) == 1


@pytest.mark.slow
def test_a_number_that_is_not_finite_stops_the_run(undisturbed, tmp_path):
    whole, _ = undisturbed
    for name in ("initial", "validation", "rounds/0"):  # Only the training is of interest.
        shutil.copytree(whole / name, tmp_path / name)
    options = ("optimizer.learning_rate=1e38", "optimizer.max_grad_norm=0.0")
    code, out, err = whole_runs.three_rounds(
        tmp_path, *(f"--config.training.{o}" for o in options)
    ).end()
    assert code == 1
    assert "is not finite" in err
    assert "Traceback" not in err
    assert "the last good checkpoint is None" in out
    (folder,) = (tmp_path / "non_finite").iterdir()
    arrays = np.load(folder / "arrays.npz")
    texts = (folder / "texts.jsonl").read_text().splitlines()
    assert len(texts) == len(arrays["tokens"]) == len(arrays["rewards"]) == 32


def test_other_options_and_bad_options_stop_at_once(undisturbed, tmp_path):
    begun = shutil.copytree(undisturbed[0], tmp_path / "begun")
    code, _, err = whole_runs.three_rounds(begun, "--config.seed=1").end()
    assert code != 0
    assert "seed was 0 and is 1" in err
    (tmp_path / "bad.jsonl").write_text("{}")
    (tmp_path / "bad.py").write_text("x = [")
    for option, message in (
        (f"--config={tmp_path}/bad.py", f"config='{tmp_path}/bad.py': SyntaxError: '[' was never"),
        (f"--config.lakes.exclude={tmp_path}/bad.jsonl", f"lakes.exclude='{tmp_path}/bad.jsonl': "),
        ("--resume_from=9", "resume_from=9: no checkpoint 9, there are []"),
        ("--config.engineer.designer=nobody", "engineer.designer='nobody': allowed are"),
        ("--config.loop.rouns=3", "loop.rouns: unknown field (did you mean loop.rounds?)"),
        ("--config.loop.rounds=three", "--config.loop.rounds=three: invalid literal for int()"),
        ("--config.log.tensorboard=yes", "log.tensorboard='yes': allowed are True and False"),
    ):
        code, _, err = whole_runs.three_rounds(tmp_path / "new", option).end()
        assert code != 0
        assert message in err
        assert err.count("\n") == 1
        assert not (tmp_path / "new" / "rounds").exists()
