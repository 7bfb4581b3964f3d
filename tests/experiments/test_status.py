"""What a run prints, and where it logs."""

import pytest

from engineer.evidence import FailureBreakdown, GroupOutcome
from engineer.space import Configuration, ConfigurationSpace, Parameter
from experiments.families.words import Words
from experiments.ring.metrics import check_packages, open_writers
from experiments.ring.outcomes import example
from experiments.run.status import Reporter, describe, numbers, truncation
from experiments.run.store import RunStore, write_file
from experiments.settings import from_config
from experiments.text.errors import UserError
from experiments.text.templates import counted, paragraphs, render


def breakdown(*rows):
    """Of (answers, valid, optimal) of sizes 3, 4, ..."""
    return FailureBreakdown(
        tuple(
            GroupOutcome(str(3 + i), answers, valid, optimal, {"parsable": answers - valid})
            for i, (answers, valid, optimal) in enumerate(rows)
        ),
        "size",
    )


def test_a_validation_says_what_is_optimal_only_where_that_is_another_thing(capsys):
    reporter = Reporter()
    reporter.validation(
        "start", breakdown((10, 5, 4), (10, 0, 0)), breakdown((10, 6, 6), (10, 1, 1))
    )
    plain = breakdown((10, 5, 5), (30, 0, 0))
    reporter.validation("round 1", plain, plain, "; next: more")
    reporter.line("what models write is shown as it is: [b] :cat: 12:30")
    reporter.line("but for commands to the terminal: \x1b[2J \x1b]0;x\x07 \x9b2J")
    assert capsys.readouterr().out.splitlines() == [
        "start: valid 25.0% optimal 20.0%, greedy 35.0% 35.0% (valid/optimal: "
        "size 3 50%/40%, size 4 0%/0%)",
        "round 1: valid 12.5%, greedy 12.5% (valid: size 3 50%, size 4 0%); next: more",
        "what models write is shown as it is: [b] :cat: 12:30",
        "but for commands to the terminal: \ufffd[2J \ufffd]0;x\ufffd \ufffd2J",
    ]


def test_a_warning_names_the_rows_whose_answers_the_budget_ends():
    rows = [
        GroupOutcome(name, 10, 10, 10, {"right": 0}, truncated=n) for n, name in enumerate("1234")
    ]
    assert truncation(FailureBreakdown(tuple(rows), "digits"), 12) == [
        "truncated answers: 30% of digits 4 reach validation.max_new_tokens=12 and may fail for no "
        "other reason"
    ]
    assert truncation(breakdown((10, 5, 5)), 12) == []


def test_a_line_says_where_nothing_was_designed():
    parameters = Parameter("fraction"), Parameter("length", ((1, 9),), decimals=0)
    space = ConfigurationSpace("size", ("3",), parameters, "fraction")
    design = {"config": {"3": {"fraction": 0.5, "length": 4.0}}, "kept_previous": True}
    design["reason"] = "try 0: empty"
    then = "; next: size 3: fraction 0.50, length 4 (kept: try 0: empty)"
    was = Configuration.from_dict(design["config"])
    assert describe(design, was, space) == then
    assert describe(design | {"nothing": "no answer could be read"}, was, space) == (
        f"; designed nothing: no answer could be read{then}"
    )


def test_a_design_is_shown_beside_the_configuration_before_it():
    parameters = Parameter("fraction"), Parameter("length", ((1, 9),), decimals=0)
    space = ConfigurationSpace("size", ("3", "4"), parameters, "fraction")
    was = Configuration.from_dict(
        {"3": {"fraction": 0.18, "length": 4}, "4": {"fraction": 0.82, "length": 4.2}}
    )
    now = {"3": {"fraction": 0.24, "length": 5}, "4": {"fraction": 0.76, "length": 4}}
    assert numbers(was, space) == (
        "size 3: fraction 0.18, length 4; size 4: fraction 0.82, length 4"
    )
    assert describe({"config": now, "kept_previous": False}, was, space) == (
        "; next: size 3: fraction 0.18 -> 0.24, length 4 -> 5; "
        "size 4: fraction 0.82 -> 0.76, length 4"
    )


