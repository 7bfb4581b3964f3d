"""When a run saves its position."""

import types

import jax.numpy as jnp
import pytest

from experiments.run import checkpoint as run_checkpoint
from experiments.run.checkpoint import Position, RunCheckpoints
from experiments.run.store import RunStore, write_file
from experiments.settings import CheckpointSettings, Settings, from_config
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


@pytest.mark.parametrize(
    ("step", "kept"),
    [(1, ["0/train.jsonl"]), (2, ["0/design/design.json", "0/train.jsonl", "0/validation.json"])],
)
def test_what_followed_an_older_checkpoint_is_made_anew(tmp_path, monkeypatch, step, kept):
    state = TrainState(*(jnp.zeros(()) for _ in range(4)))
    monkeypatch.setattr(run_checkpoint, "_abstract_state", lambda *_: state)
    training = {"prompts_per_step": 4, "epochs": 1.0}
    settings = from_config({"training": training, "environment": {"num_instances": 8}})
    files = ["train.jsonl", "validation.json", "design/design.json"]
    for name in ["initial/validation.json", "report.html", *(f"rounds/0/{n}" for n in files)]:
        write_file(tmp_path / name, "")
    write_file(tmp_path / "rounds/1/validation.json", "")
    with RunCheckpoints(settings, RunStore(tmp_path)) as saved:
        for total in range(1, 5):
            index, of_round = divmod(total - 1, 2)
            saved.after_step(Position(state, index, of_round + 1, total), True, True)
        assert saved.resume(None, 4).total == 4
        assert len(list(tmp_path.glob("rounds/1/*"))) == 1
        assert saved.resume(None, step).total == step
    left = [path for path in tmp_path.rglob("*.*") if "checkpoints" not in path.parts]
    assert sorted(str(path.relative_to(tmp_path)) for path in left) == [
        "initial/validation.json",
        *(f"rounds/{name}" for name in kept),
    ]
