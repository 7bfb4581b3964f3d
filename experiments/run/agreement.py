"""Checks that the processes of one run agree, before it begins.

Processes that differ (in a revision of the code, an option, or the model under the same path) would
run different programs and deadlock, or silently diverge. A folder that they do not share would only
be noticed at the first checkpoint.
"""

import hashlib
import itertools
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import jax

from experiments.run import store as files
from experiments.run import versions
from experiments.settings import Settings
from experiments.text.errors import UserError, user_errors
from learner.devices import distributed

_CODE = ("mapf_jax", "engineer", "learner", "experiments")
_CODE_FILES = ("*.py", "*.txt", "*.md", "*.jinja", "*.json", "*.yaml")
# Seconds that a file may take to appear on another host.
_PATIENCE = 10.0


def check_alike(settings: Settings) -> None:
    """Checks that all processes have the same options, code, packages and model.

    Raises:
      UserError: on all processes; names the differences of the first process that differs.
    """
    if not distributed.together():
        return
    with user_errors():
        model = settings.model.folder
    mine = {
        "options": settings.to_dict(),
        "family": files.family_digest(settings),
        "code": _digest(_code()),
        "packages": versions.packages(),
        "model": versions.model_files(model),
    }
    first, *others = distributed.gather(mine)
    for index, other in enumerate(others, 1):
        found = sorted(files.differences(first, other))
        if found:
            words = "; ".join(f"{path} is {own!r}, not {its!r}" for path, its, own in found)
            raise UserError(f"process {index} differs from process 0: {words}")


def check_shared(root: Path) -> None:
    """Checks that all processes share one folder and can write to it.

    Raises:
      UserError: on all processes, if the first does not see what another one writes.
    """
    if not distributed.together():
        return
    # A new name each time: a file system may have cached that an old one does not exist.
    name = distributed.on_first(lambda: f".seen-{secrets.token_hex(4)}")
    marks = [root / f"{name}-{index}" for index in range(jax.process_count())]
    mine = marks[jax.process_index()]
    with user_errors():
        distributed.on_all(lambda: _mark(mine))
    try:
        unseen = distributed.on_first(lambda: _unseen(marks))
    finally:
        mine.unlink(missing_ok=True)
    if unseen:
        raise UserError(
            f"workdir={root}: process 0 does not see there what processes {unseen} write; allowed "
            "are folders on storage that all processes reach"
        )


def _mark(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise UserError(f"workdir={path.parent}: {error}") from error


def _unseen(marks: list[Path]) -> list[int]:
    """Indices of the files that do not appear in time."""
    end = time.monotonic() + _PATIENCE
    while True:
        unseen = [index for index, mark in enumerate(marks) if not mark.exists()]
        if not unseen or time.monotonic() > end:
            return unseen
        time.sleep(0.2)


def _code() -> Iterator[Path]:
    """Yields the files that decide what a run computes, templates of contexts and chats too."""
    for package, pattern in itertools.product(_CODE, _CODE_FILES):
        yield from (Path(__file__).parents[2] / package).rglob(pattern)


def _digest(paths: Iterable[Path]) -> str:
    """A digest of the names and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
