"""Exact costs of pairs and triples of agents from all their joint cells: pattern databases.

The remaining cost of a group is at least the sum of the costs of disjoint subsets of its agents on
their own. Agents live on a graph of n cells; an agent that stays on its goal for good counts as
being in cell n, so that a subset of k agents has (n + 1) ** k states. Tables hold the cost of a
subset above its agents' own shortest paths, in a byte: a search reads them at random, and its speed
depends on how much of them the processor's caches hold.
"""

import math
from typing import NamedTuple

import numpy as np

from mapf_jax.solver.compiled import compiled, zeros
from mapf_jax.types import INFINITE_COST

_LARGEST_TABLES = 0, 0, 200_000, 1 << 20  # States of a subset, by the number of its agents.
_MOST_AGENTS = 8  # More agents have too many subsets to be worth their time.
#: Stands for no plan. Values from it up are stored as the number before it, a lower bound.
NO_PLAN = 255


class Tables(NamedTuple):
    """Tables of T subsets of the A agents, in order of their last agents."""

    values: np.ndarray  # uint8[...], all tables one after another, `NO_PLAN` where there is none.
    first: np.ndarray  # int64[T], where each table begins.
    partners: np.ndarray  # int64[T, 2], its other agents in rising order, -1 for a second of none.
    begin: np.ndarray  # int64[A + 1], [i]: how many subsets end with an agent before i.
    states: int  # n + 1.


@compiled
def no_tables() -> Tables:
    """Tables of no subset, which bound nothing."""
    nothing = np.zeros(0, np.int64)
    return Tables(np.zeros(0, np.uint8), nothing, np.zeros((0, 2), np.int64), nothing, 0)


@compiled
def build_tables(
    neighbours: np.ndarray, goals: np.ndarray, distance: np.ndarray, largest: int, by_cost: bool
) -> Tables:
    """Tables of all pairs and, where they are small enough, triples of some agents.

    Args:
      neighbours: int16[n, 4], the cell that each move leads to, -1 where there is none.
      goals: int16[A], cells.
      distance: int32[A, n], length of the agent's own shortest path.
      largest: agents of a subset, 2 or 3.
      by_cost: sums of costs, less the agents' own; otherwise whole makespans.
    """
    agents, states = len(goals), len(neighbours) + 1
    while largest > 1 and states**largest > _LARGEST_TABLES[largest]:
        largest -= 1
    if agents > _MOST_AGENTS or largest < 2 or agents < 2:
        return no_tables()
    partners = np.full((agents * agents * agents, 2), -1, np.int64)
    first = np.zeros(len(partners) + 1, np.int64)
    begin = np.zeros(agents + 1, np.int64)
    count = 0
    for last in range(agents):
        for j in range(last):
            for i in range(-1, j if largest == 3 else 0):
                partners[count, 0] = j if i < 0 else i
                partners[count, 1] = i if i < 0 else j
                first[count + 1] = first[count] + states ** (2 if i < 0 else 3)
                count += 1
        begin[last + 1] = count
    values = np.full(first[count], NO_PLAN, np.uint8)
    own = np.zeros((agents, states), np.int32)
    if by_cost:  # An assignment of slices takes seconds to compile.
        for i in range(agents):
            for cell in range(states - 1):
                own[i, cell] = distance[i, cell]
    for last in range(agents):
        for t in range(begin[last], begin[last + 1]):
            i, j = partners[t]
            some = np.array([i, last]) if j < 0 else np.array([i, j, last])
            table = values[first[t] : first[t + 1]]
            _costs_to_go(neighbours, goals[some], own[some], by_cost, table)
    return Tables(values, first[:count], partners[:count], begin, states)


@compiled
def most_entangled_first(tables: Tables, starts: np.ndarray) -> np.ndarray:
    """The agents by the cost of their pairs above shortest paths, highest first.

    A search that moves them in this order soon finds which joint moves cost too much.

    Args:
      tables: of pairs, by cost.
      starts: int16[A], cells.

    Returns:
      int64[A].
    """
    agents = len(starts)
    extra, order = zeros(agents), zeros(agents)
    for i in range(agents):
        for t in range(tables.begin[i], tables.begin[i + 1]) if len(tables.first) else range(0):
            j = tables.partners[t, 0]
            more = tables.values[tables.first[t] + starts[j] * tables.states + starts[i]]
            extra[i] += more
            extra[j] += more
    for k in range(agents):
        order[k] = np.argmax(extra)
        extra[order[k]] = -INFINITE_COST
    return order


@compiled
def _bit(cell: int) -> np.uint64:
    return np.uint64(1) << np.uint64(cell & 63)


