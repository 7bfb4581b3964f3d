"""What the results of a run depend on besides its options: packages, machine, JAX, the model."""

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from learner.decoder import hub

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")
# Prefixes of variables that change what JAX and XLA compute, and those that do not.
_VARIABLES = ("JAX_", "XLA_", "LIBTPU_INIT_ARGS")
_HARMLESS = (
    *("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES"),
    *("JAX_TRACEBACK", "JAX_LOG", "JAX_ENABLE_X64", "JAX_DEFAULT_PRNG_IMPL"),
    *("JAX_THREEFRY_PARTITIONABLE", "XLA_PYTHON_CLIENT"),
)
# Entries of `machine` that may differ without a word: a run may move, and say so in its options.
_MOVABLE = ("platform", "cpus")


def packages() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def machine() -> dict[str, Any]:
    """Versions of packages, the machine, and the variables that JAX and XLA read."""
    devices = jax.devices()
    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES) and not name.startswith(_HARMLESS)
    }
    return {
        **packages(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "processor": processor(),
        "variables": variables,
    }


def processor() -> str:
    """The kind of processor, whose vector instructions XLA compiles for."""
    return _of_processor("model name") or platform.processor() or platform.machine()


def generation() -> str:
    """Numbers of the processor's generation, which names in virtual machines leave out, or ""."""
    family, number = _of_processor("cpu family"), _of_processor("model")
    return f"family {family}, model {number}" if family and number else ""


def _of_processor(field: str) -> str:
    """What the kernel says about the first core, or ""."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    parts = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _, value in parts if name.strip() == field), "")


def model_files(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a model, by name.

    Digests are kept beside the user's other caches, by path, size and time of change, so that
    weights are read for it once.
    """
    kept = hub.cache_folder() / "digests.json"
    try:
        known = dict(json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        known = {}
    found, new = {}, {}
    for path in sorted({path for pattern in hub.MODEL_FILES for path in folder.glob(pattern)}):
        state = path.stat()
        key = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
        if key not in known:
            with path.open("rb") as file:
                new[key] = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.name] = new.get(key) or known[key]
    if new:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            temporary = kept.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps({**known, **new}), encoding="utf-8")
            temporary.replace(kept)
        except OSError:
            pass  # They are computed again the next time.
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs from the record of an earlier start, in words; entries it lacks do not count."""
    found = []
    for name in [one for one in now if one in before and one not in _MOVABLE]:
        old, new = before[name], now[name]
        if name == "model":
            files = sorted(file for file in {**old, **new} if old.get(file) != new.get(file))
            found += [f"the model has another {', '.join(files)}"] if files else []
        elif old != new:
            found.append(f"{name} was {old!r} and is {new!r}")
    return found
