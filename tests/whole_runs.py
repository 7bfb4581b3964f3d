"""Whole runs in processes of their own, which come from one that has imported what they need."""

import dataclasses
import fcntl
import importlib
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from absl import app

ROOT = Path(__file__).parent.parent
#: Options of a small run of the tiny model; with the same ones, programs come from the cache.
SMALL = [
    "--config=experiments/configs/tiny.py",
    "--config.model.scan_unroll=1",  # Quicker to compile.
    "--config.environment.num_instances=8",
    "--config.lakes.sizes=(3,4)",
    "--config.lakes.max_candidates=4096",
    "--config.validation.num_instances=24",
    "--config.training.epochs=1.0",
    "--config.training.prompts_per_step=8",
    "--config.training.group_size=4",
    "--config.engineer.designer=current",
    "--config.engineer.reading_questions=0",
]
#: A study of runs as small.
PLAN = """
from experiments.configs.studies import bases
from experiments.study.variants import Study, Variant

STUDY = Study(
    question="Does it run?",
    variants=(
        Variant("fixed", "fixed", {"engineer.designer": "fixed"}),
        Variant("failures", "failures", {"engineer.designer": "failures"}),
        # Refused when it starts: no design has room in so few tokens.
        Variant("broken", "broken", {"engineer.max_new_tokens": 8}),
    ),
    reference="fixed",
    seeds=(0,),
)


def get_config():
    config = bases.tiny_base()
    config.loop.rounds = 2
    # As in `SMALL`.
    config.model.scan_unroll = 1
    config.lakes.sizes = (3, 4)
    config.environment.num_instances = 16
    config.lakes.max_candidates = 4096
    config.validation.num_instances = 24
    config.training.epochs = 1.0
    config.training.prompts_per_step = 8
    config.training.group_size = 4
    config.engineer.reading_questions = 0
    return config
"""
#: Whether whole runs are compiled as users have them: `conftest.pytest_configure`.
OPTIMISED = "OPTIMISED_RUNS" in os.environ
#: Makes processes that have imported what commands need.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "experiments.main",
        "experiments.ring.loop",
        "experiments.report",
        # Commands import these where they use them: with torch, four seconds each time.
        "transformers.models.auto.tokenization_auto",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_svg",
    ]
)


@dataclasses.dataclass(frozen=True)
class Fault:
    """What storage refuses a process.

    Attributes:
      path: the end of a file's path.
      code: the error of opening that file to write; 0 for none.
      limit: bytes that a file may grow to; what comes after them is not written.
      seconds: that opening any file to write takes.
    """

    path: str = ""
    code: int = 0
    limit: int = resource.RLIM_INFINITY
    seconds: float = 0.0

    def install(self) -> None:
        """Lets it happen from now on, until the process ends."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, resource.RLIM_INFINITY))
        if self.code or self.seconds:
            sys.addaudithook(self._refuse)

    def _refuse(self, event: str, arguments: tuple) -> None:
        if event != "open" or not isinstance(arguments[2], int):
            return
        path, _, flags = arguments
        if not flags & (os.O_WRONLY | os.O_RDWR):
            return
        time.sleep(self.seconds)
        if self.code and str(path).endswith(self.path):
            raise OSError(self.code, os.strerror(self.code), str(path))


class Command:
    """A command of `experiments`, started; see `multiprocessing.Process`.

    Attributes:
      process: it runs in this one.
    """

    def __init__(
        self, folder: Path, *line: str, fault: Fault | None = None, draws: bool = False
    ) -> None:
        """Starts it, with a fault of its storage; what it prints goes to files beside `folder`.

        Args:
          line: name of the module and arguments.
          draws: whether its report has charts, which take some seconds.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._out, self._err = (folder.with_suffix(suffix) for suffix in (".out", ".err"))
        arguments = (line, self._out, self._err, fault, draws)
        self.process = PROCESSES.Process(target=_main, args=arguments)
        self.process.start()

    def end(self) -> tuple[int, str, str]:
        """Exit code and printed texts, at its end."""
        self.process.join(500)
        code = self.process.exitcode
        assert code is not None, "still running after 500 seconds"
        return code, self._out.read_text(), self._err.read_text()


