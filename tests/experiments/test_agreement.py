"""Two processes that tell each other what they have, and find out where they differ."""

import json

import pytest
from several_processes import two_processes
from whole_runs import ROOT

from experiments.run import agreement

LINES = """
import dataclasses, json
from pathlib import Path

from experiments.run import agreement
from experiments.settings import Settings

folder = Path(folder)

def outcome(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

class Awkward(Exception):  # It cannot be sent to another process.
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

def fail(error):
    raise error

def fail_second():
    return fail(KeyError("absent")) if index == 1 else 7

def squares(part):
    return [int(i) ** 2 for i in part]

(folder / str(index)).mkdir()
agreement._PATIENCE = 0.5
settings = Settings()
told = {
    "gathered": outcome(distributed.gather, "x" * (index + 1)),
    "large": [len(text) for text in distributed.gather("x" * (2000 * index + 1))],
    "shares": [distributed.sharded_map(squares, count) for count in (5, 2, 1)],
    "parts": distributed.sharded_map(lambda part: [part.tolist()], 5),
    "first": distributed.on_first(lambda: [index, distributed.gather(index)]),
    "first fails": outcome(distributed.on_first, lambda: fail(ValueError(f"of {index}"))),
    "awkward": outcome(distributed.on_first, lambda: fail(Awkward(1, 2))),
    "all": distributed.on_all(lambda: index),
    "second fails": outcome(distributed.on_all, fail_second),
    "alike": agreement.check_alike(settings),
    "seed": outcome(agreement.check_alike, dataclasses.replace(settings, seed=index)),
    "shared": agreement.check_shared(folder),
    "own": outcome(agreement.check_shared, folder / str(index)),
    "met": any(distributed.gather(False)),
    "left": distributed.on_first(lambda: sorted(str(p.name) for p in folder.rglob("*"))),
    "lost": [
        distributed.lost_process(error)
        for error in (
            RuntimeError("UNKNOWN: Gloo AllGather failed: Connection closed by peer"),
            BlockingIOError(11, "Resource temporarily unavailable", "file"),
            ValueError("1 answer"),
        )
    ],
}
print("told", json.dumps(told), flush=True)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each of two processes came to know."""
    codes, texts = two_processes(LINES, tmp_path_factory.mktemp("shared"))
    assert codes == [0, 0], texts
    return [
        json.loads(next(line for line in text.splitlines() if line.startswith("told "))[5:])
        for text in texts
    ]


def test_values_reach_all_processes(told):
    assert [one.pop("all") for one in told] == [0, 1]
    for one in told:
        assert one["gathered"] == ["x", "xx"]
        assert one["large"] == [1, 2001]
        assert one["parts"] == [[0, 1, 2], [3, 4]]
        assert one["shares"] == [[0, 1, 4, 9, 16], [0, 1], [0]]
        assert one["first"] == [0, [0]], "within it the first process is on its own"


def test_an_error_of_one_process_is_raised_on_all(told):
    for one in told:
        assert one["first fails"] == "ValueError: of 0"
    assert [one["awkward"] for one in told] == [
        "Awkward: 1 and 2",
        "RuntimeError: Awkward: 1 and 2",
    ]
    assert told[0]["second fails"] == "RuntimeError: process 1: 'absent'"
    assert told[1]["second fails"] == "KeyError: 'absent'"


def test_processes_that_differ_are_named(told):
    for one in told:
        assert one["alike"] is None
        assert one["seed"] == (
            "UserError: process 1 differs from process 0: options.seed is 1, not 0"
        )


def test_the_code_is_all_that_decides_what_models_read():
    code = {path.relative_to(ROOT).as_posix() for path in agreement._code()}
    templates = ("templates/training_details.md", "families/lakes/chat_template.jinja")
    assert code > {"engineer/modules.txt", *(f"experiments/{name}" for name in templates)}


def test_a_folder_of_ones_own_is_no_shared_one(told):
    for index, one in enumerate(told):
        assert one["shared"] is None
        assert one["own"].startswith("UserError: workdir=")
        assert f"/{index}: process 0 does not see there what processes [1] write" in one["own"]
        assert one["left"] == ["0", "1"], "the marks are gone"


def test_an_error_of_a_file_is_no_lost_process(told):
    assert [one["lost"] for one in told] == [[True, False, False]] * 2
