"""Plans for many agents: valid by the project's own verifier, on scenarios in MovingAI's format."""

import dataclasses

import numpy as np
import pytest
import reference

from mapf_jax import Status, movingai, solve, verify
from mapf_jax.cli import main
from mapf_jax.formats import from_records, read_jsonl
from mapf_jax.solver.lacam import plan_lake
from mapf_jax.types import make_instance

WALLS = {
    "empty": lambda rng, size: np.zeros((size, size), bool),
    "random": lambda rng, size: rng.random((size, size)) < 0.2,
    # Rooms of 7 x 7 cells with a door in every wall.
    "room": lambda rng, size: np.array(
        [[(r % 8 == 7 and c % 8 != 3) or (c % 8 == 7 and r % 8 != 4) for c in range(size)]
         for r in range(size)]
    ),
}  # fmt: skip


def reachable(blocked):
    """The cells that the most others can be reached from."""
    left, best = {tuple(cell) for cell in np.argwhere(~blocked).tolist()}, []
    while left:
        part = [left.pop()]
        for row, column in part:
            for r, c in reference.STEPS:
                if (row + r, column + c) in left:
                    left.remove((row + r, column + c))
                    part.append((row + r, column + c))
        best = max(best, part, key=len)
    return sorted(best)


def scenario(folder, kind, size, num_agents, seed=0):
    """A `.map` and a `.scen`, whose agents may start on goals of others."""
    rng = np.random.default_rng([seed, size])
    blocked = WALLS[kind](rng, size)
    cells = reachable(blocked)
    starts, goals = (rng.permutation(len(cells))[:num_agents] for _ in range(2))
    rows = ["".join("@" if hole else "." for hole in row) for row in blocked]
    head = ["type octile", f"height {size}", f"width {size}", "map"]
    (folder / "m.map").write_text("\n".join([*head, *rows, ""]))
    lines = ["version 1"]
    for start, goal in zip(starts, goals, strict=True):
        ends = *cells[start][::-1], *cells[goal][::-1]
        lines.append("\t".join(map(str, (0, "m.map", size, size, *ends, 0.0))))
    (folder / "s.scen").write_text("\n".join(lines) + "\n")
    return folder / "s.scen"


@pytest.mark.parametrize(
    ("kind", "size", "counts"),
    [
        ("empty", 8, (2, 32)),
        ("random", 32, (2, 10, 50, 100)),
        ("room", 64, (100,)),
        ("random", 256, (2, 100)),
    ],
)
def test_scenarios_of_two_to_a_hundred_agents_get_plans(tmp_path, kind, size, counts):
    path = scenario(tmp_path, kind, size, max(counts))
    for count in counts:
        batch = movingai.read_movingai(path, count)[None]
        solution = solve(batch, max_states=0)
        assert solution.status[0] == Status.FEASIBLE
        verdict = verify(batch, solution)
        assert verdict.valid[0]
        assert (verdict.cost[0], verdict.makespan[0]) == (solution.cost[0], solution.makespan[0])
        apart = np.abs(batch.goals.astype(int) - batch.starts).sum()
        assert apart <= solution.cost[0] < 3 * apart
        again = solve(batch, max_states=0)
        np.testing.assert_array_equal(again.paths, solution.paths)


def test_the_command_line_plans_a_scenario(tmp_path, capsys):
    path = scenario(tmp_path, "random", 32, 100)
    out = tmp_path / "out.jsonl"
    assert main(["solve", str(path), "--max-states=0", f"--out={out}"]) == 0
    assert capsys.readouterr().err == "0 optimal, 1 feasible, 0 unsolvable, 0 unknown\n"
    assert main(["verify", str(out), f"--out={tmp_path / 'verified.jsonl'}"]) == 0
    (record,) = read_jsonl(tmp_path / "verified.jsonl")
    assert record["valid"]
    assert record["plan_cost"] == record["cost"]
    assert from_records([record]).solution.status[0] == Status.FEASIBLE


def test_small_lakes_are_planned_or_proven_to_have_no_plan():
    """Two to four agents on up to nine cells, so crowded that many have none."""
    rng = np.random.default_rng(0)
    instances = []
    for _ in range(150):
        free = np.sort(rng.permutation(9)[: rng.integers(5, 10)])
        count = int(rng.integers(2, min(len(free), 5)))
        rows = ["".join("F" if 3 * r + c in free else "H" for c in range(3)) for r in range(3)]
        starts, goals = (rng.permutation(free)[:count] for _ in range(2))
        cells = [[divmod(int(cell), 3) for cell in some] for some in (starts, goals)]
        instances.append(make_instance(rows, *cells))
    kinds = []
    for instance in instances:
        status, path = plan_lake(instance.blocked, instance.starts, instance.goals)
        starts, goals = (
            [tuple(cell) for cell in cells.tolist()] for cells in (instance.starts, instance.goals)
        )
        exact = solve(instance[None])
        assert (status == Status.FEASIBLE) == (exact.status[0] == Status.OPTIMAL)
        assert status != Status.UNKNOWN
        if status == Status.FEASIBLE:
            steps = [[tuple(cell) for cell in step] for step in path.tolist()]
            assert not reference.failed_checks(instance.blocked.tolist(), starts, goals, 3, steps)
            assert reference.sum_of_costs(goals, steps) >= exact.cost[0]
        kinds.append(status)
    assert min(kinds.count(Status.FEASIBLE), kinds.count(Status.UNSOLVABLE)) > 20


def test_it_gives_up_after_the_steps_that_it_may_take():
    lake = make_instance(["F F F", "F H F", "F F F"], [(0, 0), (2, 2)], [(2, 0), (0, 1)])
    status, path = plan_lake(lake.blocked, lake.starts, lake.goals, max_steps=2)
    assert (status, len(path)) == (Status.UNKNOWN, 0)
    apart = dataclasses.replace(lake, blocked=np.eye(3, dtype=bool)[::-1])
    apart = dataclasses.replace(apart, starts=np.array([(0, 0), (1, 0)], np.int8))
    apart = dataclasses.replace(apart, goals=np.array([(2, 2), (0, 1)], np.int8))
    assert plan_lake(apart.blocked, apart.starts, apart.goals)[0] == Status.UNSOLVABLE
