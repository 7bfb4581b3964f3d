"""The family that a name means: one of this package, or one in a user's own file."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from engineer.space import ConfigurationSpace
from engineer.texts import FamilyTexts
from experiments.families.family import Family
from experiments.families.lakes.drawing import FAILURES
from experiments.families.lakes.family import Lakes

__all__ = ["FAILURES", "load"]


def load(name: str, options: Any = None) -> Family:
    """The family of a run.

    Args:
      name: "lakes", or `path/to/file.py:name` for an instance of `Family` in a file that exists.
      options: of a family of this package.

    Raises:
      ValueError: there is no such family, or the file does not hold one.
    """
    if name == "lakes":
        return Lakes(options)
    path, _, attribute = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(f"family_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look there for the types of their fields.
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"family={name!r}: {type(error).__name__}: {error}") from error
    family = getattr(module, attribute, None)
    if not isinstance(family, Family):
        raise ValueError(
            f"family={name!r}: {attribute!r} is no instance of experiments.families.Family there"
        )
    for member, kind in (("space", ConfigurationSpace), ("texts", FamilyTexts)):
        if not isinstance(getattr(family, member, None), kind):
            raise ValueError(f"family={name!r}: {attribute}.{member} must be a {kind.__name__}")
    return family
