"""Imports between the four packages run only downwards."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "mapf_jax": {"mapf_jax"},
    "learner": {"learner"},
    "engineer": {"engineer"},
    "experiments": {"experiments", "engineer", "learner", "mapf_jax"},
}


def imported_packages(path):
    """Top-level names of everything that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_downwards(package):
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    for path in paths:
        upwards = set(imported_packages(path)) & set(ALLOWED) - ALLOWED[package]
        assert not upwards, f"{path.relative_to(ROOT)} imports {sorted(upwards)}"


def test_only_one_file_of_the_engineer_knows_of_lakes():
    for path in (ROOT / "engineer").rglob("*.py"):
        if path.name != "lakes.py":
            words = set(re.findall(r"[a-z]+", path.read_text().lower()))
            assert not words & {"hole", "holes", "agent", "agents"}, path
            assert "experiments.families.lakes.texts" not in path.read_text(), path
