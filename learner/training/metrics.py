"""Writers of the metrics of every step, and the metrics of the machine."""

import contextlib
import html
import itertools
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from learner.decoder import model
from learner.decoder.config import DecoderConfig
from learner.devices.chips import Chip

T = TypeVar("T")

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


def traced(results: Iterator[T], folder: Path, first: int, steps: range) -> Iterator[T]:
    """Yields all results; those of some steps are made under a trace of `jax.profiler`.

    What the caller does between two of these steps is in the trace, too.

    Args:
      results: one of each step, lazily.
      folder: of the trace, for TensorBoard, XProf or Perfetto.
      first: number of the first step.
      steps: numbers of the steps to trace.
    """
    with contextlib.ExitStack() as trace:
        for step in itertools.count(first):
            if step in steps and step == max(first, steps.start):
                trace.enter_context(jax.profiler.trace(folder))
            result = next(results, None)
            if step + 1 not in steps:
                trace.close()
            if result is None:
                return
            yield result


def update_flops(
    config: DecoderConfig, prompts: np.ndarray, completions: np.ndarray, frozen: bool = False
) -> float:
    """Operations that an update needs, without recomputation, as for a model FLOPs utilization.

    Six for each parameter of a product and token (arXiv 2001.08361, forwards and backwards), the
    output matrix only for completions, and half of all pairs of tokens in attention, as MaxText
    counts them.

    Args:
      config: the model.
      prompts: i[N], tokens of each completion's prompt, which counts for every completion.
      completions: i[N], tokens of each completion.
      frozen: adapters are trained, so that the model's parameters get no gradient.
    """
    params = model.abstract_params(config)
    matrices = sum(x.size for x in jax.tree.leaves(params["layers"]))
    output = config.vocab_size * config.hidden_size
    heads = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    lengths = np.asarray(prompts, np.float64) + completions
    products = matrices * lengths.sum() + output * float(np.sum(completions))
    return float((4 if frozen else 6) * products + 6 * heads * np.sum(lengths**2))


def machine(
    seconds: Mapping[str, float],
    tokens: Mapping[str, float],
    flops: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The time split of a step, its speed and the memory in use, named for the log.

    Args:
      seconds: spent in each part of the step.
      tokens: number of tokens that parts of the step made or used.
      flops: operations of each device in parts of the step.

    Returns:
      `machine/PART_seconds`, `machine/PART_tokens_per_second`, on chips of `CHIPS`
      `machine/PART_mfu`, the fraction of their peak, and in GiB `machine/device_memory`
      and `machine/device_memory_peak` of the fullest local device if the backend reports them (a
      CPU does not), and on Linux `machine/host_memory` of this process.
    """
    metrics = {f"{MACHINE}{part}_seconds": value for part, value in seconds.items()}
    for part, count in tokens.items():
        metrics[f"{MACHINE}{part}_tokens_per_second"] = count / max(seconds[part], 1e-9)
    if chip := Chip.of(jax.local_devices()[0]):
        for part, count in (flops or {}).items():
            metrics[f"{MACHINE}{part}_mfu"] = count / chip.flops / max(seconds[part], 1e-9)
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
