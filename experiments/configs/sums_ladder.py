"""Sums of two numbers of 3 to 12 digits: a ladder of which a tiny model reaches three rungs.

A configuration with its family in one file. Most rows of a uniform training set are never solved
here. The model is embedded:
`experiments/models/sums_ladder`, whose card says how it was made.
"""

import dataclasses

import ml_collections

from engineer.texts import plain_texts
from experiments.configs import sums
from experiments.families.template import Sums


def get_config() -> ml_collections.ConfigDict:
    """Six rounds of 100 steps."""
    config = sums.get_config()
    config.model.path = "sums_ladder"
    config.family = f"{__file__}:family"
    config.validation.num_instances = 1280
    config.validation.max_new_tokens = 16
    config.training.max_new_tokens = 16
    config.engineer.max_new_tokens = 256
    return config


class Ladder(Sums):
    """The sums of the template, of numbers up to 12 digits."""

    space = dataclasses.replace(Sums.space, rows=tuple(map(str, range(3, 13))))
    texts = plain_texts(space, "to add numbers", ("is_number", "right_value"))


family = Ladder()
