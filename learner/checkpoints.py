"""Checkpoints that a kill cannot halve: the training state and a small JSON record beside it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orbax.checkpoint as ocp

from learner.train_state import TrainState

_STATE, _METADATA = "state", "metadata"


class Checkpoints:
    """The checkpoints in one folder, each named by an integer.

    Orbax writes into a temporary folder and renames it when all is there, so whatever `steps`
    lists is complete; what an interrupted save left behind is ignored, and removed when the folder
    is opened for writing. Saving returns when the checkpoint is complete.

    Args:
      folder: created if needed.
      keep: how many of the newest to keep, at least 1; None keeps all.
      read_only: never create, write or remove anything.

    Raises:
      ValueError: `keep` is out of its range.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int | None = 2,
        read_only: bool = False,
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep={keep!r}: allowed are None and integers from 1 up")
        self._folder = Path(folder).resolve()
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                create=not read_only,
                read_only=read_only,
                cleanup_tmp_directories=not read_only,
                enable_async_checkpointing=False,
            ),
            item_names=(_STATE, _METADATA),
        )

    def save(self, step: int, state: TrainState, metadata: Mapping[str, Any]) -> None:
        """Writes checkpoint `step`; afterwards it is on disk.

        Args:
          step: its name, larger than those of all others.
          state: what to save.
          metadata: anything JSON can hold; a task's state, say.

        Raises:
          ValueError: `step` is not larger than the latest.
        """
        latest = self.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(f"step={step}: the latest checkpoint is {latest}, allowed are larger")
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(_as_dict(state)),
                metadata=ocp.args.JsonSave(dict(metadata)),
            ),
            force=True,
        )
        self._manager.wait_until_finished()

    def steps(self) -> list[int]:
        """All complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        """The newest complete checkpoint, or None."""
        return max(self.steps(), default=None)

    def restore(
        self, abstract_state: TrainState, step: int | None = None
    ) -> tuple[TrainState, dict[str, Any]]:
        """Reads a checkpoint.

        Args:
          abstract_state: shapes, dtypes and shardings to restore to
            (`train_state.abstract_train_state`). The mesh may differ from the one saved on.
          step: which one; None is the latest.

        Returns:
          The state, placed as asked, and the metadata.

        Raises:
          FileNotFoundError: there is no such checkpoint.
        """
        step = self._known(step)
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(_as_dict(abstract_state)),
                metadata=ocp.args.JsonRestore(),
            ),
        )
        return TrainState(**restored[_STATE]), dict(restored[_METADATA])

    def metadata(self, step: int | None = None) -> dict[str, Any]:
        """Only the metadata of a checkpoint; arguments and errors as in `restore`."""
        step = self._known(step)
        restored = self._manager.restore(
            step, args=ocp.args.Composite(metadata=ocp.args.JsonRestore())
        )
        return dict(restored[_METADATA])

    def close(self) -> None:
        """Releases what Orbax holds; the object cannot be used afterwards."""
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _known(self, step: int | None) -> int:
        steps = self.steps()
        if not steps or (step is not None and step not in steps):
            wanted = "any" if step is None else step
            raise FileNotFoundError(f"{self._folder}: no checkpoint {wanted}, there are {steps}")
        return steps[-1] if step is None else step


def _as_dict(state: TrainState) -> dict[str, Any]:
    # A plain dict of fields on disk: readable without this class.
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
