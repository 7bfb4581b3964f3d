"""Says which files of a run are whole, damaged or missing, and how to go on.

python -m experiments.doctor RUN

It reads everything that a resumed run would read, checkpoints included, and changes nothing. Exit
codes: 0 where the run's own command goes on from there, or has finished; 1 where something has to
be done first, or the folder is no run.
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
from experiments import process, run_checkpoint
from experiments import settings as settings_lib
from experiments.errors import UserError
from experiments.policy import load_policy
from experiments.settings import Settings
from experiments.store import DIGESTS, RunStore, read_file, read_log
from learner import checks
from learner.training.checkpoints import Checkpoints

# Files in the order in which a run writes them, and what parses the value of each.
Parse = Callable[[Any], Any]
_COMMON: Mapping[str, Parse] = {
    "validation/generated.json": dict,
    "validation/instances.jsonl": list,
    "initial/answers.jsonl": list,
    "initial/greedy.jsonl": list,
    "initial/validation.json": FailureBreakdown.from_dict,
}
_OF_A_ROUND: Mapping[str, Parse] = {
    "generated.json": lambda found: found["rows"],
    "environment.yaml": Configuration.from_dict,
    "instances.jsonl": list,
    "train.jsonl": list,
    "train_failures.json": list,
    "answers.jsonl": list,
    "greedy.jsonl": list,
    "validation.json": FailureBreakdown.from_dict,
    "evidence.json": Evidence.from_dict,
    "design/record.json": RunRecord.from_dict,
    "design/analysis.json": dict,
    "design/design.json": lambda found: Configuration.from_dict(found["config"]),
}
# What is written last of several files: while it is there, a run makes none of them anew.
_LAST_OF = {
    "generated.json": "instances.jsonl",
    "environment.yaml": "instances.jsonl",
    "answers.jsonl": "validation.json",
    "greedy.jsonl": "validation.json",
    "record.json": "design.json",
    "analysis.json": "design.json",
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a run cannot go on with.

    Attributes:
      path: relative to the run's folder.
      wrong: what is wrong with it.
      remove: what has to go so that the run makes it anew, relative as well; None if it cannot.
      step: the last of the training steps, over all rounds, from which it is made anew; None if it
        is from every step.
    """

    path: Path
    wrong: str
    remove: tuple[Path, ...] | None
    step: int | None = None


def examine(root: Path, settings: Settings) -> tuple[int, list[Finding]]:
    """How many files of a run are whole, and which are damaged or missing."""
    files: list[tuple[Path, Parse, int | None]] = [(Path(n), p, None) for n, p in _COMMON.items()]
    for round_ in range(settings.loop.rounds):
        folder = Path("rounds", str(round_))
        files += [(folder / name, parse, round_) for name, parse in _OF_A_ROUND.items()]
    never = {folder / name for name in _OF_A_ROUND if name.startswith("design/")}  # The last round.
    if not settings.validation.temperature:  # All answers are greedy.
        never |= {path for path, *_ in files if path.name == "greedy.jsonl"}
    files = [one for one in files if one[0] not in never]
    begun = max((i for i, (path, *_) in enumerate(files) if (root / path).exists()), default=-1)
    ends, findings, whole, store = list(_ends(root, settings)), [], 0, RunStore(root)
    try:
        read_log(root / DIGESTS)
    except UserError as error:
        wrong = checks.one_line(error).removeprefix(f"{root / DIGESTS}:")
        findings.append(Finding(Path(DIGESTS), f"line {wrong}", (Path(DIGESTS),)))
        return 0, findings
    for path, parse, index in files[: begun + 1]:
        try:
            if not (root / path).exists():
                raise UserError("missing")
            if index is not None and path.name == "train.jsonl":
                found = len(read_log(root / path))  # A kill may have cut its last line in two.
                needed = ends[index] - (_made_from(path, index, ends) or 0)
                if found < needed and (root / path).with_name("validation.json").exists():
                    raise UserError(f"damaged: {found} of {needed} steps")
            else:
                store.read(root / path, parse)
            whole += 1
        except (UserError, OSError) as error:
            wrong = checks.one_line(error).removeprefix(f"{root / path}: ")
            step = _made_from(path, index, ends)
            remove = [path, path.with_name(_LAST_OF.get(path.name, path.name))]
            if step == 0:  # All training is done again, and the run has not finished.
                remove += [Path("checkpoints"), Path("report.html")]
            there = tuple(one for one in dict.fromkeys(remove) if (root / one).exists())
            findings.append(Finding(path, wrong, there, step))
    return whole, findings


def _ends(root: Path, settings: Settings) -> Iterator[int]:
    """The training steps of all rounds up to each one."""
    total = 0
    for index in range(settings.loop.rounds):
        try:
            made = read_file(root / "rounds" / str(index) / "generated.json")["made"]
        except (UserError, OSError, LookupError):
            made = settings.environment.num_instances
        total += settings.training.num_steps(made)
        yield total


def _made_from(path: Path, index: int | None, ends: Sequence[int]) -> int | None:
    """The latest step from which a file is made anew; None if that does not matter."""
    if index is None:
        return None
    if path.name == "train.jsonl":
        return ends[index - 1] if index else 0
    return ends[index] - (path.name == "train_failures.json")


def check_checkpoints(root: Path, settings: Settings) -> tuple[list[int], list[Finding]]:
    """The names of the whole checkpoints, and what is wrong with the others."""
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
        checkpoint = run_checkpoint.RunCheckpoint(root, step, settings)
        try:
            run_checkpoint.load_checkpoint(checkpoint, policy)
            whole.append(step)
        except ValueError as error:
            path = Path("checkpoints", str(step))
            findings.append(Finding(path, checks.one_line(error), (path,)))
    return whole, findings


def advice(findings: Sequence[Finding], steps: Sequence[int]) -> list[str]:
    """What to do, in order; nothing where nothing is wrong.

    Args:
      findings: of files and checkpoints.
      steps: the whole checkpoints, ascending.
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
