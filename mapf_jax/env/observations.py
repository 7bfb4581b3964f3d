"""What agents see: three views of a state, each with the space it lies in.

XLA removes views that are not used from a compiled program.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax import dynamics
from mapf_jax.env import spaces
from mapf_jax.solver import search
from mapf_jax.types import Array, State

#: The views by name.
KINDS = ("positions", "egocentric", "planes")
#: The last axis of the view "egocentric".
EGOCENTRIC_PLANES = ("blocked", "other agents", "own goal", "goals of others")


def observe(kind: str, state: State, width: int, window: int) -> Any:
    """The view `kind` of a single state.

    * "positions": a mapping with `blocked` bool[S, S] (holes and everything outside the lake),
      `positions` and `goals` int8[A, 2] as (row, column), (-1, -1) for an absent agent, and
      `active` bool[A]. One for all agents.
    * "egocentric": uint8[A, window, window, 4], for each agent a square around it, 0 or 1, with
      the planes `EGOCENTRIC_PLANES`. Where its own goal is out of sight, the nearest cell of the
      square's edge shows it. An absent agent sees nothing.
    * "planes": uint8[S, S, 1 + 2 A], 0 or 1: what is blocked, the cell of each agent, the goal of
      each agent. One for all agents.

    Args:
      kind: one of `KINDS`.
      state: with its terrain.
      width: S.
      window: side of the square, odd.
    """
    blocked = state.blocked
    if blocked is None:
        blocked = blocked_cells(jnp.asarray(state.terrain), width)
    blocked = jnp.reshape(blocked, (width, width))
    positions = dynamics.cell_positions(state.cells, width)
    goals = dynamics.cell_positions(state.goals, width)
    active = state.cells != dynamics.ABSENT
    if kind == "positions":
        return {"blocked": blocked, "positions": positions, "goals": goals, "active": active}
    if kind == "planes":
        cells = jnp.concatenate([positions, goals])
        planes = [blocked[None], search.cell_mask(cells, width)]
        return jnp.moveaxis(jnp.concatenate(planes), 0, -1).astype(jnp.uint8)
    return _egocentric(blocked, positions, goals, active, window)


def blocked_cells(terrain: Array, width: int) -> jax.Array:
    """bool[..., S * S], which cells of lakes are not free, from their `State.terrain`."""
    batch = terrain.shape[:-1]
    inside = jnp.reshape(terrain, (*batch, width + 2, width + 2))[..., 1:-1, 1:-1]
    return inside.reshape(*batch, width * width) != dynamics.FREE


def space(kind: str, num_agents: int, width: int, window: int) -> spaces.Space:
    """The space of `observe`'s results."""
    if kind == "positions":
        cells = spaces.Box(-1, width - 1, (num_agents, 2), np.int8)
        return spaces.Dict(
            {
                "blocked": spaces.Box(0, 1, (width, width), np.bool_),
                "positions": cells,
                "goals": cells,
                "active": spaces.Box(0, 1, (num_agents,), np.bool_),
            }
        )
    if kind == "planes":
        return spaces.Box(0, 1, (width, width, 1 + 2 * num_agents), np.uint8)
    return spaces.Box(0, 1, (num_agents, window, window, len(EGOCENTRIC_PLANES)), np.uint8)


def of_agent(kind: str, observation: Any, agent: int) -> Any:
    """One agent's own view, of NumPy or JAX arrays, for interfaces with a view for each agent.

    For "egocentric" its own square; for the other kinds all agents in turn, itself first.
    """
    if kind == "egocentric":
        return observation[agent]
    if kind == "planes":
        xp = observation.__array_namespace__()
        blocked, agents, goals = xp.split(observation, [1, observation.shape[-1] // 2 + 1], -1)
        return xp.concat([blocked, *(xp.roll(p, -agent, -1) for p in (agents, goals))], axis=-1)
    xp = observation["blocked"].__array_namespace__()
    rolled = {name: xp.roll(observation[name], -agent, 0) for name in observation}
    return rolled | {"blocked": observation["blocked"]}


def _egocentric(
    blocked: jax.Array, positions: jax.Array, goals: jax.Array, active: jax.Array, window: int
) -> jax.Array:
    radius = window // 2
    offsets = jnp.arange(window) - radius
    width = blocked.shape[-1]
    padded = jnp.pad(blocked, radius, constant_values=True)
    # Comparing offsets with iota marks agents and goals; writing them into a map would be a
    # scatter, which is many times slower.
    positions, goals = positions.astype(jnp.int32), goals.astype(jnp.int32)
    to_agents = positions[None, :, :] - positions[:, None, :]
    to_goals = goals[None, :, :] - positions[:, None, :]

    def marks(steps: jax.Array, shown: jax.Array) -> jax.Array:
        """bool[A, window, window], the offsets int[A, n, 2] that are shown bool[A, n]."""
        rows = steps[:, :, 0, None, None] == offsets[None, None, :, None]
        columns = steps[:, :, 1, None, None] == offsets[None, None, None, :]
        return jnp.any(rows & columns & shown[:, :, None, None], axis=1)

    # Gathered cell by cell: XLA for TPUs copies slices of a batch one after the other.
    rows, columns = jnp.clip(positions, 0, width - 1).T[:, :, None] + jnp.arange(window)
    surroundings = padded.at[rows[:, :, None], columns[:, None]].get(mode="promise_in_bounds")

    others = ~jnp.eye(len(active), dtype=bool) & active[None, :]
    own = jnp.clip(goals - positions, -radius, radius)[:, None, :]
    planes = jnp.stack(
        [
            surroundings,
            marks(to_agents, others),
            marks(own, jnp.ones((len(active), 1), bool)),
            marks(to_goals, others),
        ],
        axis=-1,
    )
    return (planes & active[:, None, None, None]).astype(jnp.uint8)
