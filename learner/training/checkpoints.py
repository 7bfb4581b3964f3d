"""Atomic checkpoints: the training state and a small JSON record beside it."""

import contextlib
import hashlib
import json
import operator
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import multihost
from orbax.checkpoint.checkpoint_managers import (
    AnyPreservationPolicy,
    LatestN,
    PreservationPolicy,
)

from learner import checks
from learner.devices import distributed, sharding
from learner.devices.fingerprint import fingerprint
from learner.training.train_state import TrainState

_STATE, _METADATA, _DIGEST = "state", "metadata", "digest"
_KEPT = "kept"
# A checkpoint is renamed into this folder before it is removed: removing its files takes more than
# one system call, and a kill in between would leave a part of it among the others.
_REMOVED = "removed"
# Bytes of a file. TensorStore holds one in memory before it writes it, 2 GB by default.
_FILE = 2**28
# States of up to this many bytes on each device are copied on CPUs, others written at once.
_COPIED = 2**28
# How TensorStore's errors, which are no `OSError`s, name the one that caused them.
_OS_ERROR = re.compile(r"os_error_code='(\d+)'")


class DamagedCheckpointError(ValueError):
    """A checkpoint does not hold what was saved; `older` are those before it, ascending."""

    def __init__(self, message: str, older: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.older = older


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints in one folder, each named by an integer.

    Orbax writes into a temporary folder and renames it when all is there, so whatever `steps`
    lists is complete; what an interrupted save left behind is ignored, and removed when the folder
    is opened for writing.

    Several processes share one folder, on storage that all of them reach, and call everything here
    together: each writes and reads the parts of the arrays that its devices hold. Another number
    of processes may restore.

    Args:
      folder: created if needed.
      keep: how many of the newest to keep, at least 1; None keeps all.
      read_only: never create, write or remove anything.

    Raises:
      ValueError: `keep` is below 1.
      DamagedCheckpointError: what marks a checkpoint as kept cannot be read; the message names
        the file.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int | None = 2,
        read_only: bool = False,
    ) -> None:
        if keep is not None and (not isinstance(keep, int) or keep < 1):
            raise ValueError(f"keep={keep}: allowed are integers from 1 up, and None")
        self._folder = Path(folder).resolve()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([LatestN(keep), _Kept()]),
            best_fn=_kept,  # Without one the manager writes no metrics.
            create=not read_only,
            read_only=read_only,
            cleanup_tmp_directories=not read_only,
            async_options=ocp.options.AsyncOptions(barrier_sync_fn=_barrier),
            todelete_subdir=_REMOVED,
            # The first process lists the folder for all, so that all see the same.
            single_host_load_and_broadcast=True,
        )
        try:
            self._manager = ocp.CheckpointManager(
                self._folder, options=options, item_names=(_STATE, _METADATA)
            )
        except ValueError as error:
            for path in sorted(self._folder.glob("*/metrics/metrics")):
                try:
                    checks.json_object(path)
                except ValueError as why:
                    message = f"{why}; remove {path.parent.parent} to go on from another checkpoint"
                    raise DamagedCheckpointError(message) from error
            raise
        self._read_only = read_only
        self._sweep()

    def save(
        self,
        step: int,
        state: TrainState,
        metadata: Mapping[str, Any],
        keep: bool = False,
    ) -> None:
        """Copies the state to the host, and writes it in the background as checkpoint `step`.

        The next save, `steps`, `restore` and `close` wait for it. A process that is killed
        meanwhile leaves the previous checkpoint as the latest. On CPUs a large state is not copied:
        this writes it before it returns, so that memory need not hold it twice. The cores would
        be busy in any case.

        Args:
          step: its name, larger than those of all others.
          state: what to save; it may be donated as soon as this returns.
          metadata: anything JSON can hold; a task's state, say.
          keep: never remove it to save space.

        Raises:
          ValueError: `step` is not larger than the latest, or the folder is open for reading.
          OSError: it, or the one before it, cannot be written.
        """
        self._check_writable()
        step, latest = operator.index(step), self.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(f"step={step}: the latest checkpoint is {latest}, allowed are larger")
        self._sweep()
        # On CPUs Orbax may write from the buffers that the next step donates.
        lent = jax.default_backend() == "cpu"
        if lent and sharding.device_bytes(state) <= _COPIED:
            state, lent = jax.block_until_ready(jax.tree.map(jnp.copy, state)), False
        with self._storage_errors():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    # A plain dict of fields on disk: readable without this class.
                    state=ocp.args.PyTreeSave(vars(state), ocdbt_target_data_file_size=_FILE),
                    metadata=ocp.args.JsonSave(
                        {_METADATA: dict(metadata), _DIGEST: _digest(state, metadata)}
                    ),
                ),
                metrics={_KEPT: True} if keep else None,
                force=True,
            )
            if lent:
                self._manager.wait_until_finished()

    def wait(self) -> None:
        """Waits until the last save is on disk; raises its error if it failed."""
        with self._storage_errors():
            self._manager.wait_until_finished()

    def steps(self) -> list[int]:
        """All complete checkpoints, ascending."""
        self.wait()
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
          ValueError: it is of another configuration; the message names an array.
          DamagedCheckpointError: it cannot be read, or is not what was saved.
        """
        steps = self.steps()
        if step is None and steps:
            step = steps[-1]
        if step not in steps:
            wanted = "any" if step is None else step
            raise FileNotFoundError(f"{self._folder}: no checkpoint {wanted}, there are {steps}")
        if other := self._difference(step, abstract_state):
            raise ValueError(
                f"{self._folder}: checkpoint {step} is of another configuration: {other}"
            )
        item = vars(abstract_state)
        shardings = ocp.checkpoint_utils.construct_restore_args(item)
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeRestore(item, restore_args=shardings),
                    metadata=ocp.args.JsonRestore(),
                ),
            )
            state = TrainState(**restored[_STATE])
            metadata = restored[_METADATA][_METADATA]
            if restored[_METADATA][_DIGEST] != _digest(state, metadata):
                raise ValueError("its digest is not that of what was saved")
        except RuntimeError:
            raise  # From devices or other processes.
        except Exception as error:  # Broken files raise many kinds of errors in Orbax.
            if distributed.lost_process(error):
                raise
            older = [other for other in steps if other < step]
            why = checks.first_line(error)[:200]
            message = f"{self._folder}: checkpoint {step} is damaged ({why}); older are {older}"
            raise DamagedCheckpointError(message, older) from error
        return state, metadata

    def remove_after(self, step: int) -> None:
        """Removes all checkpoints that are newer than `step`."""
        self._check_writable()
        for newer in reversed([other for other in self.steps() if other > step]):
            self._manager.delete(newer)

    def close(self) -> None:
        """Waits for the last save and releases what Orbax holds; nothing works afterwards."""
        with self._storage_errors():
            self._manager.close()
        self._sweep()

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Raises errors that wrap an `OSError` as that `OSError`, with the folder."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            found = _OS_ERROR.search(str(error))
            if not found:
                raise
            code = int(found[1])
            raise OSError(code, os.strerror(code), str(self._folder)) from error

    def _check_writable(self) -> None:
        if self._read_only:
            raise ValueError(f"{self._folder}: opened with read_only=True")

    def _difference(self, step: int | None, abstract_state: TrainState) -> str:
        """The first array that is not as in a checkpoint; empty if all are, or none can be read."""
        try:
            with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
                saved = handler.metadata(self._folder / str(step) / _STATE).tree
        except Exception:
            return ""
        asked = ocp.tree.serialize_tree(vars(abstract_state), keep_empty_nodes=True)
        there, here = (
            {
                jax.tree_util.keystr(path): f"{jnp.dtype(x.dtype)}{list(x.shape)}"
                for path, x in jax.tree_util.tree_leaves_with_path(tree)
            }
            for tree in (saved, asked)
        )
        for name in sorted(there.keys() | here.keys()):
            one, other = there.get(name, "nothing"), here.get(name, "nothing")
            if one != other:
                return f"{name} is {one} in it, and {other} is asked for"
        return ""

    def _sweep(self) -> None:
        if not self._read_only and distributed.is_first():
            shutil.rmtree(self._folder / _REMOVED, ignore_errors=True)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or not distributed.lost_process(error):
            self.close()  # A save in the background would wait for a process that is gone.


class _Kept(PreservationPolicy):
    """Preserves checkpoints that were saved with `keep`."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        return [_kept(one.metrics or {}) for one in checkpoints]


def _kept(metrics: Mapping[str, Any]) -> bool:
    return bool(metrics.get(_KEPT))


def _digest(state: TrainState, metadata: Mapping[str, Any]) -> str:
    """SHA-256 of the metadata and of the arrays' fingerprint.

    Orbax stores no digest of the values: it would restore a flipped bit.
    """
    told = json.dumps([metadata, fingerprint(state)], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def _barrier(*, key: str, timeout_ms: int) -> None:
    """Orbax's own barrier between the threads that save in the background.

    If writing fails on one process, its thread still reaches a barrier on its way out and would
    wait there for the whole time-out of 20 minutes, as would the others at an earlier one. Here it
    raises its error instead, which the next call of the main thread raises again.
    """
    error = sys.exc_info()[1]
    if error is not None and threading.current_thread() is not threading.main_thread():
        raise error
    multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)
