"""The verifier on texts and walks, against plain Python: checks, costs and the first violation."""

import collections
import dataclasses
import re

import jax
import numpy as np
import pytest
import reference
import strict_reader
from hypothesis import given, settings
from hypothesis import strategies as st

from mapf_jax import CHECKS, INFINITE_COST, Status, ViolationKind, plans_from_texts, solve, verify
from mapf_jax.padding import pad_instance, stack_padded, stack_plans
from mapf_jax.types import make_instance, stack

LAKES = [
    make_instance(["F F F", "F H F", "F F F"], [(0, 0), (2, 2)], [(2, 0), (0, 1)]),
    make_instance(["H F H", "F F F", "F F F"], [(1, 0), (1, 2)], [(2, 2), (2, 0)]),
    make_instance(
        ["F F F F", "F F H F", "F F F F", "H F F F"],
        [(0, 0), (0, 3), (3, 3)],
        [(3, 3 - 1), (2, 0), (1, 0)],
    ),
]
#: Valid answers, one that waits and one that takes its time.
ANSWERS = [
    "<answer>\n0: (0,0) (2,2)\n1: (1,0) (1,2)\n2: (2,0) (0,2)\n3: (2,0) (0,1)\n</answer>",
    "<answer>\n0: (1,0) (1,2)\n1: (2,0) (1,2)\n2: (2,1) (1,1)\n3: (2,2) (2,1)\n"
    "4: (2,2) (2,0)\n</answer>",
    "<answer>\n0: (0,0) (0,3) (3,3)\n1: (0,1) (0,2) (3,2)\n2: (1,1) (0,2) (2,2)\n"
    "3: (2,1) (0,1) (2,2)\n4: (3,1) (1,1) (2,1)\n5: (3,2) (2,1) (2,0)\n6: (3,2) (2,0) (1,0)\n"
    "</answer>",
]
BATCH, STEPS = 32, 16
INSTANCES = stack_padded([LAKES[i % 3] for i in range(BATCH)])


def check(verdict, lake, path):
    """One verdict against the reference; `path` is None for a text without a plan."""
    size, blocked = int(lake.size), lake.blocked.tolist()
    starts, goals = reference.cells_of(lake.starts), reference.cells_of(lake.goals)
    failed = {name for name in CHECKS if not getattr(verdict, name)}
    found = (
        verdict.violation_time,
        verdict.violation_agent,
        ViolationKind(int(verdict.violation_kind)).name,
    )
    if path is None:
        assert failed == set(CHECKS)
        assert found == (-1, -1, "NONE")
    elif len(path[0]) != len(starts):
        assert failed == set(CHECKS) - {"parsable"}
        assert found == (-1, -1, "NONE")
    else:
        broken = list(reference.violations(blocked, starts, goals, size, path))
        assert failed == {reference.CHECK_OF[kind] for _, _, kind in broken}
        assert found == next(iter(broken), (-1, -1, "NONE"))
        assert bool(failed) == (found[2] != "NONE")
    assert verdict.valid == (not failed)
    if failed:
        assert verdict.cost == verdict.makespan == verdict.gap == INFINITE_COST
    else:
        assert verdict.cost == reference.sum_of_costs(goals, path)
        each = [
            reference.sum_of_costs([goal], [[cells[agent]] for cells in path])
            for agent, goal in enumerate(goals)
        ]
        assert verdict.makespan == max(each)
    return not failed


def split(verdicts):
    verdicts = jax.tree.map(np.asarray, verdicts)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], verdicts) for i in range(BATCH)]


SNIPPETS = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "```",
    "\n",
    " ",
    "(",
    "9" * 9,
    "\u0663",
]


def mutate(random, text):
    """A real answer with a few things wrong, or right in another way."""
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        at = random.randrange(len(text))
        lines = text.split("\n")
        line = random.randrange(len(lines))
        kind = random.randrange(7)
        if kind == 0:  # Another digit, mostly another cell.
            digits = [i for i, c in enumerate(text) if c.isdigit()]
            at = random.choice(digits) if digits else at
            text = text[:at] + random.choice("01234") + text[at + 1 :]
        elif kind == 1:
            text = text[:at] + random.choice(SNIPPETS) + text[at:]
        elif kind == 2:
            text = text[:at] + text[at + random.randrange(1, 4) :]
        elif kind == 3:
            text = "\n".join(lines[:line] + lines[line + 1 :])
        elif kind == 4:  # Exchange two agents in one line.
            parts = lines[line].split(" ")
            parts[-2:] = reversed(parts[-2:])
            text = "\n".join([*lines[:line], " ".join(parts), *lines[line + 1 :]])
        elif kind == 5:
            text = f"<think>{random.choice(ANSWERS)}</think> so: {text}"
        else:
            text = random.choice(ANSWERS) + "\nor rather\n" + text
        text = text or " "
    return text


@pytest.mark.parametrize("batches", [160, pytest.param(640, marks=pytest.mark.slow)])
def test_texts_from_reading_to_verdict(batches):
    counts = collections.Counter()

    @settings(max_examples=batches)
    @given(st.randoms(use_true_random=False))
    def batch(random):
        texts = [mutate(random, ANSWERS[i % 3]) for i in range(BATCH)]
        plans = plans_from_texts(texts, 3)
        assert plans.positions.shape[1] == STEPS
        for i, verdict in enumerate(split(verify(INSTANCES, plans))):
            path = strict_reader.read(texts[i])
            if path is not None and not verdict.parsable:
                # Numbers of seven digits and more are not read, leading zeros included.
                assert re.search(r"\d{7}", texts[i])
                path = None
            counts["texts"] += 1
            counts["read"] += path is not None
            counts["valid"] += check(verdict, LAKES[i % 3], path)

    batch()
    assert counts["texts"] >= batches * BATCH
    assert 0.2 < counts["read"] / counts["texts"] < 0.95
    assert 0.05 < counts["valid"] / counts["texts"] < 0.8


