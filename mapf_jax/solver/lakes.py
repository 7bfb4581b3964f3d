"""Exact optima of lakes: which of their agents are planned together, and by which searches."""

from typing import NamedTuple

import numpy as np

from mapf_jax.dynamics import MOVES
from mapf_jax.solver.compiled import compiled, inlined
from mapf_jax.solver.cost_tables import Tables, build_tables, most_entangled_first, no_tables
from mapf_jax.solver.joint_astar import (
    FOUND,
    NONE,
    OVERFLOW,
    Group,
    Task,
    Workspace,
    search,
    workspace,
)  # fmt: skip
from mapf_jax.types import INFINITE_COST, Status

#: States of the first search, without tables.
CAPACITY = 1 << 12
#: Searches of more agents keep fewer states, so that they take no more memory.
USUAL_AGENTS = 5
# Later searches have tables, and the last one has what memory the caller allows.
_PAIRS, _TRIPLES = 1, 2


class _Bounds(NamedTuple):
    """Tables of triples by cost, kept because the next search may ask for the same."""

    order: np.ndarray  # int64[k], of the agents in the tables among those of their set.
    goals: np.ndarray  # int16[k], in this order.
    tables: Tables


_OPTIMAL, _FEASIBLE, _UNSOLVABLE, _UNKNOWN = map(int, Status)


