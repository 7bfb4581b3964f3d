"""A process that computes runs of a study, one after another: `experiments.study.worker`.

Each line of its standard input asks for a run, as JSON: {folder, log: the file that it prints to,
settings, last: whether no other will follow}. After a run that is finished it writes a line to its
first standard output (`experiments.study.processes.FINISHED`). When the input ends, the parent is
gone, and the process saves and exits. Exit codes are those of `experiments.main`; the last line of
the log names the error.
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
from experiments.study.processes import FINISHED as SAID
from experiments.study.results import FINISHED
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
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log, stream.fileno())
        os.close(log)
        _compute(Path(request["folder"]), settings_lib.from_config(request["settings"]))
        last = request["last"]
        if not last:
            os.write(parent, SAID)


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
