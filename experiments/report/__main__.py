"""`python -m experiments.report FOLDER`: see `experiments.report`."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

# Messages of libraries about accelerators that are not there say nothing to a user.
logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)

from absl import app  # noqa: E402

from experiments import report  # noqa: E402


def main(argv: Sequence[str]) -> None:
    """Writes the page of the run or study in the folder that is named."""
    if len(argv) != 2:
        raise app.UsageError("one argument is needed: the folder of a run or of a study")
    try:
        print(report.write(Path(argv[1])))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    app.run(main)
