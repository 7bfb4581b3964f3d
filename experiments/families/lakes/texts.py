"""The texts on lakes for the engineer, from `texts.yaml`, and the space of its configurations.

The eight checks and the three ratios are those of "From Trainee to Trainer" (arXiv 2606.17682).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from engineer.space import Bounds, ConfigurationSpace, Parameter
from engineer.texts import FamilyTexts
from mapf_jax import CHECKS

MAX_RANDOM_HOLE_RATIO = 0.5
"""Upper bound of a random hole ratio. In denser lakes two random cells are seldom connected (on a
10 x 10 lake with half of the cells holes, about one pair of agents in seven can reach its goals),
so a generator would hardly fill its set. The publication's benchmark stops at 0.5 too."""

_WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

FAILURES: Mapping[str, str] = _WORDS.pop("failures")
"""Each failed check in words."""
REWARD: str = _WORDS.pop("reward")
"""The reward in words; its fields are those of `RewardConfig`."""

TEXTS = FamilyTexts(label="size", checks=CHECKS, alone=("parsable", "agent_count"), **_WORDS)
"""The family of frozen lakes."""

TEXTS_BY_AGENTS = dataclasses.replace(
    TEXTS,
    instruction=TEXTS.instruction.replace(
        "for each lake size N. ",
        "for each lake size N and number of agents A, in a row named N_A; what is said here of a "
        "size holds of a row. ",
    ),
    output_format=TEXTS.output_format.replace(
        "these sizes in ascending order", "these rows"
    ).replace("N: {", "N_A: {"),
)
"""The same for rows that also differ in their number of agents."""


def lake_space(
    sizes: Iterable[int | str], hole_bounds: Mapping[Any, Bounds] | None = None
) -> ConfigurationSpace:
    """Lake sizes with three ratios each; the data ratios are fractions of the training set.

    Args:
      sizes: distinct lake sizes, ascending, or distinct other names of rows.
      hole_bounds: (low, high) by size or name; [0, 1] by default.

    Raises:
      ValueError: the sizes are not ascending, or bounds are invalid.
    """
    sizes = tuple(sizes)
    holes = tuple((hole_bounds or {}).get(size, (0.0, 1.0)) for size in sizes)
    rows = tuple(str(size) for size in sizes)
    return ConfigurationSpace(
        label=TEXTS.label,
        rows=rows,
        parameters=(
            Parameter("data_ratio"),
            Parameter("hole_ratio", holes, random_high=MAX_RANDOM_HOLE_RATIO),
            Parameter("wait_ratio"),
        ),
        fraction_parameter="data_ratio",
        row_keys=("N", "map_size", "lake_size"),
        row_suffix="(?: ?x ?[0-9]{1,3})?",  # As in 3x3.
    )
