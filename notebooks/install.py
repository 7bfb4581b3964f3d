"""Installs what the notebook needs, in a clone, for the device of this machine.

With a GPU or a TPU the extra of that name comes too: JAX alone would leave a device plugin of an
older JAX in place, which JAX then ignores, and compute on the CPU without a word.

`python notebooks/install.py` writes into the notebook where its clone comes from: the address and
the branch that its first cell clones elsewhere, and those of the badge that opens it in Colab.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NOTEBOOK = Path(__file__).with_name("mapf_frozenlake.ipynb")
NEEDED = ("jax", "chex", "numba", "flax", "optax", "orbax", "ml_collections", "PIL", "rich")
# Distributions that let JAX use a device, by the extra that brings them.
PLUGINS = {"gpu": "jax-cuda12-plugin", "tpu": "libtpu"}
# Files of TPUs in /dev differ between generations. JAX looks for what these are on the PCI bus
# (jax/_src/hardware_utils.py); Google's network cards and disks there have other numbers.
PCI, GOOGLE = Path("/sys/bus/pci/devices"), "0x1ae0"
CHIPS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}


def runtime() -> str:
    """The extra for this machine's device: "gpu", "tpu", or "" for a CPU."""
    if shutil.which("nvidia-smi"):
        return "gpu"
    chips = (
        (card / "device").read_text().strip() in CHIPS
        for card in PCI.glob("*")
        if (card / "vendor").read_text().strip() == GOOGLE
    )
    has_tpu = "COLAB_TPU_ADDR" in os.environ or Path("/dev/accel0").exists() or any(chips)
    return "tpu" if has_tpu else ""


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


def point(notebook: Path, address: str, branch: str) -> None:
    """Writes a repository on GitHub and its branch into a notebook's first cell and badge."""
    found = re.fullmatch(r"(?:https://|git@)github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?", address)
    if found is None:
        raise SystemExit(f"origin={address!r}: Colab opens repositories on https://github.com")
    text = notebook.read_text(encoding="utf-8")
    place = f"{found[1]}/blob/{branch}/notebooks/{NOTEBOOK.name}"
    badge = "https://colab.research.google.com/github/"
    text = re.sub(rf"\({badge}[^)]*\)", lambda _: f"({badge}{place})", text)
    names = rf"REPOSITORY, BRANCH = \"https://github.com/{found[1]}\", \"{branch}\""
    text = re.sub(r'REPOSITORY, BRANCH = \\".*?\\", \\".*?\\"', lambda _: names, text)
    notebook.write_text(text, encoding="utf-8")


def _git(*words: str) -> str:
    command = ["git", "-C", NOTEBOOK.parent, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    point(NOTEBOOK, _git("remote", "get-url", "origin"), _git("branch", "--show-current") or "main")
