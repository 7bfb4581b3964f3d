"""Writes a family of environments to start from, addition, into the current folder.

python -m experiments.new_family my_task
"""

import re
from collections.abc import Sequence
from pathlib import Path

from absl import app

from experiments import name_of

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
    kind = name.title().replace("_", "")
    text = TEMPLATE.read_text(encoding="utf-8").replace("Sums(", f"{kind}(")
    path.write_text(text, encoding="utf-8")
    print(f"written to {path}; it adds numbers until you change it. Try it without a model:")
    print(f"{name_of('check_family')} {path}:family")
    options = f"--config=sums --config.family={path}:family"
    print("Then make a tiny model for it, and train that in designed rounds:")
    print(f"{name_of('warm_start')} {options} --out={name}_model")
    print(f"{name_of('main')} {options} --config.model.path={name}_model --workdir=runs/{name}")


if __name__ == "__main__":
    app.run(main)
