"""Tries a family of environments without any model.

    python -m experiments.check_family my_task.py:family

Makes problems at the corners of the space and verifies the family's own solutions. A run and a warm
start do the quick part of this first. Exit code 1, with one line, if the family is not usable.
"""

from collections.abc import Sequence

from absl import app

from experiments.families import FamilyError
from experiments.families.examination import examine, own_errors
from experiments.families.loading import FamilySettings
from experiments.run import process
from experiments.text.errors import ended_in_one_line, user_errors


def main(argv: Sequence[str]) -> None:
    """Prints what was tried; ends with one line if the family is not usable."""
    if len(argv) != 2:
        raise app.UsageError("one family is needed, such as my_task.py:family")
    process.quieten()
    with ended_in_one_line(FamilyError):
        with user_errors():
            settings = FamilySettings(argv[1])
            family = settings.load_family()
        with own_errors(settings.family_file):
            for line in examine(family):
                print(line)
        print("the family is usable")


if __name__ == "__main__":
    app.run(main)
