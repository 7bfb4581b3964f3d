"""Pages of the cache, with completions of any lengths and no model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.sampling.pages import Pages
from learner.sampling.slots import RUNNING, FinishReason, Request, Schedule, Sequences

SHARDS, SAMPLES, LONGEST = 2, 3, 70

numbers = st.lists(st.integers(1, LONGEST), min_size=SAMPLES, max_size=SAMPLES)


def places(mask):
    return list(map(tuple, np.argwhere(mask)))


@given(
    budgets=st.lists(numbers, min_size=1, max_size=9),
    slots=st.sampled_from([(2, 1, 1), (2, 2, 2), (4, 3, 1), (6, 2, 2)]),
    size=st.sampled_from([8, 16, 80]),
    steps=st.integers(1, 20),
    most=st.integers(0, 60),
    seed=st.integers(0, 100),
)
def test_every_completion_ends_and_shares_no_page(budgets, slots, size, steps, most, seed):
    """It has its own key and prompt, and pages for all its tokens; segments may end early."""
    rng = np.random.default_rng(seed)
    (groups, columns, prompts), per_sequence = slots, -(-LONGEST // size)
    pages = Pages(groups, columns, SHARDS, per_sequence, size, most)
    state = Sequences.idle(groups, columns, prompts, per_sequence)
    requests = [
        Request([i] * (i + 1), np.full(2, i, np.uint32), np.array(sequence, np.int32))
        for i, sequence in enumerate(budgets)
    ]
    lengths = [[int(rng.integers(1, n, endpoint=True)) for n in sequence] for sequence in budgets]
    schedule = Schedule(requests, (groups, prompts))
    prefilled, ended, again = {}, [], 0
    for _ in range(10_000):
        pages.release(state)
        prefilled |= schedule.refill(state, pages.admits)
        for slot in pages.provide(state, steps):
            schedule.begin_again(state, slot)
            again += 1
        running = state.finish == RUNNING
        if not running.any():
            break
        of_shard = [[] for _ in range(SHARDS)]
        for at in places(running):
            needed = -(-min(int(state.counts[at]) + steps, int(state.budgets[at])) // size)
            of_shard[at[0] * SHARDS // groups] += state.pages[at][:needed].tolist()
        for used in of_shard:
            assert len(set(used)) == len(used)
            assert all(0 < page < pages.count for page in used)
        assert (state.pages[~running] == 0).all()
        sequences = schedule.completions(state)
        generated = int(rng.integers(1, steps, endpoint=True))
        for at in places(running):
            prompt, sample = divmod(int(sequences[at]), SAMPLES)
            assert prefilled[at[0] * prompts + state.parents[at]] == requests[prompt].prompt
            assert state.prompt_lengths[at[0], state.parents[at]] == prompt
            assert state.key_data[at].tolist() == [prompt, prompt]
            assert (state.samples[at], state.budgets[at]) == (sample, budgets[prompt][sample])
            state.counts[at] = min(int(state.counts[at]) + generated, lengths[prompt][sample])
            if state.counts[at] == lengths[prompt][sample]:
                state.finish[at] = FinishReason.STOP_TOKEN
                ended.append(int(sequences[at]))
    assert sorted(ended) == list(range(len(budgets) * SAMPLES))
    assert not schedule.waits
    assert again == 0 or most < groups // SHARDS * columns * per_sequence


@pytest.mark.parametrize(("most", "count"), [(99, 1 + 2 * 3 * 4), (12, 1 + 12), (0, 1 + 4)])
def test_the_memory_is_limited_but_serves_one(most, count):
    """A page for idle slots, and no more than all slots need."""
    assert Pages(4, 3, SHARDS, 4, 128, most).count == count


def test_short_completions_are_not_held_back_by_the_longest_that_could_be():
    """Of a page each, in a quarter of the memory: all run at once."""
    pages = Pages(1, 16, 1, 8, 128, 32)
    state = Sequences.idle(1, 16, 1, 8)
    schedule = Schedule([Request([1], np.zeros(2, np.uint32), np.full(16, 1024))], (1, 1))
    for _ in range(4):
        schedule.refill(state, pages.admits)
        assert pages.provide(state, 32) == []
        assert (state.finish == RUNNING).all()
        state.counts[:] += 32
