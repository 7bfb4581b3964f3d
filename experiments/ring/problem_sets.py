"""The problem sets of a run, generated once and stored in its folder."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from engineer.evidence import Shortfall
from engineer.proposal import render_config
from engineer.space import Configuration
from experiments.families import Family, Generated, NoProblemError, Problem
from experiments.ring.validation import test_set, validation_set
from experiments.run.status import Reporter, numbers, round_title
from experiments.run.store import TEST, RunStore, set_digest
from experiments.settings import Settings
from experiments.text.errors import UserError

# Folded into the run's key, so that no two uses share one.
GENERATION, TRAINING, DESIGN, COLD_START, HINDSIGHT = 0, 1, 2, 3, 5

FEWEST = 0.25
"""Fraction of the requested problems that a training set needs. From there on a round keeps its
steps, and problems repeat at most four times as often as asked. No option: for a family with fewer
problems there is `environment.num_instances`."""


def round_key(settings: Settings, purpose: int, index: int) -> jax.Array:
    """The key for one purpose in one round."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.seed), purpose), index)


def round_seed(settings: Settings, purpose: int, index: int) -> int:
    """An integer seed for one purpose in one round."""
    entropy = [settings.seed, purpose, index]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1


class ProblemSets:
    """Generates each set unless it is stored already; all processes call it together.

    Args:
      reporter: reports which sets are made, and shortfalls.
      first: the configuration of round 0.

    Raises:
      UserError: some row of the validation set, or of the test set, gets no problem.
    """

    def __init__(
        self,
        settings: Settings,
        family: Family,
        store: RunStore,
        reporter: Reporter,
        first: Configuration,
    ) -> None:
        self._settings, self._family, self._store = settings, family, store
        self._reporter, self._first = reporter, first
        self.validation = self._fixed("validation", lambda: validation_set(settings, family))
        self.test: list[Problem] = []
        if settings.validation.test_instances:
            self.test = self._fixed(TEST, lambda: test_set(settings, family, self.validation))

    def training(self, index: int) -> list[Problem]:
        """The training set of a round.

        A design that gives too few problems is refused, and the previous configuration is kept.

        Raises:
          UserError: the configuration of round 0 gives too few problems, or the one kept none.
        """
        path = self._store.round(index) / "instances.jsonl"
        return self._store.kept(path, lambda: self._make_training(index))

    def _fixed(self, name: str, generate: Callable[[], Generated]) -> list[Problem]:
        """A set that is the same in all rounds."""
        folder = self._store.root / name

        def make() -> list[dict[str, Any]]:
            self._reporter.line(f"making the {name} set")
            generated = generate()
            self._reporter.notes(generated.notes)
            problems = _named(generated.problems, name)
            about = {"sha256": set_digest(problems), **generated.report()}
            self._store.write(folder / "generated.json", about)
            return problems

        return self._store.kept(folder / "instances.jsonl", make)

    def _make_training(self, index: int) -> list[dict[str, Any]]:
        settings, family, folder = self._settings, self._family, self._store.round(index)
        key, count = round_key(settings, GENERATION, index), settings.environment.num_instances
        exclude = [*self.validation, *self.test]

        def generate(config: Configuration) -> tuple[Generated | None, str]:
            try:
                return family.generate(key, config, count, exclude), ""
            except NoProblemError as error:
                return None, f": {error}"

        self._reporter.line(f"{round_title(index)}: making the training set")
        config, note = self._asked(index), ""
        if not index:
            self._reporter.notes([f"configuration: {numbers(config, family.space)}"])
        generated, why = generate(config)
        short, shortfalls = shortfall(generated, count, index > 0), []
        if short.made < short.needed:
            if not short.refused:
                raise UserError(
                    f"environment.num_instances={count}: the first configuration gives "
                    f"{short.counts(family.texts.label)}{why}; allowed are a smaller number and "
                    "another engineer.start"
                )
            note = f"{short.text(family.texts.label)}{why}"
            self._reporter.line(f"round {index + 1}: {note}")
            shortfalls.append(short)
            config = self._store.read(
                self._store.round(index - 1) / "environment.yaml", Configuration.from_dict
            )
            generated, why = generate(config)
        if generated is None:
            raise UserError(f"environment: round {index + 1}: the configuration kept{why}")
        self._reporter.notes(generated.notes)
        num_steps = settings.training.num_steps
        if num_steps(len(generated.problems)) < num_steps(count):
            shortfalls.append(shortfall(generated, count, False))
            text = shortfalls[-1].text(family.texts.label)
            self._reporter.line(f"round {index + 1}: {text}")
        problems = _named(generated.problems, f"round-{index}")
        about = {"note": note, "shortfalls": [short.to_dict() for short in shortfalls]}
        about["sha256"] = set_digest(problems)
        self._store.write(folder / "generated.json", {**about, **generated.report()})
        self._store.write(folder / "environment.yaml", render_config(config, family.space) + "\n")
        return problems

    def _asked(self, index: int) -> Configuration:
        """The first configuration, or what the engineer designed for a round."""
        if not index:
            return self._first
        path = self._store.round(index - 1) / "design" / "design.json"
        return self._store.read(path, lambda found: Configuration.from_dict(found["config"]))


def shortfall(generated: Generated | None, count: int, refused: bool) -> Shortfall:
    """What is missing of `count` problems; `generated` is None if none could be made."""
    made = 0 if generated is None else len(generated.problems)
    rows = {} if generated is None else generated.rows
    short = {name: (row.made, row.asked) for name, row in rows.items() if row.made < row.asked}
    return Shortfall(count, made, math.ceil(FEWEST * count), refused, short)


def _named(problems: Sequence[Problem], prefix: str) -> list[dict[str, Any]]:
    return [{**problem, "id": f"{prefix}-{i}"} for i, problem in enumerate(problems)]
