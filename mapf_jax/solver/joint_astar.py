"""Optimal plans of a group of agents: A* over their joint cells, partially expanded.

A state's successors are made in order of their estimates, and only those that the search needs:
enhanced partial expansion A* (Goldenberg et al., "Enhanced partial expansion A*", JAIR 50, 2014).
Estimates are sums of the agents' own distances, raised by tables of pairs and triples of agents
where they are given (`cost_tables`). An agent on its goal may stay there for good and then costs
nothing more; it counts as being in cell n.

Among plans of one estimate, those that collide least with the given plans of other agents come
first.
"""

from typing import NamedTuple

import numpy as np

from mapf_jax.solver.compiled import compiled, inlined, zeros
from mapf_jax.solver.cost_tables import NO_PLAN, Tables
from mapf_jax.types import INFINITE_COST

FOUND, NONE, OVERFLOW = 1, 0, -1
_ESTIMATES = 1 << 12  # Estimates above the first one that a search distinguishes.
_WAIT = 1  # What a wait adds to the estimate.
_AHEAD = 1  # With tables, successors up to this much above a state's estimate are made with it.
_COLLISIONS = 8  # Numbers of collisions that a search distinguishes, from 0 up.
_AVOIDING = 512  # States after which it no longer counts collisions.


class Group(NamedTuple):
    """A group of A agents that are planned together, on a graph of n cells."""

    neighbours: np.ndarray  # int16[n, 4], the cell that each move leads to, -1 where there is none.
    starts: np.ndarray  # int16[A], cells.
    goals: np.ndarray  # int16[A].
    distance: np.ndarray  # int32[A, n], length of the agent's own shortest path.


class Task(NamedTuple):
    """The objective of a search."""

    by_cost: bool  # The least sum of costs; otherwise any plan that meets the deadline.
    allow_wait: bool  # Whether agents may wait before they arrive.
    deadline: int  # No plan takes longer.


class Workspace(NamedTuple):
    """Memory for K states of up to A agents, clean between searches."""

    slot: np.ndarray  # int32[H], state in each slot of the hash table, -1 where it is empty.
    place: np.ndarray  # int32[K], slot of each state.
    state: np.ndarray  # int16[K, A], cells.
    paid: np.ndarray  # int32[K], cost so far.
    time: np.ndarray  # int32[K].
    parent: np.ndarray  # int32[K], the state before it, -1 for the first one.
    collisions: np.ndarray  # int32[K], collisions with other agents on the way to it.
    # Stacks of entries by estimate and collisions. An entry: state, its rank when it was entered,
    # least estimate of the successors still to be made, next entry.
    head: np.ndarray  # int32[_ESTIMATES * _COLLISIONS].
    entry: np.ndarray  # int32[E, 4].
    used: np.ndarray  # int64[3]: states, entries, the last stack.


@compiled
def workspace(capacity: int, agents: int) -> Workspace:
    """Memory for searches of up to `capacity` states of up to `agents` agents."""
    slots = 1
    while slots < 2 * capacity:
        slots *= 2
    return Workspace(
        np.full(slots, -1, np.int32), np.empty(capacity, np.int32),
        np.empty((capacity, agents), np.int16), np.empty(capacity, np.int32),
        np.empty(capacity, np.int32), np.empty(capacity, np.int32), np.empty(capacity, np.int32),
        np.full(_ESTIMATES * _COLLISIONS, -1, np.int32), np.empty((2 * capacity, 4), np.int32),
        np.zeros(3, np.int64),
    )  # fmt: skip


@inlined
def search(
    group: Group, tables: Tables, task: Task, max_cost: int, others: np.ndarray, memory: Workspace
) -> tuple[int, int, np.ndarray]:
    """An optimal plan of a group.

    Args:
      group: the agents; every one can reach its goal.
      tables: lower bounds of the task's objective; none are needed.
      task: what is searched for.
      max_cost: no plan costs more.
      others: int16[T >= 1, O], plans of other agents, which rest at their ends.
      memory: how many states may be kept.

    Returns:
      (FOUND, NONE where there is no such plan or OVERFLOW where memory did not suffice;
      cost; int16[T, A], the cells of the plan, of T = 0 times where none was found).
    """
    result = _search(group, tables, task, max_cost, others, memory)
    states, _, last = memory.used
    for where in memory.place[:states]:
        memory.slot[where] = -1
    for stack in range(last + 1):
        memory.head[stack] = -1
    return result


