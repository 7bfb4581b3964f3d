"""The eight checks and the cost of whole plans."""

import functools

import jax
import jax.numpy as jnp

from mapf_jax import dynamics
from mapf_jax.plans import arrivals
from mapf_jax.types import (
    INFINITE_COST,
    Instance,
    Plan,
    Solution,
    Status,
    Verdict,
    ViolationKind,
    as_plan,
)


def _broken_rules(instance: Instance, plan: Plan) -> dynamics.Violations:
    """By rule, bool[T, A]: whether each agent of a single parsable plan breaks it at each time.

    A rule about a move is broken at the time of arrival, so all are indexed alike.
    """
    positions = jnp.asarray(plan.positions)
    before = jnp.concatenate([positions[:1], positions[:-1]])
    broken = jax.vmap(functools.partial(dynamics.violations, instance))(before, positions)
    times = jnp.arange(len(positions))[:, None]
    # A plan rests after its last step, whatever it says of the number of its steps.
    last = jnp.clip(plan.num_steps, 0, len(positions) - 1)
    for rule, time, found, cells in (
        (ViolationKind.WRONG_START, 0, positions[0], instance.starts),
        (ViolationKind.GOAL_MISSED, last, positions[-1], instance.goals),
    ):
        elsewhere = (found != cells.astype(found.dtype)).any(-1)
        broken[rule] = (times == time) & elsewhere & instance.active
    return broken


def violation_kinds(instance: Instance, plan: Plan) -> jax.Array:
    """int32[T, A], the `ViolationKind` of each agent of a single parsable plan at each time."""
    return dynamics.first_broken(_broken_rules(instance, plan)).astype(jnp.int32)


def _verify_one(instance: Instance, plan: Plan) -> Verdict:
    active = instance.active
    agent_count = plan.parsable & (plan.num_agents == active.sum())
    broken = _broken_rules(instance, plan)
    kept = {rule: agent_count & ~jnp.any(flags) for rule, flags in broken.items()}
    positions = jnp.asarray(plan.positions)
    goals = instance.goals.astype(positions.dtype)
    costs = jnp.where(active, arrivals(positions, goals), 0)
    checks = {
        "parsable": plan.parsable,
        "legal_moves": kept[ViolationKind.ILLEGAL_MOVE],
        "conflict_free": kept[ViolationKind.VERTEX] & kept[ViolationKind.SWAP],
        "goals_reached": kept[ViolationKind.GOAL_MISSED],
        "starts_correct": kept[ViolationKind.WRONG_START],
        "agent_count": agent_count,
        "no_holes": kept[ViolationKind.HOLE],
        "in_bounds": kept[ViolationKind.OUT_OF_BOUNDS],
    }
    valid = functools.reduce(jnp.logical_and, checks.values())
    cost = jnp.where(valid, costs.sum(dtype=jnp.int32), INFINITE_COST)
    known, gap = jnp.asarray(False), jnp.asarray(INFINITE_COST, jnp.int32)
    if instance.solution is not None:
        known = jnp.asarray(valid & (instance.solution.status == Status.OPTIMAL))
        gap = jnp.where(known, cost - instance.solution.cost, INFINITE_COST)
    kinds = jnp.where(agent_count, dynamics.first_broken(broken), ViolationKind.NONE)
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
def verify(instances: Instance, plans: Plan | Solution) -> Verdict:
    """Checks one plan, or the one of a solution, for each instance of a batch.

    Args:
      instances: batch shape [B]; the gap needs `instances.solution`.
      plans: batch shape [B], any number of time steps T >= 1.

    Returns:
      A `Verdict` of batch shape [B]. Agents that a plan adds or leaves out fail `agent_count`;
      nothing else of such a plan is checked.

    Raises:
      ValueError: there is no batch, there are more or fewer plans than instances, or they are for
        other agents.
    """
    if len(instances.batch_shape) != 1:
        raise ValueError(f"instances: of shape {instances.batch_shape}, a batch is needed")
    plans = as_plan(instances, plans)
    found, (batch, *cells) = plans.positions.shape, instances.goals.shape
    if len(found) != 4 or [found[0], *found[2:]] != [batch, *cells]:
        allowed = f"({batch}, T, {', '.join(map(str, cells))})"
        raise ValueError(
            f"plans.positions of shape {found}: allowed for the instances is {allowed}"
        )
    return jax.vmap(_verify_one)(instances, plans)
