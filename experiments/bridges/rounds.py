"""The rounds of a training inside another library: the problems of each, and its design.

Such a trainer makes its data set once. So a data set has numbers of slots, and the problem of a
slot is looked up when it is read.
"""

import logging
from collections.abc import Sequence

import jax

from engineer import proposal
from engineer.designers import Design, Designer
from engineer.evidence import Evidence, FailureBreakdown
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from experiments.families.family import Family, NoProblemError, Problem


def check_designer(designer: object) -> None:
    """Checks that a designer can be called, before the training of a round.

    Raises:
      ValueError: it cannot, as the name of one.
    """
    if not callable(designer):
        raise ValueError(
            f"designer={designer!r}: allowed are functions, such as curricula.BY_RULE['mastery']"
        )


class Rounds:
    """The problems of the current round, and the rounds before it.

    Args:
      family: of this package (`FamilySettings("words:sums").load_family()`) or of one's own.
      rounds: at least 1; a design follows each but the last.
      num_instances: problems in a round's training set, at least 1.
      num_validation: problems that no training set has, at least 1.
      seed: of problems and designs.
      epochs_per_round: passes over the training set in each round; may be a fraction.

    Attributes:
      config: the configuration of the current round.
      history: a record of each finished round.
      designs: what was written after each of them.

    Raises:
      ValueError: there is no round or no problem.
    """

    def __init__(
        self,
        family: Family,
        *,
        rounds: int,
        num_instances: int,
        num_validation: int,
        seed: int,
        epochs_per_round: float = 1,
    ) -> None:
        counts = {"num_instances": num_instances, "num_validation": num_validation}
        for name, value in {"rounds": rounds, **counts}.items():
            if value < 1:
                raise ValueError(f"{name}={value}: allowed is 1 or more")
        self._family, self._rounds, self._count, self._seed = family, rounds, num_instances, seed
        self._epochs = epochs_per_round
        key = jax.random.fold_in(jax.random.key(seed), 0)
        self._validation = family.validation_set(key, num_validation).problems
        self._initial: FailureBreakdown | None = None
        self.history: list[RoundRecord] = []
        self.designs: list[Design] = []
        self._begin_round(family.space.uniform())

    def _index(self, slot: int) -> int:
        """The problem of a slot; problems repeat where a configuration has fewer than slots."""
        return slot % len(self._problems)

    def _messages(self, slot: int) -> list[dict[str, str]]:
        return list(map(dict, self._task.messages(self._index(slot))))

    def _finish_round(self, found: FailureBreakdown, designer: Designer) -> None:
        """Records a round with its evidence, and begins the one that the designer writes, if any.

        As in a run, the configuration stays where the designed one has no problems.
        """
        number = len(self.history)
        past = RoundRecord(number, self.config, Evidence(found), cold_start=not number)
        self.history.append(past)
        if number + 1 == self._rounds:
            return
        record = RunRecord(
            tuple(self.history), number + 1, self._rounds, self._epochs, initial=self._initial
        )
        design = designer(record, self._family.space, self._seed)
        self.designs.append(design)
        text = proposal.render_config(design.config, self._family.space)
        # Trainers print what happens too; few of their users see lines that are logged as INFO.
        why = design.nothing or design.reason
        print(f"designed for round {number + 2} of {self._rounds}:\n{text}{why}", flush=True)
        try:
            self._begin_round(design.config)
        except NoProblemError as error:
            logging.warning("round %d keeps its configuration: %s", number + 2, error)
            self._begin_round(self.config)

    def _begin_round(self, config: Configuration) -> None:
        key = jax.random.fold_in(jax.random.key(self._seed), 1 + len(self.history))
        made = self._family.generate(key, config, self._count, self._validation)
        self.config = config
        self._pose(made.problems)

    def _pose(self, problems: Sequence[Problem]) -> None:
        self._problems = problems
        self._task = self._family.task(problems)
