"""The options of lakes: instances, validation and reward."""

import dataclasses
import math
from pathlib import Path

from learner import checks
from mapf_jax.answer_reward import RewardConfig
from mapf_jax.environment_config import MAX_AGENTS, MIN_AGENTS, MIN_SIZE, max_hole_ratio

MAX_SIZE = 10

#: Upper bound of every hole ratio; denser lakes have hardly any solvable instances. For small sizes
#: it is lower still, to leave cells for starts and goals.
HIGHEST_HOLE_RATIO = 0.6


@dataclasses.dataclass(frozen=True)
class LakesOptions:
    """Frozen lakes as training environments.

    Attributes:
      sizes: lake sizes, ascending.
      agents: numbers of agents in an instance, ascending, 2 to 5; with several, designs and
        evidence have a row for each lake size and number of agents.
      exclude: JSON lines file of instances to exclude from all sets, such as a benchmark's; "" for
        none.
      max_candidates: lakes drawn of one size before the generator gives up on it.
      list_holes: also list the holes' cells in the prompt.
      validation_hole_ratios: hole ratios of the validation set, each for an equal part of every
        size. With several, the evidence also counts the answers to lakes with more holes than these
        have on average.
      validation_wait_ratio: wait ratio of every size in the validation set.
      reward: parameters that the publication leaves open.
    """

    sizes: tuple[int, ...] = tuple(range(3, 11))
    agents: tuple[int, ...] = (2,)
    exclude: str = ""
    max_candidates: int = 1 << 17
    list_holes: bool = False
    validation_hole_ratios: tuple[float, ...] = (0.2,)
    validation_wait_ratio: float = 0.25
    reward: RewardConfig = dataclasses.field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        checks.integers(self, max_candidates=1)
        for name, values, least, most in (
            ("sizes", self.sizes, MIN_SIZE, MAX_SIZE),
            ("agents", self.agents, MIN_AGENTS, MAX_AGENTS),
        ):
            if not values or list(values) != [n for n in range(least, most + 1) if n in values]:
                raise ValueError(
                    f"{name}={getattr(self, name)}: allowed are {least} to {most}, ascending and "
                    "distinct"
                )
        if self.exclude and not Path(self.exclude).is_file():
            raise ValueError(f"exclude={self.exclude!r}: there is no such file")
        if max_hole_ratio(self.sizes[0], self.agents[-1]) < 0:
            raise ValueError(
                f"sizes={self.sizes}: a lake of size {self.sizes[0]} is too small for the starts "
                f"and goals of {self.agents[-1]} agents"
            )
        checks.fractions(self, "validation_wait_ratio")
        ratios = self.validation_hole_ratios
        if not ratios or not all(0 <= ratio <= 1 for ratio in ratios):
            raise ValueError(
                f"validation_hole_ratios={ratios}: allowed are one or more numbers in [0, 1]"
            )

    @property
    def mean_hole_ratio(self) -> float:
        """Of the validation set."""
        return math.fsum(self.validation_hole_ratios) / len(self.validation_hole_ratios)

    def row(self, size: int, agents: int) -> str:
        """The row name of instances of this size and number of agents."""
        return f"{size}_{agents}" if len(self.agents) > 1 else str(size)
