"""Imports between the four packages run only downwards."""

import ast
import graphlib
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


def test_no_file_of_the_engineer_knows_of_lakes():
    for path in (ROOT / "engineer").rglob("*.py"):
        words = set(re.findall(r"[a-z]+", path.read_text().lower()))
        assert not words & {"hole", "holes", "agent", "agents"}, path


def test_only_lakes_and_their_tools_hear_of_lakes():
    """All others work on any family, and name none."""
    apart = {"families", "benchmark", "configs"}  # The benchmark is that of lakes.
    for path in (ROOT / "experiments").rglob("*.py"):
        place = path.relative_to(ROOT / "experiments")
        if place.parts[0] not in apart:
            # The digest of the code takes all packages.
            text = path.read_text().replace(
                '("mapf_jax", "engineer", "learner", "experiments")', ""
            )
            words = set(re.findall("[a-z]+", text.lower()))
            assert not words & {"lake", "lakes", "hole", "holes", "mapf", "agent", "agents"}, path


def imported_modules(path):
    """Full names of everything that a file imports, names of objects included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_and_arrows():
    """What `docs/architecture.md` draws: the room of each folder and file, and pairs of rooms."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {}
    for room, text in re.findall(r'^ *(\w+)\["(\S+?)<br/>.+"\]$', page, re.MULTILINE):
        folder, _, names = text.removesuffix("/*").removesuffix("}").partition("{")
        rooms |= {ROOT / folder / name: room for name in names.split(",")}
    arrows = {
        (source, target)
        for source, targets in re.findall(r"^ *(\w+) --> (.+)$", page, re.MULTILINE)
        for target in targets.split(" & ")
    }
    return rooms, arrows


def imported_file(name):
    """The file of a module, or of the module that an imported object is in."""
    while name:
        path = ROOT.joinpath(*name.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
        name = name.rpartition(".")[0]
    return None


def test_the_picture_of_the_architecture_is_true():
    rooms, arrows = rooms_and_arrows()

    def room_of(path):
        places = (path.with_suffix(""), *path.parents)
        room = next((rooms[place] for place in places if place in rooms), None)
        assert room is not None, f"{path.relative_to(ROOT)} stands in no room"
        return room

    used = {}
    for path in (path for package in ALLOWED for path in (ROOT / package).rglob("*.py")):
        files = {imported_file(name) for name in imported_modules(path)} - {None}
        theirs = {room_of(file) for file in files if file.relative_to(ROOT).parts[0] in ALLOWED}
        used.setdefault(room_of(path), set()).update(theirs - {room_of(path)})
    assert used.keys() == set(rooms.values())
    # Raises where rooms import each other in a circle. An arrow is an import that no path of
    # others stands for.
    below, direct = {}, set()
    for room in graphlib.TopologicalSorter(used).static_order():
        further = set().union(*(below[other] for other in used[room]))
        below[room] = used[room] | further
        direct |= {(room, other) for other in used[room] - further}
    assert arrows == direct, f"to draw: {direct - arrows}; to delete: {arrows - direct}"
