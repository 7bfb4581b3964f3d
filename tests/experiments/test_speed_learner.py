"""Speed of the sampler and the trainer at a size that takes seconds."""

import dataclasses
import sys

import pytest

from experiments import measurements
from experiments.speed import sampler, trainer

TINY = dataclasses.replace(
    sampler.SMALL,
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


@pytest.mark.slow
def test_tables_of_the_sampler_on_a_cpu(monkeypatch):
    monkeypatch.setattr(measurements, "cores", lambda: list(range(6)))
    (table,) = sampler.tables(
        sys.executable, rounds=1, slots=4, prompt_tokens=8, new_tokens=12, config=TINY
    )
    own, transformers, tunix = rows(table)
    assert own["own is faster by"] == 1
    assert own["same tokens"] == transformers["same tokens"] == 1
    assert transformers["own is faster by"] == pytest.approx(
        own["tokens/s, best"] / transformers["tokens/s, best"]
    )
    assert tunix["tokens/s, best"] is None
    assert tunix["note"].startswith("failed: ModuleNotFoundError: No module named")
    assert "the CPU is 2 devices of JAX" in table.note


@pytest.mark.slow
def test_tables_of_the_trainer_on_a_cpu():
    (whole,) = trainer.tables(
        sys.executable, rounds=1, num_prompts=2, group_size=2, prompt_tokens=8, new_tokens=8,
        micro_batch_rows=2, config=TINY,
    )  # fmt: skip
    own, alone, trl = rows(whole)
    assert own["this project is faster by"] == 1
    assert own["completion tokens/s, best"] > 0
    assert own["seconds of the update"] > 0
    assert alone["seconds of sampling"] > 0
    assert trl["note"].startswith("failed: ModuleNotFoundError: No module named 'trl'")
