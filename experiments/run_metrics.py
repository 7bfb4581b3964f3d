"""Where the metrics of a run go beside its files: TensorBoard and Weights & Biases."""

import hashlib
import importlib.util
from pathlib import Path

from experiments.errors import UserError
from experiments.settings import Settings
from learner.devices import distributed
from learner.training import metrics


def check_packages(settings: Settings) -> None:
    """Makes sure that what is asked for is installed.

    Raises:
      UserError: it is not.
    """
    log = settings.log
    for package, wanted in (("tensorboardX", log.tensorboard), ("wandb", log.wandb_project)):
        if wanted and importlib.util.find_spec(package) is None:
            raise UserError(
                f"log={log}: needs the package {package}, which is not installed; "
                "the extras `tensorboard` and `wandb` have them"
            )


def open_writers(settings: Settings, root: Path, first_step: int) -> metrics.Writers:
    """The writers of the first process, none of any other; steps count over all rounds."""
    writers: list[metrics.Writer] = []
    if settings.log.tensorboard and distributed.is_first():
        writers.append(metrics.TensorBoard(root / "tensorboard", first_step))
    if settings.log.wandb_project and distributed.is_first():
        run_id = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
        options = settings.to_dict()
        writers.append(metrics.WandB(settings.log.wandb_project, root, run_id, options))
    return metrics.Writers(writers)
