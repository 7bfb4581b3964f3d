"""The eight checks and the cost of whole plans."""

import functools

import jax
import jax.numpy as jnp

from mapf_jax import dynamics
from mapf_jax.types import INFINITE_COST, Array, Instance, Plan, Verdict


def path_costs(positions: Array, goals: Array) -> jax.Array:
    """int32[A]: for each agent the first time from which it stays on its goal for good.

    Args:
      positions: int[T, A, 2].
      goals: int[A, 2].

    Returns:
      int32[A]; T for an agent that is not on its goal at the end.
    """
    away = jnp.any(positions != goals, axis=-1)
    times = jnp.arange(1, positions.shape[0] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(away, times[:, None], 0), axis=0)


def _verify_one(instance: Instance, plan: Plan) -> Verdict:
    positions = plan.positions
    active = instance.active
    agent_count = plan.parsable & (plan.num_agents == active.sum())
    out_of_bounds, hole, vertex = jax.vmap(
        functools.partial(dynamics.placement_violations, instance)
    )(positions)
    illegal, swap = jax.vmap(functools.partial(dynamics.transition_violations, instance))(
        positions[:-1], positions[1:]
    )
    # A rule of transition is broken at the time of arrival, so all five are indexed alike.
    illegal, swap = (jnp.pad(flags, ((1, 0), (0, 0))) for flags in (illegal, swap))

    goals = jnp.asarray(instance.goals, positions.dtype)
    starts = jnp.asarray(instance.starts, positions.dtype)
    at_start = jnp.all(positions[0] == starts, axis=-1) | ~active
    at_goal = jnp.all(positions[-1] == goals, axis=-1) | ~active
    costs = jnp.where(active, path_costs(positions, goals), 0)

    checks = {
        "parsable": plan.parsable,
        "legal_moves": agent_count & ~jnp.any(illegal),
        "conflict_free": agent_count & ~jnp.any(vertex | swap),
        "goals_reached": agent_count & jnp.all(at_goal),
        "starts_correct": agent_count & jnp.all(at_start),
        "agent_count": agent_count,
        "no_holes": agent_count & ~jnp.any(hole),
        "in_bounds": agent_count & ~jnp.any(out_of_bounds),
    }
    valid = functools.reduce(jnp.logical_and, checks.values())
    cost = jnp.where(valid, costs.sum(), INFINITE_COST)
    optimum = INFINITE_COST if instance.solution is None else instance.solution.cost
    known = valid & jnp.asarray(optimum < INFINITE_COST)
    gap = jnp.where(known, cost - optimum, INFINITE_COST)
    broken = jnp.any(illegal | out_of_bounds | hole | vertex | swap, axis=-1)
    time = jnp.where(jnp.any(broken), jnp.argmax(broken), -1)
    return Verdict(
        **checks,
        valid=valid,
        cost=cost,
        makespan=jnp.where(valid, costs.max(), INFINITE_COST),
        gap=gap,
        optimal=known & (gap == 0),
        violation_time=jnp.where(agent_count, time, -1).astype(jnp.int32),
    )


@jax.jit
def verify(instances: Instance, plans: Plan) -> Verdict:
    """Judges one plan for each instance of a batch.

    Args:
      instances: batch shape [B]; the gap needs `instances.solution`.
      plans: batch shape [B], any number of time steps T >= 1.

    Returns:
      A `Verdict` of batch shape [B].
    """
    return jax.vmap(_verify_one)(instances, plans)
