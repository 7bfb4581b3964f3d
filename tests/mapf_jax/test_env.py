"""The simulator against a plain Python one, and what it promises of slipping, views and ends."""

import collections
import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_env import RING, TURN, Lake, random_episode

import mapf_jax
from mapf_jax import dynamics
from mapf_jax.env import (
    EnvironmentCheckError,
    MapfFrozenLake,
    RewardWeights,
    check_env,
    make,
    observations,
    spaces,
)
from mapf_jax.environment_config import EnvironmentConfig
from mapf_jax.generator import draw
from mapf_jax.types import ViolationKind, make_instance, stack

WEIGHTS = RewardWeights(goal=1.5, step=-0.25, violation=-2.0, team=3.0, team_violation=-0.5)
EPISODES, STEPS = 400, 16


def random_lake(size, num_agents, holes=0):
    return draw(jax.random.key(0), size, holes, size, 1, num_agents)[0][0]


def instance_of(blocked, starts, goals, width, num_agents):
    rows = ["".join("H" if hole else "F" for hole in row) for row in blocked]
    return mapf_jax.pad_instance(make_instance(rows, starts, goals), width, num_agents)


@pytest.mark.parametrize("conflict", ["fail", "block"])
@pytest.mark.parametrize(("width", "num_agents"), [(4, 2), (4, 5), (5, 8)])
def test_random_transitions_agree_with_plain_python(conflict, width, num_agents):
    """6 cases of 6,400 transitions (400 episodes of 16 steps; 2 to 8 agents)."""
    rng = np.random.default_rng([num_agents, len(conflict)])
    env = MapfFrozenLake(
        num_agents=num_agents, size=width, conflict=conflict, reward=WEIGHTS, max_steps=STEPS - 2
    )
    lakes, instances = [], []
    for _ in range(EPISODES):
        count = int(rng.integers(2, num_agents + 1))
        size_limit = 3 if count <= 4 and rng.random() < 0.5 else width
        blocked, starts, goals = random_episode(rng, size_limit, count)
        lakes.append(Lake(blocked, starts, goals, conflict, STEPS - 2, WEIGHTS))
        instances.append(instance_of(blocked, starts, goals, width, num_agents))
    step = jax.jit(jax.vmap(env.step))
    state, _ = jax.jit(jax.vmap(env.reset))(stack(instances))
    seen = collections.Counter()
    for number in range(STEPS):
        actions = rng.integers(0, 5, (EPISODES, num_agents))
        if number == 0:
            for i, lake in enumerate(lakes):
                if lake.cells[: len(RING)] == RING:
                    actions[i] = dynamics.WAIT
                    actions[i, : len(RING)] = TURN
        state, timestep = step(state, jnp.asarray(actions, jnp.int8))
        found = jax.tree.map(np.asarray, timestep)
        positions = np.asarray(env.positions(state))
        for i, lake in enumerate(lakes):
            count = len(lake.cells)
            rewards, terminated, truncated, kinds, events = lake.step(actions[i, :count].tolist())
            assert positions[i, :count].tolist() == [list(cell) for cell in lake.cells]
            assert (positions[i, count:] == -1).all()
            np.testing.assert_allclose(found.reward[i, :count], rewards, atol=1e-5)
            assert not found.reward[i, count:].any()
            assert found.terminated[i] == terminated
            assert found.truncated[i] == truncated
            assert [ViolationKind(k).name for k in found.info.violation[i, :count]] == kinds
            assert not found.info.violation[i, count:].any()
            assert found.info.costs[i, :count].tolist() == lake.costs()
            at_goal = [c == g for c, g in zip(lake.cells, lake.goals, strict=True)]
            assert found.info.at_goal[i, :count].tolist() == at_goal
            failed = conflict == "fail" and set(kinds) != {"NONE"}
            assert found.info.success[i] == (all(at_goal) and not failed)
            seen.update(events | set(kinds))
            seen.update(["truncated"] if truncated else [])
            seen.update(["success"] if found.info.success[i] else [])
    expected = {"NONE", "OUT_OF_BOUNDS", "HOLE", "VERTEX", "SWAP", "truncated", "following"}
    expected |= {"success"} if num_agents < 6 else set()
    expected |= {"rotation"} if num_agents > 3 else set()
    assert expected <= set(seen), seen


CORNER = ["F F F", "F F F", "F F F"]


