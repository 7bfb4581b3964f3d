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
# Options of the engineer that decide the rounds before the first design.
_OF_TRUNK = ("engineer.start", "engineer.kept_rounds")
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
        _check_changes(f"variant={self.name!r}", self.changes)


def _check_changes(of: str, changes: Mapping[str, Any]) -> None:
    """Raises a ValueError, which begins with `of`, for an unknown option and for the seed."""
    for path in changes:
        try:
            settings_lib.check_field(path)
        except ValueError as error:
            raise ValueError(f"{of}: {error}") from error
        if path == "seed":
            raise ValueError(f"{of}: seed: the seeds are those of the study")


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
class Branches:
    """A study in which all variants design from the same states: those of the reference's runs.

    After some of its rounds every variant designs one round and trains it, with the weights, the
    evidence and the sampling keys of the reference. Further rounds train on the configuration of
    round 0 again. The test set, which no designer reads, says what came of it.

    Attributes:
      rounds: indices of the reference's rounds after which the variants branch.
      horizons: rounds from the branch to an answer of the test set, from 1 up, the designed one
        included.
      primary: pairs of variants, the first minus the second after one round; Holm's correction is
        over these pairs.
      equivalent: a pair that is also tested for equivalence, or None.
      bound: the largest difference, a fraction of answers, that counts as none.
      longer: variants that go on after one round, the reference among them; all of them if empty.
    """

    rounds: tuple[int, ...]
    horizons: tuple[int, ...] = (1, 4)
    primary: tuple[tuple[str, str], ...] = ()
    equivalent: tuple[str, str] | None = None
    bound: float = 0.0075
    longer: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("rounds", 0), ("horizons", 1)):
            values = getattr(self, name)
            if not values or sorted(set(values)) != list(values) or values[0] < least:
                raise ValueError(f"{name}={values}: ascending integers from {least} up are needed")
        if self.horizons[0] != 1:
            raise ValueError(f"horizons={self.horizons}: the first one must be 1")
        if self.bound <= 0:
            raise ValueError(f"bound={self.bound}: must be above 0")

    def horizons_of(self, variant: str) -> tuple[int, ...]:
        """The horizons of a variant."""
        return self.horizons if not self.longer or variant in self.longer else (1,)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All pairs that are named."""
        return (*self.primary, *((self.equivalent,) if self.equivalent else ()))


@dataclasses.dataclass(frozen=True)
class Study:
    """Variants times seeds.

    Attributes:
      question: of the study, in a sentence or two.
      variants: at least two.
      reference: name of the variant that the others are compared with.
      seeds: of the runs; the same for every variant, so that runs of one seed are pairs.
      blocks: options that differ between seeds, such as {3: {"model.path": "sums"}}: blocks of
        seeds with a warm start each.
      may_differ: parts of the `Budget` in which variants may differ; all others must be equal.
      branches: if the variants branch from the reference's runs.
      registration: what was written down before the first run, see `experiments.study.provenance`;
        that of a study that was loaded is the docstring of its file.
    """

    question: str
    variants: tuple[Variant, ...]
    reference: str
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    blocks: Mapping[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    may_differ: tuple[str, ...] = ()
    branches: Branches | None = None
    registration: str = ""

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError(f"variants={names}: at least two with distinct names are needed")
        labels = [variant.label for variant in self.variants]
        if len(set(labels)) < len(labels):
            raise ValueError(f"variants: labels {labels}: distinct ones are needed")
        if self.reference not in names:
            raise ValueError(f"reference={self.reference!r}: allowed are {names}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds={self.seeds}: distinct integers from 0 up are needed")
        for seed, changes in self.blocks.items():
            _check_changes(f"blocks: seed {seed}", changes)
        if not set(self.may_differ) <= set(Budget._fields):
            raise ValueError(f"may_differ={self.may_differ}: allowed are {Budget._fields}")
        if self.branches is not None:
            self._check_branches(self.branches)

    def _check_branches(self, branches: Branches) -> None:
        """Raises a ValueError for unknown names, and variants that differ in more than designs."""
        names = [variant.name for variant in self.variants]
        if branches.longer and not {self.reference} <= {*branches.longer} <= {*names}:
            raise ValueError(
                f"branches: longer={branches.longer}: allowed are {names}, {self.reference!r} "
                "among them"
            )
        for pair in branches.pairs:
            if len(set(pair)) < 2 or not set(pair) <= set(names):
                raise ValueError(f"branches: pair {pair}: allowed are two of {names}")
        for variant in self.variants:
            for path in variant.changes:
                if not path.startswith("engineer.") or path in _OF_TRUNK:
                    raise ValueError(
                        f"variant={variant.name!r}: {path}: variants that branch share their runs "
                        f"up to then; allowed are options of engineer but {', '.join(_OF_TRUNK)}"
                    )

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
            try:
                result[variant.name] = {
                    seed: _changed(base, variant.changes, self.blocks.get(seed, {}), seed)
                    for seed in self.seeds
                }
            except UserError as error:
                raise UserError(f"variant {variant.name}: {error}") from error
        first = self.seeds[0]
        different = {
            name if seed == first else f"{name}, seed {seed}": settings
            for name, of_seed in result.items()
            for seed, settings in of_seed.items()
            if seed == first or seed in self.blocks
        }
        reference = result[self.reference][first]
        if self.branches is not None:
            _check_trunk(self.branches, reference)
        with user_errors():
            own = reference.load_family().validation_options
        for path in (*_SAME_VALIDATION, *(f"{reference.family_name}.{name}" for name in own)):
            _check_equal(path, different, "variants that are validated on the same instances")
        budgets = {name: Budget.of(settings) for name, settings in different.items()}
        for part in Budget._fields:
            if part not in self.may_differ:
                _check_equal(part, budgets, "equal budgets but for what may_differ names")
        return result


def _changed(
    base: ml_collections.ConfigDict,
    variant: Mapping[str, Any],
    block: Mapping[str, Any],
    seed: int,
) -> Settings:
    """The options of one run; those of its variant count before those of its block of seeds."""
    options = base.to_dict()
    for path, value in {**block, **variant}.items():
        *groups, name = path.split(".")
        functools.reduce(operator.getitem, groups, options)[name] = value
    return settings_lib.from_config({**options, "seed": seed})


def _check_trunk(branches: Branches, trunk: Settings) -> None:
    """Raises a UserError if branches of a run with these options cannot start or be tested."""
    last, kept = branches.rounds[-1], trunk.checkpoint.of_rounds
    if trunk.loop.rounds <= last:
        raise UserError(
            f"loop.rounds={trunk.loop.rounds}: branches start after rounds/{last}; allowed are "
            f"integers from {last + 1} up"
        )
    if kept != "state":
        raise UserError(f"checkpoint.of_rounds={kept!r}: branches need 'state'")
    if not trunk.validation.test_instances:
        raise UserError("validation.test_instances=0: branches are compared by a test set")


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
