"""The problem sets of a run, generated once and stored in its folder."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from engineer.proposal import render_config
from engineer.space import Configuration
from experiments.errors import UserError
from experiments.families import Family, NoProblemError, Problem
from experiments.progress import Reporter
from experiments.settings import Settings
from experiments.store import RunStore
from experiments.validation import validation_set

# Folded into the run's key, so that no two uses share one.
GENERATION, TRAINING, DESIGN, COLD_START, ENGINEER, HINDSIGHT = range(6)


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
      UserError: some row of the validation set gets no problem.
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
        self.validation: list[Problem] = store.kept(
            store.root / "validation" / "instances.jsonl", self._make_validation
        )

    def training(self, index: int) -> list[Problem]:
        """The training set of a round.

        Raises:
          UserError: the configuration of round 0 gets no problem.
        """
        path = self._store.round(index) / "instances.jsonl"
        return self._store.kept(path, lambda: self._make_training(index))

    def probe(self, index: int, size: int, key: jax.Array) -> list[Problem]:
        """The probe set of a round, disjoint from validation and all training so far."""
        path = self._store.round(index) / "probe_set.jsonl"

        def made() -> list[dict[str, Any]]:
            exclude = [*self.validation, *self._kept("instances.jsonl", index + 1)]
            generated = self._family.generate(key, self._family.validation, size, exclude)
            return _named(generated.problems, f"probe-{index}")

        return self._store.kept(path, made)

    def _make_validation(self) -> list[dict[str, Any]]:
        self._reporter.line("making the validation set")
        generated = validation_set(self._settings, self._family)
        self._reporter.notes(generated.notes)
        self._store.write(self._store.root / "validation" / "generated.json", generated.report())
        return _named(generated.problems, "validation")

    def _make_training(self, index: int) -> list[dict[str, Any]]:
        folder, config, note = self._store.round(index), self._first, ""
        if index:  # What the engineer designed for this round.
            path = self._store.round(index - 1) / "design" / "design.json"
            config = self._store.read(path, lambda found: Configuration.from_dict(found["config"]))
        key = round_key(self._settings, GENERATION, index)
        count = self._settings.environment.num_instances
        exclude = [*self.validation, *self._kept("probe_set.jsonl", index)]
        self._reporter.line(f"round {index + 1}: making the training set")
        try:
            generated = self._family.generate(key, config, count, exclude)
        except NoProblemError as error:
            if index == 0:
                raise UserError(f"environment: {error}") from error
            # A design without any problem must not stop the run.
            path = self._store.round(index - 1) / "environment.yaml"
            config = self._store.read(path, Configuration.from_dict)
            note = f"previous configuration kept: {error}"
            self._reporter.line(f"round {index + 1}: {note}")
            generated = self._family.generate(key, config, count, exclude)
        self._reporter.notes(generated.notes)
        self._store.write(folder / "generated.json", {"note": note, **generated.report()})
        text = render_config(config, self._family.space)
        self._store.write(folder / "environment.yaml", text + "\n")
        return _named(generated.problems, f"round-{index}")

    def _kept(self, name: str, rounds: int) -> list[Problem]:
        """The problems in the files of that name of the first rounds, if any."""
        paths = [self._store.round(index) / name for index in range(rounds)]
        return [p for path in paths if self._store.exists(path) for p in self._store.read(path)]


def _named(problems: Sequence[Problem], prefix: str) -> list[dict[str, Any]]:
    return [{**problem, "id": f"{prefix}-{i}"} for i, problem in enumerate(problems)]
