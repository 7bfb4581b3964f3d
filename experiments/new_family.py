"""Writes a family of environments to start from, addition, into the current folder.

python -m experiments.new_family my_task
"""

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from absl import app

from experiments import name_of

# Those of docs/your_task.md. With the usual spread of the first weights a model of `sums` learned
# nothing in 800 steps.
_LEARNS = (
    "--layers=2 --width=64 --initializer_range=0.1 --learning_rate=3e-3 --steps=2000 "
    "--design_every=4 --solutions=30000 --designs=4000"
)
TEMPLATE = Path(__file__).parent / "families" / "template.py"


def main(argv: Sequence[str]) -> None:
    """Copies the template under a new name and prints how to run it."""
    names = argv[1:]
    if len(names) != 1 or not re.fullmatch("[a-z][a-z0-9_]*", names[0]):
        raise app.UsageError(
            f"{' '.join(names)!r}: one name is needed, of small letters, digits and underscores"
        )
    (name,) = names
    path = Path(f"{name}.py")
    if path.exists():
        raise app.UsageError(f"{path}: the file is already there; allowed are new names")
    if (known := importlib.util.find_spec(name)) and known.origin:
        raise app.UsageError(f"{name!r}: the file would hide a module; allowed are new names")
    kind = name.title().replace("_", "")
    text = TEMPLATE.read_text(encoding="utf-8").replace("Sums(", f"{kind}(")
    path.write_text(text, encoding="utf-8")
    print(f"written to {path}; it adds numbers until you change it. Try it without a model:")
    print(f"{name_of('check_family')} {path}:family")
    options = f"--config=sums --config.family={path}:family"
    print("Then make a tiny model for it, and train that in designed rounds:")
    print(f"{name_of('warm_start')} {options} --out={name}_model {_LEARNS}")
    print(f"{name_of('main')} {options} --config.model.path={name}_model --workdir=runs/{name}")


if __name__ == "__main__":
    app.run(main)
