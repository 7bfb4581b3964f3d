"""What people install: the source archive and the wheel, which runs away from the clone."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
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


@pytest.mark.slow
def test_the_wheel_of_the_source_archive_runs_anywhere(tmp_path):
    """With all files of the packages, over the packages that are installed here."""
    pytest.importorskip("setuptools", "77")
    source, listing = tmp_path / "clone", ["git", "ls-files", "-z"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    files = listed.stdout.rstrip("\0").split("\0")
    for file in files:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, source / file)
    with tarfile.open(build("sdist", source, tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert not (unpacked / "tests").exists()  # They need the pages, the notebook and git.
    wheel = build("wheel", unpacked, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {file for file in files if file.startswith(PACKAGES)}

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
    assert options == (ROOT / "docs" / "options.md").read_text()
