"""Completions of interrupted calls of a sampler, kept in a folder for the same calls at a restart.

A process that is asked to leave (SIGTERM, Ctrl-C) may have sampled for an hour. The completions
that had ended by then are written; a call with the same arguments and parameters takes them over,
and samples the others from their beginning. They are what they would have been, beyond rounding, as
no completion depends on others.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.devices.fingerprint import fingerprint
from learner.sampling.slots import RUNNING


class InterruptedCalls:
    """The calls of one or more samplers since the parameters last changed.

    A step of training may have several calls, so all of them are written if one is interrupted.
    Files of other parameters are removed.

    Args:
        folder: made when there is something to write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._weights = ""
        self._calls: dict[str, Any] = {}

    @contextlib.contextmanager
    def call(self, params: Any, arguments: Any, samples: Any) -> Iterator[None]:
        """Fills ended completions into `samples`, and writes them if the body is interrupted.

        Args:
            params: of the model.
            arguments: whatever else the samples depend on, a pytree of arrays and of values with a
                `repr`.
            samples: `Samples` whose arrays the body fills, with `finish` as the last of each row.
        """
        weights = _digest(fingerprint(params))
        if weights != self._weights:
            self._weights, self._calls = weights, {}
            for path in self._folder.glob("*"):
                if not path.name.startswith(weights):
                    path.unlink()
        name = f"{weights}-{_digest(*jax.tree.leaves(arguments))}"
        self._read(self._folder / f"{name}.npz", samples)
        self._calls[name] = samples
        try:
            yield
        except Exception:
            raise
        except BaseException:
            with contextlib.suppress(OSError):  # Saving the training matters more.
                self._write()
            raise

    def _read(self, path: Path, samples: Any) -> None:
        with contextlib.suppress(Exception):  # Damaged in any way: all is sampled again.
            found = dict(np.load(path))
            ended = found["finish"] != RUNNING
            for name, array in samples._asdict().items():
                array[ended] = found[name][ended]

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
