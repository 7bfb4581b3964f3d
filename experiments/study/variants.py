"""Studies: variants that differ in a few options, with equal seeds and budgets."""

import dataclasses
import functools
import operator
import re
import runpy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections

from experiments import settings as settings_lib
from experiments.settings import Settings
from experiments.text.errors import UserError, user_errors

# Options of the validation set besides those of its family; see `experiments.ring.validation`.
_SAME_VALIDATION = (
    "family",
    *(f"validation.{name}" for name in ("num_instances", "test_instances", "seed")),
)
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")


@dataclasses.dataclass(frozen=True)
class Variant:
    """One condition of a study.

    Attributes:
      name: of its folder.
      label: for people.
      changes: options that differ from the base configuration, by path ("engineer.designer").
    """

    name: str
    label: str
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"variant={self.name!r}: allowed are small letters, digits, '_', '.' and '-'"
            )
        for path in self.changes:
            try:
                settings_lib.check_field(path)
            except ValueError as error:
                raise ValueError(f"variant={self.name!r}: {error}") from error
            if path == "seed":
                raise ValueError(f"variant={self.name!r}: seed: the seeds are those of the study")


class Budget(NamedTuple):
    """The most that a run may use over all rounds.

    Attributes:
      rounds: rounds of training.
      instances: training instances requested from the generator.
      steps: training steps.
      updates: optimizer updates, if every step has non-degenerate groups.
      answers: completions sampled in training, including resampled ones and candidates.
      validated: sampled completions of validation prompts.
      engineer_steps: steps of training as engineer.
    """

    rounds: int
    instances: int
    steps: int
    updates: int
    answers: int
    validated: int
    engineer_steps: int

    @classmethod
    def of(cls, settings: Settings) -> "Budget":
        """The budget of one run."""
        training, rounds = settings.training, settings.loop.rounds
        instances = settings.environment.num_instances
        steps = rounds * settings.steps_per_round
        answers = training.most_draws * training.prompts_per_step * training.group_size
        engineer = settings.engineer
        lessons = max(rounds - engineer.kept_rounds - 1, 0)  # Before each design but the first.
        return cls(
            rounds=rounds,
            instances=rounds * instances,
            steps=steps,
            updates=steps * training.updates_per_step,
            answers=steps * answers,
            validated=(rounds + 1)
            * settings.validation.num_instances
            * settings.validation.samples,
            engineer_steps=lessons * engineer.training.hindsight_steps,
        )


@dataclasses.dataclass(frozen=True)
class Study:
    """Variants times seeds.

    Attributes:
      question: of the study, in a sentence or two.
      variants: at least two.
      reference: name of the variant that the others are compared with.
      seeds: of the runs; the same for every variant, so that runs of one seed are pairs.
      may_differ: parts of the `Budget` in which variants may differ; all others must be equal.
      registration: what was written down before the first run, see `experiments.study.provenance`;
        that of a study that was loaded is the docstring of its file.
    """

    question: str
    variants: tuple[Variant, ...]
    reference: str
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    may_differ: tuple[str, ...] = ()
    registration: str = ""

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError(f"variants={names}: at least two with distinct names are needed")
        if self.reference not in names:
            raise ValueError(f"reference={self.reference!r}: allowed are {names}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds={self.seeds}: distinct integers from 0 up are needed")
        if not set(self.may_differ) <= set(Budget._fields):
            raise ValueError(f"may_differ={self.may_differ}: allowed are {Budget._fields}")

    def with_seeds(self, seeds: Sequence[str]) -> "Study":
        """The same study with seeds from the command line.

        Raises:
          UserError: they are not distinct whole numbers.
        """
        if not all(seed.strip().isdecimal() for seed in seeds):
            raise UserError(f"seeds={','.join(seeds)}: whole numbers are needed, as 0,1")
        with user_errors():
            return dataclasses.replace(self, seeds=tuple(map(int, seeds)))

    def settings(self, base: ml_collections.ConfigDict) -> dict[str, dict[int, Settings]]:
        """The options of every run, by variant and seed.

        Args:
          base: the common options of all variants.

        Raises:
          UserError: an option is not allowed, or the variants differ in budget or validation set.
        """
        result: dict[str, dict[int, Settings]] = {}
        for variant in self.variants:
            options = base.to_dict()
            for path, value in variant.changes.items():
                *groups, name = path.split(".")
                functools.reduce(operator.getitem, groups, options)[name] = value
            try:
                result[variant.name] = {
                    seed: settings_lib.from_config({**options, "seed": seed}) for seed in self.seeds
                }
            except UserError as error:
                raise UserError(f"variant {variant.name}: {error}") from error
        first = {name: of_seed[self.seeds[0]] for name, of_seed in result.items()}
        reference = first[self.reference]
        with user_errors():
            own = reference.load_family().validation_options
        for path in (*_SAME_VALIDATION, *(f"{reference.family_name}.{name}" for name in own)):
            _check_equal(path, first, "variants that are validated on the same instances")
        budgets = {name: Budget.of(settings) for name, settings in first.items()}
        for part in Budget._fields:
            if part not in self.may_differ:
                _check_equal(part, budgets, "equal budgets but for what may_differ names")
        return result


def _check_equal(path: str, variants: Mapping[str, Any], allowed: str) -> None:
    """Checks that the attribute at a dotted path is the same in all variants."""
    values = {name: operator.attrgetter(path)(of) for name, of in variants.items()}
    if len(set(values.values())) > 1:
        raise UserError(f"{path} differs between variants, {values}; allowed are {allowed}")


def load(config: str) -> Study:
    """The `STUDY` of a configuration file, given as for `--config`: FILE.py or FILE.py:BASE.

    Raises:
      UserError: the file has none.
    """
    path = config.replace(".py:", ".py\n").partition("\n")[0]
    with user_errors():
        found = runpy.run_path(path, run_name="study")
    study = found.get("STUDY")
    if not isinstance(study, Study):
        raise UserError(
            f"config={path!r}: holds no STUDY, as experiments/configs/studies/designers.py does"
        )
    return dataclasses.replace(study, registration=found.get("__doc__") or "")
