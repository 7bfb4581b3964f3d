"""The rules of movement and the eight checks against a plain Python reading of them."""

import jax
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from mapf_jax import CHECKS, Plan, verify
from mapf_jax.types import INFINITE_COST, Instance, make_instance, stack


def one(instance):
    return stack([instance])


def verdict_on(instance, path):
    """The verdict on one plan given as a list of joint cells."""
    positions = np.array(path, np.int16)
    plan = Plan(
        positions=positions[None],
        num_steps=np.array([len(path) - 1]),
        parsable=np.array([True]),
        num_agents=np.array([positions.shape[1]]),
    )
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], verify(one(instance), plan))


OPEN = ["F F F", "F F F", "F F F"]
CASES = {
    "following is legal": ([(0, 0), (0, 1)], [(0, 1), (0, 2)], [], 2),
    "rotation is legal": ([(0, 0), (0, 1)], [(0, 1), (1, 1)], [], 2),
    "swap": ([(0, 0), (0, 1)], [(0, 1), (0, 0)], ["conflict_free"], None),
    "vertex": ([(0, 0), (0, 2)], [(0, 1), (0, 1)], ["conflict_free", "goals_reached"], None),
}


@pytest.mark.parametrize("name", CASES)
def test_single_steps(name):
    before, after, failed, cost = CASES[name]
    goals = after if len(set(after)) == 2 else [(0, 1), (1, 2)]
    instance = Instance(
        size=np.int32(3),
        blocked=np.zeros((3, 3), bool),
        starts=np.array(before, np.int8),
        goals=np.array(goals, np.int8),
        active=np.ones(2, bool),
    )
    verdict = verdict_on(instance, [before, after])
    assert [check for check in CHECKS if not getattr(verdict, check)] == failed
    assert verdict.cost == (INFINITE_COST if cost is None else cost)
    assert verdict.violation_time == (1 if failed else -1)


def test_cost_counts_until_the_agent_stays_for_good():
    instance = make_instance(OPEN, [(0, 0), (2, 0)], [(0, 1), (2, 2)])
    path = [
        [(0, 0), (2, 0)],
        [(0, 1), (2, 0)],  # Agent 0 is on its goal, leaves it again, and comes back at time 3.
        [(1, 1), (2, 1)],
        [(0, 1), (2, 2)],
        [(0, 1), (2, 2)],
    ]
    verdict = verdict_on(instance, path)
    assert verdict.valid
    assert verdict.cost == 6
    assert verdict.makespan == 3


def test_wrong_number_of_agents_and_unparsable():
    instance = make_instance(OPEN, [(0, 0), (2, 0)], [(0, 1), (2, 2)])
    plan = Plan(
        positions=np.zeros((1, 2, 2, 2), np.int16),
        num_steps=np.array([1]),
        parsable=np.array([True]),
        num_agents=np.array([3]),
    )
    verdict = verify(one(instance), plan)
    assert verdict.parsable[0]
    assert not verdict.agent_count[0]
    assert not verdict.valid[0]


cells = st.tuples(st.integers(-1, 4), st.integers(-1, 4))


@st.composite
def plans(draw):
    """A lake with two to four agents and a plan of mostly legal moves with some noise."""
    size = draw(st.integers(3, 4))
    num_agents = draw(st.integers(2, 4))
    free = draw(st.permutations([(r, c) for r in range(size) for c in range(size)]))
    starts, goals = free[:num_agents], free[num_agents : 2 * num_agents]
    holes = set(free[2 * num_agents : 2 * num_agents + draw(st.integers(0, 2))])
    blocked = [[(r, c) in holes for c in range(size)] for r in range(size)]
    path = [list(starts)]
    for _ in range(draw(st.integers(0, 4))):
        step = []
        for row, column in path[-1]:
            dr, dc = draw(st.sampled_from(reference.STEPS))
            step.append((row + dr, column + dc))
        path.append(step)
    if draw(st.booleans()):
        path[draw(st.integers(0, len(path) - 1))][draw(st.integers(0, num_agents - 1))] = draw(
            cells
        )
    if draw(st.booleans()):
        path.append(list(goals))
    return blocked, starts, goals, size, path


@settings(max_examples=400)
@given(plans())
def test_checks_and_cost_agree_with_the_reference(case):
    blocked, starts, goals, size, path = case
    width, agents, steps = 5, 4, 8  # One static shape for all cases, absent agents masked.
    full = np.ones((width, width), bool)
    full[:size, :size] = blocked
    active = np.arange(agents) < len(starts)

    def padded(points):
        array = np.zeros((agents, 2), np.int8)
        array[: len(points)] = points
        return array

    instance = Instance(np.int32(size), full, padded(starts), padded(goals), active)
    rows = [padded(step) for step in path]
    positions = np.array(rows + [rows[-1]] * (steps - len(rows)), np.int16)
    plan = Plan(
        positions[None], np.array([len(path) - 1]), np.array([True]), np.array([len(starts)])
    )
    verdict = jax.tree.map(lambda leaf: np.asarray(leaf)[0], verify(one(instance), plan))
    failed = {check for check in CHECKS if not getattr(verdict, check)}
    assert failed == reference.failed_checks(blocked, starts, goals, size, path)
    if not failed:
        assert verdict.cost == reference.sum_of_costs(goals, path)
