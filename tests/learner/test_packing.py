import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.training.batches import packing
from learner.training.grpo_config import GRPOConfig


@st.composite
def workloads(draw):
    """Completions with their prompts, and shapes that hold each."""
    shards = draw(st.integers(1, 4))
    length = draw(st.integers(128, 5000))
    sequences = shards * draw(st.integers(1, 8))
    groups = draw(st.integers(1, 12))
    size = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, length // 2 + 1, groups).repeat(size)
    lengths = 1 + (rng.random(groups * size) ** draw(st.integers(1, 9)) * (length // 2 - 1))
    kept = np.flatnonzero(rng.random(groups * size) < 0.8)
    shapes = packing.shapes(sequences, shards, length, groups * size)
    group = np.arange(groups).repeat(size)
    return prompts[kept], lengths.astype(int)[kept], group[kept], shapes, shards


@settings(max_examples=60, deadline=None)
@given(workloads())
def test_every_completion_is_packed_once_into_few_sequences(workload):
    prompts, lengths, groups, shapes, shards = workload
    longest = shapes[0][1]
    batches = packing.pack(prompts, lengths, groups, shapes)
    made = [parts for _, contents in batches for parts in contents]
    assert sorted(i for parts in made for part in parts for i in part) == [*range(len(lengths))]
    again = packing.pack(prompts, lengths, groups, shapes)
    jax.tree.map(np.testing.assert_array_equal, again, batches)

    def tokens(parts):
        for part in parts:
            assert len(set(groups[part])) == 1
        assert len({groups[part[0]] for part in parts}) == len(parts)
        return sum(prompts[part[0]] + lengths[part].sum() for part in parts)

    for (sequences, length), contents in batches:
        assert (sequences, length) in shapes
        assert sequences % shards == 0
        assert len(contents) == sequences
        assert any(contents)
        assert all(tokens(parts) <= length for parts in contents)
    # Best fit leaves no two of the longest at most half full; and a step fills micro-batches.
    sequences = min(shapes[-1][0], max(1, len(lengths)))
    apart = int((prompts + lengths).sum())
    enough = -(-max(1, 2 * apart // longest) // sequences) * sequences
    used = sum(
        sequences * length * (packing._LINEAR + length) for (sequences, length), _ in batches
    )
    bound = (enough + shapes[0][0]) * longest * (packing._LINEAR + longest)
    assert used <= bound


@pytest.mark.parametrize(
    ("args", "want"),
    [
        # One a device, four: all lengths are multiples of 512, as the kernel's tiles.
        ((8, 8, 4608, 256), [(8, 4608), (8, 3072), (8, 2048), (8, 1024)]),
        ((32, 8, 4608, 256), [(32, 4608), (32, 3072), (32, 2048), (32, 1024)]),
        # So many sequences would not fill a micro-batch.
        ((128, 32, 4608, 256), [(32, 4608), (32, 3072), (32, 2048), (32, 1024)]),
        # Short sequences: fewer of them.
        ((8, 1, 256, 384), [(8, 256), (4, 256), (2, 256), (1, 256)]),
        ((8, 2, 256, 384), [(8, 256), (4, 256), (2, 256)]),
        ((8, 8, 256, 384), [(8, 256), (8, 128)]),
        ((8, 1, 256, 16), [(2, 256), (1, 256)]),
        ((1, 1, 128, 2), [(1, 128)]),
    ],
)
def test_shapes(args, want):
    assert packing.shapes(*args) == want


def test_few_assignments_are_tried(monkeypatch):
    """One takes a second for thousands of completions, and devices wait."""
    tried, best_fit = [], packing._best_fit
    monkeypatch.setattr(packing, "_best_fit", lambda *given: tried.append(1) or best_fit(*given))
    rng = np.random.default_rng(0)
    prompts, lengths = rng.integers(50, 500, 128).repeat(16), rng.integers(1, 2049, 2048)
    packing.pack(prompts, lengths, np.arange(2048) // 16, packing.shapes(4, 1, 4608, 2048))
    assert len(tried) < 80


def test_what_no_sequence_holds_is_refused():
    with pytest.raises(ValueError, match="have 5100 tokens, sequences at most 4608"):
        packing.pack(*np.array([[100], [5000], [0]]), packing.shapes(8, 8, 4608, 256))


def test_a_run_compiles_for_few_longest_prompts():
    config = GRPOConfig(max_new_tokens=256)
    found = {tuple(config.sequence_shapes(n, 1)) for n in range(129, 1025)}
    assert len(found) <= 6
    assert config.sequence_shapes(1024, 1)[0][1] >= 1024 + 256


@pytest.mark.parametrize(("sequences", "shards"), [(8, 8), (32, 8), (128, 32)])
def test_recommended_layouts_use_their_tokens(sequences, shards):
    """Qwen3-4B on v5e-8, v6e-8, v5p-64, completions of lognormal lengths: at most four shapes."""
    config = GRPOConfig(max_new_tokens=4096, micro_batch_size=sequences)
    rng = np.random.default_rng(0)
    apart, made, shapes = 0, 0, set()
    for _ in range(20):
        prompts = rng.integers(250, 513, 32).repeat(8)
        lengths = rng.lognormal(np.log(1000) - np.log(2) / 2, np.log(2) ** 0.5, 256)
        lengths = np.minimum(lengths.astype(int), 4096)
        allowed = config.sequence_shapes(int(prompts.max()), shards)
        groups = np.arange(256) // 8
        batches = packing.pack(prompts, lengths, groups, allowed)
        shapes |= {shape for shape, _ in batches}
        apart += (prompts + lengths).sum()
        made += sum(sequences * length for (sequences, length), _ in batches)
    assert apart > 1.1 * made  # Prompts that are shared save more than padding takes.
    assert len(shapes) <= 4