def one_step(conflict, starts, actions):
    goals = [(2, 2), (2, 1), (1, 2), (0, 2)] if (0, 2) not in starts else [(2, 2), (2, 1), (1, 2)]
    goals = goals[: len(starts)]
    env = make(
        "MapfFrozenLake-v0", num_agents=len(starts), size=3, conflict=conflict, reward=WEIGHTS
    )
    state, _ = jax.jit(env.reset)(make_instance(CORNER, starts, goals))
    state, timestep = jax.jit(env.step)(state, jnp.array(actions))
    kinds = [ViolationKind(k).name for k in np.asarray(timestep.info.violation)]
    return np.asarray(env.positions(state)).tolist(), kinds, bool(timestep.terminated)


def test_rotation_swap_and_trains_by_hand():
    ring = [(0, 0), (0, 1), (1, 1), (1, 0)]
    after, kinds, terminated = one_step("fail", ring, [3, 1, 2, 0])
    assert after == [[0, 1], [1, 1], [1, 0], [0, 0]]
    assert (set(kinds), terminated) == ({"NONE"}, False)
    assert one_step("block", ring, [3, 1, 2, 0])[0] == after
    # A train of three towards the edge: under "block" the first is stopped and so are the others.
    train = [(0, 0), (1, 0), (2, 0)]
    after, kinds, terminated = one_step("block", train, [0, 0, 0])
    assert after == [list(cell) for cell in train]
    assert kinds == ["OUT_OF_BOUNDS", "VERTEX", "VERTEX"]
    assert not terminated
    after, kinds, terminated = one_step("fail", train, [0, 0, 0])
    assert kinds == ["OUT_OF_BOUNDS", "NONE", "NONE"]
    assert terminated
    assert after == [list(cell) for cell in train]
    # A swap stops both and the one that follows.
    after, kinds, _ = one_step("block", [(0, 0), (0, 1), (0, 2)], [3, 2, 2])
    assert after == [[0, 0], [0, 1], [0, 2]]
    assert kinds == ["SWAP", "SWAP", "VERTEX"]


def test_leaving_a_goal_costs_its_rest_and_the_steps_sum_to_the_cost():
    env = MapfFrozenLake(size=3, reward=RewardWeights(goal=2.0, step=-1.0, violation=0.0, team=0.0))
    state, _ = jax.jit(env.reset)(make_instance(CORNER, [(0, 0), (2, 0)], [(0, 1), (2, 2)]))
    step = jax.jit(env.step)
    total, costs = np.zeros(2), []
    # Agent 0 comes to its goal at time 1, rests, leaves at time 3 and is back at time 4.
    for actions in ([3, 4], [4, 3], [1, 4], [0, 4], [4, 3]):
        state, timestep = step(state, jnp.array(actions))
        total += timestep.reward
        costs.append(timestep.info.costs.tolist())
    assert costs == [[1, 1], [1, 2], [3, 3], [4, 4], [4, 5]]
    assert bool(timestep.terminated)
    np.testing.assert_allclose(total, [2 - 4, 2 - 5])


def test_time_stands_still_rather_than_begin_again_long_after_the_end():
    env = MapfFrozenLake(size=3, max_steps=250)
    start, _ = jax.jit(env.reset)(make_instance(CORNER, [(0, 0), (2, 0)], [(0, 1), (2, 2)]))

    def wait(state, _):
        state, timestep = env.step(state, jnp.array([4, 4]))
        return state, (state.time, timestep.info.costs, timestep.truncated)

    times, costs, truncated = jax.lax.scan(wait, start, None, 260)[1]
    expected = np.minimum(np.arange(1, 261), 255)
    np.testing.assert_array_equal(times, expected)
    np.testing.assert_array_equal(costs, expected[:, None].repeat(2, 1))
    np.testing.assert_array_equal(truncated, expected >= 250)


@pytest.mark.parametrize(
    ("name", "observation"),
    [
        ("MapfFrozenLake-v0", "positions"),
        ("MapfFrozenLakeBlock-v0", "egocentric"),
        ("MapfFrozenLakeSlippery-v0", "planes"),
    ],
)
def test_check_env(name, observation):
    env = make(
        name, num_agents=3, size=5, observation=observation, window=3, action_mask=True, max_steps=9
    )
    check_env(env, random_lake(5, 3, holes=5), num_steps=32)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "num_agents"), [(2, 1), (15, 16)])
