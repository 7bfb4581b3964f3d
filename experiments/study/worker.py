"""One run of a study in a process of its own: `python -m experiments.study.worker FOLDER`.

Its options are a line of JSON on the standard input. When the input ends, the parent is gone, and
the process saves and exits. Exit codes are those of `experiments.main`; the last line of output
names the error.
"""

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from experiments import settings as settings_lib
from experiments.ring.loop import Loop
from experiments.run import process
from experiments.run.status import Reporter
from experiments.run.store import RunStore, write_file
from experiments.study.results import FINISHED
from experiments.text.errors import UserError
from learner.devices import preemption

_LOCK_SECONDS = 60.0


def main() -> None:
    """Computes or resumes the run."""
    # What users' files import from there, after all packages: a file may have the name of one.
    sys.path.append(os.getcwd())
    process.keep_freed_memory()
    process.quieten()
    settings = settings_lib.from_config(json.loads(sys.stdin.readline()))
    threading.Thread(target=_leave_at_end_of_input, daemon=True).start()
    directory = RunStore(Path(sys.argv[1]))
    try:
        # The process of a study that was killed may still be saving there.
        with directory.locked(_LOCK_SECONDS), directory.timed():
            Loop(settings, directory, Reporter()).run()
        write_file(directory.root / FINISHED, {"finished": True})
    except preemption.Preempted:
        sys.exit(preemption.EXIT_CODE)
    except Exception as error:
        traceback.print_exc()
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        sys.exit("error: " + " ".join(f"{kind}{error}".split()))


def _leave_at_end_of_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
