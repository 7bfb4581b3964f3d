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
# The floors of `learner`, lowest first.
FLOORS = (
    {"learner.checks", "learner.chat", "learner.hub", "learner.tokens"},
    {"learner.devices"},
    {"learner.qwen3"},
    {"learner.sampling"},
    {"learner.training"},
    {"learner.generate", "learner.plan"},
)
# To be deleted with the issue on compilers.
SIMULATED = {"hlo", "compiled_cost", "step_check", "roofline", "hardware"}


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


def imported_modules(path):
    """Full names of everything that a file imports from `learner`, names of objects included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floor_of(name):
    """The floor of a module of `learner`, or None."""
    part = ".".join(name.split(".")[:2])
    return next((i for i, floor in enumerate(FLOORS) if part in floor), None)


def test_the_learner_is_built_of_floors():
    for path in sorted((ROOT / "learner").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name == "learner.__init__" or path.stem in SIMULATED:
            continue
        assert floor_of(name) is not None, f"{name} stands on no floor"
        above = [
            module for module in imported_modules(path) if (floor_of(module) or 0) > floor_of(name)
        ]
        assert not above, f"{name} imports {above}"
