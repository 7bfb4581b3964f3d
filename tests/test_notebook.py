"""The notebook runs top to bottom, as on a machine without accelerators."""

import ast
import importlib.util
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PATH = ROOT / "notebooks" / "mapf_frozenlake.ipynb"


def test_it_is_kept_without_outputs_and_compiles():
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(PATH, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count is None
            assert not cell.outputs
            code = re.sub(r"^ *[!%].*$", "pass", cell.source, flags=re.MULTILINE)
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.Import):
                    assert all(importlib.util.find_spec(alias.name) for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    module = importlib.import_module(node.module)
                    for alias in node.names:
                        name = f"{node.module}.{alias.name}"
                        assert hasattr(module, alias.name) or importlib.util.find_spec(name)


@pytest.mark.slow
def test_it_runs_top_to_bottom(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("PIL")
    # As if the packages were installed, wherever the kernel is started.
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # One device, as there.
    notebook = nbformat.read(PATH, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    client = nbclient.NotebookClient(
        notebook, timeout=400, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    shown = [
        "".join(output.get("text", "") for output in cell.outputs if output.name == "stdout")
        if all(output.output_type == "stream" for output in cell.outputs)
        else cell.outputs
        for cell in code
    ]
    assert shown[0] == ""  # Nothing was installed.
    assert "episodes ended" in shown[2]
    assert shown[3].startswith("valid\nfailed: ['legal_moves'")
    # The picture of a plan, and one of the report.
    for outputs in (shown[4], shown[6]):
        assert any("image/" in kind for o in outputs for kind in o.get("data", {}))
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert "round 1" in shown[5]
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
