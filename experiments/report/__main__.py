"""The command `python -m experiments.report`."""

from collections.abc import Sequence
from pathlib import Path

from absl import app
from absl import logging as absl_logging

from experiments import report
from experiments.run import process
from experiments.text.errors import ended_in_one_line

__doc__ = report.__doc__  # What --help prints.


def main(argv: Sequence[str]) -> None:
    """Writes the page of the run, or the figures of the study, in the given folder."""
    process.quieten(absl_logging.WARNING)
    if len(argv) != 2:
        raise app.UsageError("one argument is needed: the folder of a run or of a study")
    with ended_in_one_line(ValueError):
        print(report.write(Path(argv[1])))


if __name__ == "__main__":
    app.run(main)
