"""The rules of movement. Everything that checks or makes a move calls these functions.

In each step every agent moves up, down, left, right or waits, all at once. Forbidden are: leaving
the lake, entering a hole, two agents in one cell (vertex conflict) and two agents exchanging
cells (swap conflict). Following, that is entering a cell that is left in the same step, is legal.

Cells come in two forms. `positions` are (row, column) and may be anywhere, as verifying plans
requires. Agents of a simulator are always on the lake: there the cells of the lake and of a border
one cell wide around it are numbered row by row, from 0, and `terrain` has the kind of each of them.
Absent agents are in cell 0, a corner of the border that no move can reach.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mapf_jax.types import Array, Instance, ViolationKind

UP, DOWN, LEFT, RIGHT, WAIT = range(5)
#: int8[5, 2], what an action adds to (row, column).
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)], np.int8)

#: Kinds of cells, as `terrain` has them.
FREE, HOLE, OUTSIDE = range(3)
#: The number of the cell of an absent agent.
ABSENT = 0

#: By rule, bool[..., A]: which agents break it.
Violations = dict[ViolationKind, jax.Array]


def first_broken(violations: Violations) -> jax.Array:
    """uint8[..., A], the `ViolationKind` of each agent."""
    kinds = jnp.uint8(ViolationKind.NONE)
    for kind in sorted(violations, reverse=True):
        kinds = jnp.where(violations[kind], jnp.uint8(kind), kinds)
    return kinds


def violations(instance: Instance, positions: Array, next_positions: Array) -> Violations:
    """Every rule broken by one simultaneous move of all agents.

    Args:
      instance: a single instance.
      positions: int[A, 2], cells before the step.
      next_positions: int[A, 2], cells after it.
    """
    active = jnp.asarray(instance.active)
    positions, next_positions = (
        jnp.asarray(cells).astype(jnp.int32) for cells in (positions, next_positions)
    )
    row, column = next_positions[:, 0], next_positions[:, 1]
    inside = jnp.all((next_positions >= 0) & (next_positions < instance.size), axis=-1)
    blocked = jnp.asarray(instance.blocked)
    hole = inside & blocked[jnp.where(inside, row, 0), jnp.where(inside, column, 0)]
    distance = jnp.abs(next_positions - positions).sum(-1)
    before, after = _anywhere(positions, active), _anywhere(next_positions, active)
    return {
        ViolationKind.ILLEGAL_MOVE: (distance > 1) & active,
        ViolationKind.OUT_OF_BOUNDS: ~inside & active,
        ViolationKind.HOLE: hole & active,
        ViolationKind.VERTEX: vertex_conflicts(after),
        ViolationKind.SWAP: swap_conflicts(before, after),
    }


def vertex_conflicts(cells: Array) -> jax.Array:
    """bool[A]: is another agent in the same cell? Numbers of cells int[A], or `ABSENT`."""
    return _any_other(lambda other: cells == other, cells) & (cells != ABSENT)


def swap_conflicts(cells: Array, next_cells: Array) -> jax.Array:
    """bool[A]: does another agent exchange cells with this one? Numbers int[A], or `ABSENT`."""
    exchanges = _any_other(
        lambda other, other_next: (cells == other_next) & (next_cells == other), cells, next_cells
    )
    # Two agents that wait in one cell break the vertex rule, they do not exchange cells.
    return exchanges & (cells != next_cells)


def terrain(instance: Instance) -> jax.Array:
    """uint8[(S + 2) * (S + 2)]: the kind of each numbered cell of a single instance.

    `FREE`, `HOLE`, or `OUTSIDE` for the border and for what lies beyond the lake's own size.
    """
    width = instance.blocked.shape[-1]
    index = jnp.arange(width)
    inside = (index[:, None] < instance.size) & (index[None, :] < instance.size)
    codes = jnp.where(inside, jnp.where(instance.blocked, HOLE, FREE), OUTSIDE).astype(jnp.uint8)
    return jnp.pad(codes, 1, constant_values=OUTSIDE).reshape(-1)


def cell_numbers(positions: Array, active: Array, width: int) -> jax.Array:
    """Numbers of the cells (row, column) int[..., A, 2] of an S x S map; `ABSENT` for no agent.

    In the smallest unsigned type that numbers the cells of the map with its border.
    """
    wide = jnp.asarray(positions).astype(jnp.int32) + 1
    numbers = wide[..., 0] * (width + 2) + wide[..., 1]
    return jnp.where(active, numbers, ABSENT).astype(np.min_scalar_type((width + 2) ** 2 - 1))


def cell_positions(cells: Array, width: int) -> jax.Array:
    """int8[..., A, 2], the (row, column) of numbered cells; (-1, -1) for an absent agent."""
    row, column = jnp.divmod(cells.astype(jnp.int32), width + 2)
    return (jnp.stack([row, column], -1) - 1).astype(jnp.int8)


def targets(cells: Array, actions: Array, width: int) -> jax.Array:
    """The numbered cells [..., A] where `actions` lead to, legal or not.

    An absent agent stays absent. Any action that is not one of the four moves waits.

    Args:
      cells: unsigned [..., A], numbers of cells.
      actions: int[..., A].
      width: S.
    """
    dtype = cells.dtype
    # Unsigned numbers wrap around, so one addition serves both directions. A chain of selections
    # compiles to vector code, a table of the five steps would be a gather.
    step = jnp.zeros(actions.shape, dtype)
    for action in (UP, DOWN, LEFT, RIGHT):
        rows, columns = (int(part) for part in MOVES[action])
        number = np.array(rows * (width + 2) + columns).astype(dtype)
        step = jnp.where(actions == action, number, step)
    return jnp.where(cells == ABSENT, jnp.asarray(ABSENT, dtype), cells + step)


def cell_violations(cells: Array, next_cells: Array, codes: Array) -> Violations:
    """Every rule broken by one simultaneous move of agents that are on the lake.

    Such moves are never of the kind ILLEGAL_MOVE.

    Args:
      cells: unsigned [A], distinct free cells (or `ABSENT`) before the step.
      next_cells: [A], their `targets`.
      codes: uint8[A], the `terrain` of `next_cells`.
    """
    chex.assert_equal_shape([cells, next_cells, codes])
    active = cells != ABSENT
    return {
        ViolationKind.OUT_OF_BOUNDS: jnp.asarray(active & (codes == OUTSIDE)),
        ViolationKind.HOLE: jnp.asarray(active & (codes == HOLE)),
        ViolationKind.VERTEX: vertex_conflicts(next_cells),
        ViolationKind.SWAP: swap_conflicts(cells, next_cells),
    }


def blocked_moves(cells: Array, next_cells: Array, codes: Array) -> Violations:
    """Which moves are not carried out if agents in conflict stay where they are.

    A move out of the lake or into a hole is not carried out, nor is one of a pair that would
    exchange cells, nor one of several into the same cell, nor one into a cell that its occupant
    does not leave. The last rule is applied until nothing changes: a train behind a stopped agent
    stops, a rotation of three or more goes on. The result does not depend on the order of the
    agents: except for that last rule all are decided by the moves alone, and the last one only
    ever stops more of them.

    Args:
      cells, next_cells, codes: as `cell_violations`.

    Returns:
      `Violations`, True for those that stay though they wanted to move; VERTEX covers the last two
      rules.
    """
    broken = cell_violations(cells, next_cells, codes)
    off = broken[ViolationKind.OUT_OF_BOUNDS] | broken[ViolationKind.HOLE]
    wanted = jnp.where(off, cells, next_cells)
    moves = wanted != cells
    swap = swap_conflicts(cells, wanted)

    def stop(_: int, stays: jax.Array) -> jax.Array:
        return stays | (moves & vertex_conflicts(jnp.where(stays, cells, wanted)))

    # A chain is stopped one by one, and either its first agent waits or its first two stop at once.
    stays = jax.lax.fori_loop(0, cells.shape[-1] - 1, stop, swap)
    return broken | {ViolationKind.VERTEX: stays & ~swap, ViolationKind.SWAP: swap}


def _anywhere(positions: jax.Array, active: Array) -> jax.Array:
    """uint32[A], distinct numbers for distinct int16 (row, column), on the lake or not.

    Only the farthest corner (-32768, -32768) shares its number with `ABSENT`.

    Args:
      positions: int32[A, 2]; int16 would overflow here.
      active: bool[A].
    """
    corner = np.iinfo(np.int16).min
    wide = (positions - corner).astype(jnp.uint32)
    return jnp.where(active, (wide[..., 0] << 16) | wide[..., 1], ABSENT)


def _any_other(relation: Callable[..., Array], *values: Array) -> jax.Array:
    """bool[A]: does `relation(*others' values)` hold for an agent and any other agent?

    Each agent is compared with its next neighbour in a ring, then with the one after, and so on,
    a whole vector at a time, by slices of the vectors laid end to end. That compiles to vector
    code; A x A masks, or `jnp.roll` for each shift, are about twice as slow.
    """
    rings = [jnp.concatenate([array, array]) for array in values]
    num_agents = len(values[0])
    result = jnp.zeros((num_agents,), bool)
    for shift in range(1, num_agents):
        result |= relation(*(ring[shift : shift + num_agents] for ring in rings))
    return result
