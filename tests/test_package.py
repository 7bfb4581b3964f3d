"""What people install: the source archive and the wheel, which runs away from the clone."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("mapf_jax/", "learner/", "engineer/", "experiments/")


def build(kind, source, folder):
    """The archive that setuptools makes of a folder: kind is "sdist" or "wheel"."""
    program = f"import setuptools.build_meta as b; print(b.build_{kind}({str(folder)!r}))"
    command = [sys.executable, "-c", program]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    return folder / built.stdout.split()[-1]


def copied(folder, files):
    """Files of the checkout in another folder, where nothing else is."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    return folder


def tracked():
    listing = ["git", "ls-files", "-z"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.rstrip("\0").split("\0")


def test_what_an_index_shows_links_only_to_addresses(tmp_path):
    """No file of the clone is there."""
    pytest.importorskip("setuptools", "77")
    files = ("setup.cfg", "pyproject.toml", "LICENSE", "mapf_jax/__init__.py")
    source = copied(tmp_path / "source", files)
    (tmp_path / "made").mkdir()
    program = "import setuptools.build_meta as b; b.prepare_metadata_for_build_wheel('../made')"
    subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, check=True)
    (file,) = (tmp_path / "made").glob("*.dist-info/METADATA")
    metadata = message_from_string(file.read_text())
    shown = metadata.get_payload()
    assert len(shown) > 200
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)", shown)
    assert links
    assert all("".join(link).startswith("https://") for link in links)
    assert metadata.get_all("Project-URL") == ["Paper, https://arxiv.org/abs/2606.17682"]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """(source archive, the wheel that is made of it)."""
    pytest.importorskip("setuptools", "77")
    folder, files = tmp_path_factory.mktemp("archives"), tracked()
    source = build("sdist", copied(folder / "clone", files), folder)
    with tarfile.open(source) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # From 3.11.4 on.
        archive.extractall(folder / "unpacked", **safely)
    (unpacked,) = (folder / "unpacked").iterdir()
    assert not (unpacked / "tests").exists()  # They need the pages, the notebook and git.
    wheel = build("wheel", unpacked, folder)
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {file for file in files if file.startswith(PACKAGES)}
    return source, wheel


SIMULATOR = """
import jax, mapf_jax
from mapf_jax.generator import draw

lakes, _ = draw(jax.random.key(0), size=4, holes=2, width=4, batch=8, num_agents=2)
env = mapf_jax.env.make("MapfFrozenLake-v0", num_agents=2, size=4)
states, _ = jax.vmap(env.reset)(lakes)
states, steps = jax.jit(jax.vmap(env.step))(states, jax.numpy.ones((8, 2), int))
print(mapf_jax.__file__, steps.reward.shape)
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_wheel_brings_what_the_simulator_needs(archives, tmp_path):
    """In an environment where nothing else is installed; so does the source archive."""
    source, wheel = archives
    venv.create(tmp_path / "bare", with_pip=True)
    python = tmp_path / "bare" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["JAX_PLATFORMS"] = "cpu"

    def run(*command, code=0):
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == code, ran.stderr[-3000:]
        return ran.stdout + ran.stderr

    pip = [python, "-m", "pip", "install", "--quiet"]
    run(*pip, wheel)
    place, shape = run(python, "-c", SIMULATOR).split(maxsplit=1)
    assert Path(place).is_relative_to(tmp_path / "bare")
    assert shape.strip() == "(8, 2)"
    (line,) = run(python.with_name("mapf-train"), code=1).splitlines()
    assert line.endswith("pip install -e '.[train]'")
    run(*pip, "--no-deps", "--force-reinstall", source)
    assert run(python, "-c", SIMULATOR).split(maxsplit=1)[1] == shape


@pytest.mark.slow
def test_the_wheel_of_the_source_archive_runs_anywhere(archives, tmp_path):
    """With all files of the packages, over the packages that are installed here."""
    _, wheel = archives
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel]
    subprocess.run(pip, check=True)

    def run(*command):
        environment = {**os.environ, "PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
        ran = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        return ran.stdout

    found = run(sys.executable, "-c", "import mapf_jax; print(mapf_jax.__file__)")
    assert found.strip() == str(site / "mapf_jax" / "__init__.py")
    run(site / "bin" / "mapf-jax", "generate", "--sizes=3", "--num-instances=4", "--out=made.jsonl")
    assert len((elsewhere / "made.jsonl").read_text().splitlines()) == 4
    options = run(site / "bin" / "mapf-train", "--list_options")
    assert options.startswith("# The options of a run\n")
    assert "\n- `loop.rounds=3`: rounds of training;" in options
