"""Checkpoints of a run: writing, resuming, finding and loading them."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments import settings as settings_lib
from experiments.run import process
from experiments.run.policy import Policy, load_params
from experiments.run.status import Reporter
from experiments.run.store import RunStore, checkpoint_steps, read_log
from experiments.settings import Settings
from experiments.text.errors import UserError, user_errors
from learner.decoder import weights
from learner.devices import distributed
from learner.devices.preemption import Preempted
from learner.training import lora, train_state
from learner.training.checkpoints import Checkpoints, DamagedCheckpointError
from learner.training.curriculum import PromptScores
from learner.training.task import Task
from learner.training.train_state import TrainState
from learner.training.trainer import StepResult
from learner.training.update import NonFiniteError


@dataclasses.dataclass
class Position:
    """The state of the loop, as a checkpoint stores it.

    Attributes:
      state: the training state.
      round, step: the current round, and training steps done in it.
      total: training steps over all rounds; names the checkpoint.
      task: the state of the task.
      prompt_scores: of the round, if prompts are replayed.
    """

    state: TrainState
    round: int = 0
    step: int = 0
    total: int = 0
    task: dict[str, Any] = dataclasses.field(default_factory=dict)
    prompt_scores: PromptScores | None = None

    def advance(self, result: StepResult, task: Task) -> None:
        """Updates the position with the result of a step."""
        self.state, self.task, self.prompt_scores = result.state, task.state(), result.prompt_scores
        self.step, self.total = result.step + 1, self.total + 1


class RunCheckpoints(Checkpoints):
    """The checkpoints of a run in training: saves them when due, and when the run is asked to stop.

    Raises:
      UserError: an existing checkpoint cannot be read.
    """

    def __init__(self, settings: Settings, store: RunStore) -> None:
        self._settings, self._store = settings, store
        kept = settings.checkpoint
        with user_errors():
            super().__init__(store.root / "checkpoints", kept.keep)
        self._saved = time.monotonic()

    def done(self, resume_from: int | None) -> int:
        """The training steps of the checkpoint to resume from; 0 if there is none.

        Args:
          resume_from: the checkpoint to resume from; None is the last one.

        Raises:
          UserError: there is no such checkpoint.
        """
        there = self.steps()
        if resume_from not in (None, *there):
            raise UserError(
                f"resume_from={resume_from}: no checkpoint {resume_from}, there are {there}"
            )
        return resume_from or max(there, default=0)

    def resume(self, policy: Policy, step: int) -> Position:
        """Restores the position of a checkpoint; removes newer ones and what followed it.

        Raises:
          UserError: it is damaged; the message says what to do.
        """
        try:
            state, metadata = self.restore(_abstract_state(self._settings, policy), step)
        except DamagedCheckpointError as error:
            way = "use another --workdir"
            if error.older:
                way = f"go on from it with --resume_from={error.older[-1]}"
            raise UserError(f"{error}; {way}") from error
        at = metadata["position"]
        if step < max(self.steps()):
            trained = at["step"] == self._settings.steps_per_round
            self._store.discard_after(at["round"], trained)
        self.remove_after(step)
        if metadata.get("prompt_scores"):
            metadata["prompt_scores"] = PromptScores.from_dict(metadata["prompt_scores"])
        return Position(state, **metadata.pop("position"), **metadata)

    def after_step(self, position: Position, last: bool, leave: bool) -> None:
        """Saves after a step if a checkpoint is due.

        Args:
          last: the step was the last of its round.
          leave: the process is about to stop.
        """
        kept, due = self._settings.checkpoint, last
        if kept.every_steps:
            due = due or position.step % kept.every_steps == 0
        if kept.every_minutes and not due:
            seconds = 60 * kept.every_minutes
            due = distributed.on_first(lambda: time.monotonic() - self._saved >= seconds)
        if due or leave:
            self._write(position, due and last and kept.of_rounds == "state")
            self._saved = time.monotonic()
        if leave:
            self.wait()

    def _write(self, position: Position, keep: bool = False) -> None:
        metadata = {
            "position": {name: getattr(position, name) for name in ("round", "step", "total")},
            "task": position.task,
            "prompt_scores": position.prompt_scores.to_dict() if position.prompt_scores else None,
        }
        process.return_freed_memory()  # Otherwise what a save takes comes on top of it.
        self.save(position.total, position.state, metadata, keep)

    @contextlib.contextmanager
    def saved_if_preempted(self, position: Position) -> Iterator[None]:
        """Saves the position of the last step if the next one is preempted while it samples."""
        try:
            yield
        except Preempted:
            if position.total > (self.latest_step() or 0):
                self._write(position)
            self.wait()
            raise

    @contextlib.contextmanager
    def batch_kept(self, name: str, reporter: Reporter) -> Iterator[None]:
        """Saves the batch of a step that fails with `NonFiniteError`, and reports where."""
        try:
            yield
        except NonFiniteError as error:
            folder = self._store.root / "non_finite" / f"{name}-step-{error.step}"
            if error.rollout is not None and distributed.is_first():
                error.rollout.save(folder)
            # JSON has no word for NaN.
            known = {k: v if np.isfinite(v) else str(v) for k, v in error.metrics.items()}
            self._store.write(folder / "metrics.json", known)
            reporter.line(
                f"{name} stopped at step {error.step}: its batch is in {folder}, the "
                f"last good checkpoint is {self.latest_step()}"
            )
            raise

    def keep_weights(self, policy: Policy, params: Any, index: int) -> None:
        """Writes the weights after a round, if the settings ask for it and it is not done yet."""
        folder = self._store.round(index) / "weights"
        if self._settings.checkpoint.of_rounds == "weights" and not self._store.exists(folder):
            begun = folder.with_name("weights.tmp")
            policy.save(begun, params, "bfloat16")
            distributed.on_first(lambda: begun.rename(folder))


@dataclasses.dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint of a run.

    Attributes:
      run: folder of the run.
      step: training steps before it.
      settings: of the run.
      weights: the folder of the weights that are left of it; None if it is whole.
    """

    run: Path
    step: int
    settings: Settings
    weights: Path | None = None

    def load(self, policy: Policy) -> Any:
        """Loads the parameters, with adapters attached, onto the mesh of the policy.

        This also reads the optimizer's moments, if they are there.

        Args:
          policy: of `load_policy` for the run's settings, on any mesh.

        Raises:
          FileNotFoundError: the checkpoint is gone.
          ValueError: the model does not fit the mesh, or the adapters belong to another base model.
        """
        if self.weights:
            return weights.load(self.weights, policy.config, policy.mesh)
        with Checkpoints(self.run / "checkpoints", read_only=True) as checkpoints:
            state, _ = checkpoints.restore(_abstract_state(self.settings, policy), self.step)
        adapters = self.settings.training.lora
        if not adapters.rank:
            return state.params
        return lora.attach(load_params(self.settings, policy), state.params, adapters)


