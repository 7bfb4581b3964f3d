"""Drawings: the text says what happened, and the pictures show it where it happened."""

from pathlib import Path
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapf_jax
from mapf_jax.draw import image, render, shapes, story, svg
from mapf_jax.padding import pad_instance, stack_plans
from mapf_jax.types import Plan, make_instance

Image = pytest.importorskip("PIL.Image")

LAKE = make_instance(
    ["FFFF", "FHFF", "FFFH", "FFFF"], [(0, 0), (0, 3), (3, 0)], [(2, 2), (0, 1), (1, 2)]
)
THIRD = [(3, 0), (3, 1), (3, 2), (2, 2), (1, 2)]
#: Paths of agents 0 and 1, what the caption says, and the cells or points with red in them.
STORIES = {
    "valid": (
        [(0, 0), (1, 0), (1, 0), (2, 0), (2, 1), (2, 2)],
        [(0, 3), (0, 2), (0, 1)],
        "Valid: cost 11, makespan 5",
        [],
    ),
    "swap": (
        [(0, 0), (0, 1), (0, 2)],
        [(0, 3), (0, 2), (0, 1)],
        "t = 2: agents 0 and 1 exchange (0,1) and (0,2)",
        [(0, 1), (0, 2)],
    ),
    "vertex": (
        [(0, 0), (0, 1), (0, 2)],
        [(0, 3), (0, 3), (0, 2)],
        "t = 2: agents 0 and 1 are both in (0,2)",
        [(0, 2)],
    ),
    "hole": ([(0, 0), (0, 1), (1, 1)], [(0, 3)], "t = 2: agent 0 enters the hole (1,1)", [(1, 1)]),
    "outside": (
        [(0, 0), (-1, 0)],
        [(0, 3)],
        "t = 1: agent 0 leaves the lake, to (-1,0)",
        [(-0.75, 0)],
    ),
    "jump": ([(0, 0), (2, 0)], [(0, 3)], "t = 1: agent 0 jumps from (0,0) to (2,0)", [(2, 0)]),
    "start": ([(1, 0)], [(0, 3)], "t = 0: agent 0 starts on (1,0), not on (0,0)", [(1, 0)]),
    "goal": (
        [(0, 0), (1, 0)],
        [(0, 3), (0, 2), (0, 1)],
        "t = 4: agent 0 ends on (1,0), not on its goal (2,2)",
        [(2, 2)],
    ),
}
RED = np.array([0xD4, 0x00, 0x2A])


def plan_of(*paths, num_agents=None):
    steps = max(map(len, paths))
    cells = np.array([[*path, *[path[-1]] * (steps - len(path))] for path in paths])
    plans = stack_plans([cells.transpose(1, 0, 2)], num_agents or len(paths))
    return jax.tree.map(lambda leaf: leaf[0], plans)


def red_cells(picture, cell=48, size=4):
    """Cells (or places outside) with red in them, found from the picture alone."""
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    left = (picture.width - size * cell) / 2
    top = 0.6 * cell
    rows, columns = np.nonzero(np.abs(pixels - RED).max(-1) < 12)
    rows, columns = (rows - top) / cell - 0.5, (columns - left) / cell - 0.5
    lake = rows < size - 0.4  # Below is the caption.
    return set(
        zip(np.round(rows[lake]).astype(int), np.round(columns[lake]).astype(int), strict=True)
    )


@pytest.mark.parametrize("name", STORIES)
def test_pictures_mark_what_went_wrong(name, monkeypatch):
    first, second, caption, red = STORIES[name]
    texts = []
    draw = image._Canvas.draw

    def spy(self, captions, *args, **kwargs):
        texts.extend(text for text, _ in captions)
        return draw(self, captions, *args, **kwargs)

    monkeypatch.setattr(image._Canvas, "draw", spy)
    picture = image.picture(LAKE, plan_of(first, second, THIRD))
    assert texts[0] == caption
    marked = red_cells(picture)
    if not red:
        assert not marked
    for row, column in red:
        assert (round(row), round(column)) in marked
    assert (3, 3) not in marked  # Nothing happens there.


def test_animation_shows_every_step_and_holds_violations():
    plan = plan_of([(0, 0), (0, 1), (0, 2)], [(0, 3), (0, 2), (0, 1)], THIRD)
    frames, durations = image.animation(LAKE, plan, cell=32)
    assert len(frames) == len(durations) == 1 + 5 * 4
    assert len({frame.size for frame in frames}) == 1
    marked = [bool(red_cells(frame, 32)) for frame in frames]
    assert marked == [False] * 6 + [True] * 5 + [False] * 9 + [True]  # The swap, the missed goal.
    assert durations[10] > 2 * durations[9]


def keyframes(root):
    """{name: [(percent, style)]} of the animations of a drawing."""
    found = {}
    for rule in root[0].text.split("@keyframes ")[1:]:
        name, _, body = rule.partition("{")
        frames = [frame.split("%{") for frame in body.split("}") if "%{" in frame]
        found[name] = [(float(percent), style) for percent, style in frames]
    return found


