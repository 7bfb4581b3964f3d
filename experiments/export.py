"""Exports the trained model of a run as a Hugging Face checkpoint.

    python -m experiments.export runs/tiny --out=models/trained

The folder loads like any other model: in `transformers`, in servers, in `python -m
learner.generate`, and as `--config.model.path` of another run. Adapters are merged into the
weights.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments import name_of
from experiments.run import process
from experiments.run.checkpoint import RunCheckpoint, find_checkpoint
from experiments.run.policy import load_policy
from experiments.settings import MeshSettings
from experiments.text.errors import UserError, ended_in_one_line, user_errors
from learner.decoder.config import DTYPES
from learner.devices import sharding


def export(run: str, out: Path, mesh: MeshSettings, dtype: str | None = None) -> RunCheckpoint:
    """Writes weights, `config.json`, `generation_config.json` and the tokenizer into `out`.

    Args:
      run: RUN (its last checkpoint), RUN:STEP or RUN@ROUND.
      out: an empty or new folder outside the run; files of an interrupted call are replaced.
      mesh: devices for the weights and, while loading, the optimizer's moments.
      dtype: of the exported weights; None is that of the parameters.

    Returns:
      The exported checkpoint.

    Raises:
      UserError: there is no such checkpoint, `out` is not empty or not allowed, the model's own
        folder is gone, or the mesh does not fit the model or the devices.
    """
    checkpoint = find_checkpoint(run)
    if checkpoint is None:
        raise UserError(f"run={run!r}: no run is there; allowed are RUN, RUN:STEP and RUN@ROUND")
    if out.exists() and not (
        out.is_dir() and all(path.suffix == ".part" for path in out.iterdir())
    ):
        raise UserError(f"out={str(out)!r}: it exists and is not an empty folder")
    if checkpoint.run.resolve() in out.resolve().parents:
        raise UserError(
            f"out={str(out)!r}: it lies in the folder of the run, which is the run's own"
        )
    with user_errors():
        policy = load_policy(checkpoint.settings, mesh)
        params = checkpoint.load(policy)
    policy.save(out, params, dtype)
    return checkpoint


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; user errors end it with one line."""
    parser = argparse.ArgumentParser(
        prog=name_of("export"),
        description="Write what a run has trained as a Hugging Face checkpoint.",
    )
    add = parser.add_argument
    add("run", help="a run's folder (its last checkpoint), RUN:STEP or RUN@ROUND")
    add("--out", required=True, type=Path, help="folder of the checkpoint, new or empty")
    add("--dtype", choices=DTYPES, help="of the files; by default that of the trained weights")
    add("--mesh", default="1x1x1", help="devices DATAxFSDPxTENSOR to load on (%(default)s)")
    arguments = parser.parse_args(argv)
    process.quieten()
    with ended_in_one_line():
        with user_errors():
            mesh = MeshSettings(*sharding.mesh_size(arguments.mesh))
        checkpoint = export(arguments.run, arguments.out.expanduser(), mesh, arguments.dtype)
    print(f"{checkpoint.run} after {checkpoint.step} training steps: {arguments.out}")


if __name__ == "__main__":
    main()
