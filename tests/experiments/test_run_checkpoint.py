"""When a run saves its position."""

import types

import jax.numpy as jnp

from experiments.run import checkpoint as run_checkpoint
from experiments.run.checkpoint import Position, RunCheckpoints
from experiments.run.store import RunStore
from experiments.settings import CheckpointSettings, Settings
from learner.training.train_state import TrainState


def test_minutes_after_the_last_checkpoint_the_next_step_ends_with_one(tmp_path, monkeypatch):
    clock = types.SimpleNamespace(monotonic=lambda: 60 * minutes)
    monkeypatch.setattr(run_checkpoint, "time", clock)
    settings = Settings(checkpoint=CheckpointSettings(every_steps=0, every_minutes=10, keep=9))
    zero, minutes = jnp.zeros(()), 100.0
    position = Position(TrainState(zero, zero, zero, zero))
    with RunCheckpoints(settings, RunStore(tmp_path)) as saved:
        # The last step of a round is saved too, and the minutes count from there.
        for minutes in (109, 110, 119, 121, 125, 130, 131, 135):
            position.step = position.total = position.total + 1
            saved.after_step(position, last=minutes == 125, leave=False)
        assert saved.steps() == [2, 4, 5, 8]
