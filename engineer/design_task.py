"""Designing as a task that can be trained on: an answer is a design, its score what it teaches.

A `DesignTask` has the form of the learner's `Task` without importing it: prompts out, answers in,
scores back. What a design teaches is measured by a probe that the caller gives, such as the rise
of the reward over a short training under the design.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from engineer import proposal
from engineer.context import ContextSpec, Message, fitted
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace
from engineer.texts import FamilyTexts

Probe = Callable[[Configuration], float]
"""The learning progress that training under a configuration brings; finite, higher is better."""


class DesignAnswer(Protocol):
    """What the task needs of a sampled answer."""

    @property
    def text(self) -> str:
        """The answer without special tokens."""
        ...


@dataclasses.dataclass(frozen=True)
class DesignScores:
    """Scores of N answers, with the fields of the learner's `Scores`.

    Attributes:
      rewards: f32[N].
      metrics: figures about the whole list.
      records: for each answer its configuration and progress, or why it could not be read.
    """

    rewards: np.ndarray
    metrics: Mapping[str, float]
    records: Sequence[Mapping[str, Any]]


class DesignTask:
    """Contexts as problems, designs as answers, learning progress as reward.

    The reward of a readable design is the progress that the probe finds, held within
    [-1, 1]; that of an unreadable one is `unreadable`. Equal designs are probed once, and what
    was found is remembered.

    Args:
      records: the runs whose next design is asked for, one problem each.
      spec: which modules the engineer reads.
      family: the texts of the context.
      space: what may be chosen.
      probe: measures a design.
      unreadable: reward of an answer without a configuration.
      trigger: text after which the configuration stands, if the answers have one.
      fits: whether the model's window holds a chat; contexts are shortened until it does.

    Raises:
      ValueError: there is no record, or the context of one cannot be made to fit.
    """

    def __init__(
        self,
        records: Sequence[RunRecord],
        spec: ContextSpec,
        family: FamilyTexts,
        space: ConfigurationSpace,
        probe: Probe,
        unreadable: float = -1.0,
        trigger: str = "",
        fits: Callable[[Sequence[Message]], bool] = lambda chat: True,
    ) -> None:
        if not records:
            raise ValueError("records=(): at least one is needed")
        self._records = tuple(records)
        self._chats: list[list[Message]] = []
        for i, record in enumerate(self._records):
            found = fitted(spec, record, family, fits)
            if found is None:
                raise ValueError(f"records[{i}]: no context of it fits the model's window")
            self._chats.append(found[0])
        self._trigger = trigger
        self._space = space
        self._probe = probe
        self._unreadable = unreadable
        self._found: dict[Configuration, float] = {}

    def __len__(self) -> int:
        return len(self._records)

    def messages(self, index: int) -> Sequence[Message]:
        """The context of problem `index`."""
        return self._chats[index]

    def score(self, indices: np.ndarray, answers: Sequence[DesignAnswer]) -> DesignScores:
        """Rewards of `answers[i]` to problem `indices[i]`.

        Raises:
          ValueError: the probe's progress is not finite.
        """
        records: list[dict[str, Any]] = []
        rewards = np.full(len(answers), self._unreadable, np.float32)
        for i, (index, answer) in enumerate(zip(indices.tolist(), answers, strict=True)):
            reading = proposal.parse(answer.text, self._space, self._trigger)
            if isinstance(reading, proposal.Unreadable):
                records.append({"reason": reading.reason})
                continue
            config, repairs = proposal.project(reading, self._records[index].config, self._space)
            if config not in self._found:
                progress = float(self._probe(config))
                if not np.isfinite(progress):
                    raise ValueError(f"probe: progress {progress} is not finite")
                self._found[config] = progress
            rewards[i] = np.clip(self._found[config], -1.0, 1.0)
            records.append(
                {
                    "config": config.to_dict(),
                    "progress": self._found[config],
                    "repairs": list(repairs),
                }
            )
        read = [r["progress"] for r in records if "progress" in r]
        metrics = {"readable": len(read) / max(len(answers), 1)}
        if read:
            metrics["progress"] = float(np.mean(read))
        return DesignScores(rewards, metrics, records)

    def state(self) -> dict[str, Any]:
        """Nothing that a resumed run needs: what was found follows from the probe."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""
        del state
