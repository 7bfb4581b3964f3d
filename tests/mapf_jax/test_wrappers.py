"""Auto-reset: which instance comes next, what is kept of the last episode, one compilation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mapf_jax import ViolationKind, solve, verify
from mapf_jax.env import LogEpisodes, PoolAutoReset, make, rollout, wrappers
from mapf_jax.generator import draw

BATCH, STEPS, AGENTS, SIZE = 16, 60, 2, 4


def pool_of(count, size=SIZE, agents=AGENTS, seed=0):
    return draw(jax.random.key(seed), size, 2, size, count, agents)[0]


@pytest.fixture(params=["fail", "block"])
def env(request):
    return make(
        "MapfFrozenLake-v0",
        num_agents=AGENTS,
        size=SIZE,
        max_steps=7,
        conflict=request.param,
        action_mask=True,
    )


def actions_of(number):
    return jax.random.randint(jax.random.key(number), (BATCH, AGENTS), 0, 5)


def batched(wrapper, slippery=False):
    """`reset` and `step` of many environments that share a pool."""
    axes = (0, 0, None, 0) if slippery else (0, 0, None)
    reset = jax.vmap(wrapper.reset, in_axes=(0, None))
    return jax.jit(reset), jax.jit(jax.vmap(wrapper.step, in_axes=axes))


def test_nothing_is_promoted_where_that_is_forbidden():
    env = make("MapfFrozenLakeSlippery-v0", num_agents=AGENTS, size=SIZE, action_mask=True)
    with jax.numpy_dtype_promotion("strict"):
        pool = pool_of(BATCH)
        assert verify(pool, solve(pool)).valid.any()
        reset, step = batched(PoolAutoReset(env), slippery=True)
        keys = jax.random.split(jax.random.key(0), BATCH)
        shared = PoolAutoReset(env).pool(pool)
        step(reset(keys, shared)[0], actions_of(0), shared, keys)


def replay(env, step, state, timestep, arguments, next_instance):
    """Plays and holds an auto-reset wrapper against the bare environment, step by step.

    Args:
      next_instance: from (wrapper state, environment number) to the instance of the episode
        that has just begun.
    """
    plain = jax.jit(jax.vmap(env.step))
    first = jax.jit(jax.vmap(env.reset))
    begin = first(next_instance(state))
    expected = begin[0]
    chex.assert_trees_all_equal(timestep.observation, begin[1].observation)
    ends = {"terminated": 0, "truncated": 0}
    for number in range(STEPS):
        actions = actions_of(number)
        state, timestep = step(state, actions, *arguments)
        after, bare = plain(expected, actions)
        # What is said of the step is said of the episode that it belongs to, ended or not.
        for name in ("reward", "terminated", "truncated", "info"):
            chex.assert_trees_all_equal(getattr(timestep, name), getattr(bare, name))
        chex.assert_trees_all_equal(timestep.final_observation, bare.observation)
        done = np.asarray(timestep.done)
        again, shown = first(next_instance(state))
        picked = jax.tree.map(
            lambda a, b, done=done: np.where(done.reshape(-1, *[1] * (np.ndim(a) - 1)), a, b),
            (again, shown.observation, shown.action_mask),
            (after, bare.observation, bare.action_mask),
        )
        expected = picked[0]
        chex.assert_trees_all_equal((timestep.observation, timestep.action_mask), picked[1:])
        for name in ends:
            ends[name] += int(np.asarray(getattr(timestep, name)).sum())
    assert min(ends.values()) > 0, ends
    return state


def test_same_instance(env):
    instances = pool_of(BATCH)
    wrapper = PoolAutoReset(env)
    pools = [wrapper.pool(instances[i : i + 1]) for i in range(BATCH)]
    pools = jax.tree.map(lambda *leaves: jnp.stack(leaves), *pools)
    keys = jax.random.split(jax.random.key(1), BATCH)
    state, timestep = jax.jit(jax.vmap(wrapper.reset))(keys, pools)
    step = jax.jit(jax.vmap(wrapper.step))
    replay(env, step, state, timestep, (pools,), lambda state: instances)


def test_pool(env):
    instances = pool_of(50)
    wrapper = PoolAutoReset(env)
    reset, step = batched(wrapper)
    pool = wrapper.pool(instances)
    state, timestep = reset(jax.random.split(jax.random.key(1), BATCH), pool)
    after = replay(env, step, state, timestep, (pool,), lambda state: instances[state.index])
    assert len(set(np.asarray(after.index).tolist())) > 4
    assert (np.asarray(after.count) > 2).all()


def test_the_pool_is_drawn_uniformly_and_streams_differ():
    env = make("MapfFrozenLake-v0", num_agents=AGENTS, size=SIZE, max_steps=1)
    wrapper = PoolAutoReset(env)
    size, batch, steps = 37, 64, 200
    pool = wrapper.pool(pool_of(size))
    reset, step = batched(wrapper)
    state, _ = reset(jax.random.split(jax.random.key(2), batch), pool)
    waits = jnp.full((batch, AGENTS), 4)

    @jax.jit
    def drawn(state, pool):
        return jax.lax.scan(
            lambda state, _: (step(state, waits, pool)[0], state.index), state, length=steps
        )[1]

    indices = np.asarray(drawn(state, pool))
    counts = np.bincount(indices.ravel(), minlength=size)
    expected = batch * steps / size
    assert ((counts - expected) ** 2 / expected).sum() < 36 + 5 * np.sqrt(72)
    # Neighbouring draws of a stream are no more alike than chance has it, nor are two streams.
    assert abs((indices[1:] == indices[:-1]).mean() - 1 / size) < 0.01
    assert abs((indices[:, 1:] == indices[:, :-1]).mean() - 1 / size) < 0.01
    assert len({column.tobytes() for column in indices.T}) == batch
    chex.assert_trees_all_equal(drawn(state, pool), indices)


@pytest.mark.parametrize("bound", [1, 3, 65_535, 65_536, 1_000_003, 2**31 - 1])
def test_below_is_the_upper_half_of_the_product(bound):
    bits = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint64)
    bits = np.concatenate([bits, [0, 2**32 - 1]]).astype(np.uint64)
    expected = (bits * np.uint64(bound)) >> np.uint64(32)
    found = wrappers._below(jnp.asarray(bits.astype(np.uint32)), bound)
    np.testing.assert_array_equal(np.asarray(found).astype(np.uint64), expected)


def test_a_new_pool_compiles_nothing():
    env = make("MapfFrozenLake-v0", num_agents=3, size=5)
    wrapper = PoolAutoReset(env)
    # Smaller lakes and fewer agents fit in.
    reset, step = batched(wrapper)
    for seed in (0, 1):
        pool = wrapper.pool(pool_of(20, seed=seed))
        state, _ = reset(jax.random.split(jax.random.key(0), BATCH), pool)
        step(state, jnp.zeros((BATCH, 3), jnp.int32), pool)
    assert step._cache_size() == 1
    with pytest.raises(ValueError, match="at least the instance's own width 6"):
        wrapper.pool(pool_of(5, size=6))
    with pytest.raises(ValueError, match="a batch is needed"):
        wrapper.pool(pool_of(5)[0])


def test_log_keeps_what_an_own_count_keeps(env):
    wrapper = PoolAutoReset(env)
    pool = wrapper.pool(pool_of(8))
    reset, step = batched(LogEpisodes(wrapper))
    state, _ = reset(jax.random.split(jax.random.key(4), BATCH), pool)
    rewards, lengths, episodes = np.zeros((BATCH, AGENTS)), np.zeros(BATCH, int), 0
    for number in range(STEPS):
        state, timestep = step(state, actions_of(number), pool)
        rewards += np.asarray(timestep.reward)
        lengths += 1
        np.testing.assert_allclose(state.rewards, rewards, atol=1e-5)
        chex.assert_trees_all_equal((state.length, state.done), (lengths, timestep.done))
        ended = np.flatnonzero(timestep.done)
        rewards[ended], lengths[ended] = 0, 0
        episodes += len(ended)
    assert episodes > BATCH


def test_slippery_wrappers_take_a_key():
    env = make("MapfFrozenLakeSlippery-v0", num_agents=AGENTS, size=SIZE)
    wrapper = PoolAutoReset(env)
    pool = wrapper.pool(pool_of(8))
    keys = jax.random.split(jax.random.key(4), BATCH)
    reset, step = batched(wrapper, slippery=True)
    state, _ = reset(keys, pool)
    ups = jnp.zeros((BATCH, AGENTS), jnp.int32)
    _, timestep = step(state, ups, pool, keys)
    assert len(np.unique(timestep.info.moves)) == 3
    with pytest.raises(ValueError, match="needs a PRNG key"):
        step(state, ups, pool, None)
    one, own = jax.tree.map(lambda x: x[0], state), PoolAutoReset(env, pool_of(8))
    with pytest.raises(ValueError, match=r"step\(state, actions, key=key\)"):
        own.step(one, ups[0], keys[0])
    logged, _ = LogEpisodes(own).reset(keys[0])
    assert LogEpisodes(own).step(logged, ups[0], key=keys[0])[0].length == 1


def test_what_nobody_reads_costs_nothing():
    """A program that only wants rewards is the same whatever the agents might be shown."""
    costs = []
    for observation in ("positions", "planes", "egocentric"):
        env = make(
            "MapfFrozenLake-v0", num_agents=3, size=8, observation=observation,
            action_mask=observation == "planes",
        )  # fmt: skip
        wrapper = PoolAutoReset(env)
        pool = wrapper.pool(pool_of(8))
        reset, step = batched(wrapper)
        state, _ = reset(jax.random.split(jax.random.key(0), BATCH), pool)

        @jax.jit
        def rewarded(state, actions, pool, step=step):
            state, timestep = step(state, actions, pool)
            return state, timestep.reward

        actions = jnp.zeros((BATCH, 3), jnp.int32)
        costs.append(rewarded.lower(state, actions, pool).compile().cost_analysis())
    assert costs[0]["bytes accessed"] > 0
    for cost in costs[1:]:
        assert cost["flops"] == costs[0]["flops"]
        assert cost["bytes accessed"] == costs[0]["bytes accessed"]


def test_an_environment_with_instances_of_its_own_needs_a_key_alone():
    env = make("MapfFrozenLake-v0", num_agents=AGENTS, size=SIZE, max_steps=7)
    instances, keys = pool_of(9), jax.random.split(jax.random.key(1), BATCH)
    own, shared = PoolAutoReset(env, instances), PoolAutoReset(env)
    pool, logged = shared.pool(instances), LogEpisodes(own)
    state, timestep = jax.jit(jax.vmap(own.reset))(keys)
    reset, step = batched(shared)
    expected = reset(keys, pool)
    chex.assert_trees_all_equal((state, timestep), expected)
    counted, _ = jax.jit(jax.vmap(logged.reset))(keys)
    for number in range(10):
        state, timestep = jax.jit(jax.vmap(own.step))(state, actions_of(number))
        counted, _ = jax.jit(jax.vmap(logged.step))(counted, actions_of(number))
        expected = step(expected[0], actions_of(number), pool)
        chex.assert_trees_all_equal((state, timestep), expected)
        chex.assert_trees_all_equal(counted.inner, state)
    for wrapper in (own, logged):
        assert wrapper.num_agents == AGENTS
        assert wrapper.action_space == env.action_space
        assert wrapper.observation_space == env.observation_space
    with pytest.raises(AttributeError, match="colour"):
        _ = own.colour
    with pytest.raises(ValueError, match="no instances of its own"):
        shared.reset(keys[0])


@pytest.mark.parametrize("name", ["MapfFrozenLake-v0", "MapfFrozenLakeSlippery-v0"])
def test_a_rollout_is_the_plan_that_was_played(name, tmp_path):
    env = make(name, num_agents=AGENTS, size=SIZE, max_steps=12)
    instances = pool_of(40)

    def policy(key, observation):
        assert observation["positions"].shape == (AGENTS, 2)
        return jax.random.randint(key, (AGENTS,), 0, 5)

    def play(instance, key):
        return rollout(env, instance, policy, key)

    keys = jax.random.split(jax.random.key(0), 40)
    plans = jax.jit(jax.vmap(play))(instances, keys)
    verdict = verify(instances, plans)
    kinds = {ViolationKind(int(kind)).name for kind in verdict.violation_kind}
    if name == "MapfFrozenLake-v0":  # The first broken rule ends it.
        assert {"OUT_OF_BOUNDS", "HOLE", "GOAL_MISSED"} <= kinds
        moved = verdict.violation_kind != ViolationKind.GOAL_MISSED
        broken = np.asarray(moved & ~verdict.valid)
        chex.assert_trees_all_equal(verdict.violation_time[broken], plans.num_steps[broken])
    else:
        assert kinds <= {"GOAL_MISSED", "NONE"}
        assert (plans.num_steps[~verdict.valid] == 12).all()
    one = int(np.argmax(plans.num_steps))
    for suffix in ("png", "gif", "html"):
        path = tmp_path / f"episode.{suffix}"
        plan = rollout(env, instances[one], policy, keys[one], save=str(path))
        chex.assert_trees_all_equal(plan, plans[one])
        assert path.stat().st_size > 500
