"""Pages about runs and studies made by hand: valid, self-contained, true to the files, and safe."""

import csv
import dataclasses
import itertools
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
import scipy.stats
from matplotlib.figure import Figure
from whole_runs import python

from engineer.analysis import MEASURES
from engineer.proposal import render_config
from engineer.space import Configuration
from experiments import report
from experiments.configs import tiny
from experiments.families.lakes import texts as lake_texts
from experiments.families.lakes.family import Lakes
from experiments.report import charts, story, style
from experiments.ring import outcomes, validation
from experiments.ring.outcomes import _training_evidence
from experiments.run import store as files
from experiments.run.reading import read_run
from experiments.settings import from_config
from experiments.study import results as study_results
from experiments.study.variants import Study, Variant
from learner.chat import Completion
from mapf_jax import CHECKS

EVIL = '<script>alert("x")</script><img src="https://e.example/x.png" onerror="alert(1)">'

AROUND = {
    "map": ["F F F", "F H F", "F F F"],
    "starts": [[0, 0], [2, 2]],
    "goals": [[2, 0], [0, 1]],
    "cost": 5,
    "makespan": 3,
    "needs_wait": False,
    "paths": [[[0, 0], [1, 0], [2, 0]], [[2, 2], [1, 2], [0, 2], [0, 1]]],
}
OPEN = {
    "map": ["F F F F"] * 4,
    "starts": [[0, 0], [3, 3]],
    "goals": [[0, 2], [3, 1]],
    "cost": 4,
    "makespan": 2,
    "needs_wait": False,
    "paths": [[[0, 0], [0, 1], [0, 2]], [[3, 3], [3, 2], [3, 1]]],
}


def says(*paths):
    """The answer with these paths."""
    steps = max(map(len, paths))
    whole = [[*path, *path[-1:] * (steps - len(path))] for path in paths]
    lines = [
        f"{time}: " + " ".join(f"({row},{column})" for row, column in cells)
        for time, cells in enumerate(zip(*whole, strict=True))
    ]
    return "<answer>\n" + "\n".join(lines) + "\n</answer>"


SOLVED = {3: says(*AROUND["paths"]), 4: says(*OPEN["paths"])}
IN_A_HOLE = says([[0, 0], [1, 0], [1, 1], [2, 1], [2, 0]], AROUND["paths"][1])
LATE = says([[0, 0], [0, 0], [0, 1], [0, 2]], OPEN["paths"][1])
MEETING = says([[0, 0], [0, 1], [0, 2]], [[3, 3], [0, 1], [3, 1]])
THREE = says(*OPEN["paths"], [[1, 1]])

VALIDATION = [{"id": f"validation-{i}", **(AROUND if i % 2 == 0 else OPEN)} for i in range(6)]
BEFORE = [IN_A_HOLE, MEETING, EVIL, THREE, SOLVED[3], LATE]
AFTER = [SOLVED[3], SOLVED[4], IN_A_HOLE, EVIL, SOLVED[3], LATE]
START = {"3": (0.5, 0.1, 0.2), "4": (0.5, 0.3, 0.4)}
DESIGNED = {"3": (0.2, 0.2, 0.2), "4": (0.8, 0.3, 0.1)}


def options(seed=0, designer="current", rounds=2):
    config = tiny.get_config()
    config.seed = seed
    config.lakes.sizes = (3, 4)
    config.loop.rounds = rounds
    config.engineer.designer = designer
    return from_config(config)


def configuration(table):
    names = ("data_ratio", "hole_ratio", "wait_ratio")
    return Configuration.from_dict(
        {size: dict(zip(names, numbers, strict=True)) for size, numbers in table.items()}
    )


def write_validation(folder, texts, family=None, problems=VALIDATION):
    family = family or Lakes(options().lakes)
    completions = [Completion(text, 20, False) for text in texts]
    records = family.task(problems).score(np.arange(len(texts)), completions).records
    answers = [
        {
            "id": problem["id"],
            "optimal": record["valid"],
            **record,
            "tokens": 20,
            "truncated": False,
            "text": text,
        }
        for problem, record, text in zip(problems, records, texts, strict=True)
    ]
    for name in ("answers.jsonl", "validation.json"):  # Else they would be kept.
        (folder / name).unlink(missing_ok=True)
    store = files.RunStore(folder)
    validation.write_validation(store, folder, family, lambda *_: answers, None, None)


