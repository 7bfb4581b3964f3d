"""What `import mapf_jax` brings along, in a process of its own."""

import configparser
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import mapf_jax

ROOT = Path(__file__).parents[2]


def loaded_after(statement):
    """(top-level names in sys.modules, everything printed) of a fresh interpreter."""
    program = (
        f"import sys\n{statement}\nimport json\n"
        "open(sys.argv[1], 'w').write(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    with tempfile.NamedTemporaryFile() as file:
        done = subprocess.run(
            [sys.executable, "-c", program, file.name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return set(json.loads(Path(file.name).read_text())), done.stdout + done.stderr


def test_import_is_light_and_silent():
    needed, _ = loaded_after("import chex, jax, jax.numpy, numpy")
    loaded, printed = loaded_after("import mapf_jax")
    assert printed == ""
    extra = {name for name in loaded - needed if name not in sys.stdlib_module_names}
    assert {name for name in extra if not name.startswith("_")} <= {"mapf_jax"}


def test_no_device_is_touched_by_the_import():
    loaded, _ = loaded_after(
        "import mapf_jax\nfrom jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'the import started a backend'"
    )
    assert "mapf_jax" in loaded


BASE = {"jax", "numpy", "chex"}


def requirements():
    """Names of what is installed with no extra."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return set(re.findall(r"^[\w-]+", setup["options"]["install_requires"], re.MULTILINE))


def test_what_people_look_for_is_there_after_the_import():
    loaded, printed = loaded_after(
        "import mapf_jax\n"
        "print(mapf_jax.__version__, mapf_jax.render.save, mapf_jax.movingai.read_movingai,"
        " mapf_jax.env.make, mapf_jax.formats.from_records)"
    )
    assert printed.startswith(mapf_jax.__version__)
    assert not loaded & {"flax", "transformers", "numba", "PIL", "gymnasium"}


ALONE = """
import jax, mapf_jax, mapf_jax.cli
from mapf_jax.env import MapfFrozenLake

instance = mapf_jax.instance_from_ascii("S F G\\nF H F\\ng F s")
environment = MapfFrozenLake(num_agents=2, size=3)
state, _ = jax.jit(environment.reset)(instance)
state, timestep = jax.jit(environment.step)(state, jax.numpy.array([3, 2]))
print(timestep.reward.shape)
try:
    mapf_jax.solve(jax.tree.map(lambda leaf: leaf[None], instance))
except ImportError as error:
    print(error)
mapf_jax.cli.main(["--version"])
"""


def test_the_simulator_has_three_requirements():
    assert requirements() == BASE
    # Modules that only the extras bring cannot be imported here.
    hidden = ["numba", "yaml", "jinja2", "flax", "optax", "orbax", "transformers", "matplotlib"]
    program = f"import sys\nfor name in {hidden}: sys.modules[name] = None\n{ALONE}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'mapf-frozenlake-rl[solver]'" in done.stdout
    assert mapf_jax.__version__ in done.stdout


@pytest.mark.parametrize("package", ["learner.decoder", "learner.sampling", "experiments.commands"])
def test_training_says_what_it_lacks(package):
    program = f"import sys\nsys.modules['flax'] = None\nimport {package}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "pip install 'mapf-frozenlake-rl[train]'" in done.stderr.splitlines()[-1]


EVERY_MODULE = """
import importlib, pkgutil, sys
for name in ("flax", "optax", "orbax"):
    sys.modules[name] = None
import engineer, experiments.families
for package in (engineer, experiments.families):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
        print(module.name)
"""


def test_other_trainers_import_families_and_designers_without_ours():
    done = subprocess.run(
        [sys.executable, "-c", EVERY_MODULE], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert {"engineer.designers", "experiments.families.lakes.family"} <= set(done.stdout.split())
