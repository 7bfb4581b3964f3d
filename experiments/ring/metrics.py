"""Metrics of a run in TensorBoard and Weights & Biases."""

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engineer.designers import Design
from engineer.space import Configuration
from experiments.families import Family, Problem
from experiments.ring.change import Change
from experiments.ring.outcomes import one_of_each_kind
from experiments.settings import Settings
from experiments.text.errors import UserError
from learner import checks
from learner.devices import distributed
from learner.training import metrics


def check_packages(settings: Settings) -> None:
    """Checks that the packages of the configured logs are installed.

    Raises:
      UserError: one is not.
    """
    needed = {"tensorboard": ("tensorboardX", "tensorboard"), "wandb_project": ("wandb", "wandb")}
    for name, (package, extra) in needed.items():
        value = getattr(settings.log, name)
        if value and importlib.util.find_spec(package) is None:
            raise UserError(
                f"log.{name}={value!r}: needs {package}; "
                f"in a clone of the project: pip install -e '.[{extra}]'"
            )


@contextlib.contextmanager
def open_writers(settings: Settings, root: Path, first_step: int) -> Iterator[metrics.Writer]:
    """One writer for all configured logs; it only writes on the first process.

    Steps count over all rounds.

    Raises:
      UserError: Weights & Biases cannot start a run, for example without an account.
    """
    with contextlib.ExitStack() as stack:
        writers: list[metrics.Writer] = []
        if settings.log.tensorboard and distributed.is_first():
            opened = metrics.tensorboard(root / "tensorboard", first_step)
            writers.append(stack.enter_context(opened))
        if settings.log.wandb_project and distributed.is_first():
            run_id = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
            project, options = settings.log.wandb_project, settings.to_dict()
            opened = metrics.weights_and_biases(project, root, run_id, options)
            from wandb import Error

            try:
                writers.append(stack.enter_context(opened))
            except Error as error:
                raise UserError(
                    f"log.wandb_project={project!r}: {checks.one_line(error)} "
                    "(WANDB_MODE=offline needs no account)"
                ) from error

        def write(step: int, values: metrics.Metrics) -> None:
            for writer in writers:
                writer(step, values)

        yield write


_SAMPLES = 3


def of_validation(
    family: Family,
    problems: Sequence[Problem],
    records: Sequence[Mapping[str, Any]],
    config: Configuration | None,
    example: Sequence[str],
) -> dict[str, float | str]:
    """Metrics of a validation and its round besides those of `outcome_metrics`.

    Args:
      family: of the problems.
      problems: of the validation set.
      records: of all answers.
      config: of the training set before it, if any.
      example: the lines of `outcomes.example`.

    Returns:
      `completion/N`, some completions with their problems, valid and failed ones among them if
      there are both; `completion/example`, that of the terminal; and `configuration/PARAMETER_ROW`,
      the configuration of the training set.
    """
    known = {problem["id"]: problem for problem in problems}
    values: dict[str, float | str] = {"completion/example": "\n".join(example)}
    chosen = one_of_each_kind(records, lambda record: record["valid"], _SAMPLES)
    for i, record in enumerate(chosen, 1):
        outcome = ", ".join(map(family.failure, record["failed"])) or "valid"
        drawn = family.text(known[record["id"]], record["text"])
        values[f"completion/{i}"] = f"{record['id']}: {outcome}\n\n{drawn}"
    cells = config.cells() if config is not None else {}
    return values | {f"configuration/{name}_{row}": cell for (row, name), cell in cells.items()}


def of_design(design: Design, change: Change) -> dict[str, float | str]:
    """Metrics of a design: repairs, tries, and as texts what it changed and why, and the
    configuration with the answers."""
    made = [f"{row}: {numbers}" for row, numbers in design.config.to_dict().items()]
    lines = [f"by {design.source}", *made, *design.repairs, design.reason, design.nothing]
    return {
        "design/repairs": len(design.repairs),
        "design/tries": len(design.raw_texts),
        "design/kept_previous": float(design.kept_previous),
        "design/nothing": float(bool(design.nothing)),
        "design/change": f"the design {change.sentence()}",
        "design/text": "\n".join([*filter(None, lines), *design.raw_texts]),
    }
