"""Optimal costs, labels and plans against a plain Python joint search."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
import reference

from mapf_jax import INFINITE_COST, Instance, Plan, Status, joint_search, solve, verify
from mapf_jax.types import make_instance, stack


def random_instances(seed, size, density, count):
    rng = np.random.default_rng(seed)
    blocked = rng.random((count, size, size)) < density
    order = [rng.choice(size * size, 4, replace=False) for _ in range(count)]
    cells = np.stack([np.stack(np.divmod(row, size), -1) for row in order]).astype(np.int8)
    blocked[np.arange(count)[:, None], cells[..., 0], cells[..., 1]] = False
    return Instance(
        size=np.full(count, size, np.int32),
        blocked=blocked,
        starts=cells[:, :2],
        goals=cells[:, 2:],
        active=np.ones((count, 2), bool),
    )


def as_plan(solution):
    batch = len(solution.cost)
    return Plan(
        positions=solution.paths.astype(np.int16),
        num_steps=solution.num_steps,
        parsable=np.ones(batch, bool),
        num_agents=np.full(batch, 2),
    )


def cells_of(array):
    return [tuple(int(value) for value in cell) for cell in array]


@pytest.mark.parametrize(
    ("size", "density", "count"), [(3, 0.2, 300), (3, 0.5, 300), (4, 0.4, 200), (5, 0.4, 120)]
)
def test_optimum_labels_and_plans(size, density, count):
    instances = random_instances(size, size, density, count)
    solution = solve(instances)
    verdict = verify(dataclasses.replace(instances, solution=solution), as_plan(solution))
    waits = 0
    for i in range(count):
        blocked = instances.blocked[i].tolist()
        starts, goals = cells_of(instances.starts[i]), cells_of(instances.goals[i])
        optimum = reference.joint_optimum(blocked, starts, goals)
        makespan = reference.makespan_optimum(blocked, starts, goals)
        if optimum is None:
            assert solution.status[i] == Status.UNSOLVABLE
            assert solution.cost[i] == solution.makespan[i] == INFINITE_COST
            continue
        assert solution.status[i] == Status.OPTIMAL
        assert solution.cost[i] == optimum
        assert solution.makespan[i] == makespan
        moving = reference.joint_optimum(blocked, starts, goals, allow_wait=False)
        needs_wait = moving is None or moving > optimum
        assert solution.needs_wait[i] == needs_wait
        waits += needs_wait
        assert verdict.optimal[i]
        path = [cells_of(step) for step in solution.paths[i]]
        assert not reference.failed_checks(blocked, starts, goals, size, path)
        assert reference.sum_of_costs(goals, path) == optimum
        if not needs_wait:
            for agent in range(2):
                cells = [step[agent] for step in path]
                arrival = reference.sum_of_costs([goals[agent]], [[cell] for cell in cells])
                assert all(a != b for a, b in itertools.pairwise(cells[: arrival + 1]))
    assert waits > 0


# Small cases worked out by hand: one agent steps into the bay; one goes round; both rotate.
GOLDEN = [
    (["H F H", "F F F", "H H H"], [(1, 0), (1, 2)], [(1, 2), (1, 0)], 7, 4),
    (["F F H", "F F H", "H H H"], [(0, 0), (0, 1)], [(0, 1), (0, 0)], 4, 3),
    (["F F H", "F F H", "H H H"], [(0, 0), (1, 1)], [(1, 1), (0, 0)], 4, 2),
]


@pytest.mark.parametrize(("rows", "starts", "goals", "cost", "makespan"), GOLDEN)
def test_golden(rows, starts, goals, cost, makespan):
    blocked = [[c == "H" for c in row.split()] for row in rows]
    assert reference.joint_optimum(blocked, starts, goals) == cost
    # Here an agent's goal is another one's start, which made instances never have.
    instance = Instance(
        size=np.int32(3),
        blocked=np.array(blocked),
        starts=np.array(starts, np.int8),
        goals=np.array(goals, np.int8),
        active=np.ones(2, bool),
    )
    solution = solve(stack([instance]))
    assert (solution.cost[0], solution.makespan[0]) == (cost, makespan)


def test_a_corridor_cannot_be_swapped():
    rows = ["F F F F", "H H H H", "H H H H", "H H H H"]
    instance = make_instance(rows, [(0, 0), (0, 1)], [(0, 3), (0, 2)])
    solution = solve(stack([instance]))
    assert solution.status[0] == Status.UNSOLVABLE


def test_wide_and_padded_lakes_have_the_costs_of_narrow_ones():
    narrow = random_instances(7, 4, 0.3, 64)
    padded = np.ones((64, 17, 17), bool)  # Past 16 columns the search uses wider words.
    padded[:, :4, :4] = narrow.blocked
    waits = np.ones(64, bool)
    small = joint_search.joint_costs(narrow.blocked, narrow.starts, narrow.goals, waits)
    large = joint_search.joint_costs(padded, narrow.starts, narrow.goals, waits, chunk=48)
    np.testing.assert_array_equal(small.cost, large.cost)
    np.testing.assert_array_equal(small.makespan, large.makespan)


def test_more_agents_are_refused_by_name():
    instance = make_instance(
        ["F F F", "F F F", "F F F"], [(0, 0), (0, 1), (0, 2)], [(2, 0), (2, 1), (2, 2)]
    )
    with pytest.raises(ValueError, match=r"num_agents=\[3\]"):
        solve(stack([instance]))


def test_shortest_costs():
    instance = make_instance(["F H F", "F H F", "F F F"], [(0, 0), (2, 1)], [(0, 2), (2, 0)])
    batch = stack([instance])
    costs = joint_search.shortest_costs(batch.blocked, batch.starts, batch.goals)
    np.testing.assert_array_equal(jax.device_get(costs), [[6, 1]])
