"""A family of existing problems, such as a data set with answers."""

from collections.abc import Sequence

import jax
import numpy as np

from engineer.space import Configuration, ConfigurationSpace, Parameter, ordered_rows
from engineer.texts import plain_texts
from experiments.families.family import Family, Generated, Problem


class DataSet(Family):
    """The engineer chooses the fraction of each group; subclasses add `prompt` and `verify`.

    Args:
      problems: each with `group`, the name of its row; each also gets an `index`. Those with one
        prompt count as one, so that none is in a validation set and in training.
      label: what a group is called, such as "level".
      task: what the trained model learns, such as "to answer questions".
      checks: names of the checks of a completion.
    """

    def __init__(
        self, problems: Sequence[Problem], label: str, task: str, checks: Sequence[str]
    ) -> None:
        self.problems = [
            {**problem, "group": str(problem["group"]), "index": i}
            for i, problem in enumerate(problems)
        ]
        fraction = Parameter("fraction", meaning=f"the part of the set that is of this {label}.")
        rows = ordered_rows(problem["group"] for problem in self.problems)
        self.space = ConfigurationSpace(label, rows, (fraction,), fraction.name)
        self.texts = plain_texts(self.space, task, checks)

    def generate(
        self, key: jax.Array, config: Configuration, count: int, exclude: Sequence[Problem]
    ) -> Generated:
        """Draws without replacement; an exhausted group gives fewer."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        left = self.counts(config, count)
        taken = {self.prompt(problem) for problem in exclude}
        drawn = []
        for problem in map(self.problems.__getitem__, rng.permutation(len(self.problems))):
            if left.get(problem["group"], 0) and (prompt := self.prompt(problem)) not in taken:
                taken.add(prompt)
                left[problem["group"]] -= 1
                drawn.append(problem)
        return self.generated(drawn, config, count)