def write_run(root, settings=None, rounds=2, after=AFTER):
    """The folder of a run as `experiments.main` leaves it, as far as a report reads it."""
    settings = settings or options()
    files.write_file(root / "config.json", settings.to_dict())
    files.write_file(root / "times.jsonl", [{"seconds": 500.0}, {"seconds": 100.0}])
    files.write_file(root / "versions.json", {"jax": "1.2.3", "devices": "1 x abacus", "x": EVIL})
    files.write_file(root / "validation" / "instances.jsonl", VALIDATION)
    write_validation(root / "initial", BEFORE)
    space = Lakes(settings.lakes).space
    for index in range(rounds):
        folder = root / "rounds" / str(index)
        config = configuration(START if index == 0 else DESIGNED)
        files.write_file(folder / "environment.yaml", render_config(config, space) + "\n")
        rows = {
            size: {
                "asked": 10,
                "made": 10,
                "achieved": {"data_ratio": 0.5, "hole_ratio": hole_ratio, "wait_ratio": 0.3},
                "details": {"asked_wait": 4, "made_wait": 4 - index, "candidates": 64},
            }
            for size, hole_ratio in (("3", 1 / 9), ("4", 1 / 16))
        }
        generated = {"note": "", "asked": 20, "made": 20, "rows": rows}
        files.write_file(folder / "generated.json", generated)
        files.write_file(folder / "train.jsonl", [step(index, n) for n in range(40)])
        write_validation(folder, after)
        training = _training_evidence(files.RunStore(root), folder)
        files.write_file(folder / "evidence.json", {"training": dataclasses.asdict(training)})
        if index + 1 < rounds:
            write_design(folder / "design", space)
    return root


def step(index, number):
    return {
        "step": number,
        "reward": 0.1 * index + 0.01 * number,
        "nondegenerate_fraction": 0.5,
        "completion_tokens_mean": 20.0,
        "completion_tokens_p90": 30.0,
        "draws": 1.0,
        "updates": 1.0,
        "entropy": 0.3,
        "grad_norm": 0.1,
        "clip_low": 0.0,
        "clip_high": 0.0,
        "task/valid": 0.4,
        "task/optimal": 0.2,
        "task/valid_3": 0.6,
        "task/valid_4": 0.2,
        "machine/sample_seconds": 2.0,
        "machine/score_seconds": 1.0,
        "machine/update_seconds": 3.0,
    }


def write_design(folder, space):
    config = configuration(DESIGNED)
    space.check(config)
    design = {
        "config": config.to_dict(),
        "source": "current",
        "context_messages": [],
        "raw_texts": [EVIL],
        "repairs": ["data_ratio: sum 0.98 rescaled to 1"],
        "kept_previous": False,
        "reason": "",
        "summary": EVIL,
    }
    numbers = dict.fromkeys(MEASURES, 0.25)
    files.write_file(folder / "design.json", design)
    files.write_file(folder / "analysis.json", {**numbers, "followed": "no_holes", "mistakes": 3})
    files.write_file(folder / "context.md", f"What was shown {EVIL}\n")
    files.write_file(folder / "answers.md", f"{EVIL}\n")


class Page(HTMLParser):
    """Reads a page strictly: every element that is opened is closed, in order."""

    VOID = ("meta", "input", "br")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        assert len({name for name, _ in attributes}) == len(attributes), self.get_starttag_text()
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.text += " "

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data

    def handle_pi(self, data):
        raise AssertionError(data)


