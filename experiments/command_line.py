"""Flags that several commands have, with errors that say what is allowed."""

import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from experiments import settings as settings_lib
from experiments.errors import user_errors
from learner.devices import distributed

DEFAULT_CONFIG = str(Path(__file__).parent / "configs" / "tiny.py")

# Flags that are defined here count as those of the command that asks for them, whose --help lists
# them.
flags.disclaim_key_flags()


def define_config() -> flags.FlagHolder:
    """Defines `--config=FILE` with overrides such as `--config.loop.rounds=2`."""
    # The default is put in by `parse_flags`: the library would read a default, overrides and all,
    # before anybody can catch its errors.
    return config_flags.DEFINE_config_file(
        "config",
        None,
        "A Python file with get_config(); experiments/configs/tiny.py if not given. Its options, "
        "which experiments/settings.py explains, change with --config.NAME=VALUE.",
    )


def define_processes() -> None:
    """Defines the flags of a program of several processes; `start_processes` reads them."""
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, for several processes.")
    flags.DEFINE_integer(
        "num_processes",
        None,
        "How many processes there are; 1 for one alone in a cluster. Not needed where Slurm, "
        "Open MPI or a TPU pod tells, nor for one process elsewhere.",
    )
    flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")


def start_processes() -> None:
    """Joins the other processes; see `learner.devices.distributed.start`.

    Raises:
      UserError: the flags do not say enough.
    """
    values = flags.FLAGS
    with user_errors():
        distributed.start(values.coordinator, values.num_processes, values.process_id)


def parse_flags(argv: list[str]) -> list[str]:
    """A `flags_parser` for `absl.app.run`; bad options end the program with one line."""
    file = None
    for i, argument in enumerate(argv[1:], 1):
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name == "config":
            file = value if equals else " ".join(argv[i + 1 : i + 2])
        elif argument.startswith("-") and name.startswith("config."):
            try:
                settings_lib.check_field(name.removeprefix("config."))
            except ValueError as error:
                sys.exit(f"error: {error}")
    if file is None:
        argv = [argv[0], f"--config={DEFAULT_CONFIG}", *argv[1:]]
        file = DEFAULT_CONFIG
    # A configuration may take an argument: FILE.py:ARGUMENT.
    if not Path(file.replace(".py:", ".py\n").partition("\n")[0]).is_file():
        sys.exit(f"error: config={file!r}: there is no such file; see experiments/configs/")
    try:
        return flags.FLAGS(argv)
    except (flags.Error, TypeError) as error:
        # The library quotes the whole traceback of a get_config() that fails; its end says why.
        sys.exit(f"error: {str(error).strip().splitlines()[-1]}")
