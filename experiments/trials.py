"""Trials: short trainings under candidate configurations, and training of an engineer by them.

A trial trains a copy of the weights for a few steps under a configuration; its progress is the gain
of the mean reward on a probe set. Some designers choose by progress. The current checkpoint can
also be trained as engineer by GRPO (off by default, beyond the publication): a group of designs is
sampled from one context, and their progress is the reward.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engineer import proposal
from engineer.context import fitted
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace
from experiments.families import Family, NoProblemError, Problem
from experiments.settings import Settings
from experiments.validation import complete_all
from learner.chat import Completion, Message
from learner.sampling.completer import Completer
from learner.training.curriculum import CurriculumConfig
from learner.training.task import Scores, Task
from learner.training.train_state import TrainState
from learner.training.trainer import GRPOConfig, GRPOTrainer
from learner.training.update import NonFiniteError

# Folded into the key of a trial, and into that of a round's training as engineer, where 0 is for
# the probe set.
_TRIAL_SET, _TRIAL, _COMPLETIONS = range(3)
_DESIGNS, _STEPS = 1, 2
WORST = -1.0
"""Progress under a configuration that has no solvable problem, or breaks training."""

Progress = Callable[[Configuration], float]
"""The progress of a trial under a configuration; higher is better."""


@dataclasses.dataclass(frozen=True)
class Trials:
    """Makes trials, and trains the engineer by them.

    Attributes:
      settings: of the run.
      family: of the problems.
      make_trainer: a trainer of the run's model with another configuration.
      trainer: of the problems.
      respond: samples completions of the probe set.
      exclude: problems of the validation set, which trials must not use.
      pause: called after every step on all processes; an exception that it raises ends a trial.
    """

    settings: Settings
    family: Family
    make_trainer: Callable[[GRPOConfig], GRPOTrainer]
    trainer: GRPOTrainer
    respond: Completer
    exclude: Sequence[Problem]
    pause: Callable[[], None]

    def progress(self, state: TrainState, probe: Sequence[Problem], key: jax.Array) -> Progress:
        """A function that makes a trial.

        Args:
          state: the initial state of every trial; not modified.
          probe: problems that no trial trains on.
          key: a typed JAX key; the same for all trials, so that they differ in nothing else.
        """
        before = self._reward(self.trainer.policy_params(state), probe, key)

        def trial(config: Configuration) -> float:
            try:
                trained = self._trained(state, probe, key, config)
            except (NoProblemError, NonFiniteError):
                return WORST
            return self._reward(self.trainer.policy_params(trained), probe, key) - before

        return trial

    def train_engineer(
        self,
        state: TrainState,
        record: RunRecord,
        fits: Callable[[Sequence[Message]], bool],
        probe: Sequence[Problem],
        key: jax.Array,
    ) -> tuple[TrainState, list[dict[str, Any]]]:
        """The state after training on designs for the next round of `record`.

        The state is unchanged if no context fits the model's window.

        Args:
          state: the initial state; donated.
          record: of the run.
          fits: whether the model's window holds a chat and a design.
          probe: as in `progress`.
          key: a typed JAX key of this round's training.

        Returns:
          The state, and for each step its metrics and every design with its progress, JSON-able.

        Raises:
          ValueError: the training settings are incompatible with groups of designs.
          NonFiniteError: loss or gradient of the training on designs was NaN or infinite.
        """
        engineer, space, steps = self.settings.engineer, self.family.space, []
        found = fitted(engineer.spec, record, engineer.texts(self.family.texts), fits)
        for step in range(engineer.training.steps if found else 0):
            assert found is not None
            step_key = jax.random.fold_in(jax.random.fold_in(key, _STEPS), step)
            progress = self.progress(state, probe, step_key)
            task = DesignTask(found[0], record.config, space, progress, engineer.trigger)
            result = self._designs.step(state, task, jax.random.fold_in(key, _DESIGNS), step)
            state, scores = result.state, result.scores
            designs = zip(result.completions, scores.rewards, scores.records, strict=True)
            answers = [
                {"text": completion.text, "reward": float(reward), **scored}
                for completion, reward, scored in designs
            ]
            steps.append({"step": step, "metrics": result.metrics, "answers": answers})
        return state, steps

    @functools.cached_property
    def _designs(self) -> GRPOTrainer:
        """The trainer of designs."""
        engineer, mesh = self.settings.engineer, self.settings.mesh
        config = dataclasses.replace(
            self.settings.training,
            prompts_per_step=1,
            group_size=engineer.training.group_size,
            updates_per_step=1,
            micro_batch_rows=mesh.data * mesh.fsdp,
            completions_per_row=1,
            max_new_tokens=engineer.max_new_tokens,
            thinking=engineer.thinking,
            thinking_tokens=engineer.thinking_tokens,
            temperature=engineer.temperature,
            degenerate_groups="drop",
            curriculum=CurriculumConfig(),
        )
        return self.make_trainer(config)

    def _trained(
        self, state: TrainState, probe: Sequence[Problem], key: jax.Array, config: Configuration
    ) -> TrainState:
        """A copy of the state after the steps of a trial."""
        options = self.settings.engineer.training
        exclude = [*self.exclude, *probe]
        set_key = jax.random.fold_in(key, _TRIAL_SET)
        made = self.family.generate(set_key, config, options.trial_instances, exclude)
        task = self.family.task(made.problems)
        state = jax.tree.map(jnp.copy, state)  # Training donates what it is given.
        key = jax.random.fold_in(key, _TRIAL)
        for result in self.trainer.run(state, task, key, 0, options.trial_steps):
            state = result.state
            self.pause()
        return state

    def _reward(self, params: Any, probe: Sequence[Problem], key: jax.Array) -> float:
        """Mean accuracy, or else reward, of one completion to every problem of the probe set."""
        key = jax.random.fold_in(key, _COMPLETIONS)
        _, scores = complete_all(self.family.task(probe), self.respond, params, key)
        pairs = zip(scores.records, scores.rewards, strict=True)
        return float(np.mean([record.get("accuracy", reward) for record, reward in pairs]))


@dataclasses.dataclass
class DesignTask(Task):
    """A context as the only prompt, designs as completions, progress as reward.

    The reward of a readable design is its progress, clipped to [-1, 1]; that of an unreadable one
    is `WORST`. Equal designs share a trial.

    Attributes:
      chat: the context.
      config: the configuration that a design replaces.
      space: the configurations.
      progress: makes a trial.
      trigger: text that precedes the configuration in a completion, if any.
    """

    chat: Sequence[Message]
    config: Configuration
    space: ConfigurationSpace
    progress: Progress
    trigger: str = ""

    def __post_init__(self) -> None:
        self._once = functools.cache(self.progress)

    def __len__(self) -> int:
        return 1

    def messages(self, index: int) -> Sequence[Message]:
        """The context."""
        return self.chat

    def score(self, indices: np.ndarray, completions: Sequence[Completion]) -> Scores:
        """Rewards of designs; records hold configuration and progress, or why one is unreadable.

        Raises:
          ValueError: progress is not finite.
        """
        records = [self._record(completion.text) for completion in completions]
        read = [record["progress"] for record in records if "progress" in record]
        metrics = {"readable": len(read) / max(len(completions), 1)}
        if read:
            metrics["progress"] = float(np.mean(read))
        rewards = np.array([record.get("progress", WORST) for record in records], np.float32)
        return Scores(np.clip(rewards, -1.0, 1.0), metrics, records)

    def _record(self, text: str) -> dict[str, Any]:
        reading = proposal.parse(text, self.space, self.trigger)
        if isinstance(reading, proposal.Unreadable):
            return {"reason": reading.reason}
        config, repairs = proposal.project(reading, self.config, self.space)
        progress = self._once(config)
        if not np.isfinite(progress):
            raise ValueError(f"progress={progress}: allowed are finite numbers")
        return {"config": config.to_dict(), "progress": progress, "repairs": list(repairs)}
