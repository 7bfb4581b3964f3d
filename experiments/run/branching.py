"""Runs that start from a round of another run: `--branch=RUN@ROUND`.

The folder starts as a copy of that run up to the end of the round: problems, training, validation,
evidence and the checkpoint. The next design is its own. With the same options and seed it repeats
the rest of that run. If only the weights of the round were kept, training starts afresh from them.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.run import store as files
from experiments.run.checkpoint import end_of_round, find_checkpoint
from experiments.run.policy import Policy
from experiments.run.store import OtherOptionsError, RunStore
from experiments.settings import Settings
from experiments.text.errors import UserError, user_errors
from learner.decoder import weights
from learner.devices import distributed

#: Options in which a branch may differ from its source.
_OWN = (*files.FREE, "loop.rounds", "seed", "engineer.", "environment.")
# Files that a refused start leaves in its folder.
_REFUSED = {".lock", "config.json", "versions.json"}
# Files that follow the validation of a round, which a branch makes itself.
_OF_DESIGN = shutil.ignore_patterns("design", "engineer_training.jsonl", files.READING)


def branch(spec: str, store: RunStore, settings: Settings) -> list[str]:
    """Starts a run from a copy of another run's first rounds, unless that is done already.

    Args:
      spec: RUN@ROUND.
      store: the new run; its folder holds none yet.
      settings: its options.

    Returns:
      Lines for the user; none if the copy was there already.

    Raises:
      UserError: there is no such run, round or checkpoint; the folder holds another run; an option
        differs that the copied rounds depend on; or only weights are left of adapters.
    """
    source, at, index = spec.rpartition("@")
    if not (at and index.isdecimal()):
        raise UserError(f"branch={spec!r}: allowed is RUN@ROUND, such as runs/tiny@0")
    made = store.root / files.BRANCH
    note: dict[str, Any] = {"run": str(Path(source).resolve()), "round": int(index)}
    if made.exists():  # The other run may be gone by now.
        before = files.read_file(made)
        if note.items() <= before.items():
            return []
        raise UserError(
            f"branch={spec!r}: the run in {store.root} is a branch of "
            f"{before['run']}@{before['round']}"
        )
    found = find_checkpoint(spec)
    if found is None:
        raise UserError(f"branch={spec!r}: no run is there")
    if others := sorted({path.name for path in store.root.iterdir()} - _REFUSED):
        raise UserError(
            f"branch={spec!r}: it needs a new folder and {store.root} holds "
            f"{', '.join(others[:5])}; give another --workdir"
        )
    if settings.loop.rounds <= int(index) + 1:
        raise UserError(
            f"branch={spec!r}: loop.rounds={settings.loop.rounds} leaves no round after "
            f"rounds/{index}; allowed are integers from {int(index) + 2} up"
        )
    try:
        changed = RunStore(found.run).compare(settings, _OWN)
    except OtherOptionsError as error:
        raise UserError(f"branch={spec!r}: {error}") from error
    if found.weights:
        if rank := settings.training.lora.rank:
            raise UserError(
                f"branch={spec!r}: only the merged weights of rounds/{index} are left, and "
                f"training.lora.rank={rank}; allowed is a round whose checkpoint is kept"
            )
        log = files.read_log(found.run / "rounds" / str(int(index)) / "train.jsonl")
        note[files.FRESH] = {"round": int(index), "step": len(log), "total": found.step}
        changed.append(
            f"training starts afresh from rounds/{index}/weights in bfloat16: optimizer's moments, "
            "learning-rate schedule and state of the task are new"
        )
    copy_rounds(found.run, store.root, int(index) + 1, {**note, "changed": changed})
    return [f"branch of {source}@{index}", *changed]


def fresh_start(store: RunStore, policy: Policy, params: Any) -> tuple[Any, dict[str, Any]]:
    """Where a run without a checkpoint starts: parameters, and the position as in `Position`.

    That is the model and no position, or, in a branch of a round of which only the weights were
    left, these and the end of the round.

    Args:
      params: of the model.

    Raises:
      UserError: the weights cannot be read.
    """
    begin = distributed.on_first(store.fresh_state)
    if begin:
        with user_errors():
            folder = store.round(begin["round"]) / "weights"
            params = distributed.on_all(lambda: weights.load(folder, policy.config, policy.mesh))
    return params, begin


def copy_rounds(source: Path, target: Path, rounds: int, note: Mapping[str, Any]) -> None:
    """Copies the first rounds of a run, without the last one's design, to continue from there.

    The copy appears as a whole or not at all, and replaces what is at the target. Its files, which
    are replaced if need be but never rewritten, are hard links where the file system supports them.

    Args:
      rounds: number of rounds, all finished, with the checkpoint at their end.
      note: written to the copy; with `store.FRESH`, the checkpoint is left out.
    """
    temporary = target.with_name(f".{target.name}.branch")  # A name that no run has.
    shutil.rmtree(temporary, ignore_errors=True)
    folders = [
        Path("validation"),
        Path("initial"),
        *(path for path in (Path(files.TEST),) if (source / path).exists()),
        *(Path("rounds", str(i)) for i in range(rounds)),
    ]
    for folder in folders:
        ignore = _OF_DESIGN if folder == folders[-1] else None
        shutil.copytree(source / folder, temporary / folder, ignore=ignore, copy_function=_link)
    if files.FRESH not in note:
        checkpoint = Path("checkpoints", str(end_of_round(source, rounds - 1)))
        shutil.copytree(source / checkpoint, temporary / checkpoint, copy_function=_link)
    files.write_file(temporary / files.BRANCH, note)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