@pytest.mark.parametrize("name", ["valid", "hole", "goal"])
def test_svg_moves_as_the_plan_says(name):
    first, second, caption, _ = STORIES[name]
    paths = [[*path, *[path[-1]] * (4 + (name == "valid") + 1 - len(path))] for path in
             (first, second, THIRD)]  # fmt: skip
    root = ElementTree.fromstring(svg.svg(LAKE, plan_of(first, second, THIRD), "p0"))
    assert caption in root.get("aria-label")
    rules = keyframes(root)
    for agent, path in enumerate(paths):
        assert [percent for percent, _ in rules[f"p0-a{agent}"]][:: len(path) + 1] == [0, 100]
        cells = [
            [float(part.removesuffix("px")) for part in style[20:-1].split(",")][::-1]
            for _, style in rules[f"p0-a{agent}"]
        ]
        assert np.array(cells) == pytest.approx(np.array([path[0], *path, path[-1]]))
    # Everything red is on the clock or in a group that appears at the time of a broken rule.
    broken = {"valid": [], "hole": [2, 3, 4], "goal": [4]}[name]
    assert [f"p0-m{time}" for time in broken] == [rule for rule in rules if "-m" in rule]
    seconds = 0.7 + 0.55 * (len(paths[0]) - 1) + 1.8
    for time in broken:
        shown = [percent for percent, style in rules[f"p0-m{time}"] if style == "opacity:1"]
        assert shown[0] == pytest.approx(100 * (0.7 + 0.55 * time) / seconds, abs=0.01)
    strokes = [part.get("stroke", "") for part in root.findall("{*}path")]
    assert sum("--bad" in stroke for stroke in strokes) == len(broken)
    assert bool(root.findall("{*}g/{*}path[@stroke='var(--bad,#D4002A)']")) == bool(broken)
    assert "prefers-reduced-motion" in root[0].text


def test_waits_in_one_cell_are_apart_and_above_all_else(monkeypatch):
    # Agents 0 and 1 wait in (0,1) twice each, and collide there.
    first = [(0, 0), (0, 1), (0, 1), (0, 1), (1, 1), (2, 1)]
    second = [(0, 3), (0, 2), (0, 1), (0, 1), (0, 1), (0, 2)]
    plan = plan_of(first, second, THIRD)
    told = story.tell(LAKE, plan)
    one, other = shapes.waits(told, np.swapaxes(told.positions, 0, 1))
    assert (one.text, other.text) == ("wait 2", "wait 2")
    assert (one.fill, other.fill) == ("c0", "c1")
    assert abs(one.points - other.points)[0, 0] > 0.24 + 2 * 0.08  # Heights and halos.
    assert np.abs(np.concatenate([one.points, other.points]) - (0, 1)).max() < 0.5

    drawn = list(ElementTree.fromstring(svg.svg(LAKE, plan)))
    labels = [i for i, part in enumerate(drawn) if part.text == "wait 2"]
    assert len(labels) == 2
    groups = [i for i, part in enumerate(drawn) if part.tag.endswith("}g")]
    assert min(labels) > max(groups[:-1])  # Bursts, agents and marks; the last one is the clock's.

    added = []
    add = image._Canvas._add
    monkeypatch.setattr(
        image._Canvas, "_add", lambda self, of: add(self, added.extend(new := list(of)) or new)
    )
    image.animation(LAKE, plan)
    assert [shape.text for shape in added[-2:]] == ["wait 2", "wait 2"]


def test_svg_without_a_plan_and_next_to_another():
    plan = plan_of(*[path for path, *_ in list(STORIES.values())[:3]])
    still = ElementTree.fromstring(svg.svg(LAKE))
    assert not keyframes(still)
    texts = {(part.text, part.get("x"), part.get("y")) for part in still.findall("{*}text")}
    # Whose goal a square is shows in more than its colour.
    for agent, (row, column) in enumerate(LAKE.goals):
        assert (str(agent), f"{column + 0.25:.2f}", f"{row - 0.23:.2f}") in texts
    names = [set(keyframes(ElementTree.fromstring(svg.svg(LAKE, plan, n)))) for n in "ab"]
    assert names[0]
    assert names[0].isdisjoint(names[1])


def test_plans_that_cannot_be_drawn_are_named():
    plan = plan_of(*[path for path, *_ in list(STORIES.values())[:3]])
    wrong_count = Plan(plan.positions, plan.num_steps, plan.parsable, np.int32(2))
    unparsable = Plan(plan.positions, plan.num_steps, np.bool_(False), np.int32(0))
    for broken, text in (
        (wrong_count, "The plan is for 2 agents"),
        (unparsable, "No plan could be read"),
    ):
        assert story.tell(LAKE, broken).captions[0][0].startswith(text)
        assert len(image.animation(LAKE, broken)[0]) == 1
        assert image.picture(LAKE, broken).height > image.picture(LAKE).height  # The caption.
        assert render.as_text(LAKE, broken).startswith(render.ascii_instance(LAKE) + f"\n\n{text}")


