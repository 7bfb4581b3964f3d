"""The adapters under their libraries' own checks, and against the simulator itself."""

import pickle
import re
import sys
import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from pettingzoo.test import parallel_api_test
from whole_runs import python

import mapf_jax
from mapf_jax import env as env_lib
from mapf_jax.env import default_lakes
from mapf_jax.env.gymnasium_env import MapfGymEnv, MapfVectorEnv
from mapf_jax.env.jaxmarl_env import MapfJaxMarlEnv
from mapf_jax.env.pettingzoo_env import MapfParallelEnv
from mapf_jax.generator import draw
from mapf_jax.types import make_instance, stack

OPEN = make_instance(["F F F", "F F F", "F F F"], [(0, 0), (2, 0)], [(0, 1), (2, 2)])


def make(observation="positions", name="MapfFrozenLakeBlock-v0", **options):
    options = {"num_agents": 3, "size": 4, "max_steps": 9, "window": 3, **options}
    return env_lib.make(name, observation=observation, **options)


def pool(count, size=4, agents=3):
    return draw(jax.random.key(0), size, 2, size, count, agents)[0]


@pytest.mark.parametrize(
    ("observation", "name"),
    [
        ("positions", "MapfFrozenLake-v0"),
        ("egocentric", "MapfFrozenLakeBlock-v0"),
        ("planes", "MapfFrozenLakeSlippery-v0"),
    ],
)
def test_libraries_checks(observation, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # It asks for an id to make the environment by, which this one does not need.
        warnings.filterwarnings("ignore", message=".*spec.*")
        check_env(MapfGymEnv(make(observation, name), pool(5), render_mode="ansi"))
        env = make(observation, name, action_mask=observation == "planes")
        parallel_api_test(MapfParallelEnv(env, instances=pool(5)), num_cycles=30)


def test_gymnasium_makes_it_by_name():
    env = gymnasium.make("MapfFrozenLake-v0", num_agents=2, size=5, render_mode="rgb_array")
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        assert observation["positions"].shape == (2, 2)
        picture = env.render()
        assert picture.dtype == np.uint8
        assert picture.shape[2] == 3
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 4
    env.action_space.seed(0)
    while (env.step(env.action_space.sample())[0]["positions"] == observation["positions"]).all():
        pass
    assert (env.render() != picture).any()
    given = gymnasium.make("MapfFrozenLake-v0", instances=OPEN[None], num_agents=2, size=3)
    observation, _ = given.reset(seed=0)
    assert observation["positions"].tolist() == [[0, 0], [2, 0]]
    with pytest.raises(ValueError, match="option='agents': did you mean 'num_agents'"):
        gymnasium.make("MapfFrozenLake-v0", agents=2)


def test_gymnasium_makes_vectors_and_copies():
    options = {"num_agents": 2, "size": 3, "instances": OPEN[None]}
    vector = gymnasium.make_vec("MapfFrozenLake-v0", num_envs=3, **options)
    assert isinstance(vector, MapfVectorEnv)
    first, _ = vector.reset(seed=0)
    assert first["positions"].tolist() == [[[0, 0], [2, 0]]] * 3
    single = gymnasium.make("MapfFrozenLake-v0", **options)
    for env, actions in ((vector, [[3, 3]] * 3), (single, [3, 3])):
        copied = pickle.loads(pickle.dumps(env.unwrapped))
        assert type(copied) is type(env.unwrapped)
        copied.reset(seed=0), env.reset(seed=0)
        jax.tree.map(np.testing.assert_array_equal, copied.step(actions), env.step(actions))


ASKED_FIRST = (
    "import importlib.util, mapf_jax; importlib.util.find_spec('gymnasium')\nimport gymnasium"
)


@pytest.mark.parametrize("first", ["import gymnasium", ASKED_FIRST])
@pytest.mark.parametrize("name", ["MapfFrozenLake-v0", "mapf_jax:MapfFrozenLakeSlippery-v0"])
def test_names_are_known_whichever_package_comes_first(first, name):
    program = f"""{first}
import pickle
if ":" not in {name!r}: import mapf_jax
options = {{"num_agents": 2, "size": 4}}
one = gymnasium.make({name!r}, **options)
assert type(gymnasium.make_vec({name!r}, num_envs=2, **options)).__name__ == "MapfVectorEnv"
assert pickle.loads(pickle.dumps(one.unwrapped)).reset(seed=0)
again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(one.spec.to_json()))
assert again.reset(seed=0)
"""
    python("-c", program)


@pytest.mark.parametrize(("size", "agents"), [(2, 4), (3, 5), (4, 9)])
def test_crowds_have_a_goal_each(size, agents):
    env = env_lib.make("MapfFrozenLake-v0", size=size, num_agents=agents)
    lakes = default_lakes.default_lakes(env)
    for cells in (lakes.starts, lakes.goals):
        assert {len(np.unique(of_lake, axis=0)) for of_lake in np.asarray(cells)} == {agents}
    blocked, rows = np.asarray(lakes.blocked), np.arange(len(lakes))[:, None]
    assert not blocked[rows, lakes.goals[..., 0], lakes.goals[..., 1]].any()


@pytest.mark.parametrize(
    ("size", "agents", "drawn"),
    [(32, 4, 1024), (3, 5, 1024), (64, 4, 256), (126, 2, 132), (126, 9, 64)],
)
def test_fewer_large_lakes_are_drawn(size, agents, drawn, monkeypatch):
    def draw(key, size, holes, width, batch, agents, distinct):
        return np.arange(batch), np.ones(batch, bool)

    monkeypatch.setattr(default_lakes.generator, "draw", draw)
    env = env_lib.make("MapfFrozenLake-v0", size=size, num_agents=agents)
    assert len(default_lakes.default_lakes(env)) == drawn


def test_what_an_adapter_cannot_do_is_refused():
    env = env_lib.make("MapfFrozenLake-v0", size=5, num_agents=25)
    with pytest.raises(ValueError, match="maps have letters for 24 agents"):
        MapfGymEnv(env, render_mode="ansi")
    with pytest.raises(ValueError, match="rgb_array': vector environments do not render"):
        gymnasium.make_vec("MapfFrozenLake-v0", num_envs=2, render_mode="rgb_array")
    one = MapfGymEnv(env, render_mode="rgb_array")
    one.reset(seed=0)
    with pytest.raises(ValueError, match=r"use jax\.vmap"):
        one.reset(options={"instance": default_lakes.default_lakes(env)[:2]})
    assert one.render().ndim == 3  # Of the episode before.


def test_single_plays_what_the_simulator_plays():
    env = make(num_agents=2, size=4, name="MapfFrozenLake-v0")
    gym = MapfGymEnv(env, pool(5, agents=2), render_mode="ansi")
    observation, info = gym.reset(options={"instance": OPEN})
    state, timestep = env.reset(mapf_jax.pad_instance(OPEN, 4, 2))
    assert observation["positions"].tolist() == [[0, 0], [2, 0]]
    for actions in ([1, 3], [0, 3], [3, 4]):
        state, timestep = env.step(state, np.array(actions))
        observation, reward, terminated, truncated, info = gym.step(np.array(actions))
        np.testing.assert_array_equal(observation["positions"], env.positions(state))
        assert reward == pytest.approx(float(timestep.reward.sum()))
        assert (terminated, truncated) == (bool(timestep.terminated), False)
        np.testing.assert_array_equal(info["costs"], timestep.info.costs)
    assert terminated
    assert info["success"]
    assert isinstance(gym.render(), str)
    assert gym.render().count("H") == 0
    with pytest.raises(ValueError, match="render_mode='human'"):
        MapfGymEnv(env, stack([OPEN]), render_mode="human")
    with pytest.raises(ValueError, match="a batch is needed"):
        MapfGymEnv(env, OPEN)
    with pytest.raises(ValueError, match="before reset"):
        MapfGymEnv(env, stack([OPEN])).step([0, 0])


@pytest.mark.parametrize(
    "made", [MapfGymEnv, MapfParallelEnv, lambda env: MapfVectorEnv(env, None, 2), MapfJaxMarlEnv]
)
def test_the_name_of_an_environment_is_none(made):
    with pytest.raises(ValueError, match=r"env='MapfFrozenLake-v0': .* mapf_jax\.env\.make\('Mapf"):
        made("MapfFrozenLake-v0")


@pytest.mark.parametrize("actions", [[0, 5], [-1, 0], [1.0, 0.0], [True, False]])
def test_actions_that_there_are_not_are_refused(actions):
    env = make(num_agents=2, size=3)
    single, parallel = MapfGymEnv(env, OPEN[None]), MapfParallelEnv(env, instances=OPEN[None])
    vector = MapfVectorEnv(env, OPEN[None], 1)
    for one, given in (
        (single, actions),
        (parallel, {f"agent_{i}": action for i, action in enumerate(actions)}),
        (vector, [actions]),
    ):
        one.reset(seed=0)
        message = re.escape(f"{actions}") + r"\]?: allowed are 0 up, 1 down, .* as integers"
        with pytest.raises(ValueError, match=message):
            one.step(given)
    by_agent = MapfJaxMarlEnv(env, OPEN[None])
    _, state = by_agent.reset(jax.random.key(0))
    message = r"actions\['agent_[01]'\]=.*: allowed are 0 up, 1 down, .* as integers"
    with pytest.raises(ValueError, match=message):
        by_agent.step(jax.random.key(0), state, {f"agent_{i}": a for i, a in enumerate(actions)})


def test_adapters_take_instances_by_position_and_draw_their_own():
    env = make(num_agents=2, size=3)
    for one in (MapfGymEnv(env, OPEN[None]), MapfParallelEnv(env, OPEN[None], "ansi")):
        one.reset(seed=0)
    assert one.render().count("H") == 0
    _, state = MapfJaxMarlEnv(env).reset(jax.random.key(0))
    assert np.asarray(state.episode.cells != state.episode.goals).all()


@pytest.mark.parametrize("name", ["MapfFrozenLake-v0", "MapfFrozenLakeSlippery-v0"])
def test_vector_env_keeps_the_last_observation(name):
    env, batch = make("planes", name=name, action_mask=True), 12
    vector = MapfVectorEnv(env, pool(20), batch)
    assert isinstance(vector, gymnasium.vector.VectorEnv)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observations, _ = vector.reset(seed=3)
    vector.action_space.seed(0)
    played, ends = [], 0
    for _ in range(25):
        actions = vector.action_space.sample()
        before = observations
        observations, rewards, terminated, truncated, info = vector.step(actions)
        assert vector.observation_space.contains(observations)
        assert rewards.shape == terminated.shape == truncated.shape == (batch,)
        np.testing.assert_allclose(rewards, info["rewards"].sum(-1), rtol=1e-6)
        done = terminated | truncated
        ends += done.sum()
        if done.any():
            np.testing.assert_array_equal(info["_final_obs"], done)
            # The holes of the lake that was played are still there in the last observation.
            np.testing.assert_array_equal(info["final_obs"][..., 0], before[..., 0])
            # What may be done next is known of the next episode only.
            assert set(info["final_info"]) == {
                "rewards", "violation", "at_goal", "success", "costs",
            }  # fmt: skip
        # Nobody may walk into what the mask forbids, and waiting is always allowed.
        assert info["action_mask"][..., 4].all()
        played.append((actions, observations))
    assert ends > batch
    again = MapfVectorEnv(env, pool(20), batch)
    again.reset(seed=3)
    for actions, expected in played:
        np.testing.assert_array_equal(again.step(actions)[0], expected)
    following, _ = again.reset()
    assert not np.array_equal(following, vector.reset(seed=3)[0])


def test_parallel_agents_see_themselves_first_and_absent_ones_take_no_part():
    env = make(num_agents=3, size=4, name="MapfFrozenLake-v0")
    parallel = MapfParallelEnv(env, instances=stack([OPEN]))
    views, _ = parallel.reset(seed=1)
    assert parallel.agents == ["agent_0", "agent_1"] == list(views)
    assert views["agent_1"]["positions"].tolist() == [[2, 0], [-1, -1], [0, 0]]
    _, rewards, terminated, _, infos = parallel.step({"agent_0": 3, "agent_1": 2})
    assert terminated == {"agent_0": True, "agent_1": True}
    assert infos["agent_1"]["violation"] == mapf_jax.ViolationKind.OUT_OF_BOUNDS
    assert rewards["agent_1"] == pytest.approx(-1.01)
    assert rewards["agent_0"] == pytest.approx(-0.01)
    assert parallel.agents == []
    with pytest.raises(ValueError, match="agent_2"):
        parallel.step({"agent_2": 0})


@pytest.mark.parametrize(
    ("observation", "options"),
    [("positions", {"action_mask": True}), ("planes", {}), ("egocentric", {})],
)
@pytest.mark.parametrize("flat", [True, False])
def test_dictionaries_by_agent_carry_through_a_scan(observation, options, flat, monkeypatch):
    """What JaxMARL's trainers do: vmapped and scanned, everything in it an array of each agent."""
    monkeypatch.setitem(sys.modules, "gymnax.environments", None)  # Spaces of our own.
    env = MapfJaxMarlEnv(make(observation, slip_probability=0.2, **options), pool(5), flat)
    keys = jax.random.split(jax.random.key(1), 6)

    def one(carry, key):
        seen, state = carry
        drawn = jax.random.split(key, (6, env.num_agents))
        actions = {
            agent: jax.vmap(env.action_space(agent).sample)(drawn[:, i])
            for i, agent in enumerate(env.agents)
        }
        seen, state, *rest = jax.vmap(env.step)(jax.random.split(key, 6), state, actions)
        masks = jax.vmap(env.get_avail_actions)(state)
        return (seen, state), (seen, jax.vmap(env.get_obs)(state), masks, *rest)

    first, state = jax.vmap(env.reset)(keys)
    _, rows = jax.lax.scan(one, (first, state), jax.random.split(jax.random.key(2), 30))
    seen, shown, masks, rewards, done, facts = jax.device_get(rows)
    jax.tree.map(np.testing.assert_array_equal, seen, shown)
    for agent in env.agents:
        view = jax.tree.map(lambda x: x[0, 0], seen[agent])
        assert env.observation_space(agent).contains(view)
        assert rewards[agent].shape == done[agent].shape == (30, 6)
        np.testing.assert_array_equal(done[agent], done["__all__"])
    assert done["__all__"].any()
    assert all(x.shape == (30, 6, 3) for x in facts.values())
    assert set(facts) == {"success", "truncated", "costs", "violation", "at_goal"}
    np.testing.assert_array_equal((facts["success"] | facts["truncated"])[..., 0], done["__all__"])
    blocked = ~np.stack(list(masks.values()))
    assert blocked.any() == bool(options)


def test_dictionaries_by_agent_play_what_the_simulator_plays():
    env = make("egocentric")
    instances = pool(4)
    by_agent, wrapper = MapfJaxMarlEnv(env, instances, flat=False), env_lib.PoolAutoReset(env)
    prepared = wrapper.pool(instances)
    seen, state = by_agent.reset(jax.random.key(3))
    want, timestep = wrapper.reset(jax.random.key(3), prepared)
    for moves in np.random.default_rng(0).integers(0, 5, (25, 3)):
        actions = {f"agent_{i}": move for i, move in enumerate(moves) if move < 4}  # Else waits.
        seen, state, rewards, done, _ = by_agent.step(jax.random.key(0), state, actions)
        want, timestep = wrapper.step(want, moves, prepared)
        for i in range(3):
            np.testing.assert_array_equal(seen[f"agent_{i}"], timestep.observation[i])
            assert rewards[f"agent_{i}"] == timestep.reward[i]
        assert done["__all__"] == timestep.done


@pytest.mark.slow
@pytest.mark.parametrize("observation", ["positions", "planes", "egocentric"])
def test_it_runs_under_jaxmarls_wrappers(observation):
    """Those of its policy gradient baselines, and of its QMIX, VDN and other value-based ones."""
    baselines = pytest.importorskip("jaxmarl.wrappers.baselines")
    env = MapfJaxMarlEnv(make(observation), pool(5))
    length = env.observation_space("agent_0").shape[0]
    manager = baselines.CTRolloutManager(baselines.LogWrapper(env), batch_size=4)
    seen, state = manager.batch_reset(jax.random.key(0))
    ended, plain = 0, MapfJaxMarlEnv(make(observation), pool(5))
    for step in range(12):
        keys = jax.random.split(jax.random.key(step), 4)
        actions = {
            agent: manager.batch_sample(keys[i], agent) for i, agent in enumerate(env.agents)
        }
        before = state.env_state
        seen, state, rewards, done, facts = manager.batch_step(keys[3], state, actions)
        _, _, want, *_ = jax.vmap(plain.step)(jax.random.split(keys[3], 4), before, actions)
        np.testing.assert_allclose(rewards["__all__"], sum(want.values()), rtol=1e-6)
        assert seen["agent_1"].shape == (4, length + 3)
        assert seen["__all__"].shape == (4, 3 * length)
        assert facts["returned_episode"].shape == (4, 3)
        ended += int(done["__all__"].sum())
    assert ended >= 4  # After at most nine steps.
    assert manager.get_valid_actions(state.env_state)["agent_2"].shape == (4, 5)


def test_spaces_are_those_of_gymnax():
    theirs = pytest.importorskip("gymnax.environments.spaces")
    env = MapfJaxMarlEnv(make("positions"), pool(5))
    action, seen = env.action_space("agent_0"), env.observation_space("agent_0")
    assert isinstance(action, theirs.Discrete)
    assert action.n == 5
    assert isinstance(seen, theirs.Box)
    views, _ = env.reset(jax.random.key(0))
    assert views["agent_0"].shape == seen.shape == (16 + 3 * 2 * 2 + 3,)
    assert views["agent_0"].dtype == seen.dtype
    assert seen.contains(views["agent_0"])
    whole = MapfJaxMarlEnv(make("planes"), pool(5), flat=False).observation_space("agent_0")
    assert whole.shape == (4, 4, 7)
