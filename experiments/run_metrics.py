"""Where the metrics of a run go beside its files: TensorBoard and Weights & Biases."""

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
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


@contextlib.contextmanager
def open_writers(settings: Settings, root: Path, first_step: int) -> Iterator[metrics.Writer]:
    """The writers of the first process as one, none of any other; steps count over all rounds."""
    with contextlib.ExitStack() as stack:
        writers: list[metrics.Writer] = []
        if settings.log.tensorboard and distributed.is_first():
            opened = metrics.tensorboard(root / "tensorboard", first_step)
            writers.append(stack.enter_context(opened))
        if settings.log.wandb_project and distributed.is_first():
            run_id = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
            project, options = settings.log.wandb_project, settings.to_dict()
            opened = metrics.weights_and_biases(project, root, run_id, options)
            writers.append(stack.enter_context(opened))

        def write(step: int, values: Mapping[str, float]) -> None:
            for writer in writers:
                writer(step, values)

        yield write
