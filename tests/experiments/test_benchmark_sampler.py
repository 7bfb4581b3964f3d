"""The benchmark of the sampler at a size that takes seconds: it runs, and what it says is so."""

import dataclasses
import json
import sys

import pytest

from experiments.speed import sampler as benchmark

TINY = dataclasses.replace(
    benchmark.SMALL,
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    initializer_range=0.2,
)


def rows(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_tables_of_a_cpu(monkeypatch):
    monkeypatch.setattr(benchmark.records, "cores", lambda: list(range(6)))
    scale = benchmark.Scale(
        rounds=1, batch=4, prompt_tokens=8, new_tokens=12, slots=2, answers=6,
        uneven_prompt_tokens=4, uneven_new_tokens=16, model=TINY,
    )  # fmt: skip
    assert scale.devices == 2
    peers = dict.fromkeys(("transformers", "tunix", "tunix_on_one"), sys.executable)
    even, uneven = benchmark.run(scale, peers)
    own, own_on_one, transformers, tunix, tunix_on_one = rows(even)
    assert (own["engine"], own_on_one["engine"]) == ("own", "own, one device")
    assert own["own is faster by"] == 1
    assert own["same tokens"] == own_on_one["same tokens"] == transformers["same tokens"] == 1
    assert transformers["own is faster by"] == pytest.approx(
        own["tokens/s, best"] / transformers["tokens/s, best"]
    )
    for missing in (tunix, tunix_on_one):
        assert missing["tokens/s, best"] is None
        assert missing["note"].startswith("not installed (No module named")
    for table in (even, uneven):
        assert "the CPU is 2 devices of JAX" in table.note
    refilled, fixed = rows(uneven)
    assert fixed["times fixed batches"] == 1
    assert refilled["times fixed batches"] == pytest.approx(
        refilled["tokens/s, best"] / fixed["tokens/s, best"]
    )
    assert "100.0% of the answers are the same both ways" in uneven.note


def test_roofline_counts_what_a_step_reads(tmp_path):
    config = dataclasses.replace(TINY, dtype="bfloat16", param_dtype="bfloat16")
    table = benchmark.roofline(config, [(2, 24)], tmp_path, rounds=1, steps=4, copy_bytes=1 << 16)
    (row,) = rows(table)
    assert row["note"] == ""
    task = json.loads((tmp_path / "own_roofline.json").read_text())
    assert (task["batch"], task["context"]) == (2, 24)
    # The parameters, and keys and values of 48 tokens in 2 layers of 2 heads; two bytes a number.
    layer = 2 * 32 * 32 + 2 * 32 * 32 + 3 * 32 * 64 + 2 * 32 + 2 * 16
    size = 2 * (256 * 32 + 2 * layer + 32) + 2 * 48 * 2 * 2 * 32
    seconds = 2 / row["tokens/s"]
    assert row["share of roofline"] == pytest.approx(size / row["copy GB/s"] / 1e9 / seconds)
    assert row["times generate"] == pytest.approx(row["tokens/s"] / row["generate tokens/s"])