def test_numbers_of_one_are_singular():
    assert [counted(count, "training step") for count in (0, 1, 1000)] == [
        "0 training steps", "1 training step", "1,000 training steps"
    ]  # fmt: skip
    small = from_config(
        {"loop": {"rounds": 1}, "training": {"prompts_per_step": 1, "group_size": 2}}
    )
    memory = dict.fromkeys(("device", "state", "gradients", "weights", "cache"), 0)
    planned = paragraphs("plan.md", settings=small, memory=memory, capacities=())
    assert planned[0].startswith("1 round of ")
    assert planned[1].startswith("a step: 1 problem with 2 completions each")
    found = {
        "state": {"finished": 1, "planned": 1, "failed": 0},
        "metrics": [{"name": "valid", "label": "valid"}],
        "comparison": [{"metric": "valid", "variant": "a", "mean": 0.5, "values": {"0": 0.5}}],
        "runs": [],
    }
    assert render("summary.md", found=found, labels={"a": "A"}).splitlines() == [
        "1 of 1 run finished, 0 failed; valid:", "  A: 50.0% over 1 seed"
    ]  # fmt: skip


def test_there_is_no_bar_where_output_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # As notebooks do.
    with Reporter().bar("round 1 training", 2) as advance:
        advance(1, "reward 0.10")
        advance(2, "reward 0.20")
    assert capsys.readouterr().out == "round 1 training: 2/2, 0 s left, reward 0.20\n"


def test_compiling_does_not_count_for_the_time_left(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def lines(compiles):
        with Reporter().bar("training", 10, 2, compiles) as advance:
            for now, seconds in ((3, 600), (4, 20), (5, 20), (6, 100), (7, 20), (10, 60)):
                clock[0] += seconds
                advance(now, "")
        return capsys.readouterr().out.split("\n")[:-1]

    assert lines(True) == [
        "training: 3/10",
        "training: 4/10, 120 s left",
        "training: 5/10, 100 s left",
        "training: 6/10, 160 s left",  # A step of 100 s counts as one of 80 s.
        "training: 7/10, 105 s left",
        "training: 10/10, 0 s left",
    ]
    assert lines(False)[:2] == ["training: 3/10, 4200 s left", "training: 4/10, 1860 s left"]


def test_one_problem_is_shown_with_its_answer_after_every_validation(tmp_path):
    family, store = Words("sums_1"), RunStore(tmp_path)
    problems = [{"id": f"{i}", "group": "1", "operands": [2, i]} for i in range(1, 4)]
    right = {"group": "1", "failed": [], "valid": True, "truncated": False, "text": "It is\n\n5."}
    wrong = right | {"failed": ["right"], "valid": False, "truncated": True, "text": "2+"}
    answers = {"initial": (right, wrong, wrong), "rounds/0": (wrong, right, right)}
    write_file(tmp_path / "validation/instances.jsonl", problems)
    for folder, given in answers.items():
        named = [one | {"id": problem["id"]} for one, problem in zip(given, problems, strict=True)]
        write_file(tmp_path / folder / "answers.jsonl", named)
    shown = ["for example digits 1:", "  problem: What is 2 plus 2? Answer with the number only."]
    assert example(store, family, tmp_path / "initial") == [
        *shown, "  answer: 2+", "  verdict: wrong answer, truncated"
    ]  # fmt: skip
    assert example(store, family, tmp_path / "rounds/0") == [
        *shown, "  answer: It is", "  5.", "  verdict: valid"
    ]  # fmt: skip


def test_a_missing_account_of_weights_and_biases_is_one_line(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # It reads its environment once.
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = from_config({"log": {"wandb_project": "lakes"}})
    message = r"log\.wandb_project='lakes': .*API key.*WANDB_MODE=offline needs no account"
    with pytest.raises(UserError, match=message), open_writers(settings, tmp_path, 1):
        pass
    wandb.teardown()


@pytest.mark.parametrize(
    ("option", "package", "extra"),
    [("tensorboard", "tensorboardX", "tensorboard"), ("wandb_project", "wandb", "wandb")],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    monkeypatch, option, package, extra
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    settings = from_config({"log": {option: True if option == "tensorboard" else "lakes"}})
    with pytest.raises(
        UserError, match=rf"log\.{option}=.*needs {package}; .* pip install -e '\.\[{extra}\]'"
    ):
        check_packages(settings)
    check_packages(from_config({}))
