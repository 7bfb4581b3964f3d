"""Plans for any number of agents, quickly and without a proof of optimality: LaCAM.

LaCAM searches depth first over the cells of all agents (Okumura, "LaCAM: search-based algorithm
for quick multi-agent pathfinding", AAAI 2023). The successors of a state are made one at a time by
PIBT: agents choose in the order of their priorities, and one that stands in the way chooses before
the one that wants its cell (Okumura et al., "Priority inheritance with backtracking for iterative
multi-agent path finding", Artificial Intelligence 310, 2022). The first successor is free, later
ones have the cells of more and more agents prescribed, so that in the end there are all of them: a
search that has nothing left proves that there is no plan.
"""

from typing import NamedTuple

import numpy as np

from mapf_jax.dynamics import MOVES, WAIT
from mapf_jax.solver.compiled import compiled
from mapf_jax.solver.joint_astar import mixed, path_to
from mapf_jax.solver.lakes import distances
from mapf_jax.types import INFINITE_COST, Status

MAX_STEPS = 1 << 17  #: Successors that a search tries to make.
_CELL, _FORK = 0xFFFFFFFF, -2
_, _FEASIBLE, _UNSOLVABLE, _UNKNOWN = map(int, Status)


class _Step(NamedTuple):
    """One time step of A agents on a graph of n cells; -1 stands for no agent or cell."""

    neighbours: np.ndarray  # int32[n, 4].
    distance: np.ndarray  # int32[A, n], to each agent's goal.
    here: np.ndarray  # int32[A], where it is.
    after: np.ndarray  # int32[A], where it will be.
    owner: np.ndarray  # int32[n, 2], the agent that is, and the one that will be in a cell.
    option: np.ndarray  # int64[A, 5], ranks of the cells that it may choose, in the lowest bits.
    # int32[A, 4]: agents that choose; of each, options tried, options, with whom it changes places.
    choice: np.ndarray
    seed: np.ndarray  # uint64[1], of ties.


def plan_lake(
    blocked: np.ndarray, starts: np.ndarray, goals: np.ndarray, max_steps: int = MAX_STEPS
) -> tuple[int, np.ndarray]:
    """A plan on the map, starts and goals of an `Instance`; equal arguments give equal plans.

    Args:
      max_steps: how many successors of states it tries to make.

    Returns:
      (FEASIBLE, UNSOLVABLE, or UNKNOWN after `max_steps`; int[T, A, 2], the cells at each time, of
      T = 0 times where there is no plan).
    """
    width = len(blocked)
    numbers = np.where(blocked, -1, np.arange(width**2, dtype=np.int32).reshape(width, width))
    padded = np.pad(numbers, 1, constant_values=-1)
    window = np.lib.stride_tricks.sliding_window_view(padded, (width, width))
    ahead = [window[1 + row, 1 + column] for row, column in MOVES[:WAIT]]
    neighbours = np.stack(ahead, -1).reshape(-1, WAIT)
    begin, end = (cells @ np.array([width, 1], np.int32) for cells in (starts, goals))
    status, path = _search(neighbours, begin, end, max_steps)
    return status, np.stack(np.divmod(path, width), -1)


