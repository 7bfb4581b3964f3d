"""Curricula over single prompts: which of a task's prompts a step trains on, by their outcomes.

A prompt's score is its learnability, the variance of the rewards of its newest group. With rewards
of 0 and 1 and a success rate p that is p (1 - p), as in sampling for learnability (arXiv
2408.15099); with any rewards it is the mean square of the group's advantages before they are
normalised, and so says how much GRPO has to learn from. Prioritized level replay (arXiv 2010.03934)
scores a level by its mean absolute advantage, for the same reason.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
import numpy as np

from learner import checks
from learner.training.task import prompt_indices

Method = Literal["uniform", "learnability", "replay"]

# Folded into the key of a run on a task; the trainer uses 1 to 3, `prompt_indices` 0.
_REPLAY = 4

STALENESS = 0.3
"""Part of the probability of a replayed prompt that grows with the steps since it was answered, rho
of arXiv 2010.03934; this value is that of github.com/facebookresearch/dcd on mazes."""


@dataclasses.dataclass(frozen=True)
class CurriculumConfig:
    """A curriculum over prompts, by the variance of the rewards of a prompt's newest group.

    Attributes:
      method: "uniform" (shuffled passes over all prompts), "learnability" (each step samples from
        `candidates` times as many prompts as it trains on and keeps those of the highest variance;
        as in arXiv 2408.15099, but each step has candidates of its own and trains on the very
        completions that scored them), or "replay" (prioritized level replay, arXiv 2010.03934: a
        part of each step's prompts has been answered before, the rest is new until none is left;
        its defaults are those of github.com/facebookresearch/dcd on mazes).
      candidates: groups sampled for each group trained on; at least 2. For "learnability".
      replay_fraction: part of a step's prompts that are drawn anew from those answered before, in
        [0, 1]; rounded to whole prompts. This and all that follow are for "replay".
      temperature: b in the weights rank^(-1/b) of that draw, where the highest variance has
        rank 1; above 0.
    """

    method: Method = "uniform"
    candidates: int = 2
    replay_fraction: float = 0.5
    temperature: float = 0.3

    def __post_init__(self) -> None:
        checks.choices(self, method=get_args(Method))
        checks.integers(self, candidates=2)
        checks.fractions(self, "replay_fraction")
        checks.positive(self, "temperature")


@dataclasses.dataclass(frozen=True)
class PromptScores:
    """Scores of a task's n prompts, for "replay".

    Attributes:
      scores: f64[n], of the newest group.
      steps: i64[n], the step that sampled it; -1 before any.
    """

    scores: np.ndarray
    steps: np.ndarray

    @classmethod
    def unknown(cls, num_prompts: int) -> "PromptScores":
        """Before the first step."""
        return cls(np.zeros(num_prompts), np.full(num_prompts, -1))

    def updated(self, step: int, prompts: np.ndarray, scores: np.ndarray) -> "PromptScores":
        """After a step that gave f64[P] scores to i64[P] prompts; a repeated one has its last."""
        result = PromptScores(self.scores.copy(), self.steps.copy())
        result.scores[prompts], result.steps[prompts] = scores, step
        return result

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"scores": self.scores.tolist(), "steps": self.steps.tolist()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "PromptScores":
        """The inverse of `to_dict`, to the last bit."""
        return cls(np.array(state["scores"], float), np.array(state["steps"], int))


def replay_probabilities(config: CurriculumConfig, known: PromptScores, step: int) -> np.ndarray:
    """How likely a single draw before a step is to take each prompt: f64[n].

    Equations 1 to 3 of arXiv 2010.03934, over the prompts answered before; 0 for all others.
    """
    answered = np.flatnonzero(known.steps >= 0)
    order = np.argsort(-known.scores[answered], kind="stable")
    weights = np.empty(len(answered))
    weights[order] = np.arange(1.0, len(answered) + 1) ** (-1 / config.temperature)
    stale = step - known.steps[answered]
    result = np.zeros(len(known.steps))
    result[answered] = (1 - STALENESS) * weights / weights.sum()
    result[answered] += STALENESS * stale / stale.sum()
    return result


def replay_indices(
    config: CurriculumConfig, key: jax.Array, step: int, count: int, known: PromptScores
) -> np.ndarray:
    """The prompts of a step with "replay": i64[count], distinct if there are that many.

    Args:
      key: a typed JAX key of the whole run on the task. New prompts come in the order of the first
        pass of `prompt_indices`, replayed ones are drawn without replacement by adding Gumbel noise
        (arXiv 1903.06059).
      known: after the steps before this one.
    """
    num_prompts = len(known.steps)
    order = prompt_indices(key, 0, num_prompts, num_prompts)
    new = order[known.steps[order] < 0]
    answered = num_prompts - len(new)
    replayed = min(max(round(config.replay_fraction * count), count - len(new)), answered, count)
    key = jax.random.fold_in(jax.random.fold_in(key, _REPLAY), step)
    with np.errstate(divide="ignore"):
        logits = np.log(replay_probabilities(config, known, step))
    drawn = np.argsort(-logits - np.asarray(jax.random.gumbel(key, (num_prompts,))), kind="stable")
    drawn = drawn[known.steps[drawn] >= 0]  # Even where probabilities are too small for a float.
    chosen = np.concatenate([drawn[:replayed], new[: count - replayed]])
    return np.resize(chosen, count).astype(np.int64)
