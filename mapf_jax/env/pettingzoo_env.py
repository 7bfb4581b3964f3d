"""The simulator as a parallel environment of PettingZoo."""

import itertools
from typing import Any

import numpy as np

try:
    import gymnasium
    from pettingzoo import ParallelEnv
except ModuleNotFoundError as error:
    text = (
        "a ParallelEnv needs PettingZoo; in a clone of the project: pip install -e '.[pettingzoo]'"
    )
    raise ImportError(text) from error

from mapf_jax.dynamics import MOVES, WAIT
from mapf_jax.env import observations
from mapf_jax.env.environment import MapfFrozenLake
from mapf_jax.env.gymnasium_env import RENDER_MODES, MapfGymEnv, gymnasium_space
from mapf_jax.types import Instance


class MapfParallelEnv(ParallelEnv[str, Any, int]):
    """One environment with an actor for each agent, `agent_0`, `agent_1` and so on.

    Each agent sees `observations.of_agent`: its own square, or all agents with itself first. With
    `action_mask` this is under "observation", the mask under "action_mask". All agents of an
    episode start and end together; agents that an instance does not have take no part.

    `reset(options={"instance": instance})` plays a given single instance.

    Args:
      env: from `mapf_jax.env.make`.
      instances, render_mode: as of `MapfGymEnv`.
    """

    metadata = {"name": "mapf_frozen_lake_v0", "render_modes": RENDER_MODES}  # noqa: RUF012

    def __init__(
        self,
        env: MapfFrozenLake,
        instances: Instance | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._env = env
        self._all_agents = MapfGymEnv(env, instances, render_mode)
        self.render_mode = render_mode
        self.possible_agents = [f"agent_{i}" for i in range(env.num_agents)]
        self.agents: list[str] = []
        own = gymnasium_space(env.observation_space_of_agent)
        if env.action_mask:
            mask = gymnasium.spaces.MultiBinary(len(MOVES))
            own = gymnasium.spaces.Dict({"observation": own, "action_mask": mask})
        self.observation_spaces = dict.fromkeys(self.possible_agents, own)
        self.action_spaces = {
            agent: gymnasium.spaces.Discrete(len(MOVES)) for agent in self.possible_agents
        }

    def observation_space(self, agent: str) -> gymnasium.Space:
        """As of PettingZoo."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space:
        """As of PettingZoo."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """As of PettingZoo."""
        observation, info = self._all_agents.reset(seed=seed, options=options)
        self.agents = list(itertools.compress(self.possible_agents, self._all_agents.active))
        views, _, infos = self._by_agent(observation, info)
        return views, infos

    def step(
        self, actions: dict[str, int]
    ) -> tuple[
        dict[str, Any],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """As of PettingZoo; an agent without an action waits.

        Raises:
          ValueError: an action is of an agent that does not take part.
        """
        strangers = set(actions) - set(self.agents)
        if strangers:
            raise ValueError(f"actions: {sorted(strangers)} take no part, only {self.agents}")
        joint = [actions.get(agent, WAIT) for agent in self.possible_agents]
        observation, _, terminated, truncated, info = self._all_agents.step(joint)
        views, rewards, infos = self._by_agent(observation, info)
        ends = [dict.fromkeys(self.agents, ended) for ended in (terminated, truncated)]
        if terminated or truncated:
            self.agents = []
        return views, rewards, ends[0], ends[1], infos

    def render(self) -> str | np.ndarray | None:
        """As of `MapfGymEnv`."""
        return self._all_agents.render()

    def _by_agent(
        self, observation: Any, info: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, dict[str, Any]]]:
        """Views, rewards and infos of the agents that take part."""
        kind, mask = self._env.observation, info.get("action_mask")
        views, rewards, infos = {}, {}, {}
        for i, agent in enumerate(self.possible_agents):
            if agent not in self.agents:
                continue
            view = observations.of_agent(kind, observation, i)
            views[agent] = view if mask is None else {"observation": view, "action_mask": mask[i]}
            rewards[agent] = float(info["rewards"][i])
            infos[agent] = {
                "violation": int(info["violation"][i]),
                "at_goal": bool(info["at_goal"][i]),
                "success": bool(info["success"]),
                "cost": int(info["costs"][i]),
            }
        return views, rewards, infos
