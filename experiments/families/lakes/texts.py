"""What an engineer is told of lakes, and what it may choose.

The eight checks and the three ratios are those of "From Trainee to Trainer" (arXiv 2606.17682).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from engineer.space import Bounds, ConfigurationSpace, Parameter
from engineer.texts import FamilyTexts
from mapf_jax import CHECKS

LABEL = "size"

MAX_RANDOM_HOLE_RATIO = 0.5
"""Cap on a random hole ratio. In denser lakes two random cells are seldom connected (on a 10 x 10
lake half of holes about one pair of agents in seven can reach its goals), so a generator would
hardly fill its set; the benchmark of the publication stops at 0.5 as well."""

INSTRUCTION = (
    "You design the training data for a language model that learns multi-agent path finding. "
    "An instance is a square lake of N x N cells, some of which are holes. Several agents start "
    "on different cells and have different goals. In each step all agents act at once: each "
    "moves one cell up, down, left or right, or waits. The model is shown an instance and answers "
    "once with the whole paths of all agents. An answer is valid if it passes every check, and "
    "optimal if it is valid and has the least possible total cost. A generator makes the next "
    "training set from three numbers for each lake size N. data_ratio is the share of the "
    "training set that has this size; the data_ratio of all sizes sum to 1. hole_ratio is the "
    "share of the cells of such a lake that are holes, from 0 to 1. wait_ratio is the share of "
    "the instances of this size in which some agent has to wait for another, from 0 to 1. You "
    "may change these numbers and nothing else: the rules, the reward and the validation set "
    "stay as they are. Choose the numbers with which one more round of training improves the "
    "valid and optimal rates on the validation set most, over all sizes. In the results, valid "
    "and optimal are rates from 0 to 1, and the other numbers count the answers that failed a "
    "check: parse, the answer could not be read; illegal, an agent moved further than one cell in "
    "a step; conflict, two agents were in one cell or exchanged cells; hole, an agent entered a "
    "hole; bounds, an agent left the lake; goal, an agent did not end on its goal. One answer "
    "can fail several checks."
)
"""What the task is, what may be changed, and how the results are to be read."""

GUIDELINE = (
    "Guideline: the model is trained by reinforcement learning on groups of its own answers. A "
    "group teaches only if some of its answers succeed and others fail, so instances that are "
    "always or never solved teach nothing. Give the largest data_ratio to sizes with a valid "
    "rate between about 0.3 and 0.7, and keep a small data_ratio on sizes that already work so "
    "that they are not forgotten. More holes leave fewer and longer routes and narrower "
    "passages; more waits demand closer coordination, and conflicts are learned from them. Where "
    "the valid rate is close to 0, lower hole_ratio and wait_ratio until some answers succeed; "
    "where it is close to 1, raise them. Small lakes with many holes have few solvable "
    "instances. Keep what works and change it in small steps, 0.05 to 0.10 at a time."
)
"""Module G: how the three ratios bear on learnability; the same in every round."""

OUTPUT_FORMAT = (
    "You may reason first. End with exactly one configuration in YAML, one line for each of "
    "these sizes in ascending order, with numbers from 0 to 1, in this form: "
    "N: {data_ratio: number, hole_ratio: number, wait_ratio: number}"
)
"""How the configuration is to be written; `proposal.parse` reads it."""

FAILURE_WORDS = {
    "parse": ("parsable", "agent_count"),
    "illegal": ("legal_moves",),
    "conflict": ("conflict_free",),
    "hole": ("no_holes",),
    "bounds": ("in_bounds",),
    "goal": ("goals_reached",),
}
"""The failures shown, in this order, each with its checks. An answer that speaks of another number
of agents could not be read as an answer to its question, so it counts with those that could not be
read at all (no answer counts under both)."""

FAILURES = {
    "parsable": "not readable",
    "legal_moves": "illegal move",
    "conflict_free": "conflict",
    "goals_reached": "goal missed",
    "starts_correct": "wrong start",
    "agent_count": "wrong number of agents",
    "no_holes": "hole entered",
    "in_bounds": "out of bounds",
}
"""What to call failing each check."""

EXPLANATION = (
    "More data for the sizes that are solved about half of the time, "
    "harder lakes where most answers are valid, easier lakes where few are."
)
"""What the rule of `experiments.families.demonstrations` does, in words."""


TEXTS = FamilyTexts(
    label=LABEL,
    checks=CHECKS,
    alone=("parsable", "agent_count"),
    instruction=INSTRUCTION,
    guideline=GUIDELINE,
    output_format=OUTPUT_FORMAT,
    failure_words=FAILURE_WORDS,
    explanation=EXPLANATION,
)
"""The family of frozen lakes."""


TEXTS_BY_AGENTS = dataclasses.replace(
    TEXTS,
    instruction=INSTRUCTION.replace(
        "for each lake size N. ",
        "for each lake size N and number of agents A, in a row named N_A; what is said here of a "
        "size holds of a row. ",
    ),
    output_format=OUTPUT_FORMAT.replace("these sizes in ascending order", "these rows").replace(
        "N: {", "N_A: {"
    ),
)
"""The same where rows differ in their numbers of agents too."""


def lake_space(
    sizes: Iterable[int | str],
    hole_bounds: Mapping[Any, Bounds] | None = None,
    wait_bounds: Mapping[Any, Bounds] | None = None,
) -> ConfigurationSpace:
    """Lake sizes with three ratios each; the data ratios are fractions of the training set.

    Args:
      sizes: distinct lake sizes, ascending, or distinct other names of rows.
      hole_bounds: (low, high) by size or name; [0, 1] where none is given.
      wait_bounds: likewise.

    Raises:
      ValueError: the sizes are not ascending or bounds are none.
    """
    sizes = tuple(sizes)
    holes, waits = (
        tuple((bounds or {}).get(size, (0.0, 1.0)) for size in sizes)
        for bounds in (hole_bounds, wait_bounds)
    )
    rows = tuple(str(size) for size in sizes)
    return ConfigurationSpace(
        label=LABEL,
        rows=rows,
        parameters=(
            Parameter("data_ratio"),
            Parameter("hole_ratio", holes, random_high=MAX_RANDOM_HOLE_RATIO),
            Parameter("wait_ratio", waits),
        ),
        fraction_parameter="data_ratio",
        row_keys=("N", "map_size", "lake_size"),
        row_suffix="(?: ?x ?[0-9]{1,3})?",  # As in 3x3.
    )