@compiled
def _search(
    neighbours: np.ndarray, starts: np.ndarray, goals: np.ndarray, max_steps: int
) -> tuple[int, np.ndarray]:
    """(status, int32[T, A]) of agents on a graph."""
    agents, n = len(starts), len(neighbours)
    nothing = np.empty((0, agents), np.int32)
    distance = np.empty((agents, n), np.int32)
    for i in range(agents):
        distances(neighbours, goals[i], distance[i])
        if distance[i, starts[i]] == INFINITE_COST:
            return _UNSOLVABLE, nothing
    step = _Step(
        neighbours, distance, starts.copy(), starts.copy(),
        np.full((n, 2), -1, np.int32), np.empty((agents, WAIT + 1), np.int64),
        np.empty((agents, 4), np.int32), np.zeros(1, np.uint64),
    )  # fmt: skip
    # By state: its cells, the agents in the order in which they choose, how urgent each one is, the
    # state before it, and the first and the last one of its queue of constraints.
    state = np.empty((max_steps, agents), np.int32)
    order = np.empty((max_steps, agents), np.int16)
    urgency = np.empty((max_steps, agents), np.float32)
    parent, first, last = np.empty((3, max_steps), np.int32)
    # A constraint: the one that it adds an agent to, that agent's cell, how many agents it is about
    # (the first ones in the state's order), and the next one of the queue.
    constraint = np.empty(((WAIT + 2) * max_steps, 4), np.int32)
    slot = np.full(1 << int(np.ceil(np.log2(2 * max_steps))), -1, np.int32)
    stack = np.empty(max_steps, np.int32)
    node, states, constraints, height, reached = -1, 0, 0, 0, True
    for _ in range(max_steps):
        if reached:  # The cells `step.after`, from the state `node`.
            where = _slot_of(step.after, slot, state)
            if slot[where] < 0:
                slot[where] = states
                for i in range(agents):
                    state[states, i] = step.after[i]
                    waited = urgency[node, i] + 1 if node >= 0 else distance[i, starts[i]] / n
                    urgency[states, i] = waited % 1 if step.after[i] == goals[i] else waited
                order[states] = np.argsort(-urgency[states])
                parent[states] = node
                first[states] = last[states] = constraints
                constraint[constraints, 2], constraint[constraints, 3] = 0, -1
                states, constraints = states + 1, constraints + 1
                if np.all(step.after == goals):
                    return _FEASIBLE, path_to(state, parent, states - 1, n, goals)
            stack[height] = slot[where]
            height += 1
        while height and first[stack[height - 1]] < 0:
            height -= 1
        if not height:
            return _UNSOLVABLE, nothing
        node = stack[height - 1]
        taken = first[node]
        depth, first[node] = constraint[taken, 2], constraint[taken, 3]
        if depth < agents:
            cell = state[node, order[node, depth]]
            for move in range(WAIT + 1):
                there = cell if move == WAIT else neighbours[cell, move]
                if there < 0:
                    continue
                constraint[constraints, 0], constraint[constraints, 1] = taken, there
                constraint[constraints, 2], constraint[constraints, 3] = depth + 1, -1
                if first[node] < 0:
                    first[node] = constraints
                else:
                    constraint[last[node], 3] = constraints
                last[node] = constraints
                constraints += 1
        reached = _advance(step, state[node], order[node], constraint, taken)
    return _UNKNOWN, nothing


@compiled
def _advance(
    step: _Step, cells: np.ndarray, order: np.ndarray, constraint: np.ndarray, taken: int
) -> bool:
    """Sets `step.after` by a constraint and those that it extends; False if that is impossible."""
    _, _, here, after, owner, _, _, _ = step
    for i in range(len(here)):
        if after[i] >= 0:
            owner[after[i], 1] = -1
        owner[here[i], 0] = after[i] = -1
    for i in range(len(here)):
        here[i] = cells[i]
        owner[here[i], 0] = i
    for k in range(constraint[taken, 2] - 1, -1, -1):
        i, there = order[k], constraint[taken, 1]
        other = owner[there, 0]
        if owner[there, 1] >= 0 or (other >= 0 and other != i and after[other] == here[i]):
            return False
        after[i], owner[there, 1] = there, i
        taken = constraint[taken, 0]
    chosen = True
    for i in order:
        if chosen and after[i] < 0:
            chosen = _choose(step, i)
    return chosen


@compiled
def _choose(step: _Step, first: int) -> bool:
    """Chooses where an agent goes, and first the agents in its way; False if it stays."""
    _, _, here, after, owner, option, choice, _ = step
    depth, choice[0, 0] = 0, first
    _rank(step, first)
    while depth >= 0:
        i = choice[depth, 0]  # Everyone before it in this column wants the next one's cell.
        if choice[i, 1] == choice[i, 2]:
            after[i], owner[here[i], 1] = here[i], i
            depth -= 1
            continue
        there = option[i, choice[i, 1]] & _CELL
        choice[i, 1] += 1
        other = owner[there, 0]
        if owner[there, 1] >= 0 or (other >= 0 and after[other] == here[i]):
            continue
        after[i], owner[there, 1] = there, i
        if other >= 0 and after[other] < 0:
            depth += 1
            choice[depth, 0] = other
            _rank(step, other)
            continue
        for k in range(depth, -1, -1):  # Agents that swap with a partner pull it along.
            i = choice[k, 0]
            partner = choice[i, 3]
            free = owner[here[i], 1] < 0 and partner >= 0 and after[partner] < 0
            if free and choice[i, 1] == 1:
                after[partner], owner[here[i], 1] = here[i], partner
        return True
    return False


