"""Launch recipes: each is run with programs that only record how they are called.

What a recipe installs has to bring what training imports, and the command that it ends in has to be
one that `experiments.main` takes. The slow test installs and trains for real, on the CPU.
"""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from whole_runs import ROOT, SMALL

from experiments import settings as settings_lib
from experiments.configs import hardware

LAUNCH = ROOT / "docs" / "launch"
MANIFESTS = sorted(LAUNCH.glob("*.yaml"))
PAGE = LAUNCH / "README.md"
CONTAINERFILE = (ROOT / "Containerfile").read_text()
INSTALL = re.search(r"^RUN (pip install .+)$", CONTAINERFILE, re.MULTILINE)[1]
RECIPES = ("tpu_vm.sh", "slurm.sbatch", *(path.name for path in MANIFESTS))
SECTIONS = ("One machine", "Container", "Colab")

# Stands in for every program that a recipe calls: notes the call, and passes on what is to run.
STAND_IN = """#!{python} -IS
import json, os, sys
from pathlib import Path

name, words = Path(sys.argv[0]).name, sys.argv[1:]
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps([name, *words]) + "\\n")
code = 0
if name == "git" and "clone" in words:
    os.symlink(os.environ["SOURCE"], words[-1])
elif name == "gcloud" and "ssh" in words:
    (command,) = (word for word in words if word.startswith("--command="))
    os.chdir(os.environ["HOME"])
    os.execvp("bash", ["bash", "-c", command.partition("=")[2]])
elif name == "srun":
    (first,) = [i for i, word in enumerate(words) if word.endswith("python")]
    os.execvp(words[first], words[first:])
elif name == "docker" and "run" in words:
    entry = json.loads(os.environ["ENTRYPOINT"])
    os.execvp(entry[0], [*entry, *words[words.index("mapf-frozenlake-rl") + 1 :]])
elif name == "python" and "INTERPRETER" in os.environ:
    interpreter = os.environ["INTERPRETER"]
    os.execv(interpreter, [interpreter, *words, *json.loads(os.environ["SMALLER"])])
elif name == "python":
    sys.exit(int(os.environ.get("CODE", "0")))
"""
PROGRAMS = ("apt-get", "curl", "docker", "gcloud", "git", "hf", "mountpoint", "pip", "python",
            "scontrol", "sleep", "srun", "sudo", "uv")  # fmt: skip


# What makes a run small enough for a test, on one device; the rest is the recipe's.
SMALLER = [
    *(option for option in SMALL if not option.startswith("--config=")),
    "--num_processes=1",
    "--config.loop.rounds=1",
    "--config.model.path=tiny",
    "--config.mesh.data=1",
    "--config.mesh.fsdp=1",
    "--config.training.max_new_tokens=64",
    "--config.engineer.max_new_tokens=96",
    "--config.training.micro_batch_size=8",
    "--config.training.sampling_slots=32",
    "--config.validation.max_new_tokens=64",
    "--config.lakes.reward.short_length=48",
    "--config.lakes.reward.long_length=64",
]


