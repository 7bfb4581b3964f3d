"""MAPF-FrozenLake in JAX: a batched simulator, an exact solver and an instance generator."""

from mapf_jax.benchmark import BenchmarkSet, benchmark_instances
from mapf_jax.draw.ascii import ascii_frames, ascii_instance, instance_from_ascii
from mapf_jax.env.check_env import check_env
from mapf_jax.env.environment import MapfFrozenLake, RewardWeights
from mapf_jax.env.registration import make, register, registered_envs
from mapf_jax.env.wrappers import AutoReset, Batched, LogEpisodes, PoolAutoReset, RandomAutoReset
from mapf_jax.environment_config import EnvironmentConfig
from mapf_jax.generator import GenerationReport, NoInstanceError, fingerprints, generate
from mapf_jax.padding import pad_instance
from mapf_jax.solver.batch import solve
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
    make_instance,
    stack,
)
from mapf_jax.verify import verify

__all__ = [
    "CHECKS",
    "INFINITE_COST",
    "AutoReset",
    "Batched",
    "BenchmarkSet",
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
    "ascii_frames",
    "ascii_instance",
    "benchmark_instances",
    "check_env",
    "fingerprints",
    "generate",
    "instance_from_ascii",
    "make",
    "make_instance",
    "pad_instance",
    "plans_from_texts",
    "prompt",
    "register",
    "registered_envs",
    "render_answer",
    "solve",
    "stack",
    "verify",
]
