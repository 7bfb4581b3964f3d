"""A rollout: prompts, completions and their rewards, as host arrays."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner import tokens
from learner.chat import Completion
from learner.training import grpo

# The arrays with one entry for each completion.
_OF_COMPLETIONS = ("tokens", "logprobs", "lengths", "lost", "truncated", "rewards")


@dataclasses.dataclass(frozen=True)
class Rollout:
    """P prompts with G completions each, N = P * G, prompt-major; M is the completion budget.

    Attributes:
      indices: i64[P], the number of each prompt in its task.
      prompts: P lists of token ids.
      tokens: i32[N, M], the pad id after the end.
      logprobs: f32[N, M], the sampler's, in nats.
      lengths: i32[N], stop token included.
      lost: i32[N], tokens generated in vain; see `learner.sampling.sampler.Samples`.
      truncated: bool[N], ended by the budget.
      completions: N completions as the task sees them.
      rewards: f32[N].
    """

    indices: np.ndarray
    prompts: Sequence[Sequence[int]]
    tokens: np.ndarray
    logprobs: np.ndarray
    lengths: np.ndarray
    lost: np.ndarray
    truncated: np.ndarray
    completions: Sequence[Completion]
    rewards: np.ndarray

    @property
    def group_size(self) -> int:
        """G."""
        return len(self.completions) // len(self.prompts)

    @property
    def groups(self) -> np.ndarray:
        """The rewards as f32[P, G]."""
        return self.rewards.reshape(len(self.prompts), -1)

    @property
    def signal(self) -> np.ndarray:
        """bool[P], whether the rewards of a group differ (`grpo.has_signal`)."""
        return grpo.has_signal(self.groups)

    @property
    def learnability(self) -> np.ndarray:
        """f64[P], the variance of each group's rewards; 0 exactly where there is no signal."""
        return np.where(self.signal, self.groups.var(axis=1, dtype=np.float64), 0.0)

    def metrics(self) -> dict[str, float]:
        """Numbers for the log: rewards, non-degenerate groups, lengths."""
        ended = self.lengths[~self.truncated]
        names = ("min", "p10", "p50", "p90", "max")
        lengths = zip(names, np.percentile(self.lengths, (0, 10, 50, 90, 100)), strict=True)
        return {
            "reward": float(self.rewards.mean()),
            "reward_std": float(self.rewards.std()),
            "reward_std_in_groups": float(self.groups.std(axis=1).mean()),
            "nondegenerate_fraction": float(self.signal.mean()),
            "completion_tokens_mean": float(self.lengths.mean()),
            **{f"completion_tokens_{name}": float(value) for name, value in lengths},
            **({"completion_tokens_mean_ended": float(ended.mean())} if ended.size else {}),
            **({"completion_tokens_lost": float(self.lost.sum())} if self.lost.any() else {}),
            "truncated_fraction": float(self.truncated.mean()),
        }

    def take(self, prompts: np.ndarray) -> "Rollout":
        """The groups of the given prompts (i64[K]), in that order."""
        own = (prompts[:, None] * self.group_size + np.arange(self.group_size)).reshape(-1)
        return Rollout(
            indices=self.indices[prompts],
            prompts=[self.prompts[int(i)] for i in prompts],
            completions=[self.completions[int(i)] for i in own],
            **{name: getattr(self, name)[own] for name in _OF_COMPLETIONS},
        )

    @classmethod
    def concatenate(cls, parts: Sequence["Rollout"]) -> "Rollout":
        """All groups of several rollouts of the same G and M, in order."""
        arrays = ("indices", *_OF_COMPLETIONS)
        return cls(
            prompts=[prompt for part in parts for prompt in part.prompts],
            completions=[completion for part in parts for completion in part.completions],
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays},
        )

    def save(self, folder: Path) -> None:
        """Writes `arrays.npz` and `texts.jsonl` (one line for each completion), to look at."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        prompts = tokens.pad_right(self.prompts, max(map(len, self.prompts)), -1)
        np.savez(folder / "arrays.npz", prompts=prompts, **arrays)
        indices = np.repeat(self.indices, self.group_size)
        with (folder / "texts.jsonl").open("w", encoding="utf-8") as file:
            for index, reward, completion in zip(
                indices, self.rewards, self.completions, strict=True
            ):
                record = {
                    "prompt": int(index),
                    "reward": float(reward),
                    "tokens": completion.num_tokens,
                    "truncated": completion.truncated,
                    "text": completion.text,
                }
                file.write(json.dumps(record) + "\n")
