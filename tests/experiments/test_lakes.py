"""Lakes whose numbers of agents a designer may turn."""

import collections
import itertools
import json

import jax
import numpy as np
import pytest

import mapf_jax
from engineer import context, proposal
from engineer.space import Configuration
from experiments.families.demonstrations import random_record
from experiments.families.lakes.family import Lakes
from experiments.families.lakes.options import LakesOptions
from learner.chat import Completion
from mapf_jax import formats

OPTIONS = LakesOptions(sizes=(3, 4), agents=(2, 3))


@pytest.fixture(scope="module")
def lakes():
    return Lakes(OPTIONS)


def test_a_design_has_a_row_for_each_size_and_number_of_agents(lakes):
    assert lakes.space.rows == ("3_2", "3_3", "4_2", "4_3")
    config = lakes.space.uniform()
    lakes.space.check(config)
    # Three agents on 3x3 leave three cells for holes.
    assert lakes.space.bounds("3_3", "hole_ratio") == (0.0, pytest.approx(3 / 9))
    assert lakes.validation["4_3", "data_ratio"] == 0.25


def test_contexts_name_the_rows_and_designs_are_read_back(lakes):
    record = random_record(1, lakes.space, lakes.texts)
    message = context.compose(context.VARIANTS["V6"], record, lakes.texts)[-1]["content"]
    assert "4_3" in message
    assert "in a row named N_A" in message
    design = lakes.space.random(3)
    read = proposal.parse(proposal.render_config(design, lakes.space), lakes.space)
    assert isinstance(read, proposal.Proposal)
    assert proposal.project(read, lakes.space)[0] == design


def test_a_set_has_what_was_asked_of_every_row_and_its_evidence_names_them(lakes):
    cells = lakes.space.uniform().cells()
    fractions = {"3_2": 0.1, "3_3": 0.2, "4_2": 0.3, "4_3": 0.4}
    for row, fraction in fractions.items():
        cells |= {
            (row, "data_ratio"): fraction,
            (row, "hole_ratio"): 0.12,
            (row, "wait_ratio"): 0.5,
        }
    config = Configuration.from_cells(cells)
    made = lakes.generate(jax.random.key(0), config, 40, ())
    counts = collections.Counter(f"{len(p['map'])}_{len(p['starts'])}" for p in made.problems)
    assert counts == {row: 40 * fraction for row, fraction in fractions.items()}
    assert {name: row.achieved["data_ratio"] for name, row in made.rows.items()} == fractions
    assert len({p["id"] for p in made.problems}) == 40
    # The order does not give the numbers of agents away.
    assert len({len(p["starts"]) for p in made.problems[:10]}) == 2
    task = lakes.task(made.problems)
    instances = formats.from_records(made.problems)
    solution = instances.solution
    texts = [
        mapf_jax.render_answer(
            solution.paths[i][:, instances.active[i]], int(solution.num_steps[i])
        )
        for i in range(40)
    ]
    order = np.arange(40)[::-1]
    completions = [Completion(texts[i], 10, truncated=False) for i in order]
    records = task.score(order, completions).records
    assert all(record["optimal"] for record in records)
    assert collections.Counter(record["group"] for record in records) == counts
    waits = [bool(record["features"]) for record in records]
    assert waits == solution.needs_wait[order].tolist()
    assert 0 < sum(waits) < 40


def test_instances_of_a_file_are_in_no_set(tmp_path):
    options = {"sizes": (3,), "agents": (2, 3)}
    config = Lakes(LakesOptions(**options)).space.uniform()
    made = Lakes(LakesOptions(**options)).generate(jax.random.key(1), config, 20, ())
    path = tmp_path / "held.jsonl"
    path.write_text("".join(json.dumps(problem) + "\n" for problem in made.problems))
    again = Lakes(LakesOptions(**options, exclude=str(path))).generate(
        jax.random.key(1), config, 20, ()
    )

    def names(problems):
        return set(mapf_jax.fingerprints(formats.from_records(problems)))

    assert len(names(again.problems)) == 20
    assert not names(again.problems) & names(made.problems)


@pytest.mark.parametrize(("agents", "taught"), [(2, {2, 3}), (4, {2, 3, 4})])
@pytest.mark.slow
def test_lessons_have_all_sizes_and_numbers_of_agents_equally_often(agents, taught):
    sizes = {4, 5}
    lakes = Lakes(LakesOptions(sizes=tuple(sorted(sizes)), agents=(agents,)))
    count = 10 * len(sizes) * len(taught)
    made = lakes.lessons(jax.random.key(0), count, ())
    found = collections.Counter((len(one["map"]), len(one["starts"])) for one in made)
    assert found == dict.fromkeys(itertools.product(sizes, taught), 10)


