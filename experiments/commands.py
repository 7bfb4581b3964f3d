"""Entry points of the console scripts, each the same as `python -m` with its module.

A script finds the installed package from any folder. `python -m` looks in the working folder first,
where another folder may be named `experiments`.
"""

import runpy
import sys

from experiments import begin_command

begin_command()


def _run(module: str) -> None:
    runpy.run_module(f"experiments.{module}", run_name="__main__", alter_sys=True)


def train() -> None:
    """Starts or resumes a run."""
    _run("main")


def study() -> None:
    """Runs or resumes a study."""
    _run("study")


def report() -> None:
    """Writes the report on a run or a study."""
    _run("report")


def benchmark() -> None:
    """Evaluates models and planners on the benchmark."""
    _run("benchmark")


def sensitivity() -> None:
    """Measures how much the training configuration matters."""
    _run("sensitivity")


def export() -> None:
    """Writes a trained model as a Hugging Face checkpoint."""
    _run("export")


def warm_start() -> None:
    """Makes a tiny model for a family, or trains an existing one further."""
    _run("warm_start")


def check_family() -> None:
    """Tries a family without any model."""
    _run("check_family")


def probe() -> None:
    """Says on which rows of which family a model can begin."""
    _run("probe")


def plan() -> None:
    """Says what a model costs on accelerators."""
    from learner.plan.__main__ import main  # Also a command where only `learner` is.

    sys.exit(main())


def reading() -> None:
    """Measures whether a model reads its evidence."""
    _run("reading")


def reproduce() -> None:
    """Makes the publication's tables again."""
    _run("reproduce")


def new_family() -> None:
    """Writes a template of a family of environments."""
    _run("new_family")
