"""MAPF-FrozenLake as a `Task` of the learner, and the judgement of answers for validation."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import mapf_jax
from engineer.evidence import FailureBreakdown
from experiments.families.lakes.texts import lake_breakdown
from learner.devices import distributed
from learner.training.task import Completion, Message, Scores
from mapf_jax.answer_reward import RewardConfig, answer_rewards, next_short_fraction


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Verdicts on N answers; all fields are NumPy arrays of shape [N].

    Attributes:
      sizes: i32, lake size of the instance.
      verdict: the eight checks, costs and gaps.
      optimum: i32, optimal sum of costs.
    """

    sizes: np.ndarray
    verdict: mapf_jax.Verdict
    optimum: np.ndarray

    def breakdown(self, num_tokens: np.ndarray | None = None) -> FailureBreakdown:
        """Counts and statistics by lake size.

        Args:
          num_tokens: i[N], length of each answer, if its statistics are wanted.
        """
        verdict = self.verdict
        return lake_breakdown(
            self.sizes,
            verdict.valid,
            verdict.optimal,
            {name: ~getattr(verdict, name) for name in mapf_jax.CHECKS},
            violation_time=verdict.violation_time,
            gap=np.where(verdict.gap < mapf_jax.INFINITE_COST, verdict.gap, -1),
            length=num_tokens,
        )


def judge(instances: mapf_jax.Instance, indices: np.ndarray, texts: Sequence[str]) -> Judgement:
    """Verifies `texts[i]` as the answer to `instances[indices[i]]`; several processes share this.

    Args:
      instances: batch with solutions.
      indices: i64[N].
      texts: N answers.
    """
    chosen = instances[np.asarray(indices)]

    def verdicts(rows: np.ndarray) -> mapf_jax.Verdict:
        plans = mapf_jax.plans_from_texts([texts[i] for i in rows], chosen.starts.shape[-2])
        return jax.tree.map(np.asarray, mapf_jax.verify(chosen[rows], plans))

    verdict = distributed.sharded_map(verdicts, len(texts))
    assert chosen.solution is not None
    return Judgement(np.asarray(chosen.size), verdict, np.asarray(chosen.solution.cost))


class MapfTask:
    """Prompts about a set of solved instances, scored by the verifier.

    Its state is the moving average of the share of short responses, from which the weights of the
    two parts of the reward follow. It is updated after a list of answers has been scored.

    Args:
      instances: batch with solutions.
      reward: the reward.
      list_holes: also list the holes' cells in the prompt.
      short_fraction: the average to start from.
    """

    def __init__(
        self,
        instances: mapf_jax.Instance,
        reward: RewardConfig,
        list_holes: bool,
        short_fraction: float = 0.0,
    ) -> None:
        self._instances = instances
        self._reward = reward
        self._prompts = [mapf_jax.prompt(instances[i], list_holes) for i in range(len(instances))]
        self._short_fraction = short_fraction

    def __len__(self) -> int:
        return len(self._prompts)

    def messages(self, index: int) -> Sequence[Message]:
        """One user message that poses instance `index`."""
        return [{"role": "user", "content": self._prompts[index]}]

    def score(self, indices: np.ndarray, answers: Sequence[Completion]) -> Scores:
        """R = w_acc R_acc + w_len R_len of every answer."""
        judgement = judge(self._instances, indices, [answer.text for answer in answers])
        num_tokens = np.array([answer.num_tokens for answer in answers])
        rewards = answer_rewards(
            judgement.verdict, judgement.optimum, num_tokens, self._short_fraction, self._reward
        )
        self._short_fraction = next_short_fraction(self._short_fraction, num_tokens, self._reward)
        valid, optimal = judgement.verdict.valid, judgement.verdict.optimal
        metrics = {
            "valid": float(np.mean(valid)),
            "optimal": float(np.mean(optimal)),
            "reward_accuracy": float(np.mean(rewards.accuracy)),
            "reward_length": float(np.mean(rewards.length)),
            "weight_accuracy": rewards.accuracy_weight,
            "short_fraction": self._short_fraction,
        }
        for size in np.unique(judgement.sizes):
            here = judgement.sizes == size
            metrics[f"valid_{size}"] = float(np.mean(valid[here]))
            metrics[f"optimal_{size}"] = float(np.mean(optimal[here]))
        return Scores(rewards=rewards.total, metrics=metrics)

    def state(self) -> dict[str, Any]:
        """The moving average."""
        return {"short_fraction": self._short_fraction}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""
        self._short_fraction = float(state["short_fraction"])