def test_many_agents_and_padding():
    cells = [(r, c) for r in range(5) for c in range(5)]
    many = make_instance(["F" * 5] * 5, cells[:9], cells[9:18])
    paths = [[cell] for cell in cells[:9]]
    plain = image.picture(many, plan_of(*paths))
    padded = image.picture(pad_instance(many, 8, 12), plan_of(*paths, num_agents=12))
    assert np.array_equal(np.asarray(plain), np.asarray(padded))


def test_files(tmp_path):
    plan = plan_of([(0, 0), (0, 1)], [(0, 3), (0, 3)], THIRD)
    render.save(tmp_path / "a.png", LAKE)
    assert Image.open(tmp_path / "a.png").size == (300, 249)
    render.save(tmp_path / "a.png", LAKE, cell=10_000)
    assert max(Image.open(tmp_path / "a.png").size) < 6000
    render.save(tmp_path / "a.gif", LAKE, plan)
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 21
        assert gif.info["loop"] == 0
    render.save(tmp_path / "a.txt", LAKE, plan)
    text = (tmp_path / "a.txt").read_text()
    assert text == render.as_text(LAKE, plan) + "\n"
    render.save(tmp_path / "a.svg", LAKE, plan)
    assert (tmp_path / "a.svg").read_text() == svg.svg(LAKE, plan) + "\n"
    render.save(tmp_path / "a.html", LAKE, plan)
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.endswith(svg.svg(LAKE, plan) + "\n")
    with pytest.raises(ValueError, match=r"a.bmp: suffix '.bmp' is not allowed, only .png"):
        render.save(tmp_path / "a.bmp", LAKE)
    with pytest.raises(ValueError, match="an animation needs a plan"):
        render.save(tmp_path / "b.gif", LAKE)


def test_frames_in_text():
    plan = plan_of([(0, 0), (0, 1), (0, 2)], [(0, 3), (0, 2), (0, 1)], [(3, 0), (2, 0), (1, 1)])
    frames = render.ascii_frames(LAKE, plan)
    assert frames[0] == "t = 0\n0 g F 1\nF H a F\nF F G H\n2 F F F"
    assert frames[1] == "t = 1\nF 0 1 F\nF H a F\n2 F G H\nF F F F"
    assert frames[2] == (
        "t = 2\nF # # F\nF # a F\nF F G H\nF F F F\n"
        "agent 0 at (0,2): swap\nagent 1 at (0,1): swap\nagent 2 at (1,1): illegal move"
    )


@st.composite
def lakes(draw):
    size = draw(st.integers(2, 7))
    cells = [(r, c) for r in range(size) for c in range(size)]
    order = draw(st.permutations(cells))
    agents = draw(st.integers(1, min(24, len(cells) // 2)))
    free = set(order[: 2 * agents + draw(st.integers(0, len(cells)))])
    rows = ["".join("F" if (r, c) in free else "H" for c in range(size)) for r in range(size)]
    return make_instance(rows, order[:agents], order[agents : 2 * agents])


@settings(max_examples=200)
@given(lakes(), st.booleans())
def test_drawings_can_be_read_back(instance, blanks):
    drawing = render.ascii_instance(instance)
    if not blanks:
        drawing = "\n" + drawing.replace(" ", "").replace("\n", "\n\n")
    found = render.instance_from_ascii(drawing)
    jax.tree.map(np.testing.assert_array_equal, found, instance)


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        ("", "0 rows"),
        ("S G F\nF F F", "2 rows of \\[3\\] cells, the map must be square"),
        ("S G\nF", "2 rows of \\[1, 2\\] cells"),
        ("S G\nF ?", "'\\?' in row 1, column 1 means nothing"),
        ("S G\nG F", "'G' is in \\(0, 1\\) and \\(1, 0\\)"),
        ("S F\nF F", "'G' of agent 0 is missing"),
        ("s g\nF F", "'S' of agent 0 is missing"),
        ("S g\nF F", "'G' of agent 0 is missing"),
        ("F F\nF F", "0 starts and 0 goals"),
    ],
)
def test_bad_drawings_are_refused(drawing, message):
    with pytest.raises(ValueError, match=message):
        render.instance_from_ascii(drawing)


def test_a_solution_is_drawn_and_verified_as_a_plan(tmp_path):
    config = mapf_jax.EnvironmentConfig.uniform((3, 4), 0.2, 0.5)
    instances, _ = mapf_jax.generate(jax.random.key(0), config, 4)
    assert mapf_jax.verify(instances, instances.solution).optimal.all()
    path = f"{tmp_path}/lake.svg"
    render.save(path, instances[1], instances.solution[1])
    assert "Valid: cost" in Path(path).read_text()
    assert render.as_text(instances[1], instances.solution[1]).count("t = ") > 1