@compiled
def _rank(step: _Step, i: int) -> None:
    """Sorts the cells that an agent may choose, the best one first."""
    neighbours, distance, here, after, owner, option, choice, seed = step
    count = 0
    for move in range(WAIT + 1):
        there = here[i] if move == WAIT else neighbours[here[i], move]
        if there < 0:
            continue
        # The nearest to the goal first, of those a free one, then at random (Knuth's MMIX).
        seed[0] = seed[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        rank = 2 * distance[i, there] + (owner[there, 0] >= 0)
        rank = (rank << 40) + (np.int64(seed[0] >> np.uint64(56)) << 32) + there
        k = count
        while k > 0 and option[i, k - 1] > rank:
            option[i, k] = option[i, k - 1]
            k -= 1
        option[i, k] = rank
        count += 1
    choice[i, 1], choice[i, 2], choice[i, 3] = 0, count, -1
    # It moves away where it has to swap with another: one that it would push, or one behind it.
    at, ahead = here[i], option[i, 0] & _CELL
    partner = owner[ahead, 0]
    if ahead == at:
        return
    if partner >= 0 and after[partner] < 0 and _must_swap(step, i, partner, at, ahead):
        choice[i, 3] = partner
    for move in range(WAIT):
        there = neighbours[at, move]
        partner = owner[there, 0] if there >= 0 and there != ahead else -1
        if choice[i, 3] < 0 and partner >= 0 and _must_swap(step, partner, i, at, ahead):
            choice[i, 3] = partner
    if choice[i, 3] >= 0:
        for k in range(count // 2):
            low, high = option[i, k], option[i, count - 1 - k]
            option[i, k], option[i, count - 1 - k] = high, low


@compiled
def _must_swap(step: _Step, pusher: int, puller: int, at: int, ahead: int) -> bool:
    """Whether an agent that pushes another one ahead has to change places with it, and can.

    It must where it would push it along a corridor to the end and both want to go on the other way
    (the operation "swap" of Okumura, "Improving LaCAM for scalable eventually optimal multi-agent
    pathfinding", IJCAI 2023); it can where the cells behind it fork.
    """
    distance = step.distance
    behind, back = ahead, at
    while distance[pusher, ahead] < distance[pusher, at]:
        beyond = _beyond(step, at, ahead)
        if beyond == _FORK:
            return False
        if beyond < 0:
            break
        at, ahead = ahead, beyond
    onward = distance[pusher, at] == 0 or distance[pusher, ahead] < distance[pusher, at]
    if not onward or distance[puller, at] >= distance[puller, ahead]:
        return False
    begin = behind
    while back != begin:
        beyond = _beyond(step, behind, back)
        if beyond < 0:
            return beyond == _FORK
        behind, back = back, beyond
    return False


@compiled
def _beyond(step: _Step, before: int, cell: int) -> int:
    """The next cell of a corridor, `_FORK` where there are several, -1 at its end.

    Dead ends in which an agent is on its goal do not count.
    """
    neighbours, distance, owner = step.neighbours, step.distance, step.owner
    found = -1
    for move in range(WAIT):
        there = neighbours[cell, move]
        if there < 0 or there == before:
            continue
        agent = owner[there, 0]
        if agent >= 0 and distance[agent, there] == 0 and (neighbours[there] >= 0).sum() == 1:
            continue
        if found >= 0:
            return _FORK
        found = there
    return found


@compiled
def _slot_of(cells: np.ndarray, slot: np.ndarray, state: np.ndarray) -> np.uint64:
    """The slot of the hash table that has the state with these cells, or is free for it."""
    hashed, mask = np.uint64(0), np.uint64(len(slot) - 1)
    for cell in cells:
        hashed = mixed(hashed, cell)
    where = hashed & mask
    while slot[where] >= 0 and not np.array_equal(state[slot[where]], cells):
        where = (where + np.uint64(1)) & mask
    return where
