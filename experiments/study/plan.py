"""What a study compares: variants that differ in a few options, each with the same seeds and budget."""

import dataclasses
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_collections

from experiments import settings as settings_lib
from experiments.errors import UserError, user_errors
from experiments.settings import Settings

# What the instances of the validation depend on; see `experiments.validation.validation_set`.
_SAME_VALIDATION = (
    "validation.num_instances",
    "validation.hole_ratio",
    "validation.wait_ratio",
    "validation.seed",
    "environment.sizes",
    "environment.num_agents",
    "environment.max_candidates",
)
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")


@dataclasses.dataclass(frozen=True)
class Variant:
    """One condition of a study.

    Attributes:
      name: of its folder.
      label: what people read.
      changes: options that differ from the base configuration, by path ("engineer.designer").
    """

    name: str
    label: str
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"variant={self.name!r}: allowed are names of small letters, digits, '_', '.' and '-'"
            )
        for path in self.changes:
            try:
                settings_lib.check_field(path)
            except ValueError as error:
                raise ValueError(f"variant={self.name!r}: {error}") from error
            if path == "seed":
                raise ValueError(f"variant={self.name!r}: seed: the seeds are those of the study")


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a run may use, all rounds together.

    Attributes:
      rounds: rounds of training.
      instances: training instances asked of the generator.
      steps: training steps.
      updates: optimizer updates, if every step has a signal.
      answers: answers sampled in training, without redraws.
      validated: answers to the validation set.
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
        """Of one run."""
        training, rounds = settings.training, settings.loop.rounds
        instances = settings.environment.num_instances
        steps = rounds * training.num_steps(instances)
        return cls(
            rounds=rounds,
            instances=rounds * instances,
            steps=steps,
            updates=steps * training.updates_per_step,
            answers=steps * training.prompts_per_step * training.group_size,
            validated=(rounds + 1) * settings.validation.num_instances,
            engineer_steps=(rounds - 1) * settings.engineer.training.steps,
        )

    def to_dict(self) -> dict[str, int]:
        """A mapping ready for JSON."""
        return dataclasses.asdict(self)


BUDGET = tuple(field.name for field in dataclasses.fields(Budget))


@dataclasses.dataclass(frozen=True)
class Study:
    """Variants times seeds.

    Attributes:
      question: what is asked, in a sentence or two.
      variants: at least two.
      reference: name of the variant that the others are compared with.
      seeds: of the runs; the same for every variant, so that runs of one seed are pairs.
      may_differ: parts of the `Budget` in which variants are allowed to differ, because that is
      what
        is studied. All others must be equal.
    """

    question: str
    variants: tuple[Variant, ...]
    reference: str
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    may_differ: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError(f"variants={names}: at least two with distinct names are needed")
        if self.reference not in names:
            raise ValueError(f"reference={self.reference!r}: allowed are {names}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds={self.seeds}: distinct integers from 0 up are needed")
        unknown = set(self.may_differ) - set(BUDGET)
        if unknown:
            raise ValueError(f"may_differ={self.may_differ}: allowed are {BUDGET}")

    def settings(self, base: ml_collections.ConfigDict) -> dict[str, dict[int, Settings]]:
        """The options of every run, by variant and seed.

        Args:
          base: the options that all variants have in common.

        Raises:
          UserError: an option is not allowed, or the variants' budgets differ.
        """
        result: dict[str, dict[int, Settings]] = {}
        for variant in self.variants:
            options = base.to_dict()
            for path, value in variant.changes.items():
                *groups, name = path.split(".")
                group = options
                for part in groups:
                    group = group[part]
                group[name] = value
            try:
                result[variant.name] = {
                    seed: settings_lib.from_config({**options, "seed": seed}) for seed in self.seeds
                }
            except UserError as error:
                raise UserError(f"variant {variant.name}: {error}") from error
        with user_errors():
            self._check_validation(result)
            self._check_budgets(result)
        return result

    def _check_validation(self, settings: Mapping[str, Mapping[int, Settings]]) -> None:
        """All variants answer the same instances, or their answers could not be paired."""
        for path in _SAME_VALIDATION:
            values = {name: _option(of[self.seeds[0]], path) for name, of in settings.items()}
            if len(set(values.values())) > 1:
                raise ValueError(
                    f"{path} differs between variants, {values}; allowed are variants that are validated "
                    "on the same instances"
                )

    def _check_budgets(self, settings: Mapping[str, Mapping[int, Settings]]) -> None:
        budgets = {
            name: Budget.of(of_seed[self.seeds[0]]).to_dict() for name, of_seed in settings.items()
        }
        for part in BUDGET:
            values = {name: budget[part] for name, budget in budgets.items()}
            if part not in self.may_differ and len(set(values.values())) > 1:
                raise ValueError(
                    f"budget: {part} differs between variants, {values}; allowed are equal budgets, "
                    "except in what the study names in may_differ"
                )


def _option(settings: Settings, path: str) -> Any:
    group, name = path.split(".")
    return getattr(getattr(settings, group), name)


def load(path: str) -> Study:
    """The `STUDY` of a configuration file.

    Raises:
      UserError: the file has none.
    """
    with user_errors():
        study = runpy.run_path(path, run_name="study").get("STUDY")
    if not isinstance(study, Study):
        raise UserError(
            f"config={path!r}: holds no STUDY; files with one are in experiments/configs/studies/, "
            f"such as {Path('experiments/configs/studies/designers_tiny.py')}"
        )
    return study
