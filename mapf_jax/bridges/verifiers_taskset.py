"""MAPF-FrozenLake as a taskset of `verifiers` from 0.4 on.

`verifiers` looks a taskset up as a top-level module, so this folder has to be on the path:

    PYTHONPATH=mapf_jax/bridges vf-validate verifiers_taskset -n 3 --runtime.type subprocess
"""

import json
from collections.abc import Iterator

import jax

from mapf_jax import formats
from mapf_jax.answer_reward import RewardConfig
from mapf_jax.bridges.dataset import dataset_rows
from mapf_jax.bridges.rewards import score
from mapf_jax.environment_config import EnvironmentConfig
from mapf_jax.generator import generate

try:
    import verifiers.v1 as vf
except ModuleNotFoundError as error:
    text = "a taskset needs verifiers; in a clone of the project: pip install -e '.[verifiers]'"
    raise ImportError(text) from error

__all__ = ["MapfTaskset"]


class MapfTaskConfig(vf.TaskConfig):
    """The reward, by the options of `rewards.compute_scores`; its weights are constant."""

    short_fraction: float = 1.0
    short_length: int = RewardConfig.short_length
    long_length: int = RewardConfig.long_length


class MapfData(vf.TaskData):
    """One instance: its record as JSON, an optimal answer, the side of its lake."""

    ground_truth: str
    answer: str
    size: int


class MapfTask(vf.Task[MapfData, vf.State, MapfTaskConfig]):
    """Scores the last reply. Where a server counts no tokens, length costs nothing."""

    @vf.reward
    async def mapf_reward(self, trace: vf.Trace) -> float:
        """w_acc R_acc + w_len R_len."""
        return self._scores(trace.last_reply, trace.num_output_tokens)["reward"]

    @vf.metric
    async def components(self, trace: vf.Trace) -> dict[str, float]:
        """The parts of the reward."""
        return self._scores(trace.last_reply, trace.num_output_tokens)

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Whether the stored answer is optimal."""
        return bool(self._scores(self.data.answer, 0)["optimal"])

    def _scores(self, text: str, num_tokens: int) -> dict[str, float]:
        config = RewardConfig(self.config.short_length, self.config.long_length)
        record = json.loads(self.data.ground_truth)
        scores = score([record], [text], [num_tokens], self.config.short_fraction, config)
        return {name: float(column[0]) for name, column in scores.items()}


class MapfConfig(vf.TasksetConfig):
    """Which instances are made.

    Attributes:
      num_instances: how many.
      sizes: lake sizes, equally often.
      hole_ratio: fraction of cells that are holes.
      wait_ratio: fraction of the instances that need a wait.
      num_agents: 2 to 5.
      seed: equal seeds give equal instances.
      list_holes: also list the cells of the holes in the prompts.
      task: the reward.
    """

    num_instances: int = 1000
    sizes: list[int] = list(range(3, 11))  # noqa: RUF012 - Pydantic copies defaults.
    hole_ratio: float = 0.2
    wait_ratio: float = 0.5
    num_agents: int = 2
    seed: int = 0
    list_holes: bool = False
    task: MapfTaskConfig = MapfTaskConfig()


class MapfTaskset(vf.Taskset[MapfTask, MapfConfig]):
    """New instances with their optima, one task each."""

    def load(self) -> Iterator[MapfTask]:
        """The tasks."""
        made = self.config
        config = EnvironmentConfig.uniform(made.sizes, made.hole_ratio, made.wait_ratio)
        key = jax.random.key(made.seed)
        instances, _ = generate(key, config, made.num_instances, made.num_agents)
        for row in dataset_rows(formats.to_records(instances), list_holes=made.list_holes):
            data = MapfData(
                id=row["id"],
                size=row["size"],
                prompt=row["prompt"][0]["content"],
                ground_truth=row["reward_model"]["ground_truth"],
                answer=row["answer"],
            )
            yield MapfTask(data, made.task)
