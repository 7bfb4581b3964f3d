"""Sums of numbers as a family of environments; see docs/extending.md.

Run it with --config.family=experiments/families/template.py:family.
"""

import jax
import numpy as np

from engineer.space import ConfigurationSpace, Parameter
from engineer.texts import plain_texts
from experiments import families

TERMS = ("2", "3", "4")
TRIES = 1000  # Draws of one problem before it is given up.


def carries(terms):
    """Whether a digit is carried when the terms are added up."""
    columns = zip(*(map(int, str(term)) for term in terms), strict=True)
    return any(sum(digits) > 9 for digits in columns)


class Sums(families.Family):
    """A row for each number of terms: its part of the set, the digits of a term, the carries."""

    space = ConfigurationSpace(
        "terms",
        TERMS,
        (
            Parameter("fraction", meaning="the part of the set that has so many terms."),
            Parameter("digits", ((1, 6),), decimals=0, meaning="the digits of every term."),
            Parameter("carry_ratio", meaning="the part of them in which a digit is carried."),
        ),
        "fraction",
    )
    texts = plain_texts(space, "to add numbers", ("is_number", "right_value"))

    def generate(self, key, config, count, exclude):
        """Distinct sums; where too few exist, as with one digit and no carry, fewer are made."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        seen = {tuple(problem["terms"]) for problem in exclude}
        problems = []
        for row, asked in self.counts(config, count).items():
            digits = int(config[row, "digits"])
            with_carry = round(config[row, "carry_ratio"] * asked)
            for i in range(asked):
                for _ in range(TRIES):
                    terms = tuple(rng.integers(10 ** (digits - 1), 10**digits, int(row)).tolist())
                    if terms not in seen and carries(terms) == (i < with_carry):
                        seen.add(terms)
                        numbers = {"digits": digits, "carry_ratio": int(carries(terms))}
                        problems.append({"group": row, "terms": list(terms), **numbers})
                        break
        order = rng.permutation(len(problems))
        return self.generated([problems[i] for i in order], config, count)

    def prompt(self, problem):
        """What the model reads, such as "12+34"."""
        return "+".join(map(str, problem["terms"]))

    def verify(self, problem, text):
        """The checks that a completion fails; the reward is 1 where it fails none."""
        if not text.strip().isdecimal():
            return {"failed": ["is_number"]}
        return {"failed": [] if text.strip() == str(sum(problem["terms"])) else ["right_value"]}

    def solutions(self, problems):
        """The right sums; only the warm start of a new model asks for them."""
        return [str(sum(problem["terms"])) for problem in problems]


family = Sums()