@compiled
def _costs_to_go(
    neighbours: np.ndarray, goals: np.ndarray, own: np.ndarray, by_cost: bool, out: np.ndarray
) -> None:
    """Sets uint8[(n + 1) ** k] of k agents, all `NO_PLAN` before; the first one's cell counts most.

    Values are costs less `own`, int32[k, n + 1], the cost of each agent on its own.

    Dial's algorithm backwards from all goals. Moves can be reversed: following reversed is
    following. A set of bits holds all cells of the last agent that have one cost with the same
    cells of the others, whose numbers form their code. Such a set moves at once.
    """
    n, others = len(neighbours), len(goals) - 1
    states, last = n + 1, goals[others]
    words, codes = n // 64 + 1, len(out) // states
    turns = others + 2  # Costs are counted modulo a number above the cost of a step.
    near = np.zeros((n, words), np.uint64)  # Each cell and its neighbours.
    for cell in range(n):
        near[cell, cell // 64] |= _bit(cell)
        for move in range(4):
            there = neighbours[cell, move]
            if there >= 0:
                near[cell, there // 64] |= _bit(there)
    known = np.zeros((codes, words), np.uint64)
    coming = np.zeros((turns, codes, words), np.uint64)
    waiting = np.zeros((turns, codes), np.bool_)
    queue, length = np.empty((turns, codes), np.int32), np.zeros(turns, np.int64)
    cells, before, prefix = zeros(others), zeros(others), zeros(others + 1)
    number, choice = zeros(others), zeros(others)
    option = np.empty((others, 5), np.int64)
    new, kept = np.zeros(words, np.uint64), np.zeros(words, np.uint64)
    rested = np.zeros(words, np.uint64)
    reached = np.zeros((2, words), np.uint64)  # By an agent that rests, and by one that moves.
    rested[last // 64] |= _bit(last)
    if by_cost:
        rested[n // 64] |= _bit(n)
    for resting in range(1 << others if by_cost else 1):
        code = 0
        for i in range(others):
            code = code * states + (n if resting >> i & 1 else goals[i])
        for w in range(words):
            coming[0, code, w] = rested[w]
        waiting[0, code] = True
        queue[0, resting] = code
        length[0] += 1

    cost = idle = 0
    while idle < turns:
        turn = cost % turns
        idle += 1
        for item in range(length[turn]):
            code = queue[turn, item]
            waiting[turn, code] = False
            for w in range(words):
                new[w] = coming[turn, code, w] & ~known[code, w]
                known[code, w] |= new[w]
                coming[turn, code, w] = reached[0, w] = reached[1, w] = 0
            some = np.uint64(0)
            for w in range(words):
                some |= new[w]
            if not some:
                continue
            place, step, spent = code * states, 0, 0
            for i in range(others - 1, -1, -1):
                cell = code % states
                code //= states
                spent += own[i, cell]
                if cell == n:
                    cells[i] = goals[i]
                    option[i, 0], option[i, 1], number[i] = n, goals[i], 2
                    continue
                step += 1 if by_cost else 0
                cells[i] = cell
                option[i, 0], number[i] = cell, 1
                for move in range(4):
                    if neighbours[cell, move] >= 0:
                        option[i, number[i]] = neighbours[cell, move]
                        number[i] += 1
            idle = 0
            for w in range(words):
                bits = new[w]
                while bits:
                    lowest = bits & (~bits + np.uint64(1))
                    bits ^= lowest
                    cell = 64 * w + math.frexp(lowest)[1] - 1
                    out[place + cell] = min(cost - spent - own[others, cell], NO_PLAN - 1)
                    for v in range(words):
                        if cell == n:  # It was there for good, or came to stay.
                            reached[0, v] = rested[v]
                        else:
                            reached[1, v] |= near[cell, v]
            i = choice[0] = 0
            while i >= 0:
                if choice[i] == number[i]:
                    i -= 1
                    continue
                cell = option[i, choice[i]]
                choice[i] += 1
                before[i] = goals[i] if cell == n else cell
                prefix[i + 1] = prefix[i] * states + cell
                legal = True
                for j in range(i):
                    swapped = before[j] == cells[i] and before[i] == cells[j]
                    legal = legal and before[j] != before[i] and not swapped
                if not legal:
                    continue
                if i < others - 1:
                    i += 1
                    choice[i] = 0
                    continue
                code = prefix[others]
                for moved in range(2):
                    some = np.uint64(0)
                    for w in range(words):
                        kept[w] = reached[moved, w] & ~known[code, w]
                        some |= kept[w]
                    if not some:
                        continue
                    for j in range(others):
                        there, here = before[j], cells[j]
                        kept[there // 64] &= ~_bit(there)
                        if not moved and there == last:
                            kept[n // 64] &= ~_bit(n)
                        if moved and kept[here // 64] & _bit(here):
                            swapped = True  # Whether it gets there by a swap alone.
                            for w in range(words):
                                came_from = new[w] & near[here, w]
                                if w == there // 64:
                                    came_from &= ~_bit(there)
                                swapped = swapped and came_from == 0
                            if swapped:
                                kept[here // 64] &= ~_bit(here)
                    at = (turn + step + moved) % turns
                    some = np.uint64(0)
                    for w in range(words):
                        coming[at, code, w] |= kept[w]
                        some |= kept[w]
                    if some and not waiting[at, code]:
                        waiting[at, code] = True
                        queue[at, length[at]] = code
                        length[at] += 1
        length[turn] = 0
        cost += 1
