"""Launch recipes: their syntax, and that every option in them exists and is allowed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from experiments import settings as settings_lib
from experiments.configs import hardware

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "docs" / "launch"
SCRIPTS = [LAUNCH / "tpu_vm.sh", LAUNCH / "slurm.sbatch"]
MANIFESTS = sorted(LAUNCH.glob("*.yaml"))
TEXTS = [*SCRIPTS, *MANIFESTS, LAUNCH / "README.md"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash(path):
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def pods(node):
    """All pod specifications below a node of a manifest."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from pods(value)
    elif isinstance(node, list):
        for value in node:
            yield from pods(value)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_hang_together(path):
    documents = {d["kind"]: d for d in yaml.safe_load_all(path.read_text())}
    found = list(pods(list(documents.values())))
    assert len(found) == 1
    (pod,) = found
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    if job := documents.get("Job"):
        name, spec = job["metadata"]["name"], job["spec"]
        service = documents["Service"]
        # Pod 0 is found under JOB-0.SERVICE, which the coordinator's address has to be.
        assert pod["subdomain"] == service["metadata"]["name"]
        assert service["spec"]["selector"] == {"job-name": name}
        port = service["spec"]["ports"][0]["port"]
        (text,) = pod["containers"][0]["args"]
        assert f"--coordinator={name}-0.{pod['subdomain']}:{port}" in text
        assert f"--num_processes={spec['completions']}" in text
        assert spec["completions"] == spec["parallelism"]
        assert spec["completionMode"] == "Indexed"


def test_every_option_is_one_and_the_batches_fit_the_mesh():
    names = set()
    for path in TEXTS:
        text = path.read_text().replace("$CONFIG", "Qwen3-4B@v5p-64")
        for command in re.split(r"hardware\.py:", text)[1:]:
            name = re.match(r"[\w.@-]+", command)[0]
            names.add(name)
            options = hardware.get_config(name)
            # Options up to the end of the command: the next fence, quote or blank line.
            command = re.split(r"```|\n\s*\n|\n[a-z]+:|CODE=|\"\n", command)[0]
            for field, value in re.findall(r"--config\.([\w.]+)=(\S+)", command):
                settings_lib.check_field(field)
                if field != "model.path":
                    options.update_from_flattened_dict({field: int(value)})
            settings_lib.from_config({**options.to_dict(), "model": {"path": "tiny"}})
    assert {"Qwen3-4B@v5p-64", "Qwen3-4B@h100-8", "Qwen3-0.6B@h200"} <= names


def test_the_container_installs_what_there_is():
    text = (ROOT / "Containerfile").read_text()
    for source in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists(), name
    setup = (ROOT / "setup.cfg").read_text()
    extra = re.search(r"^ARG EXTRA=(\w+)$", text, re.MULTILINE)[1]
    assert re.search(rf"^{extra} =$", setup, re.MULTILINE)
    packages = re.search(r"include =\n((?:    \w+\*\n)+)", setup)[1].split()
    assert all(f"COPY {package.strip('*')} " in text for package in packages)