def check_page(path):
    """A page that is valid, needs nothing else, and runs nothing."""
    text = path.read_text()
    assert text.startswith("<!doctype html>\n")
    assert len(text) < 3_000_000
    page = Page(text)
    assert not {"script", "img", "link", "iframe", "object", "image"} & set(page.tags)
    names = [value for _, name, value in page.attributes if name == "id"]
    assert len(set(names)) == len(names)
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        assert name != "src"
        if name in ("href", "xlink:href") and not (path.parent / value).is_file():
            assert value[0] == "#"
            assert value[1:] in names, (tag, value)
    for target in re.findall(r"url\(([^)]*)\)", text):
        assert target.strip("\"'")[1:] in names
    assert "@import" not in text
    spaces = [value for _, name, value in page.attributes if name.startswith("xmlns")]
    assert text.count("http") == page.text.count("http") + len(spaces)
    pictures = {file.stem for file in (path.parent / "figures").glob("*.png")}
    assert pictures == {file.stem for file in (path.parent / "data").glob("*.csv")}
    drawn = [value for _, name, value in page.attributes if name == "class"]
    assert drawn.count("chart") == len(pictures)
    # Every colour of a chart has a rule that makes it one of the page.
    styles = [value for _, name, value in page.attributes if name == "style"]
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", " ".join(styles)))
    assert colours <= set(style.page_colours())
    for colour, name in style.page_colours().items():
        for what in ("fill", "stroke"):
            rule = f'[style*="{what}: {colour}"] {{ {what}: var(--{name}) !important; }}'
            assert rule in text
    return page


