"""MAPF-FrozenLake in JAX: a batched simulator, an exact solver and an instance generator."""

from mapf_jax.check import check_env
from mapf_jax.env import MapfFrozenLake, RewardWeights
from mapf_jax.environment_config import EnvironmentConfig
from mapf_jax.generator import GenerationReport, NoInstanceError, fingerprints, generate
from mapf_jax.padding import pad_instance
from mapf_jax.registration import make, register, registered_envs
from mapf_jax.solver import solve
from mapf_jax.text import plans_from_texts, prompt, render_answer
from mapf_jax.types import (
    CHECKS,
    INFINITE_COST,
    Instance,
    Plan,
    Solution,
    State,
    Status,
    TimeStep,
    Verdict,
    ViolationKind,
)
from mapf_jax.verify import verify
from mapf_jax.wrappers import AutoReset, Batched, LogEpisodes, PoolAutoReset, RandomAutoReset

__all__ = [
    "CHECKS",
    "INFINITE_COST",
    "AutoReset",
    "Batched",
    "EnvironmentConfig",
    "GenerationReport",
    "Instance",
    "LogEpisodes",
    "MapfFrozenLake",
    "NoInstanceError",
    "Plan",
    "PoolAutoReset",
    "RandomAutoReset",
    "RewardWeights",
    "Solution",
    "State",
    "Status",
    "TimeStep",
    "Verdict",
    "ViolationKind",
    "check_env",
    "fingerprints",
    "generate",
    "make",
    "pad_instance",
    "plans_from_texts",
    "prompt",
    "register",
    "registered_envs",
    "render_answer",
    "solve",
    "verify",
]
