"""MAPF-FrozenLake in JAX: a batched simulator, an exact solver and an instance generator."""

from mapf_jax.environment_config import EnvironmentConfig
from mapf_jax.generator import GenerationReport, NoInstanceError, fingerprints, generate
from mapf_jax.solver import solve
from mapf_jax.text import plans_from_texts, prompt, render_answer
from mapf_jax.types import (
    CHECKS,
    INFINITE_COST,
    Instance,
    Plan,
    Solution,
    Status,
    Verdict,
    ViolationKind,
)
from mapf_jax.verify import verify

__all__ = [
    "CHECKS",
    "INFINITE_COST",
    "EnvironmentConfig",
    "GenerationReport",
    "Instance",
    "NoInstanceError",
    "Plan",
    "Solution",
    "Status",
    "Verdict",
    "ViolationKind",
    "fingerprints",
    "generate",
    "plans_from_texts",
    "prompt",
    "render_answer",
    "solve",
    "verify",
]
