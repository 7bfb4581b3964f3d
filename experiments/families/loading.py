"""The family that a name means: one of this package, or one in a user's own file."""

import dataclasses
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

from engineer.space import ConfigurationSpace
from engineer.texts import FamilyTexts
from experiments.families.family import Family
from experiments.families.lakes.family import Lakes
from experiments.families.lakes.options import LakesOptions
from experiments.families.reasoning_gym.family import ReasoningGym, ReasoningGymOptions

_OF_THIS_PACKAGE: Mapping[str, Callable[..., Family]] = {
    "lakes": Lakes,
    "reasoning_gym": ReasoningGym,
}
#: What stands after a name, where anything does.
_ARGUMENTS = {"lakes": "", "reasoning_gym": ":DATA_SET+DATA_SET"}


@dataclasses.dataclass(frozen=True)
class FamilySettings:
    """Which family a run has, and the options of each family of this package under its name.

    Attributes:
      family: the family of environments: "lakes", `reasoning_gym:chain_sum+countdown` with any
        data sets of reasoning-gym, or `path/to/file.py:name` for an instance of
        `experiments.families.Family`.
      lakes: options of the family "lakes".
      reasoning_gym: options of the family "reasoning_gym".
    """

    family: str = "lakes"
    lakes: LakesOptions = dataclasses.field(default_factory=LakesOptions)
    reasoning_gym: ReasoningGymOptions = dataclasses.field(default_factory=ReasoningGymOptions)

    def __post_init__(self) -> None:
        name, _, argument = self.family.partition(":")
        known = name in _OF_THIS_PACKAGE and bool(argument) == bool(_ARGUMENTS[name])
        if not known and not self.family_file:
            names = [repr(name + argument) for name, argument in _ARGUMENTS.items()]
            raise ValueError(
                f"family={self.family!r}: allowed are {', '.join(names)} and "
                "'path/to/file.py:name' of a file that exists"
            )

    @property
    def family_name(self) -> str:
        """The name of a family of this package, which its options have too."""
        return self.family.partition(":")[0]

    @property
    def family_file(self) -> Path | None:
        """The file of a user's own family."""
        path = Path(self.family.rpartition(":")[0])
        return path if path.suffix == ".py" and path.is_file() else None

    def load_family(self) -> Family:
        """The family itself.

        Raises:
          ValueError: the file does not hold one.
        """
        name, path = self.family, self.family_file
        if not path:
            options = getattr(self, self.family_name)
            return _OF_THIS_PACKAGE[self.family_name](options, *name.split(":", 1)[1:])
        attribute = name.rpartition(":")[2]
        try:
            family = runpy.run_path(str(path), run_name="family").get(attribute)
        except Exception as error:
            raise ValueError(f"family={name!r}: {type(error).__name__}: {error}") from error
        if not isinstance(family, Family):
            raise ValueError(f"family={name!r}: {attribute!r} is no instance of families.Family")
        for member, kind in (("space", ConfigurationSpace), ("texts", FamilyTexts)):
            if not isinstance(getattr(family, member, None), kind):
                raise ValueError(f"family={name!r}: {attribute}.{member} must be a {kind.__name__}")
        return family
