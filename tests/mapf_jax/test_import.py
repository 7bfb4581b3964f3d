"""What `import mapf_jax` brings along, in a process of its own."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

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
