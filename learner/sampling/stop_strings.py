"""Where in a completion's tokens a stop string is complete."""

from collections.abc import Callable, Sequence


def cut(
    strings: Sequence[str],
    text_of: Callable[[Sequence[int]], str],
    tokens: Sequence[int],
    start: int,
) -> int | None:
    """The length to cut `tokens` to, if a stop string is complete behind `start`.

    The completion ends with the shortest prefix of its tokens whose text contains a stop string.
    Only new tokens are decoded, and as many before them as a stop string can reach back over:
    every token writes at least one byte.

    Args:
        strings: what to look for, none empty.
        text_of: the text of token ids, special tokens written out.
        tokens: of a completion, from its beginning.
        start: how many of them were searched before.
    """
    first = max(0, start + 1 - max(len(string.encode()) for string in strings))

    def found(end: int) -> bool:
        text = text_of(tokens[first:end])
        return any(string in text for string in strings)

    if not found(len(tokens)):
        return None
    return next((n for n in range(start + 1, len(tokens) + 1) if found(n)), None)