@compiled
def solve_lakes(
    blocked: np.ndarray,
    starts: np.ndarray,
    goals: np.ndarray,
    active: np.ndarray,
    max_states: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Exact optima of a batch of lakes, one after another; arguments as of `batch.solve`.

    Returns:
      (int32[B, 5]: status, cost, makespan, whether a wait is needed, moves of the plan; int8[B, T,
      A, 2], the plans, which rest at their ends, and on the starts where there is none).
    """
    batch, agents = active.shape
    labels = np.empty((batch, 5), np.int32)
    memory = workspace(min(CAPACITY, max_states), agents)
    found, longest = [], 0
    for b in range(batch):
        paths = _solve_lake(
            blocked[b], starts[b], goals[b], active[b], max_states, memory, labels[b]
        )
        found.append(paths)
        longest = max(longest, len(paths))
    plans = np.empty((batch, longest, agents, 2), np.int8)
    for b in range(batch):
        for t in range(longest):
            _copy(found[b][min(t, len(found[b]) - 1)], plans[b, t])
    return labels, plans


@inlined
def _solve_lake(
    blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray, active: np.ndarray,
    max_states: int, memory: Workspace, labels: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The plan of one lake, int8[T, A, 2]; sets its row of `solve_lakes`' labels.

    Agents in different parts of a lake cannot meet: each part is solved on its own.
    """
    width, agents = len(blocked), len(active)
    number = np.full(width * width, -1, np.int16)
    cells = np.empty(width * width, np.int16)
    neighbours = np.empty((width * width, 4), np.int16)
    left = active.copy()
    labels[0], labels[1], labels[2], labels[3], labels[4] = _OPTIMAL, 0, 0, 0, 0
    paths = np.empty((1, agents, 2), np.int8)
    _copy(starts, paths[0])
    for first in range(agents):
        if not left[first]:
            continue
        n = _explore(
            blocked, width * starts[first, 0] + starts[first, 1], number, cells, neighbours
        )
        team = np.empty(agents, np.int64)
        size = 0
        for i in range(first, agents):
            if left[i] and number[width * starts[i, 0] + starts[i, 1]] >= 0:
                team[size] = i
                size += 1
                left[i] = False
        begin, end = np.empty(size, np.int16), np.empty(size, np.int16)
        distance = np.empty((size, n), np.int32)
        for i in range(size):
            agent = team[i]
            begin[i] = number[width * starts[agent, 0] + starts[agent, 1]]
            end[i] = number[width * goals[agent, 0] + goals[agent, 1]]
            if end[i] < 0:
                labels[0] = _UNSOLVABLE
                break
            distances(neighbours[:n], end[i], distance[i])
        if labels[0] == _UNSOLVABLE:
            break
        group = Group(neighbours[:n], begin, end, distance)
        status, cost, makespan, needs_wait, path = _solve_group(group, max_states, memory)
        for cell in cells[:n]:
            number[cell] = -1
        if status in (_UNSOLVABLE, _UNKNOWN):
            labels[0] = status
            if status == _UNSOLVABLE:  # It settles the lake.
                break
            continue
        if status == _FEASIBLE and labels[0] == _OPTIMAL:
            labels[0] = status
        labels[1] += cost
        labels[2] = max(labels[2], makespan)
        labels[3] |= needs_wait
        if len(path) > len(paths):
            longer = np.empty((len(path), agents, 2), np.int8)
            for t in range(len(path)):
                _copy(paths[min(t, len(paths) - 1)], longer[t])
            paths = longer
        for i in range(size):
            for t in range(len(paths)):
                cell = cells[path[min(t, len(path) - 1), i]]
                paths[t, team[i], 0], paths[t, team[i], 1] = cell // width, cell % width
    if labels[0] in (_UNSOLVABLE, _UNKNOWN):
        labels[1], labels[2], labels[3], labels[4] = INFINITE_COST, INFINITE_COST, 0, 0
        _copy(starts, paths[0])
        return paths[:1]
    labels[4] = len(paths) - 1
    return paths


@inlined
def _solve_group(
    group: Group, max_states: int, memory: Workspace
) -> tuple[int, int, int, bool, np.ndarray]:
    """(status, cost, makespan, whether a wait is needed, plan int16[T, A]) of agents that can meet.

    The plan has the least cost, and no waits if such a plan exists. If FEASIBLE it has the least
    cost, and the rest is not known.
    """
    agents = len(group.goals)
    shortest, longest = 0, 0
    for i in range(agents):
        shortest += group.distance[i, group.starts[i]]
        longest = max(longest, group.distance[i, group.starts[i]])
    path = _shortest_paths(group, longest)
    if len(path):
        return _OPTIMAL, shortest, longest, False, path
    # By agent, its set; by set, what its plan costs, and at most may cost.
    sets, spent, limits = np.empty((3, agents), np.int64)
    for i in range(agents):
        sets[i], limits[i] = i if agents > 2 else 0, INFINITE_COST
    task = Task(True, True, INFINITE_COST)
    bounds = _Bounds(np.arange(0), group.goals[:0], no_tables())
    found, path, bounds = _plan_apart(group, task, sets, spent, limits, max_states, memory, bounds)
    if found != FOUND:
        return _UNSOLVABLE if found == NONE else _UNKNOWN, 0, 0, False, path
    cost = 0
    for i in range(agents):
        limits[i] = spent[i]
        cost += spent[i]
    makespan, waits = _arrival_and_waits(path, group.goals)
    # Without waits every path has the parity of a shortest one, so an odd gap proves a wait. A gap
    # of 0 proves that there is none: who waits before it arrives is late.
    needs_wait = (cost - shortest) % 2 == 1
    if waits and not needs_wait:
        # In a cheapest plan of all agents every set has a cheapest plan of its own.
        task = Task(True, False, INFINITE_COST)
        found, other, bounds = _plan_apart(
            group, task, sets, spent, limits, max_states, memory, bounds
        )
        if found == OVERFLOW:
            return _FEASIBLE, cost, makespan, False, path
        needs_wait = found == NONE
        if found == FOUND:
            path = other
            makespan = min(makespan, _arrival_and_waits(path, group.goals)[0])
    for i in range(agents):
        sets[i], limits[i] = i if agents > 2 else 0, INFINITE_COST
    for deadline in range(longest, makespan):
        task = Task(False, True, deadline)
        found, _, bounds = _plan_apart(group, task, sets, spent, limits, max_states, memory, bounds)
        if found == OVERFLOW:
            return _FEASIBLE, cost, makespan, False, path
        if found == FOUND:
            makespan = deadline
            break
    return _OPTIMAL, cost, makespan, needs_wait, path


@compiled
def _shortest_paths(group: Group, steps: int) -> np.ndarray:
    """A plan in which every agent takes a shortest path, int16[steps + 1, A], or one of no times.

    One agent after another takes the first move that brings it closer without meeting those before
    it: most lakes are decided so, and the others are searched.
    """
    neighbours, starts, goals, distance = group
    path = np.empty((steps + 1, len(goals)), np.int16)
    for i in range(len(goals)):
        cell = starts[i]
        path[0, i] = cell
        for t in range(1, steps + 1):
            chosen = -1
            for move in range(4):
                there = neighbours[cell, move] if cell != goals[i] else cell
                if there < 0 or (there != cell and distance[i, there] >= distance[i, cell]):
                    continue
                free = True
                for j in range(i):
                    swapped = path[t, j] == cell and path[t - 1, j] == there
                    free = free and path[t, j] != there and not swapped
                if free:
                    chosen = there
                    break
            if chosen < 0:
                return path[:0]
            path[t, i] = cell = chosen
    return path


@compiled
def _plan_apart(
    group: Group, task: Task, sets: np.ndarray, spent: np.ndarray, limits: np.ndarray,
    max_states: int, memory: Workspace, bounds: _Bounds,
) -> tuple[int, np.ndarray, _Bounds]:  # fmt: skip
    """A plan made of plans of sets of agents, which are joined where they cannot avoid each other.

    Independence detection (Standley, "Finding optimal solutions to cooperative pathfinding
    problems", 2010): the costs of sets on their own bound the cost of all.

    Args:
      group: the agents.
      task: what is searched for.
      sets: int64[A], the set of each agent, named by one of its agents; updated.
      spent: int64[A], by set, set to the cost of its plan, 0 for names without a set.
      limits: int64[A], by set, the most that its plan may cost; updated.
      max_states: joint states that one search may keep.
      memory: of the first searches.
      bounds: kept from the last call.

    Returns:
      (FOUND, NONE or OVERFLOW; int16[T, A], the plan; bounds for the next call).
    """
    agents = len(group.goals)
    paths = np.empty((1, agents), np.int16)
    # By set: whether it needs a plan, and whether others' plans have changed since it got one.
    stale, behind = np.ones((2, agents), np.int64)
    for i in range(agents):
        spent[i] = 0
        paths[0, i] = group.starts[i]
    retried = -1
    while True:
        for name in range(agents):
            members = np.nonzero(sets == name)[0]
            if not len(members) or not (stale[name] or retried == name):
                continue
            rest = np.nonzero((sets != name) & (stale[sets] == 0))[0]
            begin, end = np.empty(len(members), np.int16), np.empty(len(members), np.int16)
            distance = np.empty((len(members), len(group.neighbours)), np.int32)
            for k in range(len(members)):
                begin[k], end[k] = group.starts[members[k]], group.goals[members[k]]
                for cell in range(len(group.neighbours)):
                    distance[k, cell] = group.distance[members[k], cell]
            others = np.empty((len(paths), len(rest)), np.int16)
            for t in range(len(paths)):
                for k in range(len(rest)):
                    others[t, k] = paths[t, rest[k]]
            some = Group(group.neighbours, begin, end, distance)
            limit = min(limits[name], INFINITE_COST)
            states = min(CAPACITY, max_states) if retried == name else max_states
            found, cost, path, bounds = _escalate(some, task, limit, others, states, memory, bounds)
            behind[name] = 0
            if found != FOUND and retried != name:
                return found, paths, bounds
            if found != FOUND:
                continue
            steps = max(len(path), len(paths))
            new = np.empty((steps, agents), np.int16)
            for t in range(steps):
                for i in range(agents):
                    new[t, i] = paths[min(t, len(paths) - 1), i]
                for k in range(len(members)):
                    new[t, members[k]] = path[min(t, len(path) - 1), k]
            if retried == name and _collisions(new, sets)[0] >= _collisions(paths, sets)[0]:
                continue
            paths, spent[name], stale[name] = new, cost, 0
            for other in range(agents):
                behind[other] = behind[other] if other == name else 1
        _, first, second = _collisions(paths, sets)
        if first < 0:
            return FOUND, paths, bounds
        # Another plan of one set may avoid the other set's.
        retried = sets[first] if behind[sets[first]] else sets[second]
        if behind[retried]:
            continue
        retried = -1
        kept, joined = sets[first], sets[second]
        limits[kept] += limits[joined]
        spent[joined] = 0
        stale[kept] = 1
        for i in range(agents):
            if sets[i] == joined:
                sets[i] = kept


@compiled
def _collisions(paths: np.ndarray, sets: np.ndarray) -> tuple[int, int, int]:
    """How often agents of different sets meet, and the first two that do, -1 if none do."""
    count, first, second = 0, -1, -1
    for t in range(len(paths)):
        before = paths[max(t - 1, 0)]
        for i in range(len(sets)):
            for j in range(i):
                swapped = paths[t, i] == before[j] and paths[t, j] == before[i]
                if sets[i] != sets[j] and (paths[t, i] == paths[t, j] or swapped):
                    if count == 0:
                        first, second = i, j
                    count += 1
    return count, first, second


@compiled
def _escalate(
    group: Group, task: Task, max_cost: int, others: np.ndarray, max_states: int,
    memory: Workspace, bounds: _Bounds,
) -> tuple[int, int, np.ndarray, _Bounds]:  # fmt: skip
    """`search` with more memory and better bounds until one of them is enough."""
    agents = len(group.goals)
    max_states = max(max_states * USUAL_AGENTS // max(agents, USUAL_AGENTS), 1)
    kept = task.by_cost and len(bounds.order) == agents
    if kept:
        kept = bool(np.all(group.goals[bounds.order] == bounds.goals))
    tables, order = no_tables(), np.arange(agents)
    level, capacity = 0, CAPACITY
    while True:
        last = level == _TRIPLES or capacity >= max_states
        if level > 0:
            memory = workspace(max_states if last else capacity, agents)
        found, cost, path = search(group, tables, task, max_cost, others, memory)
        if found != OVERFLOW or last:
            plan = np.empty_like(path)
            for t in range(len(path)):
                for i in range(agents):
                    plan[t, order[i]] = path[t, i]
            return found, cost, plan, bounds
        level = _TRIPLES if kept else level + 1
        if level == _PAIRS:  # As many states as take the time that tables of triples take.
            entries = agents * (agents - 1) * (agents - 2) // 6 * (len(group.neighbours) + 1) ** 3
            capacity = min(max(entries >> 7, 1 << 10), 1 << 15)
        if level == _TRIPLES and task.by_cost:
            order = bounds.order if kept else most_entangled_first(tables, group.starts)
            starts, goals = group.starts[order], group.goals[order]
            group = Group(group.neighbours, starts, goals, group.distance[order])
        if kept:
            tables = bounds.tables
        else:
            tables = build_tables(
                group.neighbours, group.goals, group.distance, level + 1, task.by_cost
            )
        if level == _TRIPLES and task.by_cost:
            bounds = _Bounds(order, group.goals, tables)


@compiled
def _arrival_and_waits(path: np.ndarray, goals: np.ndarray) -> tuple[int, bool]:
    """When the last agent arrives, and whether any agent waits before it does."""
    last, waits = 0, False
    for i in range(len(goals)):
        arrival = len(path)
        while arrival > 0 and path[arrival - 1, i] == goals[i]:
            arrival -= 1
        last = max(last, arrival)
        for t in range(arrival):
            waits = waits or path[t, i] == path[t + 1, i]
    return last, waits


@compiled
def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copies the cells of all agents; an assignment of slices takes seconds to compile."""
    for i in range(len(source)):
        target[i, 0], target[i, 1] = source[i, 0], source[i, 1]


@compiled
def _explore(
    blocked: np.ndarray, root: int, number: np.ndarray, cells: np.ndarray, neighbours: np.ndarray
) -> int:
    """Numbers the n cells of the lake's part around a cell; returns n.

    Args:
      blocked: bool[S, S].
      root: a cell, in row order.
      number: int16[S * S], of each cell, all -1 before.
      cells: int16[S * S], set to the cell of each number.
      neighbours: int16[S * S, 4], set as in `Group`.
    """
    width = len(blocked)
    number[root], cells[0] = 0, root
    n, k = 1, 0
    while k < n:
        row, column = divmod(cells[k], width)
        for move in range(4):
            r, c = row + MOVES[move, 0], column + MOVES[move, 1]
            neighbours[k, move] = -1
            if 0 <= r < width and 0 <= c < width and not blocked[r, c]:
                there = r * width + c
                if number[there] < 0:
                    number[there], cells[n] = n, there
                    n += 1
                neighbours[k, move] = number[there]
        k += 1
    return n


@compiled
def distances(neighbours: np.ndarray, goal: int, distance: np.ndarray) -> None:
    """Sets the length of a shortest path from each of n cells to the goal, int32[n]."""
    queue = np.empty(len(neighbours), neighbours.dtype)
    for cell in range(len(distance)):
        distance[cell] = INFINITE_COST
    distance[goal], queue[0] = 0, goal
    size, k = 1, 0
    while k < size:
        cell = queue[k]
        for move in range(4):
            there = neighbours[cell, move]
            if there >= 0 and distance[there] == INFINITE_COST:
                distance[there] = distance[cell] + 1
                queue[size] = there
                size += 1
        k += 1