def find_checkpoint(spec: str) -> RunCheckpoint | None:
    """The checkpoint that RUN, RUN:STEP or RUN@ROUND means; None if there is no such run.

    RUN means its last one, RUN@ROUND the one at the end of that round, or the weights kept of it.

    Raises:
      UserError: the run has no such checkpoint, or its options cannot be read.
    """
    parts = re.fullmatch(r"(.+)([:@])([0-9]+)", spec)
    folder, mark, number = Path(spec), "", 0
    if parts and not folder.exists():
        folder, mark, number = Path(parts[1]), parts[2], int(parts[3])
    saved, kept = folder / "checkpoints", folder / "rounds" / str(number) / "weights"
    only_weights = mark == "@" and kept.is_dir()
    if not ((saved.is_dir() or only_weights) and (folder / "config.json").is_file()):
        return None
    settings = settings_lib.of_run(folder)
    steps = checkpoint_steps(folder)
    if not (steps or only_weights):
        raise UserError(f"{spec}: the run has no checkpoint yet")
    step = end_of_round(folder, number) if mark == "@" else number if mark else steps[-1]
    if step is None:
        raise UserError(f"{spec}: the run has not finished rounds/{number}")
    if step in steps:
        return RunCheckpoint(folder, step, settings)
    if only_weights:
        return RunCheckpoint(folder, step, settings, kept)
    raise UserError(
        f"{spec}: the run has no such checkpoint, but those of steps {steps}; with "
        "checkpoint.of_rounds='state' it keeps one of each round"
    )


def end_of_round(run: Path, index: int) -> int | None:
    """Total training steps at the end of a round, which name its checkpoint; None before it."""
    folders = [run / "rounds" / str(i) for i in range(index + 1)]
    if not (folders[-1] / "validation.json").exists():
        return None
    return sum(len(read_log(folder / "train.jsonl")) for folder in folders)


def _abstract_state(settings: Settings, policy: Policy) -> TrainState:
    training = settings.training
    return train_state.abstract_train_state(
        policy.config, training.optimizer, policy.mesh, training.lora
    )
