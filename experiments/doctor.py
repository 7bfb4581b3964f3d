"""Reports which files of a run are intact, damaged or missing, and how to go on.

python -m experiments.doctor RUN

It reads everything that a resumed run would read, checkpoints included, and changes nothing. Exit
codes: 0 if the run is finished or its own command can resume it; 1 if something has to be repaired
first, or the folder is no run.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app

from engineer.evidence import Evidence, FailureBreakdown
from engineer.record import RunRecord
from engineer.space import Configuration
from experiments import process
from experiments import settings as settings_lib
from experiments.errors import UserError
from experiments.policy import load_policy
from experiments.run_checkpoint import RunCheckpoint
from experiments.settings import Settings
from experiments.store import DIGESTS, RunStore, read_file, read_log
from learner import checks
from learner.training.checkpoints import Checkpoints

Parse = Callable[[Any], Any]
# Files in the order in which a run writes them: the parser of each, and the file beside it that is
# written last and, while it exists, keeps the run from making this one again.
_COMMON: Mapping[str, tuple[Parse, str]] = {
    "validation/generated.json": (dict, "instances.jsonl"),
    "validation/instances.jsonl": (list, ""),
    "initial/answers.jsonl": (list, "validation.json"),
    "initial/greedy.jsonl": (list, "validation.json"),
    "initial/validation.json": (FailureBreakdown.from_dict, ""),
}
_OF_A_ROUND: Mapping[str, tuple[Parse, str]] = {
    "generated.json": (lambda found: found["rows"], "instances.jsonl"),
    "environment.yaml": (Configuration.from_dict, "instances.jsonl"),
    "instances.jsonl": (list, ""),
    "train.jsonl": (list, ""),
    "train_failures.json": (list, ""),
    "answers.jsonl": (list, "validation.json"),
    "greedy.jsonl": (list, "validation.json"),
    "validation.json": (FailureBreakdown.from_dict, ""),
    "evidence.json": (Evidence.from_dict, ""),
    "design/record.json": (RunRecord.from_dict, "design.json"),
    "design/analysis.json": (dict, "design.json"),
    "design/design.json": (lambda found: Configuration.from_dict(found["config"]), ""),
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """A file that keeps a run from going on.

    Attributes:
      path: relative to the run's folder.
      wrong: what is wrong with it.
      remove: relative paths to remove so that the run makes it again; None if it cannot.
      step: the latest training step, over all rounds, from which the run can make it again; None if
        it can from every step.
    """

    path: Path
    wrong: str
    remove: tuple[Path, ...] | None
    step: int | None = None


def examine(root: Path, settings: Settings) -> tuple[int, list[Finding]]:
    """The number of intact files of a run, and findings on the others."""
    try:
        read_log(root / DIGESTS)
    except UserError as error:
        wrong = checks.one_line(error).removeprefix(f"{root / DIGESTS}:")
        return 0, [Finding(Path(DIGESTS), f"line {wrong}", (Path(DIGESTS),))]
    files = list(_files(root, settings))
    begun = max((i for i, (path, *_) in enumerate(files) if (root / path).exists()), default=-1)
    whole, findings, store = 0, [], RunStore(root)
    for path, parse, last, steps in files[: begun + 1]:
        try:
            if not (root / path).exists():
                raise UserError("missing")
            if path.name == "train.jsonl":
                found = len(read_log(root / path))  # A kill may truncate its last line.
                if found < len(steps) and (root / path).with_name("validation.json").exists():
                    raise UserError(f"damaged: {found} of {len(steps)} steps")
            else:
                store.read(root / path, parse)
            whole += 1
        except (UserError, OSError) as error:
            wrong = checks.one_line(error).removeprefix(f"{root / path}: ")
            before = {"train.jsonl": len(steps), "train_failures.json": 1}.get(path.name, 0)
            made_from = steps.stop - before if steps else None
            remove = [path, path.with_name(last or path.name)]
            if made_from == 0:  # All training is repeated, so the run is not finished.
                remove += [Path("checkpoints"), Path("report.html")]
            there = tuple(one for one in dict.fromkeys(remove) if (root / one).exists())
            findings.append(Finding(path, wrong, there, made_from))
    return whole, findings


def _files(root: Path, settings: Settings) -> Iterator[tuple[Path, Parse, str, range]]:
    """The files of a run, relative to its folder, with the values of `_COMMON` and `_OF_A_ROUND`.

    The last value is the range of training steps of the file's round, counted over all rounds;
    empty for files outside rounds.
    """
    never = [] if settings.validation.temperature else ["greedy.jsonl"]  # All answers are greedy.
    for name, about in _COMMON.items():
        if Path(name).name not in never:
            yield Path(name), *about, range(0)
    end = 0
    for index in range(settings.loop.rounds):
        folder = Path("rounds", str(index))
        try:
            made = read_file(root / folder / "generated.json")["made"]
        except (UserError, OSError, LookupError):
            made = settings.environment.num_instances
        begin, end = end, end + settings.training.num_steps(made)
        last_round = index + 1 == settings.loop.rounds
        for name, about in _OF_A_ROUND.items():
            if name not in never and not (last_round and name.startswith("design/")):
                yield folder / name, *about, range(begin, end)


def check_checkpoints(root: Path, settings: Settings) -> tuple[list[int], list[Finding]]:
    """The steps of the intact checkpoints, and findings on the others."""
    folder = root / "checkpoints"
    if not folder.is_dir():
        return [], []
    try:
        with Checkpoints(folder, read_only=True) as checkpoints:
            steps = checkpoints.steps()
    except ValueError as error:
        return [], [Finding(Path("checkpoints"), checks.one_line(error), None)]
    whole, findings = [], []
    policy = load_policy(settings)
    for step in steps:
        try:
            RunCheckpoint(root, step, settings).load(policy)
            whole.append(step)
        except ValueError as error:
            path = Path("checkpoints", str(step))
            findings.append(Finding(path, checks.one_line(error), (path,)))
    return whole, findings


def advice(findings: Sequence[Finding], steps: Sequence[int]) -> list[str]:
    """What to do, in order; empty if there are no findings.

    Args:
      findings: of files and checkpoints.
      steps: the intact checkpoints, ascending.
    """
    if not findings:
        return []
    needed = min((f.step for f in findings if f.step is not None), default=None)
    usable = [step for step in steps if needed is None or step <= needed]
    unusable = steps and not usable and needed != 0
    if any(finding.remove is None for finding in findings) or unusable:
        return ["put back what is damaged from a copy, or start again with another --workdir"]
    gone = dict.fromkeys(path for finding in findings for path in finding.remove or ())
    option = f" once with --resume_from={usable[-1]}" if usable else " again"
    return [*(f"remove {path}" for path in gone), f"start the run's command{option}"]


def main(argv: Sequence[str]) -> None:
    """Examines a run and prints what it finds."""
    if len(argv) != 2:
        raise app.UsageError("needed is the folder of a run")
    process.quieten()
    root = Path(argv[1])
    if not (root / "config.json").is_file():
        sys.exit(f"error: {root}: no run is there, it has no config.json")
    try:
        settings = settings_lib.from_config(read_file(root / "config.json"))
        read_file(root / "versions.json", dict)
        whole, findings = examine(root, settings)
        steps, broken = check_checkpoints(root, settings)
    except (UserError, OSError) as error:
        sys.exit(f"error: {checks.one_line(error)}; put it back from a copy")
    print(f"{root}: {whole} files are whole, and checkpoints {steps}")
    for finding in (*findings, *broken):
        print(f"  {finding.path}: {finding.wrong}")
    lines = advice([*findings, *broken], steps)
    for number, line in enumerate(lines, 1):
        print(f"{number}. {line}")
    sys.exit(bool(lines))


if __name__ == "__main__":
    app.run(main)