def data(root, name):
    with (root / "data" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def undrawn(monkeypatch):
    """Charts whose files are empty, for tests of what else is on a page."""
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    root = write_run(tmp_path_factory.mktemp("runs") / "a&b")
    return root, check_page(report.write(root))


def test_what_to_use_instead_follows_from_the_latest_reading(tmp_path):
    root = write_run(tmp_path / "run")
    for follows, said in (((12, 12), 1), ((24, 12), 1), ((12, 24), 0)):  # Of 24 questions.
        for folder, count in zip(("initial", "rounds/0"), follows, strict=True):
            found = {"questions": 24, "likelier": 0.5, "follows": count, "margin": 0.1}
            files.write_file(root / folder / "reading.json", {"target": found})
        report.write(root)
        text = (root / "report.html").read_text()
        assert text.count(": designs follow made-up evidence") == 2
        assert text.count("it may not read") == said


def test_a_run_tells_what_was_run_and_what_came_of_it(run_page):
    root, page = run_page
    assert page.text.count("Run a&b") == 2
    # 2 of 6 valid before training, 4 of 6 after, of which 3 are optimal; 1 was before.
    assert "33.3% → 66.7%" in page.text
    assert "16.7% → 50.0%" in page.text
    for words in (
        "The language model tiny learns lakes by reinforcement learning, in 2 rounds. After every "
        "round the checkpoint in training reads its results and designs the next training",
        # 2 of 3 answers were valid in either row; 3 of 6 numbers changed by 0.005 and more.
        # Half of either set was made of size 4, and 0.3 of its instances with waits.
        "After round 1: raised size 4 from 50 % to 80 % (50 % made) of the set, which fails like "
        'others (33 % of its answers, mostly "not readable"), and lowered its wait ratio from '
        "0.40 (0.30 made) to 0.10 (0.30 made); "
        "2 more numbers changed. The reasons are",
        "start, greedy 33.3% / 33.3% 33.3% / 0.0%",
        "1: size 3 0.50 0.10 → 0.11 0.20 → 0.30 10",
        "1 x abacus",
        "wall time 10 min",  # 480 seconds of it in steps.
        "jax 1.2.3",
        "data_ratio: sum 0.98 rescaled to 1",
        "0.50 → 0.20",
        "data follows failures 0.25",
        "check followed most hole entered",
        "earlier changes followed by a loss 3",
        "What the numbers do not show",
        "Rounds count from 1, in the names of files and folders from 0.",
    ):
        assert words in page.text, words
    # 40 steps of 48 prompts with 8 answers of 20 tokens, in 2, 1 and 3 seconds each.
    assert re.search(
        r"round 1\s*20\s*40\s*40\s*15,360\s*307,200\s*6\s*1\s*80\s*40\s*120", page.text
    )
    valid = data(root, "learning")
    found = [(line["series"], line["training step"], float(line["percent"])) for line in valid]
    assert found[:4] == [
        ("valid, sampled", "0.0", pytest.approx(100 / 3)),
        ("valid, sampled", "40.0", pytest.approx(200 / 3)),
        ("valid, sampled", "80.0", pytest.approx(200 / 3)),
        ("valid, greedy", "0.0", pytest.approx(100 / 3)),
    ]
    assert found[-1] == ("valid, in training", "80.0", pytest.approx(40))
    rounds = [line["after round"] for line in data(root, "validation_valid")]
    assert rounds == ["start", "1", "2"] * 3
    # Wilson's interval of 2 of 6, by hand.
    z, n, p = 1.959964, 6, 1 / 3
    middle, reach = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    assert float(valid[0]["low"]) == pytest.approx(
        100 * (middle - reach) / (1 + z * z / n), abs=1e-3
    )
    assert float(valid[0]["high"]) == pytest.approx(
        100 * (middle + reach) / (1 + z * z / n), abs=1e-3
    )
    reward = data(root, "training_reward")
    whole = [
        float(line["mean reward"]) for line in reward if line["series"] == "reward, every step"
    ]
    assert whole == pytest.approx([0.1 * i + 0.01 * n for i in range(2) for n in range(40)])
    smooth = [float(line["mean reward"]) for line in reward if line["series"] == "reward"]
    assert smooth[2:] == pytest.approx(np.convolve(whole, np.ones(3) / 3, "valid"))
    asked = data(root, "configuration_hole_ratio")
    assert [(line["series"], line["round"], float(line["hole_ratio"])) for line in asked] == [
        ("size 3", "1", 0.1),
        ("size 3", "2", 0.2),
        ("size 3, made", "1", 1 / 9),
        ("size 3, made", "2", 1 / 9),
        ("size 4", "1", 0.3),
        ("size 4", "2", 0.3),
        ("size 4, made", "1", 1 / 16),
        ("size 4, made", "2", 1 / 16),
    ]
    assert not (root / "data" / "training_clip.csv").exists()  # Nothing was clipped.
    holes = [line for line in data(root, "failures") if line["series"] == "hole entered"]
    assert [float(line["percent"]) for line in holes] == pytest.approx([100 / 6] * 3)
    # An answer that cannot be read counts for that alone, though it has no agents either.
    for check, answers in (("not readable", [1, 1, 1]), ("wrong number of agents", [1, 0, 0])):
        lines = [line for line in data(root, "failures") if line["series"] == check]
        assert [float(line["percent"]) for line in lines] == pytest.approx(
            [100 * n / 6 for n in answers]
        )


def test_what_others_wrote_is_shown_and_never_run(run_page):
    root, page = run_page
    # An answer of the model; a design, its context and its explanation; a version.
    assert page.text.count(EVIL) == 5
    assert EVIL not in (root / "report.html").read_text()


def test_answers_are_drawn_with_what_became_of_them(run_page):
    root, page = run_page
    text = (root / "report.html").read_text()
    assert page.text.count("Not solved before training.") == 2
    for words in (
        "t = 2: agent 0 enters the hole (1,1)",
        "size 3, validation-2: hole entered.",
        "Valid: cost 5, makespan 3, 1 above the optimum",
        "size 4, validation-5: valid, not optimal.",
        "No plan could be read. size 4, validation-3: not readable.",
    ):
        assert words in page.text, words
    drawn = [value for _, name, value in page.attributes if (name, value) == ("class", "lake")]
    assert len(drawn) == 6
    keyframes = re.findall(r"@keyframes (\S+?)\{", text)
    assert len(set(keyframes)) == len(keyframes) > 6
    assert "prefers-reduced-motion: reduce" in text
    assert "body:has(#pause:checked) .moving" in text
    assert set(lake_texts.FAILURES) == set(CHECKS)


def test_of_several_samples_one_solves_a_problem_and_a_failed_one_is_the_example(tmp_path):
    root, twice = write_run(tmp_path, rounds=1), [one for one in VALIDATION[:2] for _ in "ab"]
    for folder, last in (("initial", MEETING), ("rounds/0", SOLVED[4])):
        write_validation(root / folder, [SOLVED[3], IN_A_HOLE, MEETING, last], problems=twice)
        shown = outcomes.example(files.RunStore(root), Lakes(options().lakes), root / folder)
        assert shown[-1] == "  verdict: hole entered"
    found = report.answers.of_run(read_run(root), 4)["successes"]
    assert [(one["record"]["id"], one["new"]) for one in found] == [
        ("validation-1", True),
        ("validation-0", False),
    ]


def test_every_design_has_a_sentence_that_the_evidence_bears_out(tmp_path, undrawn):
    after = [SOLVED[3], SOLVED[4], SOLVED[3], EVIL, SOLVED[3], LATE]  # Size 4 fails once in three.
    root = write_run(tmp_path / "run", options(rounds=4), rounds=4, after=after)
    path = root / "rounds" / "1" / "design" / "design.json"
    kept = json.loads(path.read_text()) | {"kept_previous": True, "reason": f"no {EVIL}"}
    files.write_file(path, kept)
    path = root / "rounds" / "2" / "design" / "design.json"
    files.write_file(path, json.loads(path.read_text()) | {"nothing": "the same numbers"})
    page = check_page(report.write(root))
    evidence = 'fails most (33 % of its answers, mostly "not readable"), and lowered'
    for words in (
        f"After round 1: raised size 4 from 50 % to 80 % (50 % made) of the set, as it {evidence}",
        f"After round 2: kept an earlier configuration: no {EVIL}.",
        "After round 3: designed nothing (the same numbers); changed nothing.",
        "In 1 of 3 designs the model designed nothing",
    ):
        assert words in page.text, words
    path = root / "rounds" / "0" / "design" / "design.json"
    for source in ("random", "learnability_once"):
        files.write_file(path, json.loads(path.read_text()) | {"source": source})
        text = check_page(report.write(root)).text
        assert f"80 % (50 % made) of the set, which {evidence}" in text
    files.write_file(path, json.loads(path.read_text()) | {"source": "failures"})
    for shuffled, joint in ((False, "as it"), (True, "which")):
        options_of_run = json.loads((root / "config.json").read_text())
        options_of_run["engineer"]["shuffle_evidence"] = shuffled
        files.write_file(root / "config.json", options_of_run)
        text = check_page(report.write(root)).text
        assert f"80 % (50 % made) of the set, {joint} {evidence}" in text


FAMILY = """
from engineer.space import ConfigurationSpace, Parameter
from engineer.texts import plain_texts
from experiments.families.template import Sums

class Terms(Sums):
    parameters = Parameter("fraction"), Parameter("terms", ((2, 5),), decimals=0)
    space = ConfigurationSpace("length", ("3", "4"), parameters, "fraction")
    texts = plain_texts(space, "to add numbers", ("is_number", "right_value"))

family = Terms()
"""


def test_a_family_from_a_file_is_told_in_words_and_without_an_optimum(tmp_path, undrawn):
    file = tmp_path / "terms.py"
    file.write_text(FAMILY)
    config = tiny.get_config()
    config.family, config.loop.rounds = f"{file}:family", 2
    settings = from_config(config)
    family, root = settings.load_family(), write_run(tmp_path / "run")
    files.write_file(root / "config.json", settings.to_dict())
    problems = [
        {"id": f"validation-{i}", "group": group, "terms": [100, 223]}
        for i, group in enumerate("3344")
    ]
    files.write_file(root / "validation" / "instances.jsonl", problems)
    tables = [
        {row: {"fraction": 0.5, "terms": terms + 1 - i} for i, row in enumerate("34")}
        for terms in (2, 3)
    ]
    write_validation(root / "initial", ["323", "no", "1", "2"], family, problems)
    for folder, table in zip(sorted((root / "rounds").iterdir()), tables, strict=True):
        files.write_file(folder / "environment.yaml", json.dumps(table))
        rows = {row: {"asked": 10, "made": 10, "achieved": of} for row, of in table.items()}
        generated = {"note": "", "asked": 20, "made": 20, "rows": rows}
        files.write_file(folder / "generated.json", generated)
        steps = [{**step(0, n), "task/optimal": 0.4} for n in range(40)]
        files.write_file(folder / "train.jsonl", steps)
        write_validation(folder, ["323", "323", "1", "2"], family, problems)
    path = root / "rounds" / "0" / "design" / "design.json"
    files.write_file(path, json.loads(path.read_text()) | {"config": tables[1]})
    page = check_page(report.write(root))
    for words in (
        "The language model tiny learns to add numbers (terms.py:family) by reinforcement learning",
        "raised the terms of length 3 from 3 to 4, as it fails least",
        "length 3 0.50 3 → 4 length 4 0.50 2 → 3",
        "after round valid, sampled 95 % interval valid, greedy tokens per answer",
        "Valid by length, sampled and greedy",
        "start, greedy 50.0% 0.0%",
    ):
        assert words in page.text, words
    tiles = page.text[: page.text.index("What the engineer changed")]
    assert "valid, sampled" in tiles
    assert "optimal" not in tiles
    assert not (root / "data" / "validation_optimal.csv").exists()
    assert {line["series"] for line in data(root, "training_fractions")} == {
        "valid answers",
        "non-degenerate groups",
    }


@pytest.mark.parametrize(
    ("designer", "rounds", "words"),
    [
        ("fixed", 1, "in 1 round. Its training environment stays as it is."),
        ("mastery", 2, "After every round the rule mastery reads the results and designs the next"),
    ],
)
def test_a_page_says_who_designed(tmp_path, undrawn, designer, rounds, words):
    root = write_run(tmp_path / "run", options(designer=designer, rounds=rounds), rounds)
    assert words in check_page(report.write(root)).text


MEASURE = """<!doctype html><iframe src="{}" style="border:0;width:{}px;height:900px"></iframe>
<script>addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument;
  const bottom = of => page.querySelector(of).getBoundingClientRect().bottom;
  const still = page.querySelector(".still .moving");
  document.body.textContent = "found " + JSON.stringify({{
    width: page.documentElement.scrollWidth,
    story: Math.max(bottom(".story .chart"), bottom(".changes"), bottom(".still svg")),
    animation: getComputedStyle(still).animationName,
  }}) + " end";
}});</script>"""


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_story_first_and_nothing_sticks_out(run_page, tmp_path, width):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium")
    root, _ = run_page
    frame = tmp_path / "frame.html"
    frame.write_text(MEASURE.format((root / "report.html").as_uri(), width))
    options = ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--dump-dom")
    command = [browser, *options, "--allow-file-access-from-files", "--window-size=1300,950"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=120)
    found = json.loads(re.search(r"found (.*?) end</body>", done.stdout)[1])
    assert found["width"] == width
    assert found["story"] < {1280: 800, 390: 1400}[width]
    assert found["animation"] == "none"


def killed_in_round_0(root):
    shutil.rmtree(root / "rounds" / "1")
    shutil.rmtree(root / "rounds" / "0" / "design")
    for name in ("validation.json", "answers.jsonl", "evidence.json"):
        (root / "rounds" / "0" / name).unlink()
    path = root / "rounds" / "0" / "train.jsonl"
    path.write_text("\n".join(path.read_text().split("\n")[:7]) + '\n{"step": 7, "rew')


def only_begun(root):
    for name in ("rounds", "initial", "validation"):
        shutil.rmtree(root / name)
    (root / "versions.json").unlink()


def without_extras(root):
    (root / "rounds" / "0" / "design" / "analysis.json").unlink()
    (root / "rounds" / "0" / "design" / "context.md").unlink()
    (root / "rounds" / "1" / "answers.jsonl").unlink()
    path = root / "initial" / "validation.json"
    found = json.loads(path.read_text())
    del found["completion_tokens_mean"]
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (killed_in_round_0, ["33.3%", "0 of 2", "7 training steps", "This run is not complete"]),
        (only_begun, ["No validation of this run has finished yet", "0 of 2"]),
        (without_extras, ["33.3% → 66.7%", "2 of 2"]),
    ],
)
def test_runs_that_are_not_whole_have_a_page(tmp_path, undrawn, damage, words):
    root = write_run(tmp_path / "run")
    damage(root)
    page = check_page(report.write(root))
    for word in words:
        assert word in page.text, word


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rounds/0/validation.json", "{"),
        ("rounds/0/validation.json", '{"by_size": {"3": {"answers": 0}}}'),
        ("rounds/0/environment.yaml", "3: {data_ratio: [}"),
        ("rounds/1/train.jsonl", 'no\n{"step": 1}\n'),
        ("config.json", ""),
        ("rounds/0/generated.json", '{"note": "", "sizes": []}'),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text):
    root = write_run(tmp_path / "run")
    (root / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(root / name))):
        report.write(root)


