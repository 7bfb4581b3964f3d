"""The notebook: what is stored in it is what it prints, and it runs as Colab would run it.

`python tests/test_notebook.py` runs it and stores its outputs; do so after a change to it.
"""

import ast
import contextlib
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PATH = ROOT / "notebooks" / "mapf_frozenlake.ipynb"
OPENED = "fileId=https%3A//github.com/someone/lakes/blob/{}/notebooks/mapf_frozenlake.ipynb"


def read():
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(PATH, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def pictures(cell):
    return [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]


@contextlib.contextmanager
def colab(path):
    """The environment of a machine of Colab that has opened a notebook under a path."""

    class Sessions(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/api/sessions"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps([{"path": path, "name": "mapf_frozenlake.ipynb"}]).encode())

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sessions) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"COLAB_JUPYTER_IP": "127.0.0.1", "KMP_TARGET_PORT": str(server.server_port)}
        server.shutdown()


def execute(folder, **environment):
    """The notebook after a run in a folder, as the packages of this checkout make it."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("PIL")
    notebook = read()
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "JAX_PLATFORMS": "cpu"}
    environment |= {"JAX_NUM_CPU_DEVICES": "1"}  # One device, as there.
    client = nbclient.NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, **environment})
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # Times.
    return notebook


def test_its_code_compiles_and_its_outputs_are_stored():
    notebook = read()
    cells = code(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert all(output.output_type in ("stream", "display_data") for output in cell.outputs)
        assert all(output.get("name") != "stderr" for output in cell.outputs)
        assert "\x1b" not in printed(cell)
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import):
                assert all(importlib.util.find_spec(alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    assert hasattr(module, alias.name) or importlib.util.find_spec(name)
    assert [len(pictures(cell)) for cell in cells] == [0, 0, 0, 2, 2, 0, 0, 2]
    assert PATH.stat().st_size < 1_500_000
    assert "/root" not in PATH.read_text()
    assert "colab.research.google.com/github/" in notebook.cells[0].source


def test_it_finds_the_repository_that_it_was_opened_from(monkeypatch):
    names = {}
    exec(code(read())[0].source.partition("folders =")[0], names)

    def found(path):
        with colab(path) as environment:
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            return names["opened_from"]()

    for branch in ("main", "someone/its-branch"):
        assert found(OPENED.format(branch)) == ("https://github.com/someone/lakes", branch)
    with pytest.raises(SystemExit, match="fileId=1AbC: write the repository's address"):
        found("fileId=1AbC")
    monkeypatch.setenv("KMP_TARGET_PORT", "1")  # Nobody listens there.
    with pytest.raises(SystemExit, match="an unknown place: write the repository's address"):
        names["opened_from"]()


@pytest.mark.parametrize(
    ("device", "installed", "extras"),
    [
        ("", {"jax": "0.7.2"}, "train,render"),
        ("gpu", {"jax": "0.7.2", "jax-cuda12-plugin": "0.7.2"}, "train,render,gpu"),
        ("gpu", {"jax": "0.10.2", "jax-cuda12-plugin": "0.7.2"}, "train,render,gpu"),
        ("gpu", {"jax": "0.10.2"}, "train,render,gpu"),
        ("gpu", {"jax": "0.10.2", "jax-cuda12-plugin": "0.10.2"}, None),
        ("tpu", {"jax": "0.10.2"}, "train,render,tpu"),
        ("", {"jax": "0.10.2"}, None),
    ],
)
def test_the_extra_is_that_of_the_device(monkeypatch, device, installed, extras):
    """Also where an older JAX with its plugin is installed, as on Colab."""
    path = ROOT / "notebooks" / "install.py"
    spec = importlib.util.spec_from_file_location("notebooks_install", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def version(name):
        if name not in installed:
            raise module.PackageNotFoundError(name)
        return installed[name]

    calls = []
    monkeypatch.setattr(module, "version", version)
    monkeypatch.setattr(module.shutil, "which", lambda name: device == "gpu" or None)
    monkeypatch.setattr(module.subprocess, "run", lambda command, check: calls.append(command[-1]))
    if device == "tpu":
        monkeypatch.setenv("COLAB_TPU_ADDR", "somewhere")
    said = module.install(Path("clone"))
    assert calls == ([] if extras is None else [f"clone[{extras}]"])
    assert said.startswith("JAX computes on cpu")
    assert ("restart the runtime" in said) == bool(device)


@pytest.mark.slow
def test_it_runs_top_to_bottom_in_colab(tmp_path):
    """In an empty folder, with a clone in the place of the repository that was opened."""
    stored = read()
    served = tmp_path / "served" / "someone" / "lakes"
    shutil.copytree(ROOT / "docs" / "examples", served / "docs" / "examples")
    (served / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / "install.py", served / "notebooks")
    git = ["git", "-C", str(served), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*git, *command], check=True)
    environment = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{tmp_path}/served/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }
    (tmp_path / "content").mkdir()
    with colab(OPENED.format("main")) as more:
        notebook = execute(tmp_path / "content", **environment, **more)
    cells = code(notebook)
    clone = tmp_path / "content" / "lakes"
    assert (clone / "build/notebook/run/report.html").stat().st_size > 10_000
    assert printed(cells[0]) == "JAX computes on cpu\n"  # Nothing was installed.
    for cell, before in zip(cells, code(stored), strict=True):
        assert cell.source == before.source
        assert len(pictures(cell)) == len(pictures(before))
    # What does not depend on how a machine rounds is stored as it is made.
    for place in (1, 2):
        assert printed(cells[place]) == printed(code(stored)[place])
    before, after = map(int, re.findall(r"(\d+)%", printed(cells[4]))[:2])
    assert before < 40 < 70 < after
    assert "round 2: valid" in printed(cells[5])
    assert re.search(r"size 3: \{'data_ratio': '0\.\d\d -> ", printed(cells[6]))


if __name__ == "__main__":
    import nbformat

    nbformat.write(execute(ROOT / "notebooks"), PATH)
    print(f"{PATH}: {PATH.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
