"""The rules of movement. Everything that judges or makes a move calls these functions.

In each step every agent moves up, down, left, right or waits, all at once. Forbidden are: leaving
the lake, entering a hole, two agents in one cell (vertex conflict) and two agents exchanging
cells (swap conflict). Following, that is entering a cell that is left in the same step, is legal.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.types import Array, Instance

UP, DOWN, LEFT, RIGHT, WAIT = range(5)
#: int8[5, 2], what an action adds to (row, column).
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)], np.int8)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Violations:
    """Which rule each agent breaks in one step; all bool[..., A]."""

    illegal_move: Array
    out_of_bounds: Array
    hole: Array
    vertex: Array
    swap: Array

    def any(self) -> Array:
        """bool[..., A], True where an agent breaks any rule."""
        return self.illegal_move | self.out_of_bounds | self.hole | self.vertex | self.swap


def move(positions: Array, actions: Array) -> jax.Array:
    """Cells int[..., A, 2] after `actions` int[..., A] (0 up, 1 down, 2 left, 3 right, 4 wait)."""
    return jnp.asarray(positions) + jnp.asarray(MOVES, positions.dtype)[actions]


def placement_violations(
    instance: Instance, positions: Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rules about where agents are: (out_of_bounds, hole, vertex), each bool[A].

    Args:
      instance: a single instance.
      positions: int[A, 2], cells at one time.
    """
    row, column = jnp.asarray(positions[:, 0]), jnp.asarray(positions[:, 1])
    size = instance.size
    inside = (row >= 0) & (row < size) & (column >= 0) & (column < size)
    hole = (
        inside
        & jnp.asarray(instance.blocked)[jnp.where(inside, row, 0), jnp.where(inside, column, 0)]
    )
    vertex = _any_other(
        lambda shift: _same_cell(positions, jnp.roll(positions, shift, axis=0)), instance.active
    )
    active = jnp.asarray(instance.active)
    return ~inside & active, hole & active, vertex


def transition_violations(
    instance: Instance, positions: Array, next_positions: Array
) -> tuple[jax.Array, jax.Array]:
    """Rules about how agents move: (illegal_move, swap), each bool[A].

    Args:
      instance: a single instance.
      positions: int[A, 2], cells before the step.
      next_positions: int[A, 2], cells after it.
    """
    distance = jnp.abs(next_positions.astype(jnp.int32) - positions.astype(jnp.int32)).sum(-1)

    def exchanges(shift: int) -> jax.Array:
        return _same_cell(positions, jnp.roll(next_positions, shift, axis=0)) & _same_cell(
            next_positions, jnp.roll(positions, shift, axis=0)
        )

    # Two agents that wait in one cell break the vertex rule, they do not exchange cells.
    swap = _any_other(exchanges, instance.active) & ~_same_cell(positions, next_positions)
    return (distance > 1) & instance.active, swap


def violations(instance: Instance, positions: Array, next_positions: Array) -> Violations:
    """Every rule broken by one simultaneous move of all agents of a single instance."""
    illegal_move, swap = transition_violations(instance, positions, next_positions)
    out_of_bounds, hole, vertex = placement_violations(instance, next_positions)
    return Violations(illegal_move, out_of_bounds, hole, vertex, swap)


def _same_cell(a: Array, b: Array) -> jax.Array:
    return (a[:, 0] == b[:, 0]) & (a[:, 1] == b[:, 1])


def _any_other(relation, active: Array) -> jax.Array:  # type: ignore[no-untyped-def]
    """bool[A]: does `relation(shift)`, agent a against agent a - shift, hold for any other agent?

    Comparing whole vectors with their rolled selves keeps the program free of A x A masks, which
    the compiler would turn into far slower code.
    """
    num_agents = active.shape[-1]
    result = jnp.zeros((num_agents,), bool)
    for shift in range(1, num_agents):
        result |= relation(shift) & jnp.roll(active, shift)
    return result & active
