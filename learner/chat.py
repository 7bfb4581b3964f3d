"""Chat messages in, completions out: the two values that tasks and samplers exchange."""

import dataclasses
from collections.abc import Mapping

Message = Mapping[str, str]
"""One turn of a chat, with `role` and `content`."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """One sampled completion as text.

    Attributes:
      text: the completion without special tokens.
      num_tokens: generated tokens, the stop token included.
      truncated: True if the token budget ended the completion, not a stop token.
    """

    text: str
    num_tokens: int
    truncated: bool
