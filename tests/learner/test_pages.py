"""Pages of the cache, with completions of any lengths and no model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.sampling.pages import Pages
from learner.sampling.slots import RUNNING, FinishReason, Request, Schedule, Sequences

SHARDS = 2


@given(
    lengths=st.lists(st.lists(st.integers(1, 70), min_size=3, max_size=3), min_size=1, max_size=9),
    slots=st.sampled_from([(2, 1, 1), (2, 2, 2), (4, 3, 1), (6, 2, 2)]),
    size=st.sampled_from([8, 16, 80]),
    steps=st.integers(1, 20),
    fraction=st.floats(0.01, 1),
)
def test_every_completion_ends_and_shares_no_page(lengths, slots, size, steps, fraction):
    """Its pages hold all its tokens at any time; with all the memory none begins again."""
    longest = max(map(max, lengths))
    groups, columns, prompts = slots
    pages = Pages(groups, columns, SHARDS, -(-longest // size), size, fraction)
    state = Sequences.idle(groups, columns, prompts, pages.per_sequence)
    budgets = np.full(3, longest, np.int32)
    requests = [Request([1, 2], np.zeros(2, np.uint32), budgets) for _ in lengths]
    schedule = Schedule(requests, (groups, prompts))
    ended, again = [], 0
    for _ in range(10_000):
        pages.release(state)
        schedule.refill(state, pages.admits)
        for slot in pages.provide(state, steps):
            schedule.begin_again(state, slot)
            again += 1
        running = state.finish == RUNNING
        if not running.any():
            break
        rows = schedule.rows(state)
        for shard in np.split(np.arange(groups), SHARDS):
            used = []
            for at in map(tuple, np.argwhere(running)):
                if at[0] in shard:
                    needed = -(-min(int(state.counts[at]) + steps, longest) // size)
                    used.extend(state.pages[at][:needed].tolist())
            assert len(set(used)) == len(used)
            assert all(0 < page < pages.count for page in used)
        assert (state.pages[~running] == 0).all()
        for at in map(tuple, np.argwhere(running)):
            length = lengths[rows[at] // 3][rows[at] % 3]
            state.counts[at] = min(int(state.counts[at]) + steps, length)
            if state.counts[at] == length:
                state.finish[at] = FinishReason.STOP_TOKEN
                ended.append(int(rows[at]))
    assert sorted(ended) == list(range(3 * len(lengths)))
    assert not schedule.waits
    assert again == 0 or fraction < 1


@pytest.mark.parametrize(("fraction", "count"), [(1, 1 + 6 * 4), (0.5, 1 + 12), (0.01, 1 + 4)])
def test_the_memory_is_a_fraction_of_the_longest_completions(fraction, count):
    """A page for idle slots, and at least as many as one completion needs."""
    assert Pages(4, 3, SHARDS, 4, 128, fraction).count == count


def test_short_completions_are_not_held_back_by_the_longest_that_could_be():
    """Completions of a page each: with a quarter of the memory nearly as many run."""
    pages = Pages(1, 16, 1, 8, 128, 0.25)
    state = Sequences.idle(1, 16, 1, 8)
    schedule = Schedule([Request([1], np.zeros(2, np.uint32), np.full(16, 1024))], (1, 1))
    for _ in range(2):
        schedule.refill(state, pages.admits)
        assert pages.provide(state, 32) == []
    assert (state.finish == RUNNING).sum() == 16
