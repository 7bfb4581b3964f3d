"""Page tables of the KV cache: the host's record of which sequence holds which pages.

A sequence takes another page when its tokens need one, as in PagedAttention (arXiv 2309.06180). So
the cache need not hold the longest completion in every sequence slot, only what sequences really
take. If they need more than there is, the shortest ones lose their pages and begin again later.
"""

import collections

import numpy as np

from learner.sampling.slots import RUNNING, Sequences

# Page 0 of each batch shard: slots without a completion write there.
_IDLE = 0


class Pages:
    """Hands out the pages of every batch shard to the sequences in its slots.

    Args:
        groups, sequence_slots: P and G.
        shards: batch shards, each with its part of the groups and pages of its own.
        per_sequence: pages of the longest completion; 0 where the cache has none.
        size: tokens of a page.
        most: the most pages of a batch shard. There are fewer if all slots need fewer for the
            longest completions, and always enough for one such completion.

    Attributes:
        per_sequence, size: as given.
        count: pages of a batch shard, with that of idle slots.
    """

    def __init__(
        self,
        groups: int,
        sequence_slots: int,
        shards: int,
        per_sequence: int,
        size: int,
        most: int,
    ) -> None:
        needed = groups // shards * sequence_slots * per_sequence
        self.count = 1 + min(needed, max(per_sequence, most))
        self._groups_of_shard = groups // shards
        self.per_sequence, self.size = per_sequence, size
        self._free = [list(range(self.count - 1, _IDLE, -1)) for _ in range(shards)]
        self._held = np.zeros((groups, sequence_slots), np.int32)

    def release(self, state: Sequences) -> None:
        """Take back the pages of sequences that do not run; changes the state."""
        for group, column in np.argwhere((state.finish != RUNNING) & (self._held > 0)):
            self._take_back(state, (int(group), int(column)))

    def admits(self, state: Sequences, group: int) -> bool:
        """Whether one more sequence may begin in a group.

        Only if that leaves another page for every running one of the shard. Otherwise one of them
        would soon begin again.
        """
        if not self.per_sequence:
            return True
        first = group // self._groups_of_shard * self._groups_of_shard
        own = slice(first, first + self._groups_of_shard)
        running, held = state.finish[own] == RUNNING, self._held[own]
        growing = running & (held < self.per_sequence)
        # Those that have just begun hold none until `provide`: they need one now, and one to grow.
        begun = running & (held == 0) & (self.per_sequence > 1)
        return len(self._of(group)) >= growing.sum() + begun.sum() + 1

    def provide(self, state: Sequences, steps: int) -> list[tuple[int, int]]:
        """Pages for the next tokens of all running sequences, the longest first.

        Args:
            state: changed.
            steps: tokens of a segment.

        Returns:
            Slots of sequences that lost their pages, which the caller begins again.
        """
        tokens = np.minimum(state.counts + steps, state.budgets)
        short = np.minimum(-(-tokens // self.size), self.per_sequence) - self._held
        lost = []
        running = sorted(
            map(tuple, np.argwhere(state.finish == RUNNING)), key=lambda at: -state.counts[at]
        )
        for shard, free in enumerate(self._free):
            slots = collections.deque(
                at for at in running if at[0] // self._groups_of_shard == shard
            )
            while slots:
                at = slots.popleft()
                while short[at] > len(free) and slots:
                    lost.append(slots.pop())
                    self._take_back(state, lost[-1])
                if short[at] > len(free):  # What is left belongs to longer ones.
                    lost.append(at)
                    self._take_back(state, at)
                    break
                for _ in range(short[at]):
                    state.pages[at][self._held[at]] = free.pop()
                    self._held[at] += 1
        return lost

    def _take_back(self, state: Sequences, at: tuple[int, int]) -> None:
        self._of(at[0]).extend(state.pages[at][: self._held[at]].tolist())
        state.pages[at] = _IDLE
        self._held[at] = 0

    def _of(self, group: int) -> list[int]:
        """Free pages of the group's batch shard."""
        return self._free[group // self._groups_of_shard]
