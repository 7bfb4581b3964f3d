"""The interface that a user of another domain implements: prompts, and scores of completions."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from learner.chat import Completion as Completion
from learner.chat import Message as Message


@dataclasses.dataclass(frozen=True)
class Scores:
    """A task's scores of a list of N completions.

    Attributes:
      rewards: f32[N], one reward for each completion, finite.
      metrics: numbers about the whole list, for the log.
      records: one mapping for each completion, or empty. They hold what the caller of the run shows
        of a completion (its group, whether it is valid, what failed), so that nobody has to score
        it again; the learner passes them on.
    """

    rewards: np.ndarray
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    records: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def concatenate(cls, parts: Sequence["Scores"]) -> "Scores":
        """Scores of several lists as one; each metric is the mean of its values."""
        names = {name: None for part in parts for name in part.metrics}
        return cls(
            rewards=np.concatenate([part.rewards for part in parts]),
            metrics={
                name: float(np.mean([part.metrics[name] for part in parts if name in part.metrics]))
                for name in names
            },
            records=[record for part in parts for record in part.records],
        )


@runtime_checkable
class Task(Protocol):
    """A finite list of prompts, and scores for completions to them.

    A task may carry state that changes while it scores (a moving average, say). `state` returns it
    as a value that JSON can hold, `restore` puts it back; a subclass without state inherits both.
    Two tasks with the same prompts and the same state must score alike, else a resumed run differs.
    """

    def __len__(self) -> int:
        """Number of prompts."""
        ...

    def messages(self, index: int) -> Sequence[Message]:
        """Prompt `index` as a chat: mappings with `role` and `content`."""
        ...

    def score(self, indices: np.ndarray, completions: Sequence[Completion]) -> Scores:
        """Scores of `completions[i]` to prompt `indices[i]`; i64[N], with repetitions."""
        ...

    def state(self) -> dict[str, Any]:
        """What a resumed run needs besides the weights, as JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""
        del state


class PromptTask(Task):
    """Prompts in plain text, and a reward for each completion's text alone.

    Args:
      prompts: at least one; each is the message of a user.
      reward: from a prompt and the text of a completion to a finite number.
    """

    def __init__(self, prompts: Sequence[str], reward: Callable[[str, str], float]) -> None:
        self._prompts, self._reward = prompts, reward

    def __len__(self) -> int:
        return len(self._prompts)

    def messages(self, index: int) -> Sequence[Message]:
        """As of `Task`."""
        return [{"role": "user", "content": self._prompts[index]}]

    def score(self, indices: np.ndarray, completions: Sequence[Completion]) -> Scores:
        """As of `Task`."""
        pairs = zip(indices, completions, strict=True)
        rewards = [self._reward(self._prompts[i], completion.text) for i, completion in pairs]
        return Scores(np.asarray(rewards, np.float32))


def prompt_indices(key: jax.Array, step: int, count: int, num_prompts: int) -> np.ndarray:
    """The prompts of a step: i64[count] cut out of an endless stream of shuffled passes.

    Pass e holds every prompt once, in an order that depends on the key and on e alone. A step may
    reach over the end of a pass, so all steps have the same shape and no prompt is left out.

    Raises:
      ValueError: there is no prompt.
    """
    if num_prompts < 1:
        raise ValueError(f"{num_prompts} prompts: a task of 1 or more is needed")
    first = step * count
    chosen: list[np.ndarray] = []
    for epoch in range(first // num_prompts, (first + count - 1) // num_prompts + 1):
        pass_key = jax.random.fold_in(jax.random.fold_in(key, 0), epoch)
        order = np.asarray(jax.random.permutation(pass_key, num_prompts))
        begin = max(first - epoch * num_prompts, 0)
        chosen.append(order[begin : first + count - epoch * num_prompts])
    return np.concatenate(chosen).astype(np.int64)
