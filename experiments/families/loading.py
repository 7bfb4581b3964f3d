"""The family that a name means: one of this package, or one in a user's own file."""

import dataclasses
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engineer.space import ConfigurationSpace
from engineer.texts import FamilyTexts
from experiments.families.family import Family
from experiments.families.lakes.family import Lakes
from experiments.families.lakes.options import LakesOptions

_OF_THIS_PACKAGE: Mapping[str, Callable[[Any], Family]] = {"lakes": Lakes}


@dataclasses.dataclass(frozen=True)
class FamilySettings:
    """Which family a run has, and the options of each family of this package under its name.

    Attributes:
      family: the family of environments: "lakes", or `path/to/file.py:name` for an instance of
        `experiments.families.Family`.
      lakes: options of the family "lakes".
    """

    family: str = "lakes"
    lakes: LakesOptions = dataclasses.field(default_factory=LakesOptions)

    def __post_init__(self) -> None:
        path, _, _ = self.family.rpartition(":")
        known = self.family in _OF_THIS_PACKAGE
        if not known and not (path.endswith(".py") and Path(path).is_file()):
            raise ValueError(
                f"family={self.family!r}: allowed are {', '.join(map(repr, _OF_THIS_PACKAGE))} and "
                "'path/to/file.py:name' of a file that exists"
            )

    def load_family(self) -> Family:
        """The family itself.

        Raises:
          ValueError: the file does not hold one.
        """
        name = self.family
        if name in _OF_THIS_PACKAGE:
            return _OF_THIS_PACKAGE[name](getattr(self, name))
        path, _, attribute = name.rpartition(":")
        try:
            family = runpy.run_path(path, run_name="family").get(attribute)
        except Exception as error:
            raise ValueError(f"family={name!r}: {type(error).__name__}: {error}") from error
        if not isinstance(family, Family):
            raise ValueError(f"family={name!r}: {attribute!r} is no instance of families.Family")
        for member, kind in (("space", ConfigurationSpace), ("texts", FamilyTexts)):
            if not isinstance(getattr(family, member, None), kind):
                raise ValueError(f"family={name!r}: {attribute}.{member} must be a {kind.__name__}")
        return family