@compiled
def _search(
    group: Group, tables: Tables, task: Task, max_cost: int, others: np.ndarray, memory: Workspace
) -> tuple[int, int, np.ndarray]:
    # One long function: Numba counts references to each array argument of a call, which would take
    # most of the time if every successor made a call.
    neighbours, _, goals, distance = group
    by_cost, allow_wait, deadline = task
    slot, place, state, paid, time, parent, collisions, head, entry, used = memory
    n, agents = len(neighbours), len(goals)
    values, first, partners, begin, states = tables
    tabled = len(first) > 0
    cells, here, after = zeros(agents), zeros(agents), zeros(agents)
    rest, chosen, number, choice = zeros(agents), zeros(agents), zeros(agents), zeros(agents)
    # By agent and option: the cell it stands in afterwards, the same or n, what it adds.
    option, added = np.empty((agents, 6, 2), np.int64), np.empty((agents, 6), np.int64)
    partial = zeros(agents + 1)
    hashes = np.zeros(agents + 1, np.uint64)
    # By table: where its row of values for the last agent's cells begins; the extra cost of the
    # agents that are not in it, and of those that are.
    row, beside, excess = zeros(len(first)), zeros(len(first)), zeros(len(first))
    # By set of agents that have moved, their extra cost by disjoint tables.
    best = zeros(1 << agents if tabled else 1)
    nothing = np.empty((0, agents), np.int16)
    mask, free = np.uint64(len(slot) - 1), -1
    bounded = not by_cost or max_cost < INFINITE_COST
    used[0] = used[1] = used[2] = 0

    least = longest = 0  # Estimates are above `least`.
    for i in range(agents):
        state[0, i] = group.starts[i]
        hashes[i + 1] = mixed(hashes[i], group.starts[i])
        least += distance[i, group.starts[i]]
        longest = max(longest, distance[i, group.starts[i]])
    if longest > deadline or least > max_cost:
        return NONE, 0, nothing
    paid[0], time[0], parent[0], collisions[0] = 0, 0, -1, 0
    place[0] = hashes[agents] & mask
    slot[place[0]] = 0
    entry[0, 0], entry[0, 1], entry[0, 2], entry[0, 3] = 0, 0, 0, -1
    stack = head[0] = 0
    used[0], used[1], used[2] = 1, 1, 0

    while stack <= used[2]:
        top = head[stack]
        if top < 0:
            stack += 1
            continue
        head[stack] = entry[top, 3]
        estimate, met = divmod(stack, _COLLISIONS)
        node, rank, low = entry[top, 0], entry[top, 1], entry[top, 2]
        # It may have been reached at less cost, earlier, or with fewer collisions since.
        if rank != (paid[node] if by_cost else time[node]) or collisions[node] < met:
            entry[top, 3] = free
            free = top
            continue
        arrived = True
        base = paid[node] - least if by_cost else 0
        for i in range(agents):
            cells[i] = state[node, i]
            here[i] = goals[i] if cells[i] == n else cells[i]
            base += distance[i, here[i]]
            base -= 1 if not by_cost and here[i] != goals[i] else 0
            arrived = arrived and here[i] == goals[i]
        if arrived:
            return FOUND, int(paid[node]), path_to(state, parent, node, n, goals)
        later = time[node] + 1
        for i in range(agents):
            cell, count = cells[i], 0
            if here[i] == goals[i]:
                option[i, 0, 0], option[i, 0, 1], added[i, 0] = here[i], n if by_cost else cell, 0
                count = 1
            if cell < n:  # Options by what they add: a move closer 0, a wait 1, a move away 2.
                own_distance = distance[i, cell]
                for surplus in range(3):
                    if surplus == _WAIT:
                        wait = allow_wait and (by_cost or here[i] != goals[i])
                        if wait and later + own_distance <= deadline:
                            option[i, count, 0] = option[i, count, 1] = cell
                            added[i, count] = surplus
                            count += 1
                        continue
                    for move in range(4):
                        there = neighbours[cell, move]
                        if there < 0 or distance[i, there] - own_distance + 1 != surplus:
                            continue
                        if later + distance[i, there] <= deadline:
                            option[i, count, 0] = option[i, count, 1] = there
                            added[i, count] = surplus
                            count += 1
            number[i] = count

        # The extra cost of the agents after each one, by their tables.
        if tabled and by_cost:
            for i in range(agents):
                rest[i] = 0
                for t in range(begin[i], begin[i + 1]):
                    j, k = partners[t, 0], partners[t, 1]
                    code = cells[j] if k < 0 else cells[j] * states + cells[k]
                    more = values[first[t] + code * states + cells[i]]
                    for before in range(j):
                        rest[before] = max(rest[before], more)
        # All joint moves with estimates from `low` to `limit`, which at the second time is the
        # bound itself: any plan within it will do. `beyond` is the least estimate above.
        limit = max_cost - least if by_cost else INFINITE_COST
        if not bounded or low == 0:
            limit = min(limit, estimate + (_AHEAD if tabled and by_cost else 0))
        beyond = INFINITE_COST
        i = 0
        choice[0], partial[0] = 0, base
        while i >= 0:
            if choice[i] == number[i]:
                i -= 1
                continue
            this = choice[i]
            choice[i] += 1
            total = partial[i] + added[i, this]
            spare = limit - total - rest[i]
            if spare < 0:
                beyond = min(beyond, limit - spare)
                choice[i] = number[i]
                continue
            there = option[i, this, 0]
            legal = True
            for j in range(i):
                if after[j] == there or (after[j] == here[i] and there == here[j]):
                    legal = False
                    break
            after[i], chosen[i], partial[i + 1] = there, option[i, this, 1], total
            if not legal:
                continue
            if tabled:
                if not by_cost:
                    spare = deadline - later
                more = best[(1 << i) - 1]
                for t in range(begin[i], begin[i + 1]):
                    excess[t] = values[row[t] + chosen[i]]
                    more = max(more, excess[t] + beside[t])
                    if excess[t] == NO_PLAN:
                        more = INFINITE_COST
                    if more > spare:
                        break
                if more > spare:
                    if by_cost:
                        beyond = min(beyond, limit - spare + more)
                    continue
                if i == agents - 1:
                    total += more
            hashes[i + 1] = mixed(hashes[i], chosen[i])
            if i < agents - 1:
                if tabled and by_cost:
                    for some in range(1 << i):
                        best[1 << i | some] = best[some]
                    for t in range(begin[i], begin[i + 1]):
                        j, k = partners[t, 0], partners[t, 1]
                        pair = 1 << j | (1 << k if k >= 0 else 0)
                        for some in range(pair, 1 << i):
                            if some & pair == pair:
                                with_it = excess[t] + best[some ^ pair]
                                best[1 << i | some] = max(best[1 << i | some], with_it)
                i += 1
                choice[i] = 0
                for t in range(begin[i], begin[i + 1]) if tabled else range(0):
                    j, k = partners[t, 0], partners[t, 1]
                    code, some = chosen[j], (1 << i) - 1 ^ 1 << j
                    if k >= 0:
                        code, some = code * states + chosen[k], some ^ 1 << k
                    row[t], beside[t] = first[t] + code * states, best[some]
                continue
            if total < low:
                continue

            cost = paid[node]
            for j in range(agents):
                resting = chosen[j] == n or (not by_cost and after[j] == goals[j] == here[j])
                cost += 0 if resting else 1
            rank = cost if by_cost else later
            where = hashes[agents] & mask
            found = -1
            while slot[where] >= 0:
                known = slot[where]
                same = True
                for j in range(agents):
                    if state[known, j] != chosen[j]:
                        same = False
                        break
                if same:
                    found = known
                    break
                where = (where + np.uint64(1)) & mask
            so_far = met
            if used[0] < _AVOIDING:
                so_far = min(met + _collisions(here, after, others, later), _COLLISIONS - 1)
            if found >= 0:
                known = paid[found] if by_cost else time[found]
                if known < rank or (known == rank and collisions[found] <= so_far):
                    continue
            key = max(estimate, total) if by_cost else min(total, _ESTIMATES - 1)
            if key >= _ESTIMATES:
                return OVERFLOW, 0, nothing
            if found < 0:
                found = used[0]
                if found == len(place):
                    return OVERFLOW, 0, nothing
                used[0] += 1
                slot[where], place[found] = found, where
                for j in range(agents):
                    state[found, j] = chosen[j]
            paid[found], time[found] = cost, later
            parent[found], collisions[found] = node, so_far
            new = free
            if new >= 0:
                free = entry[new, 3]
            else:
                new = used[1]
                if new == len(entry):
                    return OVERFLOW, 0, nothing
                used[1] += 1
            entry[new, 0], entry[new, 1], entry[new, 2] = found, rank, 0
            where = key * _COLLISIONS + so_far
            entry[new, 3] = head[where]
            head[where] = new
            stack = min(stack, where)
            used[2] = max(used[2], where)
        if beyond <= max_cost - least and beyond < INFINITE_COST:
            if by_cost and beyond >= _ESTIMATES:
                return OVERFLOW, 0, nothing
            where = min(beyond, _ESTIMATES - 1) * _COLLISIONS + met
            entry[top, 2], entry[top, 3] = beyond, head[where]
            head[where] = top
            used[2] = max(used[2], where)
        else:
            entry[top, 3] = free
            free = top
    return NONE, 0, nothing


@compiled
def _collisions(before: np.ndarray, after: np.ndarray, others: np.ndarray, later: int) -> int:
    """Number of collisions with others in a step that ends at the time `later`."""
    count, last = 0, len(others) - 1
    for k in range(others.shape[1]):
        there, came_from = others[min(later, last), k], others[min(later - 1, last), k]
        for i in range(len(after)):
            swapped = there == before[i] and came_from == after[i]
            if there == after[i] or swapped:
                count += 1
    return count


@compiled
def mixed(mixed: np.uint64, cell: int) -> np.uint64:
    """The hash of some cells and one more."""
    mixed = (mixed ^ np.uint64(cell)) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ mixed >> np.uint64(29)


@compiled
def path_to(
    state: np.ndarray, parent: np.ndarray, node: int, n: int, goals: np.ndarray
) -> np.ndarray:
    """int[T, A]: the cells on the way to a state; n stands for the goal."""
    steps, last = 0, node
    while parent[last] >= 0:
        steps, last = steps + 1, parent[last]
    path = np.empty((steps + 1, len(goals)), goals.dtype)
    for t in range(steps, -1, -1):
        for i in range(len(goals)):
            path[t, i] = goals[i] if state[node, i] == n else state[node, i]
        node = parent[node]
    return path
