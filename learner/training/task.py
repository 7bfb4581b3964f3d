"""What a user of another domain writes: prompts out, completions in, scores back."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from learner.chat import Completion, Message

__all__ = ["Completion", "Message", "Scores", "Task", "prompt_indices"]


@dataclasses.dataclass(frozen=True)
class Scores:
    """What a task says about a list of N completions.

    Attributes:
      rewards: f32[N], one reward for each completion, finite.
      metrics: figures about the whole list, for the log.
      records: one mapping for each completion with whatever the caller wants to keep of it, or
      empty.
    """

    rewards: np.ndarray
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    records: Sequence[Mapping[str, Any]] = ()


@runtime_checkable
class Task(Protocol):
    """A finite list of problems with a judge.

    A task may carry state that changes while it scores (a moving average, say). `state` returns it
    as a value that JSON can hold, `restore` puts it back; a task without state returns `{}`. Two
    tasks with the same problems and the same state must score alike, else a resumed run differs.
    """

    def __len__(self) -> int:
        """Number of problems."""
        ...

    def messages(self, index: int) -> Sequence[Message]:
        """The chat that poses problem `index`: mappings with `role` and `content`."""
        ...

    def score(self, indices: np.ndarray, completions: Sequence[Completion]) -> Scores:
        """Scores of `completions[i]` to prompt `indices[i]`; i64[N], with repetitions."""
        ...

    def state(self) -> dict[str, Any]:
        """What has to be kept beside the weights to resume, as JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned."""
        ...


def prompt_indices(key: jax.Array, step: int, count: int, num_prompts: int) -> np.ndarray:
    """The problems of a step: i64[count] cut out of an endless stream of shuffled passes.

    Pass e holds every problem once, in an order that depends on the key and on e alone. A step may
    reach over the end of a pass, so all steps have the same shape and no problem is left out.
    """
    first = step * count
    chosen: list[np.ndarray] = []
    for epoch in range(first // num_prompts, (first + count - 1) // num_prompts + 1):
        pass_key = jax.random.fold_in(jax.random.fold_in(key, 0), epoch)
        order = np.asarray(jax.random.permutation(pass_key, num_prompts))
        begin = max(first - epoch * num_prompts, 0)
        chosen.append(order[begin : first + count - epoch * num_prompts])
    return np.concatenate(chosen).astype(np.int64)
