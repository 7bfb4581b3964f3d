"""Sums of numbers as a family of environments; see docs/extending.md.

python -m experiments.main --config.family=docs/family_example/sums.py:family --workdir=runs/sums
"""

import jax
import numpy as np

from engineer.space import ConfigurationSpace, Parameter, column, round_fractions
from engineer.texts import plain_texts
from experiments import families

TERMS = ("2", "3", "4")
TRIES = 1000  # Draws of one problem before it is given up.


def carries(terms):
    """Whether a digit is carried when the terms are added up."""
    columns = zip(*(map(int, str(term)) for term in terms), strict=True)
    return any(sum(digits) > 9 for digits in columns)


def verify(problem, text):
    """A record of one completion."""
    number = text.strip().isdecimal()
    right = number and int(text) == sum(problem["terms"])
    failed = [] if right else ["right_value"] if number else ["is_number"]
    return {"group": str(len(problem["terms"])), "valid": right, "failed": failed}


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
        (column(TERMS, "fraction"),),
    )
    texts = plain_texts(space, "to add numbers", ("is_number", "right_value"))

    def generate(self, key, config, count, exclude):
        """Distinct sums; where too few exist, as with one digit and no carry, fewer are made."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        seen = {tuple(problem["terms"]) for problem in exclude}
        problems, rows, notes = [], {}, []
        parts = round_fractions(config.column("fraction"), count)
        for row, part in zip(TERMS, parts, strict=True):
            asked, digits = round(part * count), int(config[row, "digits"])
            with_carry = round(config[row, "carry_ratio"] * asked)
            made = []
            for i in range(asked):
                for _ in range(TRIES):
                    terms = tuple(rng.integers(10 ** (digits - 1), 10**digits, int(row)).tolist())
                    if terms not in seen and carries(terms) == (i < with_carry):
                        seen.add(terms)
                        made.append({"terms": list(terms)})
                        break
            carried = sum(carries(problem["terms"]) for problem in made)
            rows[row] = (asked, made, digits, carried)
            if len(made) < asked:
                notes.append(f"{row} terms: {len(made)} of {asked} sums")
            problems += made
        if not problems:
            raise families.NoProblemError(f"no sum of {config.to_dict()} was found")
        report = {
            row: families.GeneratedRow(
                asked,
                len(made),
                {
                    "fraction": len(made) / len(problems),
                    "digits": digits,
                    "carry_ratio": carried / max(len(made), 1),
                },
            )
            for row, (asked, made, digits, carried) in rows.items()
            if asked
        }
        order = rng.permutation(len(problems))
        return families.Generated([problems[i] for i in order], report, notes)

    def task(self, problems):
        """The reward is 1 for the right sum."""
        return families.ProblemTask(problems, lambda p: "+".join(map(str, p["terms"])), verify)


family = Sums()