def test_check_env_of_other_shapes(size, num_agents):
    env = make("MapfFrozenLakeBlock-v0", num_agents=num_agents, size=size, max_steps=300)
    instance = random_lake(size, num_agents)
    check_env(env, instance, num_steps=8)
    state, _ = env.reset(instance)
    assert state.cells.dtype == (np.uint8 if size <= 14 else np.uint16)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda t: t.replace(reward=t.reward * jnp.inf), "finite"),
        (lambda t: t.replace(truncated=t.terminated | True, terminated=jnp.array(True)), "both"),
        (lambda t: t.replace(reward=t.reward.astype(jnp.bfloat16)), "reward is"),
        (lambda t: t.replace(observation={}), "observation space"),
        (lambda t: t.replace(truncated=t.time_is_up), "truncated after"),
    ],
)
def test_check_env_finds_faults(broken, message):
    class View:
        def __init__(self, timestep):
            self.timestep = timestep
            self.time_is_up = ~timestep.terminated

        def __getattr__(self, name):
            return getattr(self.timestep, name)

        def replace(self, **changes):
            return dataclasses.replace(self.timestep, **changes)

    class Faulty(MapfFrozenLake):
        def step(self, state, actions, key=None):
            state, timestep = super().step(state, actions, key)
            return state, broken(View(timestep))

    with pytest.raises(EnvironmentCheckError, match=message):
        check_env(Faulty(num_agents=2, size=4), random_lake(4, 2, holes=3), num_steps=8)


def test_slipping_has_gymnasiums_distribution():
    env = MapfFrozenLake(num_agents=2, size=5, conflict="block", slip_probability=0.3)
    rows = ["F F F F F"] * 5
    state, _ = jax.jit(env.reset)(make_instance(rows, [(1, 1), (3, 3)], [(0, 0), (4, 4)]))
    draws = 20_000
    keys = jax.random.split(jax.random.key(3), draws)
    step = jax.jit(jax.vmap(lambda actions, key: env.step(state, actions, key)[1].info.moves,
                            in_axes=(None, 0)))  # fmt: skip
    across = {0: (2, 3), 1: (2, 3), 2: (0, 1), 3: (0, 1)}
    for action in range(5):
        moves = np.asarray(step(jnp.array([action, action]), keys))
        for agent in range(2):
            counts = np.bincount(moves[:, agent], minlength=5)
            expected = np.zeros(5)
            expected[action] = 0.7 if action < 4 else 1.0
            for side in across.get(action, ()):
                expected[side] = 0.15
            sigma = np.sqrt(draws * expected * (1 - expected))
            assert (np.abs(counts - draws * expected) <= 4.5 * sigma).all(), (action, counts)
        # The agents slip independently.
        both = np.mean((moves[:, 0] == action) & (moves[:, 1] == action))
        assert abs(both - (0.49 if action < 4 else 1.0)) < 0.02
    with pytest.raises(ValueError, match="needs a PRNG key"):
        env.step(state, jnp.array([0, 0]))
    with pytest.raises(ValueError, match="takes no key"):
        MapfFrozenLake(num_agents=2, size=5).step(state, jnp.array([0, 0]), keys[0])


def test_views_show_what_is_there():
    width, window = 5, 5
    rng = np.random.default_rng(0)
    resets = {
        kind: jax.jit(
            MapfFrozenLake(num_agents=4, size=width, observation=kind, window=window).reset
        )
        for kind in observations.KINDS
    }
    for _ in range(5):
        blocked, starts, goals = random_episode(rng, 4, 3)
        instance = instance_of(blocked, starts, goals, width, 4)

        def view(kind, instance=instance):
            return jax.tree.map(np.asarray, resets[kind](instance)[1].observation)

        full = np.ones((width, width), bool)
        full[: len(blocked), : len(blocked)] = blocked
        plain = view("positions")
        np.testing.assert_array_equal(plain["blocked"], full)
        assert plain["positions"].tolist() == [*map(list, starts), [-1, -1]]
        assert plain["goals"].tolist() == [*map(list, goals), [-1, -1]]
        assert plain["active"].tolist() == [True, True, True, False]

        planes = view("planes")
        expected = np.zeros((width, width, 9), np.uint8)
        expected[..., 0] = full
        for i in range(3):
            expected[(*starts[i], 1 + i)] = expected[(*goals[i], 5 + i)] = 1
        np.testing.assert_array_equal(planes, expected)

        squares = view("egocentric")
        expected = np.zeros((4, window, window, 4), np.uint8)
        for i in range(3):
            for dr in range(-2, 3):
                for dc in range(-2, 3):
                    cell = (starts[i][0] + dr, starts[i][1] + dc)
                    inside = 0 <= cell[0] < width and 0 <= cell[1] < width
                    here = expected[i, dr + 2, dc + 2]
                    here[0] = full[cell] if inside else 1
                    here[1] = any(cell == starts[j] for j in range(3) if j != i)
                    here[3] = any(cell == goals[j] for j in range(3) if j != i)
            near = [min(max(g - s, -2), 2) for g, s in zip(goals[i], starts[i], strict=True)]
            expected[i, near[0] + 2, near[1] + 2, 2] = 1
        np.testing.assert_array_equal(squares, expected)

        own = observations.of_agent("positions", plain, 2)
        assert own["positions"].tolist()[0] == list(starts[2])
        np.testing.assert_array_equal(own["positions"], np.roll(plain["positions"], -2, axis=0))
        own = observations.of_agent("planes", planes, 1)
        np.testing.assert_array_equal(own[..., 1], planes[..., 2])
        np.testing.assert_array_equal(own[..., 5], planes[..., 6])


