"""The notebook: what is stored in it is what it prints, and it runs as Colab would run it.

`python tests/test_notebook.py` runs it and stores its outputs; do so after a change to it.
"""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PATH = ROOT / "notebooks" / "mapf_frozenlake.ipynb"
INSTALL = ROOT / "notebooks" / "install.py"


def read(path=PATH):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def pictures(cell):
    return [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]


def execute(notebook, folder, **environment):
    """A notebook after a run in a folder, as the packages of this checkout make it."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("PIL")
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
        source = re.sub(r"^( *)[!%].*$", r"\1pass", cell.source, flags=re.MULTILINE)
        for node in ast.walk(ast.parse(source)):
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
    assert len(list(filter(None, cells[0].source.splitlines()))) <= 10


def installer():
    spec = importlib.util.spec_from_file_location("notebooks_install", INSTALL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def served(tmp_path):
    """(a notebook that points to a repository, the environment in which git finds that)."""
    served, branch = tmp_path / "served" / "someone" / "lakes", "someone/its-branch"
    shutil.copytree(ROOT / "docs" / "examples", served / "docs" / "examples")
    (served / "notebooks").mkdir()
    shutil.copy(INSTALL, served / "notebooks")
    git = ["git", "-C", str(served), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", branch], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*git, *command], check=True)
    notebook = Path(shutil.copy(PATH, tmp_path))
    installer().point(notebook, "git@github.com:someone/lakes.git", branch)
    (tmp_path / "content").mkdir()
    return notebook, {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{tmp_path}/served/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }


@pytest.mark.slow
def test_it_points_to_the_repository_it_comes_from(served, tmp_path):
    """Also from a branch with a slash in its name; its badge opens it, its first cell clones it."""
    path, environment = served
    notebook = read(path)
    place = "someone/lakes/blob/someone/its-branch/notebooks/mapf_frozenlake.ipynb"
    badge = f"(https://colab.research.google.com/github/{place})"
    assert badge in notebook.cells[0].source
    installer().point(path, "https://github.com/someone/lakes", "main")  # Once more.
    assert badge.replace("someone/its-branch", "main") in read(path).cells[0].source
    with pytest.raises(SystemExit, match="origin='': Colab opens repositories on https://github"):
        installer().point(path, "", "main")

    notebook.cells = notebook.cells[:2]
    ran = execute(notebook, tmp_path / "content", **environment)
    assert printed(code(ran)[0]) == "JAX computes on cpu\n"  # Nothing was installed.
    assert (tmp_path / "content" / "lakes" / "notebooks").is_dir()


def test_it_asks_for_an_address_where_it_has_none(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    notebook = read()
    notebook.cells = notebook.cells[:2]
    with pytest.raises(nbclient.exceptions.CellExecutionError) as raised:
        execute(notebook, tmp_path)
    assert (raised.value.ename, raised.value.evalue) == (
        "AssertionError",
        "write the repository's address into REPOSITORY in this cell",
    )


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
    module = installer()

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


@pytest.mark.parametrize(
    ("vendor", "device", "extra"),
    [("0x1ae0", "0x0063", "tpu"), ("0x1ae0", "0x0042", ""), ("0x10de", "0x0063", "")],
)
def test_a_tpu_is_found_on_the_bus(monkeypatch, tmp_path, vendor, device, extra):
    """Whatever its file in /dev is; a network card of Google's is none."""
    module = installer()
    card = tmp_path / "0000:00:04.0"
    card.mkdir()
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "device").write_text(f"{device}\n")
    monkeypatch.setattr(module, "PCI", tmp_path)
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.delenv("COLAB_TPU_ADDR", raising=False)
    assert module.runtime() == extra


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("optimised")
def test_it_runs_top_to_bottom_in_colab(served, tmp_path):
    """In an empty folder, with a clone in the place of the repository on GitHub."""
    path, environment = served
    stored = read(path)
    notebook = execute(read(path), tmp_path / "content", **environment)
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

    nbformat.write(execute(read(), ROOT / "notebooks"), PATH)
    print(f"{PATH}: {PATH.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
