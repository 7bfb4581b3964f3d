"""Entry points of the console scripts, each the same as `python -m` with its module.

A script finds the installed package from any folder. `python -m` looks in the working folder first,
where another folder may be named `experiments`.
"""

import functools
import runpy
import sys

from experiments import begin_command

begin_command()


def _run(module: str) -> None:
    runpy.run_module(f"experiments.{module}", run_name="__main__", alter_sys=True)


train = functools.partial(_run, "main")
study = functools.partial(_run, "study")
report = functools.partial(_run, "report")
benchmark = functools.partial(_run, "benchmark")
sensitivity = functools.partial(_run, "sensitivity")
export = functools.partial(_run, "export")
warm_start = functools.partial(_run, "warm_start")
new_family = functools.partial(_run, "new_family")
check_family = functools.partial(_run, "check_family")
probe = functools.partial(_run, "probe")
reading = functools.partial(_run, "reading")
reproduce = functools.partial(_run, "reproduce")


def plan() -> None:
    """Says what a model costs on accelerators."""
    from learner.plan.__main__ import main  # Also a command where only `learner` is.

    sys.exit(main())
