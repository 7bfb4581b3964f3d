"""JSON lines, MovingAI files and the published benchmark's records, in and out."""

import copy
import dataclasses
import json

import chex
import jax
import numpy as np
import pytest
from small_records import CORRIDOR, PATHS
from small_records import RECORD as BARE

from mapf_jax import EnvironmentConfig, Status, formats, generate, solve
from mapf_jax.bridges import hub_records as published
from mapf_jax.bridges import movingai
from mapf_jax.draw.render import ascii_instance
from mapf_jax.padding import pad_instance, stack_padded
from mapf_jax.text import prompt, render_answer
from mapf_jax.types import make_instance

#: The module's own example.
RECORD = BARE | {"cost": 5, "makespan": 3, "needs_wait": False, "paths": PATHS}
#: Two agents in a corridor with a bay: one of them must let the other pass.
WAITING = {
    "id": "b",
    "map": ["H F H H", "F F F F", "H H H H", "H H H H"],
    "starts": [[1, 0], [1, 2]],
    "goals": [[1, 3], [0, 1]],
}
LONE = {"id": "c", "map": ["F F", "F F"], "starts": [[0, 0]], "goals": [[1, 1]]}


def test_generated_sets_come_back_as_they_were():
    config = EnvironmentConfig.uniform((3, 5), 0.3, 0.5)
    instances, _ = generate(jax.random.key(0), config, 30)
    records = [formats.to_record(instances[i], f"x{i}") for i in range(30)]
    assert list(records[0]) == list(RECORD)
    assert json.loads(json.dumps(records)) == records
    back = formats.from_records(records)
    chex.assert_trees_all_equal(back, instances)
    chex.assert_trees_all_equal_dtypes(back, instances)


def test_mixed_sizes_agents_and_knowledge():
    unsolvable = CORRIDOR | {"status": "unsolvable", "cost": None, "paths": None}
    batch = formats.from_records([RECORD, LONE, unsolvable, BARE])
    assert batch.blocked.shape == (4, 4, 4)
    assert batch.size.tolist() == [3, 2, 4, 3]
    assert batch.active.tolist() == [[True, True], [True, False], [True, True], [True, True]]
    status = [Status.OPTIMAL, Status.UNKNOWN, Status.UNSOLVABLE, Status.UNKNOWN]
    assert batch.solution.status.tolist() == status
    assert batch.solution.cost[0] == 5
    assert batch.solution.paths[0, :, 0].tolist() == [[0, 0], [1, 0], [2, 0], [2, 0]]
    assert formats.from_records([LONE, BARE]).solution is None
    again = [formats.to_record(batch[i], name) for i, name in enumerate("acda")]
    padded = copy.deepcopy(RECORD)
    padded["paths"][0].append([2, 0])
    nothing = dict.fromkeys(("cost", "makespan", "needs_wait", "paths"))
    assert again[0] == padded
    assert again[1] == LONE | {"status": "unknown"} | nothing
    assert again[2] == CORRIDOR | {"status": "unsolvable"} | nothing
    assert formats.from_records(again).solution.status.tolist() == status


def test_solutions_as_records():
    batch = stack_padded(
        [formats.instance_from_record(r, "r") for r in (RECORD, WAITING, CORRIDOR)]
    )
    wide = pad_instance(batch, 5, 2)  # A width that other tests compile.
    solved = dataclasses.replace(batch, solution=solve(wide))
    records = [formats.to_record(solved[i], name) for i, name in enumerate("abd")]
    assert [record.get("cost") for record in records] == [5, 6, None]
    assert [record.get("needs_wait") for record in records] == [False, True, None]
    np.testing.assert_array_equal(
        solved.solution.cost, formats.from_records(records).solution.cost, strict=True
    )


def test_a_plan_that_is_not_proven_is_not_the_optimum():
    longer = [[[0, 0], *RECORD["paths"][0]], RECORD["paths"][1]]
    record = BARE | {"status": "feasible", "cost": 6, "makespan": 3, "paths": longer}
    batch = formats.from_records([record])
    assert batch.solution.status.tolist() == [Status.FEASIBLE]
    assert formats.to_record(batch[0], "a") == record | {"needs_wait": None}
    assert formats.optimum_from_record(record, "a") is None
    assert formats.optimum_from_record(RECORD, "a") == 5
    for status, message in (
        ("Feasible", "a: status: 'Feasible' is not allowed"),
        ("unknown", "a: cost: not allowed where the status is 'unknown'"),
    ):
        with pytest.raises(ValueError, match=message):
            formats.optimum_from_record(record | {"status": status}, "a")


