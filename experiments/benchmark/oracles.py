"""Planners as models: their plans become text in the answer format of the prompt.

These answers are parsed and verified like a model's, so they test the benchmark itself and bound
what a model can reach.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

import mapf_jax
from mapf_jax import dynamics, plans
from mapf_jax.padding import in_blocks

_BLOCK = 128
_NO_PLAN = "No plan found."

Paths = np.ndarray
"""int[T, A, 2]: the cell of every agent of one instance at every time step."""


def exact(instances: mapf_jax.Instance, keys: jax.Array) -> list[Paths | None]:
    """The optimal plans stored in the instances, from the exact solver."""
    assert instances.solution is not None
    return _planned(instances.solution, mapf_jax.Status.OPTIMAL)


def lacam(instances: mapf_jax.Instance, keys: jax.Array) -> list[Paths | None]:
    """The first plan that LaCAM finds for each instance, without improving it."""
    return _planned(mapf_jax.solve(instances, max_states=0), mapf_jax.Status.FEASIBLE)


def random_moves(instances: mapf_jax.Instance, keys: jax.Array) -> list[Paths | None]:
    """Every agent takes a random action among those that break no rule by themselves.

    Agents stay on the lake and out of holes, ignore each other and stop at their goals. The answer
    ends when all have stopped, or after as many steps as the lake has cells.
    """
    walks = in_blocks(_walks, instances, np.asarray(jax.random.key_data(keys)), block=_BLOCK)
    paths = np.concatenate([np.asarray(instances.starts)[:, None], walks], axis=1)
    steps = np.asarray(instances.size) ** 2
    return [path[: most + 1] for path, most in zip(paths, steps, strict=True)]


@dataclasses.dataclass(frozen=True)
class Oracle:
    """A planner.

    Attributes:
      description: for the page.
      plans: function of instances [B] and PRNG keys [B]; returns the paths of each instance, or
        None if it finds none.
      random: whether plans depend on the keys.
    """

    description: str
    plans: Callable[[mapf_jax.Instance, jax.Array], list[Paths | None]]
    random: bool = False

    def answers(self, instances: mapf_jax.Instance, keys: jax.Array) -> list[str]:
        """The plans as texts, up to where all agents stay on their goals; a fixed text for none."""
        counts, goals = np.asarray(instances.active).sum(-1), np.asarray(instances.goals)
        texts = []
        for paths, count, goal in zip(self.plans(instances, keys), counts, goals, strict=True):
            if paths is None:
                texts.append(_NO_PLAN)
                continue
            end = int(plans.arrivals(paths[:, :count], goal[:count]).max())
            texts.append(mapf_jax.render_answer(paths[:, :count], min(end, len(paths) - 1)))
        return texts


ORACLES: Mapping[str, Oracle] = {
    "exact": Oracle("the optimal plans of the exact solver", exact),
    "lacam": Oracle("the first plans that LaCAM finds, a planner for many agents", lacam),
    "random": Oracle("random moves that break no rule by themselves", random_moves, random=True),
}


def _planned(solution: mapf_jax.Solution, status: mapf_jax.Status) -> list[Paths | None]:
    """The plans of a batch; None for solutions with another status."""
    there = np.asarray(solution.status) == status
    return [paths if has else None for paths, has in zip(solution.paths, there, strict=True)]


@jax.jit
@jax.vmap
def _walks(instance: mapf_jax.Instance, key_data: jax.Array) -> jax.Array:
    """Cells int8[B, S * S, A, 2] of random walks after each step; `key_data` is uint32[B, 2]."""
    key = jax.random.wrap_key_data(key_data)
    width = instance.blocked.shape[-1]
    terrain = dynamics.terrain(instance)
    active = jnp.asarray(instance.active)
    goals = dynamics.cell_numbers(instance.goals, active, width)
    first = dynamics.cell_numbers(instance.starts, active, width)
    agents = jnp.arange(len(active))
    actions = jnp.arange(len(dynamics.MOVES))

    def step(cells: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
        ends = jax.vmap(
            lambda action: dynamics.targets(cells, jnp.full(cells.shape, action), width)
        )(actions)
        legal = jnp.where(terrain[ends] == dynamics.FREE, 0.0, -jnp.inf)
        # A key for each agent, so that walks do not depend on the batch's maximum of agents.
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, time), agents)
        chosen = jax.vmap(jax.random.categorical)(keys, legal.T)
        cells = jnp.where(cells == goals, cells, ends[chosen, agents])
        return cells, cells

    _, cells = jax.lax.scan(step, first, jnp.arange(width * width))
    return dynamics.cell_positions(cells, width)
