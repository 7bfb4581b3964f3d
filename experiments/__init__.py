"""The closed loop of training, validation and design; files, flags and processes live here."""

import runpy

import learner as learner  # Names the extra to install if it is missing.


def train() -> None:
    """Entry point of the console script: `python -m experiments.main`."""
    runpy.run_module("experiments.main", run_name="__main__", alter_sys=True)
