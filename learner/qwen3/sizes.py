"""The published dense Qwen3 models, by name: what their `config.json` says.

Source: the files `Qwen/<name>/config.json` on the Hugging Face hub and the model cards beside them
(Qwen3 technical report, arXiv 2505.09388, table 1); `published.json` holds them.
"""

import json
from pathlib import Path

from learner.qwen3.config import Qwen3Config

_PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())
NAMES = tuple(_PUBLISHED)


def published(name: str, **compute: object) -> Qwen3Config:
    """The configuration of a published model.

    Args:
        name: one of `NAMES`, with or without "Qwen/" before it.
        compute: compute options, as of `Qwen3Config.from_hf`.

    Raises:
        ValueError: there is no such model, or an option is invalid.
    """
    if name.removeprefix("Qwen/") not in _PUBLISHED:
        raise ValueError(f"name is {name!r}; published are {NAMES}")
    return Qwen3Config.from_hf(_PUBLISHED[name.removeprefix("Qwen/")], **compute)
