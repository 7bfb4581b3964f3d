"""A process that computes runs of a study, one after another: `experiments.study.worker`.

Each line of its standard input asks for a run, as JSON: {folder, settings, last: whether no other
will follow}. It prints to the folder's `log.txt`. After a run that is finished it writes
`experiments.study.processes.REPLY` to the standard output that it was started with. When the input
ends, the parent is gone, and the process saves and exits. Exit codes are those of
`experiments.main`; the last line of the log names the error.
"""

import json
import os
import queue
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from experiments import settings as settings_lib
from experiments.ring.loop import Loop
from experiments.run import process
from experiments.run.status import Reporter
from experiments.run.store import RunStore, write_file
from experiments.study.processes import REPLY
from experiments.study.results import FINISHED, LOG
from experiments.text.errors import UserError
from learner.devices import preemption

_LOCK_SECONDS = 60.0


def main() -> None:
    """Computes or resumes one run after another."""
    # What users' files import from there, after all packages: a file may have the name of one.
    sys.path.append(os.getcwd())
    process.keep_freed_memory()
    process.quieten()
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    parent, last = os.dup(sys.stdout.fileno()), False
    while not last:
        request = requests.get()
        folder = Path(request["folder"])
        with (folder / LOG).open("a", encoding="utf-8") as log:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(log.fileno(), stream.fileno())
        _compute(folder, settings_lib.from_config(request["settings"]))
        last = request["last"]
        if not last:
            os.write(parent, REPLY)


def _compute(folder: Path, settings: settings_lib.Settings) -> None:
    directory = RunStore(folder)
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


def _read(requests: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
