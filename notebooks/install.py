"""Installs what the notebook needs, in a clone, for the device of this machine.

With a GPU or a TPU the extra of that name comes too: JAX alone would leave a device plugin of an
older JAX in place, which JAX then ignores, and compute on the CPU without a word.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NEEDED = ("jax", "chex", "numba", "flax", "optax", "orbax", "ml_collections", "PIL", "rich")
# Distributions that let JAX use a device, by the extra that brings them.
PLUGINS = {"gpu": "jax-cuda12-plugin", "tpu": "libtpu"}


def runtime() -> str:
    """The extra for this machine's device: "gpu", "tpu", or "" for a CPU."""
    if shutil.which("nvidia-smi"):
        return "gpu"
    return "tpu" if "COLAB_TPU_ADDR" in os.environ or Path("/dev/accel0").exists() else ""


def missing(extra: str) -> bool:
    """Whether a package, or a plugin that fits JAX, is not installed."""
    try:
        jax = tuple(int(part) for part in version("jax").split(".")[:2])
        if extra == "gpu" and version(PLUGINS[extra]) != version("jax"):
            return True
        if extra:
            version(PLUGINS[extra])
    except PackageNotFoundError:
        return True
    return jax < (0, 10) or not all(map(importlib.util.find_spec, NEEDED))


def install(folder: Path) -> str:
    """Installs the clone in `folder` with the extras of this machine; nothing if all is there.

    Returns:
      A line that says on which devices JAX computes.
    """
    extra = runtime()
    if missing(extra):
        extras = ",".join(filter(None, ("train", "render", extra)))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "-e", f"{folder}[{extras}]"]
        subprocess.run(command, check=True)
    import jax

    kinds = sorted({device.device_kind for device in jax.devices()})
    found = jax.default_backend()
    said = f"JAX computes on {', '.join(kinds)}"
    if extra and found == "cpu":
        said += f", though there is a {extra.upper()}: restart the runtime, and run this cell again"
    return said