def test_action_mask_forbids_exactly_walls():
    env = MapfFrozenLake(num_agents=3, size=4, action_mask=True)
    instance = make_instance(["F H F", "F F F", "F F F"], [(0, 0), (1, 1)], [(2, 2), (2, 1)])
    _, timestep = jax.jit(env.reset)(mapf_jax.pad_instance(instance, 4, 3))
    assert timestep.action_mask.tolist() == [
        [False, True, False, False, True],
        [False, True, True, True, True],
        [False, False, False, False, True],
    ]


@pytest.mark.parametrize("observation", observations.KINDS)
def test_a_time_step_is_carried_through_a_scan(observation):
    env = MapfFrozenLake(size=4, observation=observation, action_mask=True)

    def step(carry, actions):
        return env.step(carry[0], actions), carry[1].final_observation

    first = env.reset(random_lake(4, 2))
    _, seen = jax.lax.scan(step, first, jnp.full((3, 2), dynamics.WAIT))
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[0], seen), first[1].observation)


def test_spaces():
    box = spaces.Box(-1, 4, (3, 2), np.int8)
    drawn = np.stack([box.sample(jax.random.key(i)) for i in range(100)])
    assert set(np.unique(drawn)) == set(range(-1, 5))
    assert all(box.contains(value) for value in drawn)
    assert not box.contains(drawn[0].astype(np.int32))
    assert not box.contains(np.full((3, 2), 5, np.int8))
    assert not box.contains(np.zeros((2, 3), np.int8))
    actions = spaces.Box(0, 4, (3,), np.integer)
    assert actions.contains(actions.sample(jax.random.key(0)))
    assert not actions.contains([0, 5, 0])
    assert not actions.contains([0.0, 1.0, 0.0])
    both = spaces.Dict({"a": box, "b": spaces.Box(0, 1, (), np.bool_)})
    assert both.contains({"a": drawn[0], "b": np.array(True)})
    assert not both.contains({"a": drawn[0]})
    assert both.contains(jax.tree.map(np.asarray, both.sample(jax.random.key(0))))


def test_numbers_of_numpy_are_numbers():
    env = make("MapfFrozenLake-v0", size=np.uint8(20), reward=RewardWeights(np.float32(2.0)))
    assert env.max_steps == 800
    assert env.reward.goal == 2
    config = EnvironmentConfig((3,), (np.float32(1.0),), (np.float64(0.2),), (0,))
    assert config.data_ratio == (1.0,)


def test_instances_from_lists_and_arrays_are_those_from_pairs():
    expected = make_instance(CORNER, [(0, 0), (2, 0)], [(0, 1), (2, 2)])
    lists = make_instance(CORNER, [[0, 0], [2, 0]], [[0, 1], [2, 2]])
    arrays = make_instance(tuple(CORNER), expected.starts, jnp.asarray(expected.goals))
    chex.assert_trees_all_equal(expected, lists, arrays)
    with pytest.raises(ValueError, match=r"starts=\[\(0\.5, 0\)\]: each is a \(row, column\)"):
        make_instance(CORNER, [(0.5, 0)], [(0, 1)])