class Run(Command):
    """`python -m experiments.main` with some options, started."""

    def __init__(self, folder: Path, *options: str, **more: Any) -> None:
        super().__init__(folder, "main", *SMALL, f"--workdir={folder}", *options, **more)


def three_rounds(folder: Path, *options: str, **others: Any) -> Run:
    """A run of three rounds of four steps that designs twice, as `undisturbed` is, started."""
    more = ("--config.loop.rounds=3", "--config.environment.num_instances=32")
    more += ("--config.checkpoint.every_steps=2", "--config.log.tensorboard=True")
    return Run(folder, *more, *options, **others)


def story(folder: Path, rounds: int = 3) -> dict[str, Any]:
    """What the first rounds of a run are about, by file, without what depends on the machine."""
    names = ["validation/instances.jsonl", "initial/validation.json", "initial/answers.jsonl"]
    of_round = ["environment.yaml", "generated.json", "instances.jsonl", "train_failures.json"]
    of_round += ["validation.json", "answers.jsonl", "design/context.md", "design/design.json"]
    for index in range(rounds):  # No design follows the last round.
        names += [f"rounds/{index}/{name}" for name in of_round[: 6 if index == rounds - 1 else 8]]
    told: dict[str, Any] = {name: (folder / name).read_text() for name in names}
    for index in range(rounds):
        lines = (folder / "rounds" / str(index) / "train.jsonl").read_text().splitlines()
        told[f"train {index}"] = [
            {k: v for k, v in json.loads(line).items() if not k.startswith("machine/")}
            for line in lines
        ]
    return told


def undisturbed(common: Path) -> tuple[Path, str]:
    """Folder and printed text of such a run that nobody stopped; made once, in a common folder."""
    folder, printed = common / "undisturbed", common / "undisturbed.txt"
    with Path(common, "undisturbed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            code, out, err = three_rounds(folder, draws=True).end()
            assert code == 0, err[-3000:]
            printed.write_text(out)
    return folder, printed.read_text()


def _main(
    line: Sequence[str], out: Path, err: Path, fault: Fault | None, draws: bool = False
) -> None:
    os.chdir(ROOT)
    jax.config.update("jax_num_cpu_devices", 1)
    if OPTIMISED:
        jax.config.update("jax_disable_most_optimizations", False)
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    if fault is not None:
        fault.install()
    if not draws:
        from matplotlib.figure import Figure

        Figure.savefig = lambda *_, **__: None
    sys.argv = list(line)  # Where the options of --config are read from.
    command = importlib.import_module(f"experiments.{line[0]}")
    from experiments.settings import command_line

    app.run(command.main, flags_parser=command_line.parse_flags)


def environment(**more: str) -> dict[str, str]:
    """Variables of a process of its own that has one device, as a user's does on a CPU."""
    optimised = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"} if OPTIMISED else {}
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "1", **optimised, **more}


def python(
    *arguments: object, cwd: Path = ROOT, fails: bool | None = False, **variables: str
) -> subprocess.CompletedProcess:
    """What became of Python with these arguments, in such a process; its output is text.

    Args:
      fails: whether it has to; None where either will do.
    """
    line, variables = [sys.executable, *map(str, arguments)], environment(**variables)
    done = subprocess.run(line, cwd=cwd, env=variables, capture_output=True, text=True, timeout=500)
    assert fails in (None, done.returncode != 0), done.stdout[-1000:] + done.stderr[-3000:]
    return done


def compilation_cache(folder: Path) -> str:
    """Where runs keep what they have compiled: for the whole session, if that has a folder."""
    return os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(folder / "cache")


def start(folder: Path, *options: str) -> subprocess.Popen:
    """Starts the study of `plan.py` in a folder; its own folder is `study` in it."""
    flags = (f"--config={folder / 'plan.py'}", f"--workdir={folder / 'study'}", "--workers=2")
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.study", *flags, *options],
        cwd=ROOT,
        # The test alone may run twice; the study itself would keep its cache in its folder.
        env=environment(JAX_COMPILATION_CACHE_DIR=compilation_cache(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    """Exit code and printed texts of a process, at its end."""
    try:
        out, err = process.communicate(timeout=900)  # On a machine that does much else.
    finally:
        process.terminate()  # At the end of its time; nothing of it outlives the test.
    return process.returncode, out, err
