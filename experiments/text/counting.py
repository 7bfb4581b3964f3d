"""Numbers of things in sentences."""

from engineer.space import plural


def counted(count: int, noun: str) -> str:
    """Such as "1 round" and "1,000 rounds"."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"
