"""Completions of interrupted calls of a sampler, kept in a folder for the same calls at a restart.

A process that is asked to leave (SIGTERM, Ctrl-C) may have sampled for an hour. The completions
that had ended by then are written; a call with the same arguments and parameters takes them over,
and samples the others from their beginning. They are what they would have been, beyond rounding, as
no completion depends on others.

Several processes sample apart and meet at the end of a call. One that has the signal stops after
its segment and waits there for the others, which finish their sampling unless they have the signal
too; then all leave. Clusters send it to all.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.devices import distributed
from learner.devices.fingerprint import fingerprint
from learner.devices.preemption import Preemption
from learner.sampling.slots import RUNNING


class InterruptedCalls:
    """The calls of one or more samplers since the parameters last changed.

    A step of training may have several calls, so all of them are written if one is interrupted.
    Files of other parameters are removed.

    Args:
        folder: the first process makes it when there is something to write.
        preemption: of the run.
    """

    def __init__(self, folder: Path, preemption: Preemption) -> None:
        self._folder = folder
        self._preemption = preemption
        self._weights = ""
        self._calls: dict[str, Any] = {}

    @property
    def leaving(self) -> bool:
        """Whether the body of `call` should stop sampling and return what it has."""
        return self._preemption.leaving

    @contextlib.contextmanager
    def call(self, params: Any, arguments: Any, samples: Any) -> Iterator[None]:
        """Fills ended completions into `samples`, and writes them if the body is interrupted.

        All processes call it together.

        Args:
            params: of the model.
            arguments: whatever else the samples depend on, a pytree of arrays and of values with a
                `repr`.
            samples: `Samples` of the whole call, the same on all processes when the body ends; it
                writes `finish` as the last of each row.

        Raises:
            Preempted: a process was asked to leave before all completions had ended.
        """
        weights = _digest(fingerprint(params))
        if weights != self._weights:
            self._weights, self._calls = weights, {}
        name = f"{weights}-{_digest(*jax.tree.leaves(arguments))}"
        if kept := distributed.on_first(lambda: self._open(name, samples)):
            ended = kept["finish"] != RUNNING
            for field, own in samples._asdict().items():
                own[ended] = kept[field][ended]
        self._calls[name] = samples
        try:
            yield
            if (samples.finish == RUNNING).any():  # A process stopped early: all leave.
                self._preemption.agree()
        except Exception:
            raise
        except BaseException:
            if distributed.is_first():
                with contextlib.suppress(OSError):  # Saving the training matters more.
                    self._write()
            raise

    def _open(self, name: str, samples: Any) -> dict[str, np.ndarray]:
        """Removes files of other parameters; returns the arrays of a call's file.

        Without a file, or with one that is damaged in any way, there are none.
        """
        for path in self._folder.glob("*"):
            if not path.name.startswith(self._weights):
                path.unlink()
        with contextlib.suppress(Exception):
            found = dict(np.load(self._folder / f"{name}.npz"))
            if all(found[field].shape == own.shape for field, own in samples._asdict().items()):
                return found
        return {}

    def _write(self) -> None:
        for name, samples in self._calls.items():
            if (samples.finish == RUNNING).all():
                continue
            self._folder.mkdir(parents=True, exist_ok=True)
            begun = self._folder / f"{name}.tmp"
            with begun.open("wb") as file:
                np.savez(file, **samples._asdict())
                file.flush()
                os.fsync(file.fileno())
            begun.rename(begun.with_suffix(".npz"))


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes() if hasattr(part, "tobytes") else f"{part!r};".encode())
    return digest.hexdigest()[:16]