def changed(**fields):
    return {**copy.deepcopy(RECORD), **fields}


WRONG = {
    "id missing": ({k: v for k, v in RECORD.items() if k != "id"}, r"record 0: id: missing"),
    "id no text": (changed(id=7), r"7: id: 7 is not a string"),
    "map missing": (changed(map=None), r"a: map: missing"),
    "map no list": (changed(map="F F"), r"a: map: 'F F' is not a list"),
    "map empty": (changed(map=[]), r"a: map: \[\] is not a list with items"),
    "map not square": (changed(map=["F F F", "F F"]), r"a: map=.*must be square"),
    "map of letters": (changed(map=["F F X", "F F F", "F F F"]), r"a: map=.*'X'"),
    "start no cell": (changed(starts=[[0, 0], [2]]), r"a: starts: \[2\] is not \[row, column\]"),
    "start a float": (changed(starts=[[0, 0], [2.0, 2]]), r"a: starts: \[2.0, 2\]"),
    "start true": (changed(starts=[[0, 0], [True, 2]]), r"a: starts: \[True, 2\]"),
    "start huge": (changed(starts=[[0, 0], [10**30, 2]]), r"a: starts: "),
    "start in a hole": (changed(starts=[[0, 0], [1, 1]]), r"a: start=\(1, 1\) is a hole"),
    "goal outside": (changed(goals=[[2, 0], [3, 0]]), r"a: goal=\(3, 0\) is outside"),
    "starts alike": (changed(starts=[[0, 0], [0, 0]]), r"a: starts=.*pairwise distinct"),
    "goals alike": (changed(goals=[[2, 0], [2, 0]]), r"a: goals=.*pairwise distinct"),
    "goal missing": (changed(goals=[[2, 0]]), r"a: 2 starts and 1 goals"),
    "cost no number": (changed(cost="5"), r"a: cost: '5' is not an integer"),
    "cost wrong": (changed(cost=6), r"a: cost: 6 is stored, but the paths cost 5"),
    "makespan too large": (changed(makespan=4), r"a: makespan: 4 is stored"),
    "makespan too small": (changed(makespan=2), r"a: makespan: 2 is stored"),
    "makespan of another plan": (
        changed(status="feasible", makespan=2, needs_wait=None),
        r"a: makespan: 2 is stored, but the paths end at 3",
    ),
    "no wait": (changed(needs_wait=True), r"a: needs_wait: true is stored"),
    "needs_wait no bool": (changed(needs_wait=0), r"a: needs_wait: 0 is not true or false"),
    "paths missing": (changed(paths=None), r"a: paths: missing beside cost"),
    "path empty": (changed(paths=[[[0, 0]], []]), r"a: paths\[1\]: \[\] is not a list"),
    "one path": (changed(paths=[[[0, 0]]]), r"a: paths: not a valid plan, failed: .*agent_count"),
    "path through a hole": (
        changed(paths=[[[0, 0], [1, 0], [2, 0]], [[2, 2], [2, 1], [1, 1], [0, 1]]]),
        r"a: paths: not a valid plan, failed: no_holes",
    ),
    "path far outside": (
        changed(paths=[[[0, 0], [1000000, 0], [2, 0]], [[2, 2], [1, 2], [0, 2], [0, 1]]]),
        r"a: paths: not a valid plan, failed: legal_moves, in_bounds",
    ),
    "status unknown": (changed(status="solved"), r"a: status: 'solved' is not allowed"),
    "status against labels": (changed(status="unsolvable"), r"a: cost: not allowed where"),
    "feasible without cost": (
        BARE | {"status": "feasible", "makespan": 3, "paths": RECORD["paths"]},
        r"a: cost: missing beside makespan, paths",
    ),
    "feasible with a proof": (changed(status="feasible"), r"a: needs_wait: not allowed where"),
    "status a list": (changed(status=["optimal"]), r"a: status: \['optimal'\] is not allowed"),
    "status alone": (BARE | {"status": "optimal"}, r"a: cost: missing beside status"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_records_are_named(name):
    record, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        formats.from_records([record])


def test_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(f"\ufeff{json.dumps(RECORD)}\n\n{json.dumps(BARE)}\r\n", "utf-8")
    assert list(formats.read_jsonl(path)) == [RECORD, BARE]
    for line, message in (
        (b"{", "not JSON"),
        (b"[1]", "is not an object"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ):
        path.write_bytes(json.dumps(BARE).encode() + b"\n" + line + b"\n")
        with pytest.raises(ValueError, match=rf"x.jsonl:2: .*{message}"):
            list(formats.read_jsonl(path))
    with pytest.raises(ValueError, match="at least one"):
        formats.from_records([])


# MovingAI

MAP = "type octile\nheight 2\nwidth 3\nmap\n.G@\nS.T\n"
SCENARIO = (
    "version 1\n0\tm.map\t3\t2\t0\t0\t1\t1\t1.41421356\n0\tm.map\t3\t2\t0\t1\t1\t0\t1.41421356\n"
)


def write(folder, map_text=MAP, scenario=SCENARIO):
    (folder / "m.map").write_text(map_text)
    (folder / "s.scen").write_text(scenario)
    return folder / "s.scen"


def test_movingai_in(tmp_path):
    instance = movingai.read_movingai(write(tmp_path))
    assert ascii_instance(instance) == "S g H\ns G H\nH H H"
    one = movingai.read_movingai(tmp_path / "s.scen", num_agents=1)
    assert ascii_instance(one) == "S F H\nF G H\nH H H"
    elsewhere = tmp_path / "other.map"
    elsewhere.write_text(MAP.replace("\n", "\r\n").replace(".G@", ".@@"))
    (tmp_path / "m.map").unlink()
    with pytest.raises(ValueError, match=r"s.scen: goal=\(0, 1\) is a hole"):
        movingai.read_movingai(tmp_path / "s.scen", map_path=elsewhere)


def test_movingai_round_trip(tmp_path):
    config = EnvironmentConfig.uniform((3, 5), 0.3, 0.5)
    instances, _ = generate(jax.random.key(1), config, 6)
    for i in range(6):
        path = tmp_path / f"{i}.scen"
        movingai.write_movingai(instances[i], path)
        assert ascii_instance(movingai.read_movingai(path)) == ascii_instance(instances[i])
        lengths = [float(line.split("\t")[-1]) for line in path.read_text().splitlines()[1:]]
        manhattan = np.abs(instances.goals[i].astype(int) - instances.starts[i]).sum(-1)
        assert sum(lengths) <= instances.solution.cost[i]
        assert (np.array(lengths) >= manhattan).all()


@pytest.mark.parametrize(
    ("map_text", "scenario", "message"),
    [
        (MAP.replace("map\n", ""), SCENARIO, r"m.map:5: the line `map` is missing"),
        (MAP.replace("height 2\n", ""), SCENARIO, r"m.map:3: the header has \['type', 'width'\]"),
        ("type octile\n", SCENARIO, r"m.map:1: the line `map` is missing"),
        ("", SCENARIO, r"m.map:0: the line `map` is missing"),
        (
            MAP.replace("height 2", "height x"),
            SCENARIO,
            r"m.map:4: height='x': allowed are 1 to 2048",
        ),
        (
            MAP.replace("height 2", "height 3000"),
            SCENARIO,
            r"m.map:4: height='3000': allowed are 1 to 2048",
        ),
        (MAP.replace(".G@", ".G"), SCENARIO, r"m.map:5: 2 cells, the header says 3"),
        (MAP.replace("S.T", "S.x"), SCENARIO, r"m.map:6: 'S.x': allowed are"),
        (MAP.replace("S.T\n", ""), SCENARIO, r"m.map:5: 1 rows, the header says 2"),
        (MAP + "...\n", SCENARIO, r"m.map:7: 3 rows, the header says 2"),
        (MAP, "0\tm.map", r"s.scen:1: the line `version 1` is missing"),
        (MAP, "version 1\n", r"s.scen:1: no agent"),
        (MAP, SCENARIO + "1\tm.map\n", r"s.scen:4: 2 fields, but needed are bucket"),
        (MAP, SCENARIO.replace("\t1\t1\t1.4", "\tx\t1\t1.4"), r"s.scen:2: .*'x'"),
        (MAP, SCENARIO.replace("3\t2\t0\t1", "4\t2\t0\t1"), r"s.scen:3: another map"),
        (MAP.replace("width 3", "width 2"), SCENARIO, r"m.map:5: 3 cells, the header says 2"),
        (
            MAP.replace("3", "2").replace("@", "").replace("T", ""),
            SCENARIO,
            r"s.scen: its map has \(height, width\) \(2, 3\), .*m.map has \(2, 2\)",
        ),
        (MAP, SCENARIO.replace("1\t0\t1.4", "1\t1\t1.4"), r"s.scen: goals=.*pairwise distinct"),
    ],
    ids=range(18),
)
def test_movingai_errors_name_file_and_line(tmp_path, map_text, scenario, message):
    path = write(tmp_path, map_text, scenario)
    with pytest.raises(ValueError, match=message):
        movingai.read_movingai(path)


def test_movingai_number_of_agents(tmp_path):
    with pytest.raises(ValueError, match=r"s.scen: num_agents=3: it has 2 agents"):
        movingai.read_movingai(write(tmp_path), num_agents=3)


# The published benchmark

LAKE = "S F g\nF s F\nA a G"


def question(text, sample_id="3ag_3x3_hr0.1_000", **fields):
    return {"sample_id": sample_id, "num_agents": 3, "text": text, **fields}


ROWS = LAKE.split("\n")


@pytest.mark.parametrize(
    "text",
    [
        f"There is a 3x3 lake with 3 agents.\n{LAKE}\nS s A are starts, G g a are goals.",
        f"Symbols: F frozen, H hole\nS s A\nG g a\nMap:\n\n{LAKE}\n\nAgent 1: (0, 0) -> (2, 2)",
        f"Map: {ROWS[0]}\n{ROWS[1]}\n{ROWS[2]} is the lake.",
        f"```\n{LAKE}\n```\nThe map again:\n{LAKE}",
        str([row.split() for row in ROWS]).replace("], ", "],\n"),
        "   " + LAKE.replace(" ", "\t").replace("\n", "\r\n   ") + "\r\n",
        "F F F\nF H F\nF F F\nis an example without agents.\n" + LAKE,
    ],
    ids=range(7),
)
def test_published_records(text):
    record = published.read_published(question(text), "x")
    assert ascii_instance(formats.instance_from_record(record, "x")) == LAKE
    assert (record["id"], record["hole_ratio"]) == ("3ag_3x3_hr0.1_000", 0.1)


def test_our_prompts_can_be_read_as_published_ones():
    instance = make_instance(["F" * 5] * 5, [(i, 0) for i in range(5)], [(i, 4) for i in range(5)])
    text = prompt(instance) + "\n" + render_answer(np.zeros((1, 5, 2)), 0)
    record = question(text, "5ag_5x5_hr0.0_049", num_agents=5)
    found = published.read_published(record, "x")
    assert ascii_instance(formats.instance_from_record(found, "x")) == ascii_instance(instance)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (question(LAKE, sample_id="3ag_3x4_hr0.1_000"), "x: sample_id: '3ag_3x4_hr0.1_000' is not"),
        (question(LAKE, sample_id=None), "x: sample_id: None"),
        (question(LAKE, sample_id="99ag_3x3_hr0.1_000"), "x: (sample_id|num_agents): "),
        (question(LAKE, num_agents=4), "x: num_agents: 4 is not the 3"),
        (question(None), "x: text: None is not a string"),
        (question("nothing"), "x: text: 0 different maps"),
        (question(LAKE.replace("A", "F")), "x: text: 0 different maps"),
        (question(LAKE + "\nor\n" + LAKE.replace("S F", "S H")), "x: text: 2 different maps"),
        (question(LAKE, sample_id="3ag_4x4_hr0.1_000"), "x: text: 0 different maps of 4 x 4"),
    ],
    ids=range(9),
)
def test_published_errors(record, message):
    with pytest.raises(ValueError, match=message):
        published.read_published(record, "x")
