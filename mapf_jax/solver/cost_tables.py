"""Exact costs of pairs and triples of agents from all their joint cells: pattern databases.

What a group still has to pay is at least what disjoint subsets of its agents have to pay on their
own. Agents live on a graph of n cells; an agent that stays on its goal for good counts as being in
cell n, so that a subset of k agents has (n + 1) ** k states.
"""

from typing import NamedTuple

import numpy as np

from mapf_jax.solver.compiled import compiled
from mapf_jax.types import INFINITE_COST

_LARGEST_TABLES = 0, 0, 200_000, 1 << 20  # States of a subset, by the number of its agents.
_MOST_AGENTS = 8  # Subsets of more agents are too many to be worth their time.
_LONGEST = 1 << 12  # No cost of three agents on at most 100 cells comes near.


class Tables(NamedTuple):
    """Tables of T subsets of the A agents, in order of their last agents."""

    values: np.ndarray  # int16[...], all tables one after another, -1 where there is no plan.
    first: np.ndarray  # int64[T], where each table begins.
    members: np.ndarray  # int64[T, 3], its agents in rising order, then -1.
    begin: np.ndarray  # int64[A + 1], [i]: how many subsets end with an agent before i.
    occurrences: np.ndarray  # int64[4], [k]: in how many subsets of k agents every agent is.
    states: int  # n + 1.


@compiled
def no_tables() -> Tables:
    """Tables of no subset, which bound nothing."""
    nothing = np.zeros(0, np.int64)
    members = np.zeros((0, 3), np.int64)
    return Tables(np.zeros(0, np.int16), nothing, members, nothing, np.ones(4, np.int64), 0)


