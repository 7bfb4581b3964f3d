"""Sums of two numbers as a family of environments; docs/extending.md goes through its parts."""

import jax
import numpy as np

from engineer.space import ConfigurationSpace, Parameter
from engineer.texts import plain_texts
from experiments import families

TRIES = 1000  # Draws without a new problem before a row is given up.


class Sums(families.Family):
    """A row for each number of digits; the engineer chooses its fraction of the set."""

    space = ConfigurationSpace(
        "length",
        tuple("345678"),
        (Parameter("fraction", meaning="the part of the set whose numbers have so many digits."),),
        "fraction",
    )
    texts = plain_texts(space, "to add numbers", ("is_number", "right_value"))
    reward = "the part of the digits that stand before the first error"

    def generate(self, key, config, count, exclude):
        """Makes distinct sums, fewer than `count` if too few are left."""
        return self.generated(self.drawn(key, self.counts(config, count), exclude), config, count)

    def drawn(self, key, counts, exclude):
        """Draws `counts` new sums of each length, in random order."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        seen = {tuple(problem["terms"]) for problem in exclude}
        problems = []
        for length, asked in counts.items():
            made = tries = 0
            low, high = 10 ** (int(length) - 1), 10 ** int(length)
            while made < asked and tries < TRIES:
                terms = rng.integers(low, high, 2).tolist()
                tries += 1
                if tuple(terms) not in seen:
                    seen.add(tuple(terms))
                    problems.append({"group": length, "terms": terms})
                    made, tries = made + 1, 0
        return [problems[i] for i in rng.permutation(len(problems))]

    def prompt(self, problem):
        """The digits by column, ones first: "36 25" for 23 and 56."""
        return " ".join(map("".join, zip(*(str(n)[::-1] for n in problem["terms"]), strict=True)))

    def verify(self, problem, text):
        """Returns the failed check, if any; the reward is the fraction before the first error."""
        right, text = str(sum(problem["terms"]))[::-1], text.strip()
        failed = "right_value" if text.isdecimal() else "is_number"
        agree = [*map(str.__eq__, text, right), False].index(False)
        reward = agree / max(len(text), len(right))
        return {"failed": [failed] if text != right else [], "reward": reward}

    def solutions(self, problems):
        """The sums, ones first; only the warm start of a new model needs them."""
        return [str(sum(problem["terms"]))[::-1] for problem in problems]

    def lessons(self, key, count, exclude):
        """Sums for the warm start, from length 2: a third as many of each as of the one before."""
        lengths = ("2", *self.space.rows)
        counts = {length: round(count * 0.65 * 0.35**i) for i, length in enumerate(lengths)}
        return self.drawn(jax.random.fold_in(key, 0), counts, exclude)


family = Sums()
