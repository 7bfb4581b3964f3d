"""Plain Python answers to the questions that mapf_jax answers, written independently of it."""

import heapq
import itertools

STEPS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


def joint_optimum(blocked, starts, goals, allow_wait=True):
    """Optimal sum of costs of two agents by Dijkstra over (cells, who has arrived for good).

    Returns None if there is no plan. An agent that has arrived costs nothing more and never moves
    again; before that each step costs 1, and waits are optional.
    """
    size = len(blocked)

    def free(cell):
        return 0 <= cell[0] < size and 0 <= cell[1] < size and not blocked[cell[0]][cell[1]]

    def options(cell, goal, done):
        if done:
            return [(cell, True, 0)]
        result = []
        for step in STEPS:
            if step == (0, 0) and not allow_wait:
                continue
            following = (cell[0] + step[0], cell[1] + step[1])
            if free(following):
                result.append((following, False, 1))
                if following == goal:
                    result.append((following, True, 1))
        return result

    queue = [(0, tuple(starts), (False, False))]
    best = {}
    while queue:
        cost, cells, done = heapq.heappop(queue)
        if done == (True, True):
            return cost
        if best.get((cells, done), 1 << 30) <= cost:
            continue
        best[cells, done] = cost
        for (a, a_done, a_cost), (b, b_done, b_cost) in itertools.product(
            options(cells[0], goals[0], done[0]), options(cells[1], goals[1], done[1])
        ):
            if a == b or (a == cells[1] and b == cells[0]):
                continue
            heapq.heappush(queue, (cost + a_cost + b_cost, (a, b), (a_done, b_done)))
    return None


def makespan_optimum(blocked, starts, goals):
    """Smallest makespan of any number of agents by breadth-first search over joint cells."""
    size = len(blocked)
    frontier, seen, time = {tuple(starts)}, {tuple(starts)}, 0
    while frontier:
        if tuple(goals) in frontier:
            return time
        following = set()
        for cells in frontier:
            moves = [
                [
                    (r + dr, c + dc)
                    for dr, dc in STEPS
                    if 0 <= r + dr < size and 0 <= c + dc < size and not blocked[r + dr][c + dc]
                ]
                for r, c in cells
            ]
            for joint in itertools.product(*moves):
                if len(set(joint)) == len(joint) and not any(
                    joint[i] == cells[j] and joint[j] == cells[i]
                    for i, j in itertools.combinations(range(len(cells)), 2)
                ):
                    following.add(joint)
        frontier = following - seen
        seen |= frontier
        time += 1
    return None


def failed_checks(blocked, starts, goals, size, path):
    """Names of broken rules of a plan (list of joint cells); the empty set means valid."""
    failed = set()
    if list(path[0]) != list(starts):
        failed.add("starts_correct")
    if list(path[-1]) != list(goals):
        failed.add("goals_reached")
    for time, cells in enumerate(path):
        for row, column in cells:
            if not (0 <= row < size and 0 <= column < size):
                failed.add("in_bounds")
            elif blocked[row][column]:
                failed.add("no_holes")
        if len(set(cells)) < len(cells):
            failed.add("conflict_free")
        if time:
            before = path[time - 1]
            for i in range(len(cells)):
                if abs(cells[i][0] - before[i][0]) + abs(cells[i][1] - before[i][1]) > 1:
                    failed.add("legal_moves")
                for j in range(len(cells)):
                    if i != j and cells[i] == before[j] and cells[j] == before[i]:
                        failed.add("conflict_free")
    return failed


def sum_of_costs(goals, path):
    """For each agent the first time from which it stays on its goal for good, summed."""
    total = 0
    for agent, goal in enumerate(goals):
        last = max((t for t, cells in enumerate(path) if cells[agent] != goal), default=-1)
        total += last + 1
    return total