@compiled
def build_tables(neighbours: np.ndarray, goals: np.ndarray, largest: int, by_cost: bool) -> Tables:
    """Tables of all pairs and, where they are small enough, triples of some agents.

    Args:
      neighbours: int16[n, 4], the cell that each move leads to, -1 where there is none.
      goals: int16[A], cells.
      largest: agents of a subset, 2 or 3.
      by_cost: sums of costs; otherwise makespans.
    """
    agents, states = len(goals), len(neighbours) + 1
    while largest > 1 and states**largest > _LARGEST_TABLES[largest]:
        largest -= 1
    if agents > _MOST_AGENTS or largest < 2 or agents < 2:
        return no_tables()
    members = np.full((agents * agents * agents, 3), -1, np.int64)
    begin = np.zeros(agents + 1, np.int64)
    count = 0
    for last in range(agents):
        for j in range(last):
            members[count, 0], members[count, 1] = j, last
            count += 1
            for i in range(j if largest == 3 else 0):
                members[count, 0], members[count, 1], members[count, 2] = i, j, last
                count += 1
        begin[last + 1] = count
    first = np.zeros(count + 1, np.int64)
    for t in range(count):
        first[t + 1] = first[t] + states ** (2 if members[t, 2] < 0 else 3)
    values = np.full(first[count], -1, np.int16)
    for t in range(count):
        some = np.empty(2 if members[t, 2] < 0 else 3, np.int64)
        for j in range(len(some)):
            some[j] = goals[members[t, j]]
        _costs_to_go(neighbours, some, by_cost, values[first[t] : first[t + 1]])
    occurrences = np.empty(4, np.int64)
    occurrences[2], occurrences[3] = agents - 1, max(1, (agents - 1) * (agents - 2) // 2)
    return Tables(values, first[:count], members[:count], begin, occurrences, states)


@compiled
def _costs_to_go(neighbours: np.ndarray, goals: np.ndarray, by_cost: bool, out: np.ndarray) -> None:
    """Sets int16[(n + 1) ** k] of k agents, all -1 before; the first one's cell counts most.

    Dial's algorithm backwards from all goals. Moves can be turned round: following turned round
    is following.
    """
    n, agents = len(neighbours), len(goals)
    states = n + 1
    # Stacks of states by cost; a state enters one again whenever its cost falls.
    head = np.full(_LONGEST, -1, np.int32)
    item = np.empty(agents * len(out) + 1, np.int32)
    link = np.empty_like(item)
    cells, before, number, choice = np.empty((4, agents), np.int64)
    option = np.empty((agents, 5), np.int64)
    code = 0
    for i in range(agents):
        code = code * states + (n if by_cost else goals[i])
    out[code], item[0], link[0], head[0] = 0, code, -1, 0
    used, cost, last = 1, 0, 0
    while cost <= last:
        entry = head[cost]
        if entry < 0:
            cost += 1
            continue
        head[cost] = link[entry]
        code = item[entry]
        if out[code] != cost:
            continue
        step = 0 if by_cost else 1
        for i in range(agents - 1, -1, -1):
            cell = code % states
            code //= states
            if cell == n:  # It was there for good, or came to stay.
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
        total = cost + step
        i = 0
        choice[0] = 0
        while i >= 0:
            if choice[i] == number[i]:
                i -= 1
                if i >= 0:
                    choice[i] += 1
                continue
            cell = option[i, choice[i]]
            before[i] = goals[i] if cell == n else cell
            legal = True
            for j in range(i):
                swapped = before[j] == cells[i] and before[i] == cells[j]
                legal = legal and before[j] != before[i] and not swapped
            if legal and i < agents - 1:
                i += 1
                choice[i] = 0
                continue
            choice[i] += 1
            if not legal:
                continue
            code = 0
            for j in range(agents):
                # The choice of the last agent has moved on.
                code = code * states + option[j, choice[j] - (1 if j == i else 0)]
            if out[code] < 0 or out[code] > total:
                out[code] = total
                item[used], link[used], head[total] = code, head[total], used
                used += 1
                last = max(last, total)


@compiled
def extra_cost(
    tables: Tables, cells: np.ndarray, own: np.ndarray, excess: np.ndarray, best: np.ndarray
) -> int:
    """What a group has to pay at least on top of its agents' shortest paths.

    A subset's excess is what it has to pay on top. Disjoint subsets add up; so do all subsets of k
    agents, each with the weight one over the number of those that an agent is in.

    Args:
      tables: sums of costs, of T subsets.
      cells: int64[A], n for an agent that stays on its goal for good.
      own: int64[A], distance of each agent to its goal.
      excess: int64[T], overwritten.
      best: int64[2 ** A], overwritten.

    Returns:
      The bound; `INFINITE_COST` where some subset has no plan.
    """
    agents, count = len(own), len(tables.first)
    sums = np.zeros(4, np.int64)
    for t in range(count):
        value = _look_up(tables, t, cells)
        if value < 0:
            return INFINITE_COST
        size = 2 if tables.members[t, 2] < 0 else 3
        for j in range(size):
            value -= own[tables.members[t, j]]
        excess[t] = value
        sums[size] += value
    bound = 0
    for size in range(2, 4):
        bound = max(bound, -(-sums[size] // tables.occurrences[size]))
    # best[set]: the most that disjoint subsets of a set of agents add up to.
    best[0] = 0
    for i in range(agents):
        for others in range(1 << i):
            most = best[others]
            for t in range(tables.begin[i], tables.begin[i + 1]):
                taken = 1 << tables.members[t, 0]
                if tables.members[t, 2] >= 0:
                    taken |= 1 << tables.members[t, 1]
                if taken & others == taken:
                    most = max(most, excess[t] + best[others ^ taken])
            best[others | 1 << i] = most
    return max(bound, best[(1 << agents) - 1])


@compiled
def within(tables: Tables, i: int, cells: np.ndarray, own: np.ndarray, most: int) -> bool:
    """Whether no subset that ends with agent i needs more than `most` on top of its agents' own.

    Without tables none does.
    """
    for t in range(tables.begin[i], tables.begin[i + 1]) if len(tables.first) else range(0):
        value = _look_up(tables, t, cells)
        if value < 0:
            return False
        for agent in tables.members[t]:
            value -= own[agent] if agent >= 0 else 0
        if value > most:
            return False
    return True


@compiled
def _look_up(tables: Tables, t: int, cells: np.ndarray) -> int:
    code = cells[tables.members[t, 0]]
    for j in range(1, 3):
        agent = tables.members[t, j]
        if agent >= 0:
            code = code * tables.states + cells[agent]
    return int(tables.values[tables.first[t] + code])
