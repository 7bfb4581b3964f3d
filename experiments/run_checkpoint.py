"""Checkpoints of a run: where one stands, which one a text means, and its parameters."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import settings as settings_lib
from experiments.errors import UserError, user_errors
from experiments.policy import Policy, load_params
from experiments.settings import Settings
from experiments.store import read_log
from learner import checks
from learner.qwen3 import model
from learner.training import lora, train_state
from learner.training.checkpoints import Checkpoints, DamagedCheckpointError
from learner.training.train_state import TrainState


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a checkpoint stands: `step` training steps of round `round` are done.

    `total` counts those of earlier rounds too and names the checkpoint.
    """

    round: int
    step: int
    total: int


@dataclasses.dataclass
class Progress:
    """What goes round the loop: the weights, and all that a checkpoint keeps beside them.

    Attributes:
      state: the training state.
      position: where it stands.
      task: the state of the task.
      rewards: means of the steps since the last regular checkpoint, which score the next one.
    """

    state: TrainState
    position: Position = Position(0, 0, 0)
    task: dict[str, Any] = dataclasses.field(default_factory=dict)
    rewards: list[float] = dataclasses.field(default_factory=list)

    def save(self, checkpoints: Checkpoints, regular: bool, keep: bool = False) -> None:
        """Writes a checkpoint; a regular one has a score, any other keeps the rewards for it.

        Args:
          keep: it stays whatever comes after it.
        """
        score = float(np.mean(self.rewards)) if regular else None
        self.rewards = [] if regular else self.rewards
        metadata = {
            "position": dataclasses.asdict(self.position),
            "task": self.task,
            "rewards": self.rewards,
        }
        checkpoints.save(self.position.total, self.state, metadata, score, keep)


def resume(
    checkpoints: Checkpoints, settings: Settings, policy: Policy, step: int | None = None
) -> Progress:
    """The progress that a checkpoint holds; newer ones are removed.

    Args:
      step: its name, one of `checkpoints.steps()`; None is the last.

    Raises:
      UserError: it is damaged; the message says what to do.
    """
    try:
        state, metadata = checkpoints.restore(_abstract_state(settings, policy), step)
    except DamagedCheckpointError as error:
        older = error.older
        way = f"go on from it with --resume_from={older[-1]}" if older else "use another --workdir"
        raise UserError(f"{error}; {way}") from error
    if step is not None:
        checkpoints.remove_after(step)
    return Progress(state, Position(**metadata["position"]), metadata["task"], metadata["rewards"])


@dataclasses.dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint of a run.

    Attributes:
      run: folder of the run.
      step: training steps before it.
      settings: of the run.
    """

    run: Path
    step: int
    settings: Settings


def find_checkpoint(spec: str) -> RunCheckpoint | None:
    """The checkpoint that RUN, RUN:STEP or RUN@ROUND means; None if no run does.

    RUN alone is its last one, RUN@ROUND the one at the end of that round.

    Raises:
      UserError: the run has no such checkpoint, or its options cannot be read.
    """
    parts = re.fullmatch(r"(.+)([:@])([0-9]+)", spec)
    folder, mark, number = Path(spec), "", 0
    if parts and not folder.exists():
        folder, mark, number = Path(parts[1]), parts[2], int(parts[3])
    if not ((folder / "checkpoints").is_dir() and (folder / "config.json").is_file()):
        return None
    with user_errors():
        settings = settings_lib.from_config(checks.json_object(folder / "config.json"))
    # By the names of the folders: Orbax would wait for processes that do not ask.
    names = [path.name for path in (folder / "checkpoints").iterdir()]
    steps = sorted(int(name) for name in names if name.isdecimal())
    if not steps:
        raise UserError(f"{spec}: the run has no checkpoint yet")
    step = end_of_round(folder, number) if mark == "@" else number if mark else steps[-1]
    if step is None:
        raise UserError(f"{spec}: the run has not finished round {number}")
    if step not in steps:
        raise UserError(
            f"{spec}: the run has no such checkpoint, but those of steps {steps}; with "
            "checkpoint.of_rounds='state' it keeps one of each round"
        )
    return RunCheckpoint(folder, step, settings)


def end_of_round(run: Path, index: int) -> int | None:
    """The training steps up to the end of a round, which name its checkpoint; None before it."""
    folders = [run / "rounds" / str(i) for i in range(index + 1)]
    if not (folders[-1] / "validation.json").exists():
        return None
    return sum(len(read_log(folder / "train.jsonl")) for folder in folders)


def load_checkpoint(checkpoint: RunCheckpoint, policy: Policy) -> Any:
    """The parameters of a checkpoint, adapters added, placed on the mesh of the policy.

    The optimizer's moments are read too, and dropped.

    Args:
      policy: of `load_policy` for the run's settings; its mesh may be another one than the run's.

    Raises:
      FileNotFoundError: the checkpoint is gone.
      ValueError: the model does not fit the mesh, or the base of adapters is not the model's.
    """
    training = checkpoint.settings.training
    with Checkpoints(checkpoint.run / "checkpoints", read_only=True) as checkpoints:
        abstract = _abstract_state(checkpoint.settings, policy)
        state, _ = checkpoints.restore(abstract, checkpoint.step)
    if not training.lora.rank:
        return state.params
    merge = jax.jit(
        lambda base, adapters: lora.merge(base, adapters, training.lora),
        out_shardings=model.param_shardings(policy.config, policy.mesh),
    )
    return merge(load_params(checkpoint.settings, policy), state.params)


def _abstract_state(settings: Settings, policy: Policy) -> TrainState:
    training = settings.training
    return train_state.abstract_train_state(
        policy.config, training.optimizer, policy.mesh, training.lora
    )
