"""Where in a completion's tokens a stop string is complete."""

from collections.abc import Callable, Sequence


class StopStrings:
    """Finds the token that completes the first stop string of a completion.

    The completion ends with the shortest prefix of its tokens whose text contains a stop string.
    Only new tokens are decoded, and as many before them as a stop string can reach back over:
    every token writes at least one byte.

    Args:
        strings: what to look for, none empty.
        text_of: the text of token ids, special tokens written out.
    """

    def __init__(self, strings: Sequence[str], text_of: Callable[[Sequence[int]], str]) -> None:
        self._strings = tuple(strings)
        self._text_of = text_of
        self._reach = max(len(string.encode()) for string in strings) - 1

    def cut(self, tokens: Sequence[int], start: int) -> int | None:
        """The length to cut `tokens` to, if a stop string is complete behind `start`.

        Args:
            tokens: of a completion, from its beginning.
            start: how many of them were searched before.
        """
        first = max(0, start - self._reach)
        if not self._contained(tokens[first:]):
            return None
        lengths = range(start + 1, len(tokens) + 1)
        return next((n for n in lengths if self._contained(tokens[first:n])), None)

    def _contained(self, tokens: Sequence[int]) -> bool:
        text = self._text_of(tokens)
        return any(string in text for string in self._strings)