def test_a_folder_without_a_run_is_one_line_of_error(tmp_path):
    done = python("-m", "experiments.report", tmp_path, fails=True)
    assert done.stderr.count("\n") == 1
    assert f"error: {tmp_path}: neither a run" in done.stderr


# Studies

STUDY = Study(
    question="Who designs better, & why?",
    variants=(
        Variant("fixed", "nobody <fixed>", {"engineer.designer": "fixed"}),
        Variant("current", "the checkpoint", {"engineer.designer": "current"}),
        Variant(
            "uniform",
            "nobody, uniform",
            {"engineer.designer": "fixed", "engineer.start": "uniform"},
        ),
    ),
    reference="fixed",
    seeds=(0, 1, 2),
)


def write_study(root, finished=None):
    """A study whose checkpoint variant is the better by one or two answers a seed."""
    base = tiny.get_config()
    base.lakes.sizes = (3, 4)
    base.loop.rounds = 2
    settings = STUDY.settings(base)
    for variant, seed in itertools.product(settings, STUDY.seeds):
        if finished is not None and (variant, seed) not in finished:
            continue
        after = list(AFTER)
        if variant == "current":
            after[2 : 3 + seed // 2] = [SOLVED[3], SOLVED[4]][: 1 + seed // 2]
        folder = root / study_results.run_folder(variant, seed)
        write_run(folder, settings[variant][seed], after=after)
        files.write_file(folder / files.TIMES, [{"seconds": 60.0, "cpu_seconds": 90.0}])
        files.write_file(folder / study_results.FINISHED, {"finished": True})
    return study_results.write(root, STUDY, settings, {})


@pytest.fixture(scope="module")
def drawn_study(tmp_path_factory):
    """The folder of a study with its figures, and the content of its `study.json`."""
    root = tmp_path_factory.mktemp("studies") / "who"
    found = write_study(root)
    assert report.write(root) == root / "figures"
    return root, found


def test_the_figures_of_a_study_hold_its_comparison(drawn_study):
    root, found = drawn_study
    (entry,) = (
        entry
        for entry in found["comparison"]
        if (entry["metric"], entry["variant"]) == ("valid_final", "current")
    )
    difference = entry["difference"]
    assert difference["values"] == {
        "0": pytest.approx(1 / 6),
        "1": pytest.approx(1 / 6),
        "2": pytest.approx(1 / 3),
    }
    drawn = {(line["series"], line["what"]): line for line in data(root, "valid_final_difference")}
    assert float(drawn["the checkpoint", "mean"]["points"]) == pytest.approx(100 * 2 / 9)
    low = float(drawn["the checkpoint", "mean"]["low"])
    assert low == pytest.approx(100 * difference["low"])
    assert float(drawn["the checkpoint", "seed 2"]["points"]) == pytest.approx(100 / 3)
    assert ("nobody <fixed>", "mean") not in drawn
    curve = [line for line in data(root, "learning_valid") if line["series"] == "the checkpoint"]
    expected = [100 / 3, 100 * (5 + 5 + 6) / 18, 100 * (5 + 5 + 6) / 18]
    assert [float(line["percent"]) for line in curve] == pytest.approx(expected)
    steps = [float(line["training steps, a point after every round"]) for line in curve]
    assert steps == [0, 40, 80]
    parts = [line for line in data(root, "data_ratio_current") if line["series"] == "size 4"]
    assert [float(line["data_ratio, mean over seeds"]) for line in parts] == pytest.approx(
        [0.5, 0.8]
    )
    names = {path.stem for path in (root / "figures").iterdir()}
    assert names == {path.stem for path in (root / "data").iterdir()}
    assert {"valid_final", "valid_final_difference", "learning_valid_current"} <= names


def test_a_table_without_significance_says_what_could_be_detected(drawn_study):
    _, found = drawn_study
    # The median of the current checkpoint's errors and of 0, at 2.5 % / 2 on either side.
    error = scipy.stats.sem([1 / 6, 1 / 6, 1 / 3])
    needed = 100 * error * scipy.stats.t.ppf(1 - 0.0125, 2) / 2
    page = " ".join(study_results.markdown(found).split())
    assert f"the minimum detectable difference is about {needed:.1f} points." in page
    changed = json.loads(json.dumps(found))
    for entry in changed["comparison"]:
        if entry["metric"] == "valid_final" and entry["variant"] == "current":
            entry["difference"]["p_holm"] = 0.01
    assert "minimum detectable" not in study_results.markdown(changed)


def test_a_study_that_is_not_whole_has_figures(tmp_path, undrawn):
    found = write_study(tmp_path / "half", {("fixed", 0), ("current", 1), ("current", 2)})
    (valid,) = (t for t in study_results.compared(found) if t.title == "Valid after the last round")
    assert [line[-1] for line in valid.lines] == ["0: 66.7", "1: 83.3, 2: 100.0", ""]
    figures = report.write(tmp_path / "half")
    assert (figures / "learning_valid_current.png").is_file()
    write_study(tmp_path / "none", set())
    report.write(tmp_path / "none")


def test_a_study_of_another_schema_is_refused(tmp_path):
    (tmp_path / "study.json").write_text('{"schema": 0}')
    with pytest.raises(ValueError, match=r"study\.json: schema 1 is needed"):
        report.write(tmp_path)


# Charts


def test_files_of_a_chart_hold_what_is_drawn(tmp_path):
    names = ["start", "0", "1"]
    chart = charts.Lines(
        "some",
        "title $x$ & <b>",
        "round",
        "percent",
        (
            charts.Series("a", names, [1.0, None, 3.5], [0.5, None, 3.0], [1.5, None, 4.0]),
            charts.Series("b", names, [7.25, 8.0, 9.0], look=1),
        ),
    )
    figure = chart.draw()
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == names
    gallery = charts.Gallery(tmp_path)
    svg = gallery.add(chart).svg
    points = data(tmp_path, "some")
    for line, name in zip(axes.get_lines(), "ab", strict=True):
        mine = [point for point in points if point["series"] == name]
        ys = [float(point["percent"]) if point["percent"] else math.nan for point in mine]
        assert np.array_equal(line.get_ydata(), ys, equal_nan=True)
    (bars,) = axes.collections
    ends = [segment[:, 1].tolist() for segment in bars.get_segments() if len(segment)]
    assert ends == [[float(point["low"]), float(point["high"])] for point in points if point["low"]]
    assert "title $x$ &amp; &lt;b&gt;" in svg
    assert "<metadata" not in svg
    Page(svg)
    assert (tmp_path / "figures" / "some.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="another chart has it"):
        gallery.add(chart)


def test_the_legend_names_every_line_of_the_learning_curve(tmp_path, undrawn):
    run = read_run(write_run(tmp_path / "run"))
    figure = story.learning_curve(run, 3).draw()
    (legend,) = figure.legends
    kinds = [f"{kind}, {how}" for kind in ("valid", "optimal") for how in ("sampled", "greedy")]
    assert [text.get_text() for text in legend.get_texts()] == [*kinds, "valid, in training"]
    width = {line.get_label(): line.get_linewidth() for line in legend.get_lines()}
    assert width["valid, in training"] < width["valid, sampled"]


def test_estimates_are_drawn_where_they_are(tmp_path):
    chart = charts.Estimates(
        "est",
        "title",
        "what",
        "points",
        (
            charts.Series("one", ["mean", "seed 0", "seed 1"], [1.0, 0.0, 2.0], [-0.5], [2.5]),
            charts.Series("none", ["mean"], [None], [None], [None], look=1),
        ),
        begins=[0.0],
    )
    (axes,) = chart.draw().axes
    charts.Gallery(tmp_path).add(chart)
    values = data(tmp_path, "est")
    assert [value["points"] for value in values] == ["1.0", "0.0", "2.0", ""]
    drawn = [line.get_xdata() for line in axes.get_lines()[1:]]
    assert [list(x) for x in drawn] == [[0.0, 2.0], [1.0], []]
    (bar,) = axes.collections
    assert [segment[:, 0].tolist() for segment in bar.get_segments()] == [[-0.5, 2.5]]


# After Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB.
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def linear(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    t = to_xyz @ np.clip(rgb, 0, 1) / (0.95047, 1, 1.08883)
    x, y, z = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(
    ("mode", "paper"), [("light", style.LIGHT["paper"]), ("dark", style.DARK["paper"])]
)
def test_colours_stand_out_and_apart_for_every_kind_of_sight(mode, paper):
    colours = [linear(getattr(look, mode)) for look in style.LOOKS]
    luminance = np.array([0.2126, 0.7152, 0.0722])
    for colour in colours:
        bright = sorted((float(luminance @ colour), float(luminance @ linear(paper))))
        assert (bright[1] + 0.05) / (bright[0] + 0.05) >= 3
    for matrix in VISION.values():
        for one, other in itertools.combinations(colours, 2):
            assert np.linalg.norm(lab(matrix @ one) - lab(matrix @ other)) >= 20
    shapes = {(look.light, look.marker, look.dashes) for look in map(style.look, range(16))}
    assert len(shapes) == 16