def run_script(script, folder, source=ROOT, **environment):
    """(exit code, calls) of a script of bash whose programs only note that they were called.

    Args:
      source: what the script finds in the place of a clone of the repository.
    """
    programs = folder / "bin"
    programs.mkdir()
    (programs / "stand_in").write_text(STAND_IN.format(python=sys.executable))
    (programs / "stand_in").chmod(0o755)
    for name in PROGRAMS:
        (programs / name).symlink_to("stand_in")
    (folder / ".local").mkdir()
    (folder / ".local" / "bin").symlink_to(programs)
    calls = folder / "calls"
    done = subprocess.run(
        ["bash", "-c", script.replace(".venv/bin/", "")],
        cwd=folder,
        env={
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "CALLS": str(calls),
            "SOURCE": str(source),
            "ENTRYPOINT": re.search(r"^ENTRYPOINT (.+)$", CONTAINERFILE, re.MULTILINE)[1],
            "REPOSITORY": "https://example.org/lakes",
            "SHARE": "10.0.0.2:/share",
            "JAX_PLATFORMS": "cpu",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert "command not found" not in done.stderr
    lines = calls.read_text().splitlines() if calls.exists() else []
    return done, [json.loads(line) for line in lines]


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


def script_of(name):
    """What a recipe runs, as a script of bash with its environment."""
    if name in SECTIONS:
        section = PAGE.read_text().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        blocks = "\n".join(re.findall(r"```(?:sh)?\n(.*?)```", section, re.DOTALL))
        lines = blocks.replace("\\\n", " ").splitlines()
        if name == "Colab":  # The others are Python.
            lines = [f"({line.removeprefix('!')})" for line in lines if line.startswith("!")]
        install = [f"EXTRA=gpu; {INSTALL}"] if name == "Container" else []
        return "\n".join(["set -e", *install, *lines]), {}
    text = (LAUNCH / name).read_text()
    if name == "slurm.sbatch":
        (cores,) = re.findall(r"^#SBATCH --cpus-per-task=(\d+)$", text, re.MULTILINE)
        return text, {"PYTHON": "python", "SLURM_CPUS_PER_TASK": cores, "SLURM_JOB_ID": "7"}
    if name.endswith(".yaml"):
        (pod,) = pods(list(yaml.safe_load_all(text)))
        (container,) = pod["containers"]
        entry = container.get("command", ["docker", "run", "mapf-frozenlake-rl"])
        extra = container["image"].partition(":")[2]
        words = " ".join(map(repr, [*entry, *container["args"]]))
        return f"EXTRA={extra}; {INSTALL}\n{words}", {"JOB_COMPLETION_INDEX": "0"}
    return text, {}


def packages(extras):
    """Names of the packages that extras of setup.cfg bring."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    found = set()
    for extra in extras:
        for line in setup["options.extras_require"][extra].split("\n")[1:]:
            own = re.fullmatch(r"mapf-frozenlake-rl\[(.+)\]", line)
            found |= (
                packages(own[1].split(",")) if own else {re.match(r"[\w-]+(\[\w+\])?", line)[0]}
            )
    return found


def check_install(words, chip):
    """Checks that a call of pip brings what training imports, and JAX for the chip."""
    (extras,) = re.findall(r"\.\[([\w,-]+)\]", " ".join(words))
    found = packages(extras.split(","))
    assert {"flax", "optax", "orbax-checkpoint", "transformers"} <= found
    assert f"jax[{chip}]" in found


def check_command(words):
    """Checks that a call of Python is a run with options that exist and fit its mesh."""
    assert words[:2] == ["-m", "experiments.main"]
    given = dict(word.removeprefix("--").split("=", 1) for word in words[2:])
    if "config" not in given:  # The tiny run.
        assert given.keys() == {"workdir"}
        return
    name = given["config"].partition("experiments/configs/hardware.py:")[2]
    options = hardware.get_config(name)
    changes = {k.removeprefix("config."): v for k, v in given.items() if k.startswith("config.")}
    assert changes.pop("model.path").endswith(name.partition("@")[0])
    for field in changes:
        settings_lib.check_field(field)
    options.update_from_flattened_dict({field: int(value) for field, value in changes.items()})
    settings_lib.from_config({**options.to_dict(), "model": {"path": "tiny"}})
    others = given.keys() - {"config", *(f"config.{field}" for field in changes)}
    assert others - {"config.model.path"} <= {
        "workdir", "coordinator", "num_processes", "process_id"
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize("name", [*RECIPES, *SECTIONS])
def test_a_recipe_installs_what_its_command_needs(name, tmp_path):
    script, environment = script_of(name)
    done, calls = run_script(script, tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    installs = [words for program, *words in calls if program == "pip"]
    commands = [words for program, *words in calls if program == "python"]
    assert commands, calls
    for words in commands:
        check_command(words)
    chip = "tpu" if "tpu" in name else "cuda12"
    for words in installs:
        check_install(words, chip)
    assert installs or name == "slurm.sbatch"  # It finds the environment of its clone.
    if name == "slurm.sbatch":
        (srun,) = [words for program, *words in calls if program == "srun"]
        assert f"--cpus-per-task={environment['SLURM_CPUS_PER_TASK']}" in srun
    if name == "Container":
        (build,) = [words for program, *words in calls if program == "docker" and "build" in words]
        assert "EXTRA=gpu" in build


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """From extras to the interpreter of a fresh environment with a copy of the project and them."""
    folder, made = tmp_path_factory.mktemp("fresh"), {}
    source = folder / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "runs", "*.egg-info")
    )

    def install(extras):
        if extras not in made:
            home = folder / (extras or "none")
            subprocess.run([sys.executable, "-m", "venv", home], check=True)
            pip = [home / "bin" / "pip", "install", "--quiet", "--no-compile", "-e", f".[{extras}]"]
            subprocess.run(pip, cwd=source, check=True)
            made[extras] = home / "bin" / "python"
        return made[extras]

    return source, install


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize("name", [*RECIPES, *SECTIONS])
def test_a_recipe_trains_in_a_fresh_environment(name, installed, tmp_path):
    """One round of the tiny model, with the CPU in the place of the chip."""
    source, install = installed
    script, environment = script_of(name)
    script = script.partition("\n(hf ")[0]  # Colab's second run needs another folder.
    (tmp_path / "once").mkdir()
    _, calls = run_script(script, tmp_path / "once", **environment)
    lines = [" ".join(words) for program, *words in calls if program == "pip"]
    extras = {re.search(r"\.\[(.+)\]", line)[1] for line in lines} or {"train"}
    (kept,) = {",".join(e for e in one.split(",") if e not in ("gpu", "tpu")) for one in extras}
    # Relative to where the recipe runs: a clone, or the copy in an image.
    for path in source.iterdir():
        (tmp_path / path.name).symlink_to(path)
    runs = tmp_path / "made"
    environment |= {"INTERPRETER": str(install(kept)), "JAX_NUM_CPU_DEVICES": "1"}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(source.parent / "cache")
    environment["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    environment["SMALLER"] = json.dumps([*SMALLER, f"--workdir={runs}"])
    done, _ = run_script(script, tmp_path, source, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "round 1: valid" in done.stdout
    assert (runs / "report.html").exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(("code", "again"), [(0, False), (1, False), (75, True), (134, True)])
def test_a_job_of_slurm_is_queued_again_for_what_starting_again_mends(code, again, tmp_path):
    script, environment = script_of("slurm.sbatch")
    done, calls = run_script(script, tmp_path, CODE=str(code), **environment)
    assert (["scontrol", "requeue", "7"] in calls) == again
    assert done.returncode == (0 if again else code)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(("code", "times"), [(1, 1), (2, 1), (75, 10), (134, 10), (255, 10)])
def test_a_slice_starts_again_for_what_starting_again_mends(code, times, tmp_path):
    script, environment = script_of("tpu_vm.sh")
    done, calls = run_script(script, tmp_path, CODE=str(code), **environment)
    assert done.returncode == code, done.stderr
    assert [program for program, *_ in calls].count("python") == times


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_follow_the_schemas(path):
    """No unknown field, wrong type or missing value, by Kubernetes' schemas and JobSet's."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    jsonschema = pytest.importorskip("jsonschema")
    for document in yaml.safe_load_all(path.read_text()):
        objects = [document]
        if document["kind"] == "JobSet":
            schema = Path(__file__).with_name("jobset.json").read_text()
            jsonschema.validate(document, json.loads(schema))
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}}
            templates = [one["template"] for one in document["spec"]["replicatedJobs"]]
            objects = [{**job, **template} for template in templates]
        for one in objects:
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_hang_together(path):
    documents = {d["kind"]: d for d in yaml.safe_load_all(path.read_text())}
    (pod,) = pods(list(documents.values()))
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