def test_numbers_of_agents_are_checked():
    with pytest.raises(ValueError, match=r"agents=\(3, 2\): allowed are 2 to 5, ascending"):
        LakesOptions(agents=(3, 2))
    with pytest.raises(ValueError, match=r"agents=\(\): allowed are 2 to 5"):
        LakesOptions(agents=())
    with pytest.raises(ValueError, match=r"exclude='nowhere\.jsonl': there is no such file"):
        LakesOptions(exclude="nowhere.jsonl")
    with pytest.raises(ValueError, match="too small for the starts and goals of 5 agents"):
        LakesOptions(sizes=(3, 4), agents=(2, 5))


def test_evidence_counts_lakes_with_many_holes_where_validation_has_several_ratios():
    options = LakesOptions(
        sizes=(3, 4),
        validation_hole_ratios=(0.12, 0.32),
        validation_wait_ratio=0.5,
        max_candidates=4096,
    )
    lakes = Lakes(options)
    assert lakes.validation["4", "hole_ratio"] == pytest.approx(0.22)
    made = lakes.validation_set(jax.random.key(0), 40)
    holes = [sum(row.count("H") for row in problem["map"]) for problem in made.problems]
    sizes = [len(problem["map"]) for problem in made.problems]
    assert collections.Counter(zip(sizes, holes, strict=True)) == {
        (3, 1): 10,
        (3, 2): 10,
        (4, 1): 10,
        (4, 5): 10,
    }
    assert holes[:20] != sorted(holes[:20])
    assert {(row.asked, row.made) for row in made.rows.values()} == {(20, 20)}
    assert made.rows["4"].achieved["hole_ratio"] == pytest.approx(3 / 16, abs=1e-4)
    assert len({json.dumps(problem["map"]) for problem in made.problems}) > 20

    task = lakes.task(made.problems)
    solutions = lakes.solutions(made.problems)
    found = task.score(np.arange(40), [Completion(text, 9, False) for text in solutions]).records
    having = ["many holes" in record["features"] for record in found]
    assert having == [count / size**2 > 0.22 for size, count in zip(sizes, holes, strict=True)]
    by_group = lakes.breakdown(found).by_group
    # Two holes of nine cells are 22.2 %.
    assert [group.features["many holes"]["answers"] for group in by_group] == [10, 10]
    assert "many holes" not in str(
        Lakes(OPTIONS)
        .task(made.problems)
        .score(np.arange(1), [Completion(solutions[0], 9, False)])
        .records
    )


def test_hole_ratios_of_validation_are_checked():
    with pytest.raises(
        ValueError, match=r"validation_hole_ratios=\(0.1, 2\): allowed are one or more numbers"
    ):
        LakesOptions(validation_hole_ratios=(0.1, 2))
    with pytest.raises(ValueError, match=r"validation_hole_ratios=\(\): allowed are one or more"):
        LakesOptions(validation_hole_ratios=())


def rendered(paths):
    return mapf_jax.render_answer(np.swapaxes(paths, 0, 1), len(paths[0]) - 1)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        # The rule is broken at t = 1, and what comes later is not shown.
        (
            rendered([[[0, 0], [0, 1], [0, 0]], [[1, 1], [1, 2], [0, 2]]]),
            ["F 0 F", "F F #", "F F G", "t = 1: agent 1 enters the hole (1,2)"],
        ),
        (
            rendered([[[0, 0], [1, 0], [2, 0], [2, 1], [2, 2]], [[1, 1], [0, 1], *[[0, 1]] * 3]]),
            ["F 1 F", "F F H", "F F 0", "Valid: cost 5, makespan 4"],
        ),
    ],
)
def test_an_example_is_one_drawing_of_where_the_plan_fails(answer, shown):
    lakes = Lakes(LakesOptions(sizes=(3,)))
    instance = mapf_jax.make_instance(["FFF", "FFH", "FFF"], [(0, 0), (1, 1)], [(2, 2), (0, 1)])
    problem = formats.to_record(instance, "0")
    rest = "goals: G g; broken rule: #; hole: H; ice: F; cells: (row,column)"
    lines = lakes.example(problem, answer).splitlines()
    assert lines[:4] == shown
    assert lines[-1] == f"agents: 0 1; {rest}"
    assert lakes.example(problem, "left, left").splitlines() == [
        "S g F", "F s H", "F F G", "answer: left, left", "No plan could be read.",
        f"starts: S s; {rest.replace('broken rule: #; ', '')}",
    ]  # fmt: skip
