"""A plain Python simulator, written independently of mapf_jax's."""

import collections

#: Four agents that may turn by the actions right, down, left, up, which chance hardly ever does.
RING = [(0, 0), (0, 1), (1, 1), (1, 0)]
TURN = [3, 1, 2, 0]
STEP = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}


class Lake:
    """One episode. `blocked` is a size x size table, agents are numbered from 0."""

    def __init__(self, blocked, starts, goals, conflict, max_steps, weights):
        self.blocked, self.size = blocked, len(blocked)
        self.cells, self.goals = list(starts), list(goals)
        self.conflict, self.max_steps, self.weights = conflict, max_steps, weights
        self.path = [tuple(starts)]

    def barrier(self, cell):
        if not (0 <= cell[0] < self.size and 0 <= cell[1] < self.size):
            return "OUT_OF_BOUNDS"
        return "HOLE" if self.blocked[cell[0]][cell[1]] else None

    def step(self, actions):
        """(rewards, terminated, truncated, kinds, events) of a joint action."""
        before = list(self.cells)
        wanted = [
            (r + STEP.get(a, (0, 0))[0], c + STEP.get(a, (0, 0))[1])
            for (r, c), a in zip(before, actions, strict=True)
        ]
        rule = self.fail if self.conflict == "fail" else self.block
        kinds, after = rule(before, wanted)
        old_costs = self.costs()
        self.cells = after
        self.path.append(tuple(after))
        broken = [kind != "NONE" for kind in kinds]
        failed = self.conflict == "fail" and any(broken)
        success = not failed and after == self.goals
        rewards = []
        for i, goal in enumerate(self.goals):
            w = self.weights
            reward = w.goal * ((after[i] == goal) - (before[i] == goal))
            reward += w.step * (self.costs()[i] - old_costs[i])
            reward += w.violation * broken[i] + w.team_violation * any(broken)
            rewards.append(reward + w.team * success)
        terminated = failed or success
        truncated = not terminated and len(self.path) - 1 >= self.max_steps
        return rewards, terminated, truncated, kinds, self.events(before, after)

    def costs(self):
        """First time from which each agent has been on its goal, or now if it is not."""
        result = []
        for i, goal in enumerate(self.goals):
            away = [t for t, cells in enumerate(self.path) if cells[i] != goal]
            last = len(self.path) - 1
            result.append(min(last, away[-1] + 1) if away else 0)
        return result

    def fail(self, before, wanted):
        kinds = []
        for i, cell in enumerate(wanted):
            kind = self.barrier(cell)
            others = [j for j in range(len(wanted)) if j != i]
            if kind is None and any(wanted[j] == cell for j in others):
                kind = "VERTEX"
            if kind is None and any(wanted[j] == before[i] and cell == before[j] for j in others):
                kind = "SWAP"
            kinds.append(kind or "NONE")
        return kinds, (list(before) if set(kinds) != {"NONE"} else list(wanted))

    def block(self, before, wanted):
        home = {cell: i for i, cell in enumerate(before)}
        walls = [self.barrier(cell) for cell in wanted]
        tries = [wanted[i] != before[i] and walls[i] is None for i in range(len(before))]
        suitors = collections.Counter(wanted[i] for i in range(len(before)) if tries[i])

        def swaps(i):
            j = home.get(wanted[i])
            return tries[i] and j is not None and tries[j] and wanted[j] == before[i]

        def goes(i, behind):
            if not tries[i] or swaps(i) or suitors[wanted[i]] > 1:
                return False
            ahead = home.get(wanted[i])
            return ahead is None or ahead in behind or goes(ahead, behind | {i})

        kinds, after = [], []
        for i in range(len(before)):
            moved = goes(i, {i})
            after.append(wanted[i] if moved else before[i])
            if walls[i]:
                kinds.append(walls[i])
            elif tries[i] and not moved:
                kinds.append("SWAP" if swaps(i) else "VERTEX")
            else:
                kinds.append("NONE")
        return kinds, after

    @staticmethod
    def events(before, after):
        """Legal ways of moving close together that happened: for the coverage of the test."""
        home = {cell: i for i, cell in enumerate(before)}
        ahead = {
            i: home[cell]
            for i, cell in enumerate(after)
            if cell != before[i] and home.get(cell, i) != i
        }
        found = set()
        for i in ahead:
            found.add("following")
            j, seen = ahead[i], {i}
            while j in ahead and j not in seen:
                seen.add(j)
                j = ahead[j]
            if j == i:
                found.add("rotation")
        return found


def random_episode(rng, width, num_agents):
    """(blocked, starts, goals) on a lake of at most `width` with room for at most `num_agents`."""
    size = int(rng.integers(3, width + 1))
    cells = [(int(c) // size, int(c) % size) for c in rng.permutation(size * size)]
    count = min(num_agents, size * size // 2)
    if count >= len(RING) and rng.random() < 0.1:
        cells = [*RING, *(cell for cell in cells if cell not in RING)]
    free = cells[: max(2 * count, size * size - int(rng.integers(0, size)))]
    blocked = [[(r, c) not in free for c in range(size)] for r in range(size)]
    starts = free[:count]
    goals = free[count : 2 * count]
    return blocked, starts, goals
