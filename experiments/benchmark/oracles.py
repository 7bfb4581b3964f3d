"""Answers of planners that are no language models, as text in the format that the prompt asks for.

They are parsed and verified as a model's answers are, so they check the benchmark itself and bound
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
"""Cells int[T, A, 2] of the agents of one instance at every time step."""


def exact(instances: mapf_jax.Instance, keys: jax.Array) -> list[Paths | None]:
    """The optimal plans that the instances carry, made by the exact solver."""
    assert instances.solution is not None
    return _planned(instances.solution, mapf_jax.Status.OPTIMAL)


def lacam(instances: mapf_jax.Instance, keys: jax.Array) -> list[Paths | None]:
    """The first plans that are found, without a search for better ones."""
    return _planned(mapf_jax.solve(instances, max_states=0), mapf_jax.Status.FEASIBLE)


def random_moves(instances: mapf_jax.Instance, keys: jax.Array) -> list[Paths | None]:
    """Every agent takes a random one of the moves that break no rule by themselves, or waits.

    It stays on the lake and out of holes, pays no heed to other agents, and rests once it has come
    to its goal. The answer ends when all rest, or after as many steps as the lake has cells.
    """
    walks = in_blocks(_walks, instances, np.asarray(jax.random.key_data(keys)), block=_BLOCK)
    paths = np.concatenate([np.asarray(instances.starts)[:, None], walks], axis=1)
    steps = np.asarray(instances.size) ** 2
    return [path[: most + 1] for path, most in zip(paths, steps, strict=True)]


@dataclasses.dataclass(frozen=True)
class Oracle:
    """A planner.

    Attributes:
      description: what it is, for the page.
      plans: (instances [B], PRNG keys [B]) to paths for each; None where none were found.
      random: whether the keys change anything.
    """

    description: str
    plans: Callable[[mapf_jax.Instance, jax.Array], list[Paths | None]]
    random: bool = False

    def answers(self, instances: mapf_jax.Instance, keys: jax.Array) -> list[str]:
        """Texts of the plans up to where all agents stay on their goals, or of none."""
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
    """The plans of a batch that have a status."""
    there = np.asarray(solution.status) == status
    return [paths if has else None for paths, has in zip(solution.paths, there, strict=True)]


@jax.jit
@jax.vmap
def _walks(instance: mapf_jax.Instance, key_data: jax.Array) -> jax.Array:
    """int8[B, S * S, A, 2]: the cells of random walks after each step; keys uint32[B, 2]."""
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
        # A key for each agent: how many others the batch has room for does not matter.
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, time), agents)
        chosen = jax.vmap(jax.random.categorical)(keys, legal.T)
        cells = jnp.where(cells == goals, cells, ends[chosen, agents])
        return cells, cells

    _, cells = jax.lax.scan(step, first, jnp.arange(width * width))
    return dynamics.cell_positions(cells, width)