def random_lake(random):
    size, agents = random.choice((3, 4)), random.choice((2, 3, 4))
    cells = [(row, column) for row in range(size) for column in range(size)]
    random.shuffle(cells)
    holes = cells[2 * agents :][: random.randrange(3)]
    rows = ["".join("FH"[(r, c) in holes] for c in range(size)) for r in range(size)]
    return make_instance(rows, cells[:agents], cells[agents : 2 * agents])


def random_walk(random, lake):
    """A plan of mostly legal moves with some noise, now and then one of an agent more or less."""
    path = [reference.cells_of(lake.starts)]
    for _ in range(random.randrange(6)):
        steps = [random.choice(reference.STEPS) for _ in path[-1]]
        moved = zip(path[-1], steps, strict=True)
        path.append([(r + x, c + y) for (r, c), (x, y) in moved])
    if random.random() < 0.2:
        agent = random.randrange(len(path[0]))
        random.choice(path)[agent] = (random.randint(-1, 4), random.randint(-1, 4))
    if random.random() < 0.3:
        path.append(reference.cells_of(lake.goals))
    if random.random() < 0.05:
        count = len(path[0]) + random.choice((-1, 1))
        return [[*cells, cells[0]][:count] for cells in path]
    return path


def test_random_walks():
    """On known and random lakes, so that every kind of violation comes first now and then."""
    kinds = set()

    @settings(max_examples=150)
    @given(st.randoms(use_true_random=False))
    def batch(random):
        paths, known = [], [LAKES[i % 3] for i in range(BATCH // 2)]
        for i, lake in enumerate(known):
            path = random_walk(random, lake)
            if random.random() < 0.3:  # A valid plan in which two agents may trade places.
                path = [list(cells) for cells in strict_reader.read(ANSWERS[i % 3])]
                time = random.randrange(1, len(path))
                a, b = random.sample(range(len(path[0])), 2)
                if random.random() < 0.7:
                    path[time][a], path[time][b] = path[time - 1][b], path[time - 1][a]
            paths.append(path)
        lakes = known + [random_lake(random) for _ in known]
        paths += [random_walk(random, lake) for lake in lakes[len(known) :]]
        instances = stack([pad_instance(lake, 5, 4) for lake in lakes])
        plans = stack_plans([np.array(path) for path in paths], 4)
        for lake, path, verdict in zip(lakes, paths, split(verify(instances, plans)), strict=True):
            check(verdict, lake, path)
            kinds.add(ViolationKind(int(verdict.violation_kind)))

    batch()
    assert kinds == set(ViolationKind)


def test_cost_counts_until_the_agent_stays_for_good():
    leaves_again = [(0, 0), (1, 0), (2, 0), (2, 1), (2, 0), (2, 0)]
    verdict = verdict_on(leaves_again, [(2, 2), (1, 2), (0, 2), *[(0, 1)] * 3])
    assert verdict.valid
    assert (verdict.cost, verdict.makespan) == (7, 4)


def verdict_on(*paths):
    lake = stack([LAKES[0]])
    plan = stack_plans([np.array(paths).transpose(1, 0, 2)], 2)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], verify(lake, plan))


def test_gap_and_padding():
    lake = stack([LAKES[0]])
    solution = solve(stack([pad_instance(LAKES[0], 5, 2)]))  # A width that other tests compile.
    assert solution.status[0] == Status.OPTIMAL
    plan = plans_from_texts([ANSWERS[0]], 2)
    verdict = verify(dataclasses.replace(lake, solution=solution), plan)
    assert verdict.cost[0] == 5
    assert verdict.gap[0] == 0
    assert verdict.optimal[0]
    unknown = verify(lake, plan)
    assert unknown.gap[0] == INFINITE_COST
    assert not unknown.optimal[0]
    wide = stack([pad_instance(LAKES[0], 7, 5)])
    padded = verify(wide, plans_from_texts([ANSWERS[0]], 5))
    assert padded.valid[0]
    assert padded.cost[0] == 5


def test_a_wrong_number_of_steps_hides_no_missed_goal():
    lake, plan = stack([LAKES[0]]), plans_from_texts([ANSWERS[0]], 2)
    for steps in (-1, 0, 3, 99):
        said = dataclasses.replace(plan, num_steps=np.full(1, steps, np.int32))
        assert verify(lake, said).valid[0]
        short = dataclasses.replace(said, positions=plan.positions[:, :3])
        assert not verify(lake, short).goals_reached[0]


@pytest.mark.parametrize(("plans", "agents"), [(2, 2), (4, 2), (3, 3)])
def test_plans_of_another_number_or_shape_are_refused(plans, agents):
    lakes, texts = stack([LAKES[0]] * 3), [ANSWERS[0]] * plans
    with pytest.raises(
        ValueError, match=rf"of shape \({plans}, [0-9]+, {agents}, 2\): allowed for"
    ):
        verify(lakes, plans_from_texts(texts, agents))
