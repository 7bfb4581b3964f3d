"""Plain Python answers to the questions that mapf_jax answers, written independently of it."""

import heapq
import itertools

STEPS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


def cells_of(array):
    return [tuple(int(value) for value in cell) for cell in array]


def _joint_moves(blocked, goals, cells, done):
    """All legal joint steps: (new cells, new done, cost, whether an agent under way waits).

    An agent that has arrived for good costs nothing more and never moves again; before that each
    step costs 1.
    """
    size = len(blocked)
    options = []
    for cell, goal, arrived in zip(cells, goals, done, strict=True):
        if arrived:
            options.append([(cell, True, 0, False)])
            continue
        own = []
        for step in STEPS:
            row, column = cell[0] + step[0], cell[1] + step[1]
            if 0 <= row < size and 0 <= column < size and not blocked[row][column]:
                own.append(((row, column), False, 1, step == (0, 0)))
                if (row, column) == goal:
                    own.append(((row, column), True, 1, step == (0, 0)))
        options.append(own)
    for joint in itertools.product(*options):
        after = tuple(option[0] for option in joint)
        if len(set(after)) < len(after) or any(
            after[i] == cells[j] and after[j] == cells[i]
            for i, j in itertools.combinations(range(len(cells)), 2)
        ):
            continue
        yield (
            after,
            tuple(option[1] for option in joint),
            sum(option[2] for option in joint),
            any(option[3] for option in joint),
        )


def _joint_dijkstra(blocked, starts, goals):
    """(optimum or None, {(cells, done): cost}, {state: [(state before, waits)] at least cost})."""
    start = (tuple(starts), (False,) * len(starts))
    queue, best, before = [(0, start)], {start: 0}, {}
    closed = set()
    optimum = None
    while queue:
        cost, state = heapq.heappop(queue)
        if state in closed or (optimum is not None and cost > optimum):
            continue
        closed.add(state)
        if all(state[1]):
            optimum = cost
            continue
        for cells, done, step, waits in _joint_moves(blocked, goals, *state):
            following, total = (cells, done), cost + step
            if total < best.get(following, 1 << 30):
                best[following] = total
                before[following] = []
                heapq.heappush(queue, (total, following))
            if total == best[following]:
                before[following].append((state, waits))
    return optimum, best, before


def joint_optimum(blocked, starts, goals):
    """Optimal sum of costs, and whether every plan of that cost waits; (None, None) if no plan.

    The cost by Dijkstra over (cells, who has arrived for good). Then all optimal plans are walked
    through, that is all paths of tight edges from an end to the start.
    """
    optimum, best, before = _joint_dijkstra(blocked, starts, goals)
    if optimum is None:
        return None, None
    start = (tuple(starts), (False,) * len(starts))
    open_ = [state for state, cost in best.items() if all(state[1]) and cost == optimum]
    seen = set(open_)
    while open_:
        state = open_.pop()
        if state == start:
            return optimum, False
        for earlier, waits in before.get(state, []):
            if not waits and earlier not in seen:
                seen.add(earlier)
                open_.append(earlier)
    return optimum, True


def makespan_optimum(blocked, starts, goals):
    """Smallest makespan of any number of agents by breadth-first search over joint cells."""
    under_way = (False,) * len(starts)
    frontier, seen, time = {tuple(starts)}, {tuple(starts)}, 0
    while frontier and tuple(goals) not in frontier:
        moves = (_joint_moves(blocked, goals, cells, under_way) for cells in frontier)
        frontier = {after for after, *_ in itertools.chain.from_iterable(moves)} - seen
        seen |= frontier
        time += 1
    return time if frontier else None


def violations(blocked, starts, goals, size, path):
    """(time, agent, kind) of every broken rule, read off the plan step by step."""
    for time, cells in enumerate(path):
        before = path[max(time - 1, 0)]
        for agent, (old, new) in enumerate(zip(before, cells, strict=True)):
            others = [i for i in range(len(cells)) if i != agent]
            inside = 0 <= new[0] < size and 0 <= new[1] < size
            broken = {
                "ILLEGAL_MOVE": abs(old[0] - new[0]) + abs(old[1] - new[1]) > 1,
                "OUT_OF_BOUNDS": not inside,
                "HOLE": inside and blocked[new[0]][new[1]],
                "VERTEX": any(cells[i] == new for i in others),
                "SWAP": old != new and any(cells[i] == old and before[i] == new for i in others),
                "WRONG_START": time == 0 and new != starts[agent],
                "GOAL_MISSED": time == len(path) - 1 and new != goals[agent],
            }
            yield from ((time, agent, kind) for kind, is_broken in broken.items() if is_broken)


#: The check that each broken rule fails.
CHECK_OF = {
    "ILLEGAL_MOVE": "legal_moves",
    "OUT_OF_BOUNDS": "in_bounds",
    "HOLE": "no_holes",
    "VERTEX": "conflict_free",
    "SWAP": "conflict_free",
    "WRONG_START": "starts_correct",
    "GOAL_MISSED": "goals_reached",
}


def failed_checks(*plan):
    """Names of checks that a plan (list of joint cells) fails; the empty set means valid."""
    return {CHECK_OF[kind] for _, _, kind in violations(*plan)}


def sum_of_costs(goals, path):
    """For each agent the first time from which it stays on its goal for good, summed."""
    total = 0
    for agent, goal in enumerate(goals):
        last = max((t for t, cells in enumerate(path) if cells[agent] != goal), default=-1)
        total += last + 1
    return total
