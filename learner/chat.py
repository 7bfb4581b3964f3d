"""Chat messages in, completions out: the two values that tasks and samplers exchange."""

import dataclasses
from collections.abc import Mapping

from learner.tokens import THINK_BEGIN, THINK_END

Message = Mapping[str, str]
"""One turn of a chat, with `role` and `content`."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """One sampled completion as text.

    Attributes:
      text: the completion without special tokens; it begins with `<think>` if the chat template
        opened the model's thought, as if the model had written it.
      num_tokens: generated tokens, the stop token included.
      truncated: True if the token budget ended the completion, not a stop token.
    """

    text: str
    num_tokens: int
    truncated: bool

    @property
    def answer(self) -> str:
        """The text after the thinking; empty if the thinking was cut off."""
        _, ended, after = self.text.rpartition(THINK_END)
        visible = after.partition(THINK_BEGIN)[0]
        return visible.lstrip() if ended else visible
