"""How much short trainings under other configurations would teach a checkpoint."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engineer.space import Configuration
from experiments.families import Family, NoProblemError, Problem
from experiments.settings import EngineerTraining
from experiments.validation import complete_all
from learner.sampling.completer import Completer
from learner.training.train_state import TrainState
from learner.training.trainer import GRPOTrainer
from learner.training.update import NonFiniteError

# What a trial's key is folded with.
_TRIAL_SET, _TRIAL, _COMPLETIONS = range(3)
WORST = -1.0
"""Progress under a configuration that has no solvable problem, or breaks training."""


@dataclasses.dataclass(frozen=True)
class Trials:
    """Trains copies of a state for a few steps.

    Attributes:
      options: how long, and on how much.
      family: of the problems.
      trainer: of the problems.
      respond: how completions of the probe set are sampled.
      exclude: problems of the validation set, of which no trial may have any.
      pause: called after every step, a point that all processes reach; what it raises ends a trial.
    """

    options: EngineerTraining
    family: Family
    trainer: GRPOTrainer
    respond: Completer
    exclude: Sequence[Problem]
    pause: Callable[[], None]

    def progress(
        self, state: TrainState, probe: Sequence[Problem], key: jax.Array
    ) -> Callable[[Configuration], float]:
        """A function that says by how much the mean reward on the probe set rises in a trial.

        Args:
          state: where every trial starts; kept as it is.
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

    def _trained(
        self, state: TrainState, probe: Sequence[Problem], key: jax.Array, config: Configuration
    ) -> TrainState:
        """A copy of the state after the steps of a trial."""
        options = self.options
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
