"""Builds checked settings from configurations, and says what is wrong with one."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import ml_collections
from flax.traverse_util import flatten_dict

from experiments.families import Family
from experiments.families.loading import RENAMED as RENAMED_OF_FAMILIES
from experiments.families.loading import FamilySettings
from experiments.settings.options import Settings
from experiments.text.errors import UserError, user_errors
from learner import checks

T = TypeVar("T")

# The last revisions with options that are gone since, oldest first: with those that are not in
# `RENAMED`, with those that are, and with the latest of these.
_GONE_AFTER, _RENAMED_AFTER = "9349dbd", "6917175"
_LATER = {
    "engineer.exact_fractions": "046b148",
    "training.curriculum.staleness": "9130018",
    "training.completions_per_row": "218261f",
    "training.length_multiple": "218261f",
    "training.micro_batch_rows": "218261f",
    "training.sampling_rows": "218261f",
}

#: Options that are gone, with their groups, and what does the same.
RENAMED = {
    "engineer.modules": "engineer.context, such as 'V1+details+examples=2'",
    "engineer.show_current": "'+current' at the end of engineer.context",
    "engineer.neutral_guideline": "'+neutral' at the end of engineer.context",
    "engineer.thinking": "engineer.thinking_tokens above 0",
    "engineer.trigger": "engineer.reasoning_tokens alone",
    "engineer.exact_fractions": "engineer.decoding, 'grammar' or 'grammar_rescaled'",
    "engineer.endpoint.price_in": "the first of engineer.endpoint.prices",
    "engineer.endpoint.price_out": "the second of engineer.endpoint.prices",
    "engineer.endpoint.budget_field": "nothing: both fields are tried",
    "training.thinking": "training.thinking_tokens above 0",
    "training.objective.constant_length": "training.max_new_tokens",
    "training.curriculum.staleness": "nothing: it is 0.3, as it was by default",
    "training.completions_per_row": "nothing: completions to several prompts share a sequence",
    "training.length_multiple": "nothing: micro-batches have at most four shapes",
    "training.micro_batch_rows": "training.micro_batch_size",
    "training.sampling_rows": "training.sampling_slots",
    **RENAMED_OF_FAMILIES,
    "checkpoint.keep_best": "nothing: rewards of rounds on different sets do not compare",
}


def default_config() -> ml_collections.ConfigDict:
    """All options with their defaults, for configuration files to change."""
    return ml_collections.ConfigDict(_defaults(Settings()))


def from_config(config: Mapping[str, Any] | ml_collections.ConfigDict) -> Settings:
    """Builds checked settings from a configuration; missing fields have their defaults.

    Raises:
      UserError: a field is unknown, or has a wrong type or value. The message names the field with
        its path, the value and what is allowed.
    """
    if isinstance(config, ml_collections.ConfigDict):
        config = config.to_dict()
    with user_errors():
        return _build(Settings, config, "")


def of_run(folder: Path) -> Settings:
    """The options of the run in a folder.

    Raises:
      UserError: its file is damaged, or as in `check_known` and `from_config`.
    """
    with user_errors():
        config = checks.json_object(folder / "config.json")
    check_known(folder, config)
    return from_config(config)


def check_known(folder: Path, config: Mapping[str, Any]) -> None:
    """Checks that this version knows all options of the run in `folder`.

    Raises:
      UserError: one is gone; the message names the revision that still has all of them.
    """
    known = _paths()
    gone = [path for path in flatten_dict(config, sep=".") if path not in known]
    if not gone:
        return

    def age(path: str) -> int:
        return [*_LATER].index(path) + 2 if path in _LATER else int(_renamed(path) is not None)

    path = min(gone, key=age)  # A run with several is of the oldest of their revisions.
    revision = (_GONE_AFTER, _RENAMED_AFTER, *_LATER.values())[age(path)]
    raise UserError(
        f"{folder}: the run there has options that are gone, such as {path}; finish it with "
        f"revision {revision}"
    )


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a run with these options; ignores all others.

    Raises:
      UserError: there is no such family, or its options are not allowed.
    """
    names = [field.name for field in dataclasses.fields(FamilySettings) if field.name in config]
    with user_errors():
        return _build(FamilySettings, {name: config[name] for name in names}, "").load_family()


def check_field(path: str) -> Any:
    """Checks that `path`, such as "loop.rounds", names an option, and returns its type.

    Raises:
      ValueError: it does not; the message says which part is unknown and what is allowed.
    """
    kind: Any = Settings
    done = ""
    for name in path.split("."):
        fields = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        if name not in fields:
            raise ValueError(f"{done}{name}: {_unknown(name, list(fields), done)}")
        kind, done = fields[name], f"{done}{name}."
    return kind


def _renamed(path: str) -> str | None:
    """What does the same as an option that is gone; None if it never was one."""
    return next((now for old, now in RENAMED.items() if f"{path}.".startswith(f"{old}.")), None)


def _unknown(name: str, allowed: list[str], path: str) -> str:
    """Says what an option is called now, or suggests one of this or a similar name."""
    if now := _renamed(path + name):
        return f"gone; instead of it: {now}"
    paths: dict[str, list[str]] = {}
    for known in _paths():
        paths.setdefault(known.rpartition(".")[2], []).append(known)
    meant = sorted(paths.get(name, []), key=lambda known: not known.startswith(path))
    meant += [path + close for close in difflib.get_close_matches(name, allowed, n=1)]
    meant += [paths[close][0] for close in difflib.get_close_matches(name, paths, n=1)]
    hint = f" (did you mean {meant[0]}?)" if meant else ""
    return f"unknown field{hint}; allowed are {allowed}"


def _paths() -> list[str]:
    """Every option, such as "loop.rounds"."""
    return list(flatten_dict(Settings().to_dict(), sep="."))


def _defaults(options: Any) -> dict[str, Any]:
    result = dict(vars(options))
    for name, hint in typing.get_type_hints(type(options)).items():
        if dataclasses.is_dataclass(hint):
            result[name] = _defaults(result[name])
        elif result[name] is None:
            # An optional field: None or a value of its other type.
            (kind_of_value,) = set(typing.get_args(hint)) - {type(None)}
            result[name] = ml_collections.config_dict.placeholder(kind_of_value)
    return result


def _build(kind: type[T], mapping: Any, path: str) -> T:
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{path.rstrip('.') or 'config'}={mapping!r}: a group of fields is needed")
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in mapping.items():
        if name not in hints:
            raise ValueError(f"{path}{name}={value!r}: {_unknown(str(name), list(hints), path)}")
        hint_type = hints[name]
        if dataclasses.is_dataclass(hint_type):
            values[name] = _build(typing.cast(type, hint_type), value, f"{path}{name}.")
        else:
            values[name] = _typed(hint_type, value, f"{path}{name}")
    try:
        return kind(**values)
    except ValueError as error:
        if not path:
            raise
        raise ValueError(f"{path}{error}") from error


def _typed(hint: Any, value: Any, path: str) -> Any:
    """The value if it has the annotated type; integers pass as floats, lists as tuples."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (kind for kind in arguments if kind is not type(None))
        return _typed(hint, value, path)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{path}={value!r}: allowed are {arguments}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{path}={value!r}: a list of {arguments[0].__name__} is needed")
        return tuple(_typed(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(
            f"{path}={value!r}: {hint.__name__} is needed, this is {type(value).__name__}"
        )
    return value
