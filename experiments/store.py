"""The folder of a run: files a person can read, enough to resume.

    config.json                     all options, as of the last start
    changes.jsonl                   what other starts before had otherwise
    branch.json                     the run and round that it left, if it began as a branch
    versions.json                   what the run was made with
    validation/                     the fixed set: instances.jsonl, generated.json
    initial/validation.json         the model before any training, and its answers.jsonl
    rounds/R/environment.yaml       the configuration of the training set
    rounds/R/generated.json         what was asked for and made, by row
    rounds/R/instances.jsonl        the training set
    rounds/R/train.jsonl            one line a training step
    rounds/R/train_failures.json    some failures of its last step, drawn
    rounds/R/validation.json        outcomes by size; answers.jsonl, greedy.jsonl
    rounds/R/evidence.json          what training and validation showed, for the engineer
    rounds/R/engineer_training.jsonl  designs tried and what they taught, where that is trained
    rounds/R/probe_set.jsonl        the instances that show what they taught
    rounds/R/weights/               those after the round, where `checkpoint.of_rounds` asks
    rounds/R/design/                how round R + 1 came about: context.md as it was read,
                                    answers.md, design.json, analysis.json, record.json: all
                                    that was known, and judgement.json if an LLM judged it
    checkpoints/                    weights, optimizer, position
    tensorboard/                    event files, if asked for
    non_finite/                     the batch of a step that was stopped, for a look
    usage.jsonl                     one line for each reply of a server, with its tokens
    times.jsonl                     one line for each process that worked on it, with its seconds
    digests.jsonl                   SHA-256 of every file of results when it was written
    report.html, figures/, data/

A file appears when it is complete, so what exists is finished and what is missing is done again.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from engineer.evidence import FailureBreakdown
from experiments.errors import UserError
from experiments.settings import Settings
from learner import checks
from learner.devices import distributed

TIMES = "times.jsonl"
CHANGES = "changes.jsonl"
BRANCH = "branch.json"
DIGESTS = "digests.jsonl"
#: Options that may change between two starts of a run, and groups of such.
FREE = (
    "mesh.",
    "log.",
    "checkpoint.",
    "model.remat",
    "model.scan_unroll",
    "training.micro_batch_rows",
    "training.completions_per_row",
    "training.sampling_rows",
    "engineer.endpoint.",
    "engineer.judge.",
)
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")


class OtherOptionsError(UserError):
    """A run was started with other options than those given; the message begins with its folder."""


class RunStore:
    """The files of one run, and who touches them.

    Several processes call `exists`, `read`, `write` and `kept` together. The first alone touches
    the files, and tells the others what it read.

    Args:
      root: the folder; created if needed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def round(self, index: int) -> Path:
        """The folder of a round."""
        return self.root / "rounds" / str(index)

    def exists(self, path: Path) -> bool:
        """Whether a file is there, and so complete."""
        return distributed.on_first(path.exists)

    def read(self, path: Path, parse: Callable[[Any], Any] = lambda value: value) -> Any:
        """What `parse` makes of the value of a file; see `read_file`.

        Raises:
          UserError: as there, or the file is not as the run wrote it.
        """

        def read() -> Any:
            name = str(path.relative_to(self.root))
            lines = read_log(self.root / DIGESTS)
            known = {line.get("sha256") for line in lines if line.get("path") == name}
            if known and _digest(path.read_bytes()) not in known:
                raise UserError(f"{path}: damaged: it is not as the run wrote it")
            return read_file(path, parse)

        return distributed.on_first(read)

    def write(self, path: Path, value: Any) -> None:
        """Writes a value as `write_file` does, and notes its digest."""
        if distributed.is_first():
            text = file_text(path, value)
            # Before the file: what is there has its digest, whenever the run is killed.
            line = {"path": str(path.relative_to(self.root)), "sha256": _digest(text.encode())}
            append_log(self.root / DIGESTS, [line])
            write_text(path, text)

    def kept(self, path: Path, make: Callable[[], Any]) -> Any:
        """The value of a file; `make` makes it, on all processes, where there is none yet."""
        if not self.exists(path):
            self.write(path, make())
        return self.read(path)

    @contextlib.contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[None]:
        """Keeps other processes of this machine out; the lock ends with the process.

        Raises:
          UserError: another process has it, and keeps it for so many seconds.
        """
        deadline = time.monotonic() + patience
        with (self.root / ".lock").open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= deadline:
                        message = f"workdir={self.root}: another process is running there"
                        raise UserError(message) from error
                    time.sleep(0.2)
            yield

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Notes the wall time and the processor time of its body, however it ends."""
        begin, processor = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            times = {
                "seconds": round(time.monotonic() - begin, 2),
                "cpu_seconds": round(time.process_time() - processor, 2),
            }
            append_log(self.root / TIMES, [times])

    def claim(self, settings: Settings) -> list[str]:
        """Notes the options of a new run, or checks them against those of the run to resume.

        What says how it is computed and kept, not what, may change, and rounds may be added.

        Returns:
          What has changed, option by option, which `changes.jsonl` keeps too.

        Raises:
          UserError: other options have changed; the message names them.
        """
        path = self.root / "config.json"
        open_log(self.root / DIGESTS)  # A kill may have cut its last line in two.
        changed: list[str] = []
        made = any((self.root / name).exists() for name in ("validation", "rounds"))
        if path.exists() and made:  # What was refused before it made anything is no run.
            try:
                changed = self.compare(settings, FREE)
            except OtherOptionsError as error:
                use = "use what it was started with, or another --workdir"
                raise UserError(f"workdir={error}; {use}") from error
        else:
            digest = family_digest(settings)
            write_file(self.root / "versions.json", {**versions(), "family": digest})
        if changed:
            append_log(self.root / CHANGES, [{"changed": changed}])
        write_file(path, settings.to_dict())
        return changed

    def compare(self, settings: Settings, free: tuple[str, ...]) -> list[str]:
        """What differs from the options of the run here, option by option.

        Args:
          free: the options that may differ, and groups of such; rounds may always be added.

        Raises:
          OtherOptionsError: others differ, or the family's file does.
        """
        path = self.root / "config.json"
        before, now, digest = read_file(path), settings.to_dict(), family_digest(settings)
        if isinstance(before, dict) and "family" not in before:
            raise OtherOptionsError(
                f"{self.root}: the run there was started by a version whose options had other names"
            )
        same_file = digest == read_file(
            self.root / "versions.json", lambda found: found.get("family")
        )
        with damage_named(path):
            before = _with_defaults(before, now, Settings().to_dict())
            if same_file and digest and _attribute(before["family"]) == _attribute(now["family"]):
                before["family"] = now["family"]  # The file may have moved.
            if before["loop"]["rounds"] < now["loop"]["rounds"]:
                free = (*free, "loop.rounds")
        changed = changes(before, now)
        fixed = [change for change in changed if not change.startswith(free)]
        if fixed:
            raise OtherOptionsError(
                f"{self.root}: the run there was started with other options ({'; '.join(fixed)})"
            )
        if not same_file:
            raise OtherOptionsError(
                f"{self.root}: the file of family={settings.family!r} has changed since the run "
                "there was started"
            )
        return changed

    def finished(self, settings: Settings) -> Path | None:
        """The report, if all rounds are finished and it was written after that."""
        last = self.round(settings.loop.rounds - 1) / "evidence.json"
        page = self.root / "report.html"
        whole = last.exists() and page.exists() and page.stat().st_mtime >= last.stat().st_mtime
        return page if whole else None


def _with_defaults(before: Any, now: Any, defaults: Any) -> Any:
    """Options of an older version with the defaults of those that have come since."""
    if not all(isinstance(one, dict) for one in (before, now, defaults)):
        return before
    since = {name: defaults[name] for name in now if name in defaults and name not in before}
    known = {n: _with_defaults(v, now.get(n), defaults.get(n)) for n, v in before.items()}
    return {**known, **since}


def _attribute(family: str) -> str:
    return family.rpartition(":")[2]


def family_digest(settings: Settings) -> str:
    """SHA-256 of a family's own file; empty for a family of this package."""
    path = settings.family_file
    return _digest(path.read_bytes()) if path else ""


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def versions() -> dict[str, Any]:
    """Versions of what computes, and the machine."""
    devices = jax.devices()
    return {
        **package_versions(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that a run's figures depend on."""
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def write_text(path: Path, text: str) -> None:
    """Writes a file that is there wholly or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_file(path: Path, value: Any) -> None:
    """Writes what `file_text` makes of a value; see `write_text`."""
    write_text(path, file_text(path, value))


def file_text(path: Path, value: Any) -> str:
    """A value as JSON or JSON lines by the suffix of its file, or a text under any other."""
    if path.suffix == ".json":
        return json.dumps(value, indent=1, default=_of_numpy) + "\n"
    if path.suffix == ".jsonl":
        return "".join(json.dumps(record, default=_of_numpy) + "\n" for record in value)
    return value


def _of_numpy(value: Any) -> Any:
    """What JSON holds of a number or an array, which a family may well have in its records."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r}: {type(value).__name__} is nothing that JSON can hold")


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turns whatever is wrong with a file's contents into a `UserError` that names the file."""
    try:
        yield
    except UserError:
        raise
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        said = checks.first_line(error)
        raise UserError(f"{path}: damaged: {said or type(error).__name__}") from error


def check_whole(path: Path, records: Sequence[Any]) -> None:
    """Compares records of a run's file with what another file states of how many there are.

    Raises:
      UserError: some are missing or too many, or numbers of training steps are not in order.
    """
    if path.name == "train.jsonl":
        found = [record.get("step") for record in records if isinstance(record, dict)]
        if found != list(range(len(records))):
            raise UserError(f"{path}: damaged: its steps are not 0 to {len(records) - 1} in order")
    name, count_in = _COUNTS.get(path.name, (path.name, len))
    stated = path.with_name(name)
    if stated == path or not stated.is_file():
        return
    with damage_named(stated):
        count = count_in(json.loads(stated.read_text()))
    if len(records) != count:
        raise UserError(f"{path}: damaged: {len(records)} records, {stated} states {count}")


def check_steps(path: Path, steps: int) -> None:
    """Raises `UserError` unless the log of a round's training has that many steps at least."""
    found = len(read_log(path))
    if found < steps:
        raise UserError(
            f"{path}: damaged: {found} steps, the checkpoint stands after {steps}; put the file "
            "back, or go on from an older checkpoint with --resume_from"
        )


def read_log(path: Path) -> list[dict[str, Any]]:
    """The complete records of JSON lines that grow one by one; none where there is no file.

    A last line that a kill cut in two is left out.

    Raises:
      UserError: another line is no JSON object, or as `check_whole`.
    """
    if not path.exists():
        return []
    records = []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif number < len(lines):
            raise UserError(f"{path}:{number}: not a JSON object; mend or remove the file")
    check_whole(path, records)
    return records


def open_log(path: Path) -> list[dict[str, Any]]:
    """The records of `read_log`; what is not complete is dropped from the file, made if needed."""
    records = read_log(path)
    write_file(path, records)
    return records


def append_log(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Adds records; when this returns neither a kill nor a loss of power takes them away."""
    with path.open("a") as file:
        file.write(file_text(path, records))
        file.flush()
        os.fsync(file.fileno())


def read_file(path: Path, parse: Callable[[Any], Any] = lambda value: value) -> Any:
    """What `parse` makes of the value of a JSON, JSON lines or YAML file, by its suffix.

    Of JSON lines it reads all: see `check_whole`.

    Raises:
      UserError: the file is damaged, or `parse` cannot use what it holds; the message names it.
    """
    with damage_named(path):
        text = path.read_text()
        if path.suffix == ".yaml":
            return parse(yaml.safe_load(text))
        if path.suffix != ".jsonl":
            return parse(json.loads(text))
        records = [json.loads(line) for line in text.split("\n") if line]
        check_whole(path, records)
        return parse(records)


# By name of a file of records the file beside it that states how many, and where it does.
_COUNTS: Mapping[str, tuple[str, Callable[[Any], int]]] = {
    "instances.jsonl": ("generated.json", lambda found: found["made"]),
    "answers.jsonl": ("validation.json", lambda found: FailureBreakdown.from_dict(found).answers),
    "greedy.jsonl": ("validation.json", lambda found: found["greedy"]["answers"]),
}


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, before, now) of every field in which two values differ, as JSON holds them."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from differences(before.get(name), now.get(name), f"{path}{name}.")
        return
    before, now = (json.loads(json.dumps(value)) for value in (before, now))
    if before != now:
        yield path.rstrip("."), before, now


def changes(before: Any, now: Any) -> list[str]:
    """`differences` in words, sorted."""
    found = sorted(differences(before, now))
    return [f"{path} was {old!r} and is {new!r}" for path, old, new in found]
