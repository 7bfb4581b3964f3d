"""The folder of a run: files a person can read, enough to resume.

    config.json                     all options, as of the last start
    changes.jsonl                   changes of options between starts
    branch.json                     source run and round, if it is a branch
    versions.json                   versions of packages, the machine, digests of family and model
    validation/                     the fixed set: instances.jsonl, generated.json
    test/                           the test set, if any, likewise
    initial/validation.json         the model before any training, and its answers.jsonl
    initial/test/, rounds/R/test/   the same on the test set, before training and at the end
    initial/, rounds/R/reading.json whether the engineer reads its evidence, if measured
    rounds/R/environment.yaml       the configuration of the training set
    rounds/R/generated.json         requested and generated problems, by row
    rounds/R/instances.jsonl        the training set
    rounds/R/train.jsonl            one line a training step
    rounds/R/train_failures.json    some failures of its last step, drawn
    rounds/R/validation.json        outcomes by size; answers.jsonl, greedy.jsonl
    rounds/R/evidence.json          results of training and validation, for the engineer
    rounds/R/engineer_training.jsonl  steps of training as engineer
    rounds/R/weights/               weights after the round, if `checkpoint.of_rounds` asks
    rounds/R/design/                the design of round R + 1: context.md, answers.md, design.json,
                                    analysis.json, record.json (everything the engineer may know)
    checkpoints/                    weights, optimizer, position
    compilation_cache/              compiled programs, on accelerators
    tensorboard/, wandb/            event files, if enabled
    trace/                          of `jax.profiler`, if `training.profile_steps` asks
    non_finite/                     the batch of a step that failed
    usage.jsonl                     one line for each reply of a server, with its tokens
    times.jsonl                     one line for each process of the run, with its seconds
    report.html, figures/, data/

A file appears only when it is complete, so what exists is finished and what is missing is redone.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from flax.traverse_util import flatten_dict, unflatten_dict

from engineer.evidence import FailureBreakdown
from experiments.run import versions
from experiments.settings import Settings, check_known
from experiments.text.errors import UserError, user_errors
from experiments.text.templates import counted
from learner import checks
from learner.devices import distributed

TIMES = "times.jsonl"
TRACE = "trace"
#: Whether the engineer reads its evidence, beside a validation.
READING = "reading.json"
CHANGES = "changes.jsonl"
BRANCH = "branch.json"
#: What no designer reads: the test set in a run's folder, answers to it in that of a validation.
TEST = "test"
#: In `BRANCH`, the position of a branch that started from weights alone.
FRESH = "fresh_state"
VERSIONS = "versions.json"
#: Options, and prefixes of groups of options, that may change between two starts of a run.
FREE = (
    "mesh.",
    "log.",
    "checkpoint.",
    "model.remat",
    "model.scan_unroll",
    "training.micro_batch_size",
    "training.sampling_slots",
    "training.cache_fraction",
    "training.profile_steps",
    "engineer.endpoint.",
    "engineer.reading_questions",
)
# The files of a round at any step of its training.
_OF_TRAINING = ("environment.yaml", "generated.json", "instances.jsonl", "train.jsonl")


class OtherOptionsError(UserError):
    """A run was started with other options; the message begins with its folder."""


class RunStore:
    """The files of one run.

    All processes call `exists`, `read`, `write` and `kept` together. Only the first touches the
    files; it broadcasts what it reads.

    Args:
      root: the folder; created if needed.
      accept_family_change: go on with a family's file that has changed.
    """

    def __init__(self, root: Path, accept_family_change: bool = False) -> None:
        self.root = root
        self._accept_family_change = accept_family_change
        root.mkdir(parents=True, exist_ok=True)

    def round(self, index: int) -> Path:
        """The folder of a round."""
        return self.root / "rounds" / str(index)

    def exists(self, path: Path) -> bool:
        """Whether a file exists, and so is complete."""
        return distributed.on_first(path.exists)

    def read(self, path: Path, parse: Callable[[Any], Any] = lambda value: value) -> Any:
        """Reads and parses a file; see `read_file`."""
        return distributed.on_first(lambda: read_file(path, parse))

    def write(self, path: Path, value: Any) -> None:
        """Writes a value as `write_file` does."""
        if distributed.is_first():
            write_file(path, value)

    def kept(self, path: Path, make: Callable[[], Any]) -> Any:
        """The value of a file; if there is none, `make` makes it on all processes."""
        if not self.exists(path):
            self.write(path, make())
        return self.read(path)

    @contextlib.contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[None]:
        """Locks out other processes of this machine; the lock ends with the process.

        Raises:
          UserError: another process still holds the lock after `patience` seconds.
        """
        deadline = time.monotonic() + patience
        with (self.root / ".lock").open("w", encoding="utf-8") as file:
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
        """Records the wall time and the processor time of its body, however it ends."""
        with contextlib.suppress(UserError):  # Damaged times must not prevent a run.
            open_log(self.root / TIMES)
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
        """Writes the options of a new run, or of the next start of the one that is here.

        Returns:
          The lines of `check_start`, which `changes.jsonl` then has as well.

        Raises:
          UserError: as `check_start`.
        """
        changed = self.check_start(settings)
        if changed:
            append_log(self.root / CHANGES, [{"changed": changed}])
        write_file(self.root / VERSIONS, _recorded(settings))
        write_file(self.root / "config.json", settings.to_dict())
        return changed

    def check_start(self, settings: Settings) -> list[str]:
        """Checks what determines results against the run to resume, if any; writes nothing.

        The options of `FREE` may change, and rounds may be added.

        Returns:
          A line for each changed option, and one for all else that may change results.

        Raises:
          UserError: other options have changed; the message names them.
        """
        made = any((self.root / name).exists() for name in ("validation", "rounds"))
        # A start refused before it made anything is no run.
        if not (made and (self.root / "config.json").exists()):
            return []
        try:
            changed = self.compare(settings, FREE)
        except OtherOptionsError as error:
            use = "use what it was started with, or another --workdir"
            raise UserError(f"workdir={error}; {use}") from error
        before = read_file(self.root / VERSIONS, dict)
        now = _recorded(settings)
        if before.get("family", now["family"]) != now["family"]:
            changed.append(f"the file of family={settings.family!r} was changed, as accepted")
        if found := versions.differences({**before, "family": now["family"]}, now):
            changed.append(f"results may differ from here on: {'; '.join(found)}")
        return changed

    def compare(self, settings: Settings, free: tuple[str, ...]) -> list[str]:
        """A line for each option that differs from those of the run here.

        Args:
          free: options and prefixes that may differ; rounds may always be added.

        Raises:
          OtherOptionsError: another option differs, or the family's file does.
        """
        path = self.root / "config.json"
        before, now, digest = read_file(path, dict), settings.to_dict(), family_digest(settings)
        if "family" not in before:
            raise OtherOptionsError(
                f"{self.root}: the run there was started by a version whose options had other names"
            )
        with damage_named(path):
            check_known(self.root, before)
        same_file = digest == read_file(self.root / VERSIONS, lambda found: found.get("family"))
        with damage_named(path):
            # An option that came later has its default.
            before = unflatten_dict(flatten_dict(Settings().to_dict()) | flatten_dict(before))
            alike = same_file or self._accept_family_change
            if alike and digest and _attribute(before["family"]) == _attribute(now["family"]):
                before["family"] = now["family"]  # The file may have moved.
            if before["loop"]["rounds"] < now["loop"]["rounds"]:
                free = (*free, "loop.rounds")
        changed = changes(before, now)
        fixed = [change for change in changed if not change.startswith(free)]
        if fixed:
            raise OtherOptionsError(
                f"{self.root}: the run there was started with other options ({'; '.join(fixed)})"
            )
        if not alike:
            raise OtherOptionsError(
                f"{self.root}: the file of family={settings.family!r} has changed since the run "
                "there was started; --accept_family_change goes on with the new one"
            )
        return changed

    def saved_steps(self) -> int:
        """Training steps of the last checkpoint or, without one, of a branch's start."""
        return max(checkpoint_steps(self.root), default=self.fresh_state().get("total", 0))

    def fresh_state(self) -> dict[str, Any]:
        """The position of a branch that started from weights alone; empty for other runs."""
        branch = self.root / BRANCH
        return read_file(branch).get(FRESH, {}) if branch.exists() else {}

    def opening(self, resume_from: int | None = None) -> str:
        """What a start of the run does, in words: it starts, or resumes from a checkpoint.

        Args:
          resume_from: the checkpoint to resume from; None is the last one.
        """
        logs = self.root.glob("rounds/*/train.jsonl")
        trained = sum(path.read_bytes().count(b"\n") for path in logs)
        step = resume_from or self.saved_steps()
        if step:
            begin, after = f"resuming from checkpoint {step}", " after it"
        else:
            begin, after = "starting", ""
        if trained <= step:
            return begin
        lost = counted(trained - step, "training step")
        were, are = ("was", "is") if trained - step == 1 else ("were", "are")
        return f"{begin}; {lost}{after} {were} not saved and {are} repeated"

    def discard_after(self, index: int, trained: bool) -> None:
        """Removes the report, the rounds after `index`, and what followed the training of that one.

        Args:
          trained: whether the training of round `index` is finished, and what followed it stays.
        """
        if not distributed.is_first():
            return
        gone = [self.root / "report.html"]
        rounds = [path for path in self.root.glob("rounds/*") if path.name.isdecimal()]
        gone += [path for path in rounds if int(path.name) > index]
        if not trained:
            gone += [path for path in self.round(index).iterdir() if path.name not in _OF_TRAINING]
        for path in gone:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def finished(self, settings: Settings) -> Path | None:
        """The report, if the last round has finished and the report shows it."""
        page = self.root / "report.html"
        last = self.round(settings.loop.rounds - 1) / "evidence.json"
        whole = last.exists() and page.exists() and shown_rounds(page) >= settings.loop.rounds
        return page if whole else None


