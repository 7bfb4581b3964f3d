"""The simulator for training agents: environment, wrappers and interfaces of other libraries."""

from mapf_jax.env.checks import EnvironmentCheckError as EnvironmentCheckError
from mapf_jax.env.checks import check_env as check_env
from mapf_jax.env.environment import MapfFrozenLake as MapfFrozenLake
from mapf_jax.env.environment import RewardWeights as RewardWeights
from mapf_jax.env.environment import make as make
from mapf_jax.env.environment import registered_envs as registered_envs
from mapf_jax.env.rollout import rollout as rollout
from mapf_jax.env.wrappers import LogEpisodes as LogEpisodes
from mapf_jax.env.wrappers import PoolAutoReset as PoolAutoReset
