"""The eight checks and the cost of whole plans."""

import functools

import chex
import jax
import jax.numpy as jnp

from mapf_jax import dynamics
from mapf_jax.plans import arrivals
from mapf_jax.types import INFINITE_COST, Array, Instance, Plan, Verdict, ViolationKind


def plan_violations(instance: Instance, positions: Array) -> dynamics.Violations:
    """Which rule of movement each agent breaks at each time, bool[T, A].

    A rule about a move is broken at the time of arrival, so all five are indexed alike.

    Args:
      instance: a single instance.
      positions: int[T, A, 2].
    """
    before = jnp.concatenate([positions[:1], positions[:-1]])
    return jax.vmap(functools.partial(dynamics.violations, instance))(before, positions)


def violation_kinds(instance: Instance, plan: Plan) -> jax.Array:
    """int32[T, A], the `ViolationKind` of each agent of a single parsable plan at each time."""
    kinds = plan_violations(instance, plan.positions).kind().astype(jnp.int32)
    wrong_start, goal_missed = _wrong_ends(instance, plan.positions)
    times = jnp.arange(kinds.shape[0])[:, None]
    for rule, flags in (
        (ViolationKind.WRONG_START, (times == 0) & wrong_start),
        (ViolationKind.GOAL_MISSED, (times == plan.num_steps) & goal_missed),
    ):
        kinds = jnp.where(flags & (kinds == ViolationKind.NONE), rule, kinds)
    return kinds


def _wrong_ends(instance: Instance, positions: Array) -> tuple[jax.Array, jax.Array]:
    """(does not begin on its start, does not end on its goal), each bool[A]."""
    wrong_start = jnp.any(positions[0] != instance.starts, axis=-1)
    goal_missed = jnp.any(positions[-1] != instance.goals, axis=-1)
    return wrong_start & instance.active, goal_missed & instance.active


def _verify_one(instance: Instance, plan: Plan) -> Verdict:
    positions = plan.positions
    active = instance.active
    agent_count = plan.parsable & (plan.num_agents == active.sum())
    broken = plan_violations(instance, positions)
    wrong_start, goal_missed = _wrong_ends(instance, positions)
    costs = jnp.where(active, arrivals(jnp.asarray(positions), instance.goals), 0)
    checks = {
        "parsable": plan.parsable,
        "legal_moves": agent_count & ~jnp.any(broken.illegal_move),
        "conflict_free": agent_count & ~jnp.any(broken.vertex | broken.swap),
        "goals_reached": agent_count & ~jnp.any(goal_missed),
        "starts_correct": agent_count & ~jnp.any(wrong_start),
        "agent_count": agent_count,
        "no_holes": agent_count & ~jnp.any(broken.hole),
        "in_bounds": agent_count & ~jnp.any(broken.out_of_bounds),
    }
    valid = functools.reduce(jnp.logical_and, checks.values())
    cost = jnp.where(valid, costs.sum(), INFINITE_COST)
    optimum = INFINITE_COST if instance.solution is None else instance.solution.cost
    known = valid & jnp.asarray(optimum < INFINITE_COST)
    gap = jnp.where(known, cost - optimum, INFINITE_COST)
    kinds = jnp.where(agent_count, violation_kinds(instance, plan), ViolationKind.NONE)
    time, agent = jnp.unravel_index(jnp.argmax(kinds != ViolationKind.NONE), kinds.shape)
    kind = kinds[time, agent]
    return Verdict(
        **checks,
        valid=valid,
        cost=cost,
        makespan=jnp.where(valid, costs.max(), INFINITE_COST),
        gap=gap,
        optimal=known & (gap == 0),
        violation_time=jnp.where(kind == ViolationKind.NONE, -1, time).astype(jnp.int32),
        violation_agent=jnp.where(kind == ViolationKind.NONE, -1, agent).astype(jnp.int32),
        violation_kind=kind.astype(jnp.int32),
    )


@jax.jit
def verify(instances: Instance, plans: Plan) -> Verdict:
    """Checks one plan for each instance of a batch.

    Args:
      instances: batch shape [B]; the gap needs `instances.solution`.
      plans: batch shape [B], any number of time steps T >= 1.

    Returns:
      A `Verdict` of batch shape [B]. Agents that a plan adds or leaves out fail `agent_count`;
      nothing else of such a plan is checked.
    """
    chex.assert_shape(plans.positions, (*instances.batch_shape, None, *instances.goals.shape[1:]))
    return jax.vmap(_verify_one)(instances, plans)
