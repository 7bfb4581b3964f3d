"""The `--config` flag of the commands, with errors that say what is allowed."""

import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from experiments import settings as settings_lib

DEFAULT_CONFIG = "experiments/configs/tiny.py"


def define_config() -> flags.FlagHolder:
    """Defines `--config=FILE` with overrides such as `--config.loop.rounds=2`."""
    # The default is put in by `parse_flags`: the library would read a default, overrides and all,
    # before anybody can catch its errors.
    return config_flags.DEFINE_config_file(
        "config", None, f"A Python file with get_config(); {DEFAULT_CONFIG} if not given."
    )


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
    if not Path(file).is_file():
        sys.exit(f"error: config={file!r}: there is no such file; see experiments/configs/")
    try:
        return flags.FLAGS(argv)
    except (flags.Error, TypeError) as error:
        sys.exit(f"error: {error}")