def after_exit(document, code):
    """What Kubernetes does when a pod of a Job or JobSet ends with a code: "end" or "restart"."""
    spec = document["spec"]
    job = spec
    if document["kind"] == "JobSet":
        (replicated,) = spec["replicatedJobs"]
        job = replicated["template"]["spec"]
    rules = job["podFailurePolicy"]["rules"]
    matching = [rule["action"] for rule in rules if code in rule["onExitCodes"]["values"]]
    action = matching[0] if matching else "Count"
    if document["kind"] == "Job":
        assert spec["backoffLimit"] > 0
        return "end" if action == "FailJob" else "restart"
    assert (job["backoffLimit"], action) in ((0, "Count"), (0, "FailJob"))  # The Job has failed.
    reason = "PodFailurePolicy" if action == "FailJob" else "BackoffLimitExceeded"
    (rule,) = spec["failurePolicy"]["rules"]
    ends = rule["action"] == "FailJobSet" and reason in rule["onJobFailureReasons"]
    return "end" if ends else "restart"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_mistake_ends_a_set_and_a_lost_process_restarts_it(path):
    documents = {d["kind"]: d for d in yaml.safe_load_all(path.read_text())}
    document = documents.get("JobSet") or documents["Job"]
    codes = {1: "end", 2: "end", 69: "restart", 75: "restart", 134: "restart", 137: "restart"}
    assert {code: after_exit(document, code) for code in codes} == codes


def test_the_container_copies_what_there_is():
    for source in re.findall(r"^COPY (.+) \S+$", CONTAINERFILE, re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists(), name
    setup = (ROOT / "setup.cfg").read_text()
    found = re.search(r"include =\n((?:    \w+\*\n)+)", setup)[1].split()
    assert all(f"COPY {package.strip('*')} " in CONTAINERFILE for package in found)
