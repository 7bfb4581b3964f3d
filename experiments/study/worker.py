"""A process that computes runs of a study: `python -m experiments.study.worker`.

Requests come in by lines of JSON on the standard input, {"folder": ..., "settings": {...}}, and for
each one line goes out: {"status": "finished" | "failed" | "preempted", "error": ...}. What a run
prints goes into its folder. At the end of the input, also in the midst of a run, the process saves
and leaves: so it does not outlive whoever asked.

One process for many runs pays for imports and for the programs of generator and verifier once.
"""

import argparse
import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

LOG = "log.txt"
_LOCK_SECONDS = 60.0


def main() -> None:
    """Serves requests until there are no more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", default="", help="numbers of the processor cores to use")
    cores = {int(core) for core in parser.parse_args().cores.split(",") if core}
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # Before JAX counts them and starts its threads.

    from experiments import allocator

    allocator.keep_freed_memory()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever is printed between runs is no reply.
    requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    busy = threading.Event()

    def read() -> None:
        for line in sys.stdin:
            requests.put(json.loads(line))
        requests.put(None)
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    while (request := requests.get()) is not None:
        busy.set()
        reply = _serve(Path(request["folder"]), request["settings"])
        busy.clear()
        try:
            print(json.dumps(reply), file=replies, flush=True)
        except BrokenPipeError:
            return
        if reply["status"] == "preempted":
            return


def _serve(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Computes or resumes a run; leaves its times, and its end or its error, in its folder."""
    from experiments.answer_log import AnswerLog
    from experiments.errors import UserError
    from experiments.store import write_json
    from experiments.study.results import ERROR, FINISHED, TIMES, write_error
    from learner.devices.preemption import Preempted
    from learner.training.update import NonFiniteError

    folder.mkdir(parents=True, exist_ok=True)
    (folder / ERROR).unlink(missing_ok=True)
    begin, processor = time.monotonic(), time.process_time()
    status, error = "finished", None
    with _printing_to(folder / LOG):
        try:
            _run(folder, options)
        except Preempted:
            status = "preempted"
        except (UserError, NonFiniteError) as problem:
            status, error = "failed", str(problem)
            print(f"error: {error}", flush=True)
        except Exception as problem:
            status, error = "failed", f"{type(problem).__name__}: {problem}"
            traceback.print_exc()
    times = {
        "seconds": round(time.monotonic() - begin, 2),
        "cpu_seconds": round(time.process_time() - processor, 2),
        "status": status,
    }
    with AnswerLog(folder / TIMES) as log:
        log.append([times])
    if status == "finished":
        write_json(folder / FINISHED, {"finished": True})
    if error is not None:
        error = write_error(folder, error)
    return {"status": status, "error": error}


def _run(folder: Path, options: dict[str, Any]) -> None:
    from absl import logging
    from rich.console import Console

    from experiments import settings as settings_lib
    from experiments.errors import UserError
    from experiments.loop import Loop
    from experiments.progress import Reporter
    from experiments.store import RunDirectory

    logging.set_verbosity(logging.WARNING)
    settings = settings_lib.from_config(options)
    directory = RunDirectory(folder)
    with contextlib.ExitStack() as stack:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                stack.enter_context(directory.locked())
                break
            except UserError:
                # A process of a study that was killed may still be saving there.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        directory.claim(settings)
        console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        Loop(settings, directory, Reporter(console)).run()


@contextlib.contextmanager
def _printing_to(path: Path) -> Any:
    """Everything that is printed goes to the end of a file, also what libraries in C print."""
    kept = [os.dup(number) for number in (1, 2)]
    with path.open("a") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)


if __name__ == "__main__":
    main()
