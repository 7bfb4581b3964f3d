"""Where a model's files are: a folder on this machine, or a name on the Hugging Face hub."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from learner.checks import first_line

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
#: Configuration, weights, tokenizer and chat template; not the same weights in other formats.
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja")


def is_hub_name(name: str | Path) -> bool:
    """Whether a text has the form "owner/model", and "owner" is no folder here."""
    return _HUB_NAME.fullmatch(str(name)) is not None and not Path(name).parent.is_dir()


def model_folder(name: str | Path, files: Sequence[str] = MODEL_FILES) -> Path:
    """The folder of a model; its files are downloaded if it is a hub name not yet in the cache.

    Args:
        name: a folder, or "owner/model". A folder of that name comes first.
        files: patterns of the files to download.

    Raises:
        ValueError: it is neither, or its files are not in the cache and cannot be downloaded.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not is_hub_name(name):
        raise ValueError(
            f"model {str(name)!r} is not a folder; allowed are folders and names on the Hugging "
            "Face hub, such as 'Qwen/Qwen3-0.6B' (if no folder 'Qwen' is here)"
        )
    try:
        return _downloaded(str(name), tuple(files))
    except Exception as error:  # Offline, not installed, no such model, no permission.
        raise ValueError(
            f"model {str(name)!r} is not a folder, and the Hugging Face hub did not give it "
            f"({type(error).__name__}: {first_line(error)}); without a "
            "connection, name a folder that holds its files"
        ) from error


@functools.cache  # Else every call would ask the hub whether the files have changed.
def _downloaded(name: str, files: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=list(files)))