def test_a_batch_in_place_of_an_instance_is_named(tmp_path):
    one = make_instance(CORNER, [(0, 0), (2, 0)], [(0, 1), (2, 2)])
    batch = stack([one, one])
    for function in (
        mapf_jax.text.prompt,
        functools.partial(mapf_jax.formats.to_record, name="x"),
        functools.partial(mapf_jax.movingai.write_movingai, scenario_path=tmp_path / "x.scen"),
        functools.partial(mapf_jax.render.save, tmp_path / "x.txt"),
    ):
        with pytest.raises(ValueError, match=r"a batch of shape \(2,\), where a single one"):
            function(batch)
    with pytest.raises(ValueError, match=r"of shape \(\), a batch is needed"):
        mapf_jax.verify(one, mapf_jax.solve(batch)[0])
    with pytest.raises(TypeError, match="no length"):
        list(one)
    assert len(list(batch)) == 2
    with pytest.raises(ValueError, match="there are none"):
        stack([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_agents": 0}, "num_agents=0: allowed are 1 to 64"),
        ({"size": 1}, "size=1: allowed are 2 to 126"),
        ({"conflict": "stop"}, "'fail', 'block'"),
        ({"slip_probability": 1.5}, "slip_probability=1.5"),
        ({"window": 4}, "odd numbers from 1"),
        ({"observation": "pixels"}, "'egocentric'"),
        ({"max_steps": 70_000}, "1 to 65535"),
        ({"num_agent": 3}, "did you mean 'num_agents'"),
        ({"reward": 1.0}, "allowed is a RewardWeights"),
        ({"max_steps": 5.0}, "max_steps=5.0: allowed are integers"),
        ({"num_agents": True}, "num_agents=True: allowed are integers"),
        ({"size": "8"}, "size='8': allowed are integers"),
        ({"slip_probability": None}, "slip_probability=None: allowed are 0 to 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make("MapfFrozenLake-v0", **options)


def test_bad_names_shapes_and_weights_are_named():
    with pytest.raises(ValueError, match="did you mean 'MapfFrozenLake-v0'"):
        make("MapfFrozenLake-v1")
    with pytest.raises(ValueError, match=r"reward\.goal=nan"):
        RewardWeights(goal=float("nan"))
    with pytest.raises(ValueError, match=r"reward\.goal=1e\+300: allowed are numbers from -1e30"):
        RewardWeights(goal=1e300)
    env = make("MapfFrozenLake-v0", num_agents=2, size=4)
    instance = make_instance(CORNER, [(0, 0), (2, 0)], [(0, 1), (2, 2)])
    with pytest.raises(ValueError, match="pad_instance"):
        env.reset(instance)
    padded = mapf_jax.pad_instance(instance, 4, 2)
    with pytest.raises(ValueError, match=r"use jax\.vmap"):
        env.reset(stack([padded]))
    state, _ = jax.jit(env.reset)(padded)
    with pytest.raises(ValueError, match=r"use jax\.vmap for a batch"):
        env.step(state, jnp.zeros((1, 2), jnp.int32))
    with pytest.raises(ValueError, match="actions: of type float32, allowed are integers 0 to 4"):
        env.step(state, jnp.zeros(2))
    with pytest.raises(ValueError, match=r"actions=\[9, 2\]: allowed are 0 up, .* 4 wait"):
        env.step(state, jnp.array([9, 2]))
    traced = jax.jit(env.step)(state, jnp.array([9, 4]))[0]  # No value to look at: it waits.
    np.testing.assert_array_equal(traced.cells, state.cells)
    listed, given = (env.step(state, actions)[0] for actions in ([1, 4], np.array([1, 4])))
    np.testing.assert_array_equal(listed.cells, given.cells)
    sizes = r"\(size, num_agents\) are \[\(3, 2\), \(4, 2\)\]; .*pad_instance\(instance, 4, 2\)"
    with pytest.raises(ValueError, match=sizes):
        stack([instance, padded])


def test_numbered_cells_go_there_and_back():
    rng = np.random.default_rng(0)
    for width in (3, 14, 15, 32):
        positions = rng.integers(0, width, (50, 2)).astype(np.int8)
        active = rng.random(50) < 0.8
        numbers = dynamics.cell_numbers(positions, active, width)
        assert numbers.dtype == np.min_scalar_type((width + 2) ** 2 - 1)
        expected = np.where(active[:, None], positions, -1)
        np.testing.assert_array_equal(dynamics.cell_positions(numbers, width), expected)


def test_a_reset_without_an_instance_says_what_resets_from_a_key():
    env = MapfFrozenLake(size=4, num_agents=2)
    with pytest.raises(ValueError, match=r"instance: .*PoolAutoReset\(env, instances\)"):
        env.reset(jax.random.key(0))
