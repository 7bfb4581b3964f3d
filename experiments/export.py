"""Writes what a run has trained as a Hugging Face checkpoint.

    python -m experiments.export runs/tiny --out=models/trained

The folder then loads like any other model: with `transformers`, a server such as vLLM,
`python -m learner.generate`, or as `--config.model.path` of another run. Adapters are added to the
weights they belong to.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

# Messages of libraries about accelerators that are not there say nothing to a user.
logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)

from absl import logging as absl_logging  # noqa: E402

from experiments.errors import UserError, user_errors  # noqa: E402
from experiments.policy import load_policy  # noqa: E402
from experiments.run_checkpoint import (  # noqa: E402
    RunCheckpoint,
    find_checkpoint,
    load_checkpoint,
)
from experiments.settings import MeshSettings  # noqa: E402
from learner.qwen3 import weights  # noqa: E402
from learner.qwen3.config import DTYPES  # noqa: E402


def export(run: str, out: Path, mesh: MeshSettings, dtype: str | None = None) -> RunCheckpoint:
    """Writes weights, `config.json`, `generation_config.json` and the tokenizer into `out`.

    Args:
      run: RUN or RUN:STEP; without a step the last checkpoint.
      out: a folder that is empty or does not exist.
      mesh: devices to hold the weights and, while they are read, the optimizer's moments.
      dtype: of the weights in the files; None is that of the parameters.

    Returns:
      Which checkpoint it was.

    Raises:
      UserError: there is no such checkpoint, `out` holds something, the model's own folder is
        gone, or there are too few devices.
    """
    checkpoint = find_checkpoint(run)
    if checkpoint is None:
        raise UserError(f"run={run!r}: no run is there; allowed are RUN and RUN:STEP")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out={str(out)!r}: it exists and is not an empty folder")
    with user_errors():
        policy = load_policy(checkpoint.settings, mesh)
        generation_config = weights.read_generation_config(checkpoint.settings.model.folder)
    weights.save(
        out,
        load_checkpoint(checkpoint, policy),
        policy.config,
        policy.tokenizer,
        dtype=dtype,
        generation_config=generation_config,
    )
    return checkpoint


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.export",
        description="Write what a run has trained as a Hugging Face checkpoint.",
    )
    add = parser.add_argument
    add("run", help="a run's folder, or RUN:STEP; without a step the last checkpoint")
    add("--out", required=True, type=Path, help="folder of the checkpoint, new or empty")
    add("--dtype", choices=DTYPES, help="of the files; by default that of the trained weights")
    add("--mesh", default="1x1x1", help="devices DATAxFSDPxTENSOR to load on (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, or 1 for what the user can mend."""
    arguments = _parser().parse_args(argv)
    absl_logging.set_verbosity(absl_logging.ERROR)  # Orbax warns that it only reads.
    try:
        with user_errors():
            mesh = MeshSettings.from_text(arguments.mesh)
        checkpoint = export(arguments.run, arguments.out, mesh, arguments.dtype)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{checkpoint.run} after {checkpoint.step} updates: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
