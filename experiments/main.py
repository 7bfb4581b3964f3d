"""Starts or resumes one run: `python -m experiments.main --config=experiments/configs/tiny.py`.

Exit codes: 0 when the run is complete; 1 for what the user can mend, or a number that is not
finite, with one line that says so; 75 (EX_TEMPFAIL) after SIGTERM, when everything is saved and
the same command goes on from there.
"""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# Messages of libraries about accelerators that are not there say nothing to a user.
logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)

from absl import app, flags  # noqa: E402
from absl import logging as absl_logging  # noqa: E402

from experiments import allocator, command_line, report  # noqa: E402
from experiments import settings as settings_lib  # noqa: E402
from experiments.errors import UserError  # noqa: E402
from experiments.loop import Loop  # noqa: E402
from experiments.progress import Reporter  # noqa: E402
from experiments.run_directory import RunDirectory  # noqa: E402
from learner import preemption  # noqa: E402
from learner.update import NonFiniteError  # noqa: E402

_CONFIG = command_line.define_config()
_WORKDIR = flags.DEFINE_string(
    "workdir", "runs/tiny", "Folder of the run; started again with the same one, it resumes."
)


def main(argv: Sequence[str]) -> None:
    """Runs the closed loop and writes the report."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}; options look like --name=value")
    begin = time.monotonic()
    allocator.keep_freed_memory()
    absl_logging.set_verbosity(absl_logging.WARNING)  # Orbax tells every step of every save.
    reporter = Reporter()
    try:
        settings = settings_lib.from_config(_CONFIG.value)
        directory = RunDirectory(Path(_WORKDIR.value))
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")
    try:
        with directory.locked():
            directory.claim(settings)
            Loop(settings, directory, reporter).run()
            path = report.write(directory.root)
    except UserError as error:
        logging.debug("where the error was raised", exc_info=True)
        sys.exit(f"error: {error}")
    except preemption.Preempted:
        reporter.line("asked to leave: saved; the same command goes on from here")
        sys.exit(preemption.EXIT_CODE)
    except NonFiniteError as error:
        sys.exit(f"error: {error}")
    reporter.line(f"done in {time.monotonic() - begin:.0f} s; report: {path}")


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
