"""Writers of the metrics of every step, and the metrics of the machine."""

import contextlib
import html
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

#: Prefix of metrics that depend on the machine and its load; equal runs may differ in them.
MACHINE = "machine/"

#: Numbers, and texts of any origin, by name.
Metrics = Mapping[str, float | str]

#: Takes the number and the metrics of one step after the other.
Writer = Callable[[int, Metrics], None]


@contextlib.contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Adds the time that the body takes to `seconds[part]`."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - begin


def machine(seconds: Mapping[str, float], tokens: Mapping[str, float]) -> dict[str, float]:
    """The time split of a step, its speed and the memory in use, named for the log.

    Args:
      seconds: spent in each part of the step.
      tokens: number of tokens that parts of the step made or used.

    Returns:
      `machine/PART_seconds`, `machine/PART_tokens_per_second`, and in GiB `machine/device_memory`
      and `machine/device_memory_peak` of the fullest local device if the backend reports them (a
      CPU does not), and on Linux `machine/host_memory` of this process.
    """
    metrics = {f"{MACHINE}{part}_seconds": value for part, value in seconds.items()}
    for part, count in tokens.items():
        metrics[f"{MACHINE}{part}_tokens_per_second"] = count / max(seconds[part], 1e-9)
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    keys = {"device_memory": "bytes_in_use", "device_memory_peak": "peak_bytes_in_use"}
    for name, key in keys.items():
        values = [stat[key] for stat in stats if key in stat]
        if values:
            metrics[MACHINE + name] = max(values) / 2**30
    pages = Path("/proc/self/statm")
    if pages.exists():
        resident = int(pages.read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        metrics[f"{MACHINE}host_memory"] = resident / 2**30
    return metrics


@contextlib.contextmanager
def tensorboard(folder: Path, first_step: int = 0) -> Iterator[Writer]:
    """Event files for TensorBoard, a scalar or text each; needs the extra `tensorboard`.

    Args:
      folder: of the event files.
      first_step: metrics already written for this step and later ones are no longer shown.
    """
    from tensorboardX import SummaryWriter

    with SummaryWriter(
        str(folder), purge_step=first_step, write_to_disk=True, flush_secs=10
    ) as writer:

        def write(step: int, metrics: Metrics) -> None:
            for name, value in metrics.items():
                if isinstance(value, str):  # Indented: Markdown shows it as it is.
                    writer.add_text(name, textwrap.indent(value, "    ", lambda _: True), step)
                else:
                    writer.add_scalar(name, value, step)

        yield write


@contextlib.contextmanager
def weights_and_biases(
    project: str, folder: Path, run_id: str, config: Mapping[str, Any]
) -> Iterator[Writer]:
    """A run of Weights & Biases, which ignores steps it already has; needs the extra `wandb`.

    Args:
      project: its name.
      folder: where the package keeps its files.
      run_id: of the run to start or to continue.
      config: the options to show with it.
    """
    import wandb

    run = wandb.init(
        project=project, dir=str(folder), id=run_id, resume="allow", config=dict(config)
    )

    def shown(value: float | str) -> Any:
        if not isinstance(value, str):
            return value
        return wandb.Html(f"<pre>{html.escape(value)}</pre>", inject=False)

    try:
        yield lambda step, metrics: run.log(
            {name: shown(value) for name, value in metrics.items()}, step=step
        )
    finally:
        run.finish()
