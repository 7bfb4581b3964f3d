"""Loads a family by name: one of this package, or one in a user's own file."""

import dataclasses
import functools
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from engineer.space import Configuration, ConfigurationSpace
from engineer.texts import FamilyTexts
from experiments import families
from experiments.families.family import (
    NOT_SCORED,
    SCORED,
    Family,
    Generated,
    NoProblemError,
    Problem,
)
from experiments.families.lakes.family import Lakes
from experiments.families.lakes.options import LakesOptions
from experiments.families.reasoning_gym.family import ReasoningGym, ReasoningGymOptions
from experiments.families.sandbox import Sandbox, SandboxError, told
from experiments.families.shapes import ShapeError
from experiments.families.words import Words
from learner import checks

#: From the options under a family's name, if it has any, and the argument after the name, if any.
_OF_THIS_PACKAGE: Mapping[str, Callable[..., Family]] = {
    "lakes": Lakes,
    "reasoning_gym": ReasoningGym,
    "words": Words,
}
#: Format of the argument after a name, if any.
_ARGUMENTS = {"lakes": "", "reasoning_gym": ":DATA_SET+DATA_SET", "words": ":KIND+KIND"}

#: Options that are gone, and what does the same.
RENAMED = {
    "lakes.num_agents": "lakes.agents",
    "lakes.validation_hole_ratio": "lakes.validation_hole_ratios",
    "lakes.highest_hole_ratio": "nothing: it is 0.6",
    "reasoning_gym.seconds": "verify_seconds",
}

_STARTING = 60.0  # Seconds of processor time to make problems, besides those for each.


@functools.cache
def _sandbox(path: Path, contents: bytes) -> Sandbox:
    """The sandbox of a file; one for each version of its contents."""
    return Sandbox(path)


def _generated(
    family: Family,
    call: Callable[..., Any],
    seconds: float,
    key: jax.Array,
    config: Configuration,
    count: int,
    exclude: Sequence[Problem],
) -> Generated:
    """Calls a user's `generate_plain` with a limit of `seconds` per problem.

    Raises:
      NoProblemError: the call failed, or returned something else than it should.
    """
    plain_key = np.asarray(jax.random.key_data(key)).tolist(), str(jax.random.key_impl(key))
    excluded = [dict(problem) for problem in exclude]
    asked = config.to_dict(), count, excluded
    try:
        found = call(*plain_key, *asked, seconds=_STARTING + seconds * count)
        family.check_generated(found, count, excluded)
    except SandboxError as error:
        # Users do not know `generate_plain`.
        raise NoProblemError(f"generate: {str(error).partition(': ')[2]}") from error
    except ShapeError as error:
        raise NoProblemError(str(error)) from error
    rows = {name: families.GeneratedRow(**row) for name, row in found["rows"].items()}
    return Generated(found["problems"], rows, found["notes"])


@dataclasses.dataclass(frozen=True)
class FamilySettings:
    """The family of a run, and the options of each family of this package under its name.

    Attributes:
      family: the family of environments: "lakes", `reasoning_gym:chain_sum+countdown` with any
        data sets of reasoning-gym, "words:sums" or "words:mixed" for small questions in plain
        words, or `path/to/file.py:name` for an instance of `experiments.families.Family`.
      lakes: options of the family "lakes".
      reasoning_gym: options of the family "reasoning_gym".
      token_cost: subtracted from the reward for each token of a completion, to favour short ones;
        lakes have a length reward of their own.
      verify_seconds: limit on processor time to verify one completion of a family from a file or of
        reasoning-gym, and to make one of its problems (of reasoning-gym half of that, as verifying
        may make it again).
    """

    family: str = "lakes"
    lakes: LakesOptions = dataclasses.field(default_factory=LakesOptions)
    reasoning_gym: ReasoningGymOptions = dataclasses.field(default_factory=ReasoningGymOptions)
    token_cost: float = 0.0
    verify_seconds: float = 5.0

    def __post_init__(self) -> None:
        name, _, argument = self.family.partition(":")
        known = name in _OF_THIS_PACKAGE and bool(argument) == bool(_ARGUMENTS[name])
        if not known and not self.family_file:
            names = [repr(name + argument) for name, argument in _ARGUMENTS.items()]
            raise ValueError(
                f"family={self.family!r}: allowed are {', '.join(names)} and "
                "'path/to/file.py:name' of a file that exists"
            )

        checks.not_negative(self, "token_cost")
        checks.positive(self, "verify_seconds")
        if self.token_cost and self.family == "lakes":
            raise ValueError(
                f"token_cost={self.token_cost}: not for lakes, see lakes.reward; allowed is 0"
            )

    @property
    def family_name(self) -> str:
        """The name of a family of this package, also that of its options."""
        return self.family.partition(":")[0]

    @property
    def family_file(self) -> Path | None:
        """The file of a user's own family; None if it is of this package."""
        path = Path(self.family.rpartition(":")[0])
        return path if path.suffix == ".py" and path.is_file() else None

    def load_family(self) -> Family:
        """Loads the family.

        Raises:
          ValueError: the file does not define one.
        """
        if path := self.family_file:
            family = self._load_file(path)
        else:
            options = [getattr(self, name) for name in (self.family_name,) if hasattr(self, name)]
            argument = self.family.split(":", 1)[1:]
            family = _OF_THIS_PACKAGE[self.family_name](*options, *argument)
        family.token_cost, family.verify_seconds = self.token_cost, self.verify_seconds
        return family

    def _load_file(self, path: Path) -> Family:
        name = self.family
        attribute = name.rpartition(":")[2]
        folder = str(path.resolve().parent)
        if folder not in sys.path:  # Of modules beside it.
            sys.path.append(folder)
        try:
            defined = runpy.run_path(str(path), run_name="family")
        except (Exception, SystemExit) as error:
            raise ValueError(f"family={name!r}: {told(error, str(path))}") from error
        family = defined.get(attribute)
        if not isinstance(family, Family):
            there = [name for name, value in defined.items() if isinstance(value, Family)]
            raise ValueError(
                f"family={name!r}: {attribute!r} is no instance of families.Family; "
                f"the file has {', '.join(there) or 'none'}"
            )
        for member, kind in (("space", ConfigurationSpace), ("texts", FamilyTexts)):
            if not isinstance(getattr(family, member, None), kind):
                raise ValueError(f"family={name!r}: {attribute}.{member} must be a {kind.__name__}")
        if SCORED not in family.texts.checks:
            texts, failure = family.texts, family.failure
            vars(family)["failure"] = lambda name: NOT_SCORED if name == SCORED else failure(name)
            family.texts = dataclasses.replace(
                texts,
                checks=(SCORED, *texts.checks),
                alone=(SCORED, *texts.alone),
                failure_words={"not_scored": (SCORED,), **texts.failure_words},
            )
        call, seconds = _sandbox(path, path.read_bytes()).call, self.verify_seconds
        generate = functools.partial(call, f"{attribute}.generate_plain")
        vars(family).update(  # Instance attributes shadow the methods.
            generate=functools.partial(_generated, family, generate, seconds),
            verify=functools.partial(call, f"{attribute}.verify", seconds=seconds),
        )
        return family
