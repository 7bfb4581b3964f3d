"""Trains the current checkpoint as engineer: designs as completions, learning progress as reward.

Off by default and beyond the publication. The same algorithm that teaches problems teaches designs:
a group of designs is sampled from one context, a copy of the weights is trained for a few steps
under each (a trial), and the rise of its mean reward on a probe set is the design's reward.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from engineer import proposal
from engineer.context import fitted
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace
from experiments.families import Family, Problem
from experiments.settings import Settings
from experiments.trials import WORST, Trials
from learner.chat import Completion, Message
from learner.training.task import Scores, Task
from learner.training.train_state import TrainState
from learner.training.trainer import GRPOConfig, GRPOTrainer

# What the key of a round's engineer training is folded with; 0 is that of the probe set.
_DESIGNS, _STEPS = 1, 2


@dataclasses.dataclass(frozen=True)
class EngineerTrainer:
    """Trains a state on designing, one round at a time.

    Attributes:
      settings: of the run.
      family: of the problems.
      make_trainer: a trainer of the run's model with another configuration.
      trials: what says how good a design is.
      fits: whether the model's window holds a chat and a design.
    """

    settings: Settings
    family: Family
    make_trainer: Callable[[GRPOConfig], GRPOTrainer]
    trials: Trials
    fits: Callable[[Sequence[Message]], bool]

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
        )
        return self.make_trainer(config)

    def __call__(
        self, state: TrainState, record: RunRecord, probe: Sequence[Problem], key: jax.Array
    ) -> tuple[TrainState, list[dict[str, Any]]]:
        """The state after training on the design that `record` asks for.

        It is the same state if no context fits the model's window, as no design can be made then.

        Args:
          state: where to start from; donated.
          key: a typed JAX key of this round's training.

        Returns:
          The state, and for each step its metrics and every design with its progress, JSON-able.

        Raises:
          ValueError: the settings of training do not go with groups of designs.
          NonFiniteError: loss or gradient of the training on designs was NaN or infinite.
        """
        engineer, steps = self.settings.engineer, []
        found = fitted(engineer.spec, record, engineer.texts(self.family.texts), self.fits)
        for step in range(engineer.training.steps if found is not None else 0):
            assert found is not None
            step_key = jax.random.fold_in(jax.random.fold_in(key, _STEPS), step)
            progress = self.trials.progress(state, probe, step_key)
            task = DesignTask(
                found[0], record.config, self.family.space, progress, engineer.trigger
            )
            result = self._designs.step(state, task, jax.random.fold_in(key, _DESIGNS), step)
            state = result.state
            designs = zip(
                result.completions, result.scores.rewards, result.scores.records, strict=True
            )
            steps.append(
                {
                    "step": step,
                    "metrics": result.metrics,
                    "answers": [
                        {"text": completion.text, "reward": float(reward), **scored}
                        for completion, reward, scored in designs
                    ],
                }
            )
        return state, steps


@dataclasses.dataclass
class DesignTask(Task):
    """A context as the only prompt, designs as completions, learning progress as reward.

    The reward of a readable design is its progress, held within [-1, 1]; that of an unreadable one
    is `WORST`. Equal designs are tried once.

    Attributes:
      chat: the context.
      config: the configuration that a design replaces.
      space: what may be chosen.
      progress: the learning progress that training under a configuration brings; higher is better.
      trigger: text after which the configuration stands, if the completions have one.
    """

    chat: Sequence[Message]
    config: Configuration
    space: ConfigurationSpace
    progress: Callable[[Configuration], float]
    trigger: str = ""

    def __post_init__(self) -> None:
        self._once = functools.cache(self.progress)

    def __len__(self) -> int:
        return 1

    def messages(self, index: int) -> Sequence[Message]:
        """The context."""
        return self.chat

    def score(self, indices: np.ndarray, completions: Sequence[Completion]) -> Scores:
        """Rewards of designs; records hold configuration and progress, or why there is none.

        Raises:
          ValueError: progress is not finite.
        """
        records: list[dict[str, Any]] = []
        rewards = np.full(len(completions), WORST, np.float32)
        for i, completion in enumerate(completions):
            reading = proposal.parse(completion.text, self.space, self.trigger)
            if isinstance(reading, proposal.Unreadable):
                records.append({"reason": reading.reason})
                continue
            config, repairs = proposal.project(reading, self.config, self.space)
            progress = self._once(config)
            if not np.isfinite(progress):
                raise ValueError(f"progress={progress}: allowed are finite numbers")
            rewards[i] = np.clip(progress, -1.0, 1.0)
            records.append(
                {"config": config.to_dict(), "progress": progress, "repairs": list(repairs)}
            )
        read = [record["progress"] for record in records if "progress" in record]
        metrics = {"readable": len(read) / max(len(completions), 1)}
        if read:
            metrics["progress"] = float(np.mean(read))
        return Scores(rewards, metrics, records)