def checkpoint_steps(run: Path) -> list[int]:
    """Training steps of the complete checkpoints of a run, ascending.

    By folder names, as Orbax would synchronize with processes that do not call this. Checkpoints
    are written in the background, under another name until they are complete.
    """
    names = [path.name for path in (run / "checkpoints").glob("*")]
    return sorted(int(name) for name in names if name.isdecimal())


def shown_rounds(page: Path) -> int:
    """How many finished rounds a report shows, as it says in its head; 0 if it does not say."""
    text = page.read_text(encoding="utf-8", errors="replace")
    found = re.search(r'<meta name="finished-rounds" content="(\d{1,9})">', text)
    return int(found[1]) if found else 0


def _attribute(family: str) -> str:
    return family.rpartition(":")[2]


def _recorded(settings: Settings) -> dict[str, Any]:
    """What `VERSIONS` records of a start."""
    with user_errors():
        model = settings.model.folder
    files = versions.model_files(model)
    return {**versions.machine(), "family": family_digest(settings), "model": files}


def family_digest(settings: Settings) -> str:
    """SHA-256 of a family's own file; empty for a family of this package."""
    path = settings.family_file
    return _digest(path.read_bytes()) if path else ""


def set_digest(problems: Sequence[Any]) -> str:
    """SHA-256 of the file of a problem set, for the `generated.json` beside it."""
    return _digest(file_text(Path("instances.jsonl"), problems).encode())


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def write_file(path: Path, value: Any) -> None:
    """Writes `file_text` of a value atomically."""
    text = file_text(path, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def file_text(path: Path, value: Any) -> str:
    """A value as JSON or JSON lines by the suffix of its file; a text for any other suffix."""
    if path.suffix == ".json":
        return json.dumps(value, indent=1, default=_of_numpy) + "\n"
    if path.suffix == ".jsonl":
        return "".join(json.dumps(record, default=_of_numpy) + "\n" for record in value)
    return value


def _of_numpy(value: Any) -> Any:
    """The JSON value of a NumPy number or array, which records of a family may contain."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r}: {type(value).__name__} is nothing that JSON can hold")


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turns errors about a file's contents into a `UserError` that names the file."""
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
    """Checks the number of records of a file against the number that another file states.

    Raises:
      UserError: records are missing or in excess, or training steps are out of order.
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
        count = count_in(json.loads(stated.read_text(encoding="utf-8")))
    if len(records) != count:
        raise UserError(f"{path}: damaged: {len(records)} records, {stated} states {count}")


def open_steps(path: Path, steps: int) -> None:
    """Makes the training log of a round, or drops what follows the first `steps` from it.

    Raises:
      UserError: it has fewer steps.
    """
    found = read_log(path)
    if len(found) < steps:
        raise UserError(
            f"{path}: damaged: {len(found)} steps, the checkpoint stands after {steps}; put the "
            "file back, or go on from an older checkpoint with --resume_from"
        )
    write_file(path, found[:steps])


def read_log(path: Path) -> list[dict[str, Any]]:
    """The complete records of a log of JSON lines; empty if there is no file.

    A truncated last line is left out.

    Raises:
      UserError: another line is no JSON object, or as in `check_whole`.
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
    """`read_log` that also creates the file, or drops a truncated line from it."""
    records = read_log(path)
    write_file(path, records)
    return records


def append_log(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends records as JSON lines and syncs them to disk.

    Raises:
      ValueError: a number is NaN or infinite, which JSON cannot hold; the log stays as it was.
    """
    lines = [json.dumps(record, default=_of_numpy, allow_nan=False) + "\n" for record in records]
    with path.open("a", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


class _TextKeys(yaml.SafeLoader):
    """Reads every key as it is written: YAML 1.1 takes 3_2 for 32, and no for false."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """The value of a YAML text, such as a configuration, whose keys are all texts.

    Raises:
      yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, _TextKeys)


def read_file(path: Path, parse: Callable[[Any], Any] = lambda value: value) -> Any:
    """Reads a JSON, JSON lines or YAML file, by its suffix, and parses its value.

    JSON lines must be complete, see `check_whole`, and a problem set be the one that was made.

    Raises:
      UserError: the file is damaged, or `parse` rejects its value; the message names it.
    """
    with damage_named(path):
        text = path.read_text(encoding="utf-8")
        if path.name == "instances.jsonl":
            _check_digest(path)
        if path.suffix == ".yaml":
            return parse(read_yaml(text))
        if path.suffix != ".jsonl":
            return parse(json.loads(text))
        records = [json.loads(line) for line in text.split("\n") if line]
        check_whole(path, records)
        return parse(records)


def _check_digest(path: Path) -> None:
    """Checks the file of a problem set against the digest beside it, if there is one.

    Raises:
      UserError: it was changed since it was made.
    """
    beside = path.with_name("generated.json")
    if not beside.is_file():
        return
    made = json.loads(beside.read_text(encoding="utf-8")).get("sha256")
    if made is not None and _digest(path.read_bytes()) != made:
        raise UserError(
            f"{path}: damaged: it is not as the run made it; put it back from a copy, or remove "
            "it: started again, the run makes it again"
        )


# By name of a file of records: the file that states their number, and how to read it.
_COUNTS: Mapping[str, tuple[str, Callable[[Any], int]]] = {
    "instances.jsonl": ("generated.json", lambda found: found["made"]),
    "answers.jsonl": ("validation.json", lambda found: FailureBreakdown.from_dict(found).answers),
    "greedy.jsonl": ("validation.json", lambda found: found["greedy"]["answers"]),
}


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, before, now) of every field in which two JSON-able values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from differences(before.get(name), now.get(name), f"{path}{name}.")
        return
    before, now = (json.loads(json.dumps(value)) for value in (before, now))
    if before != now and not _one_path(before, now):
        yield path.rstrip("."), before, now


def _one_path(*values: Any) -> bool:
    """Whether values are the same path, one relative and one absolute, say.

    A path has a slash here: a bare name may be that of an embedded model.
    """
    paths = {os.path.abspath(v) if isinstance(v, str) and "/" in v else None for v in values}
    return len(paths) == 1 and None not in paths


def changes(before: Any, now: Any) -> list[str]:
    """`differences` in words, sorted."""
    found = sorted(differences(before, now))
    return [f"{path} was {old!r} and is {new!r}" for path, old, new in found]
