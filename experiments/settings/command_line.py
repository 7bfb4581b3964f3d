"""Flags shared by several commands, with errors that say what is allowed."""

import os
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from experiments import settings as settings_lib
from learner import checks

_CONFIGS = Path(__file__).parents[1] / "configs"
_DEFAULT_CONFIG = "tiny"
_BOOLEANS = ("true", "t", "1", "false", "f", "0")  # As absl reads them.

# Flags defined here belong to the calling command, whose --help lists them.
flags.disclaim_key_flags()


def config_names() -> list[str]:
    """Names that `--config` takes without a path: the files of `experiments/configs`."""
    paths = (path.relative_to(_CONFIGS).with_suffix("") for path in _CONFIGS.rglob("*.py"))
    return sorted(path.as_posix() for path in paths if path.name != "__init__")


def define_config() -> flags.FlagHolder:
    """Defines `--config=FILE` with overrides such as `--config.loop.rounds=2`."""
    if "config" in flags.FLAGS:  # Another command is imported as well, as in tests.
        return flags.FlagHolder(flags.FLAGS, flags.FLAGS["config"])
    # `parse_flags` puts in the default: the library would read one, with its overrides, before its
    # errors can be caught.
    return config_flags.DEFINE_config_file(
        "config",
        None,
        "A Python file with get_config(), or the name of one of experiments/configs; tiny if not "
        "given. --config.NAME=VALUE changes an option; experiments.main --list_options has all.",
    )


def default_workdir() -> Path:
    """`runs/NAME` for `--config=NAME` and for `--config=NAME.py`, with its argument if any."""
    file, _, argument = _split(config_flags.get_config_filename(flags.FLAGS["config"]))
    return Path("runs", "-".join(filter(None, (Path(file).stem, argument))))


def parse_flags(argv: list[str]) -> list[str]:
    """A `flags_parser` for `absl.app.run`; bad options end the program with one line."""
    given, others = _DEFAULT_CONFIG, [argv[0]]
    words = iter(argv[1:])
    for argument in words:
        # Shells leave a ~ behind a "=" as it is, which would name a new folder.
        dashed, equals, value = argument.partition("=")
        value = os.path.expanduser(value)
        argument, name = dashed + equals + value, dashed.lstrip("-")
        if argument.startswith("-") and name == "config":
            given = value if equals else next(words, "")
            continue
        others.append(argument)
        if argument.startswith("-") and name.startswith("config."):
            field = name.removeprefix("config.")
            try:
                kind = settings_lib.check_field(field)
            except ValueError as error:
                sys.exit(f"error: {checks.one_line(error)}")
            if kind is bool and equals and value.lower() not in _BOOLEANS:
                sys.exit(f"error: {field}={value!r}: allowed are True and False")
    try:
        return flags.FLAGS([others[0], f"--config={config_file(given)}", *others[1:]])
    except (flags.Error, TypeError) as error:
        # The library quotes the whole traceback of a failing get_config(); its last line says why.
        sys.exit(f"error: {str(error).strip().splitlines()[-1]}")
    except Exception as error:  # A user's own file may raise anything.
        sys.exit(f"error: config={given!r}: {type(error).__name__}: {checks.one_line(error)}")


def config_file(given: str) -> str:
    """The path that `--config` means, with its argument if any; exits if there is none."""
    if Path(_split(given)[0]).is_file():
        return given
    name, colon, argument = given.partition(":")
    if name in config_names():
        return f"{_CONFIGS / name}.py{colon}{argument}"
    sys.exit(
        f"error: config={given!r}: there is no such file; allowed are files and the names "
        f"{', '.join(config_names())}"
    )


def _split(config: str) -> tuple[str, str, str]:
    """Splits FILE.py:ARGUMENT; the argument is optional."""
    return config.replace(".py:", ".py\n").partition("\n")
