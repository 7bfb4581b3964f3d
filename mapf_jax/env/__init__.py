"""What people who train agents use: environment, wrappers and the interfaces of other libraries."""

from mapf_jax.env.checks import EnvironmentCheckError, check_env
from mapf_jax.env.environment import MapfFrozenLake, RewardWeights
from mapf_jax.env.random_instances import draw_instance
from mapf_jax.env.registration import make, registered_envs
from mapf_jax.env.wrappers import AutoReset, Batched, LogEpisodes, PoolAutoReset, RandomAutoReset

__all__ = [
    "AutoReset",
    "Batched",
    "EnvironmentCheckError",
    "LogEpisodes",
    "MapfFrozenLake",
    "PoolAutoReset",
    "RandomAutoReset",
    "RewardWeights",
    "check_env",
    "draw_instance",
    "make",
    "registered_envs",
]
