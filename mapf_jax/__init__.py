"""MAPF-FrozenLake in JAX: a batched simulator, an exact solver and an instance generator."""

from mapf_jax.benchmark import BenchmarkSet, benchmark_instances
from mapf_jax.draw.render import ascii_frames, ascii_instance, instance_from_ascii
from mapf_jax.environment_config import EnvironmentConfig
from mapf_jax.generator import GenerationReport, NoInstanceError, fingerprints, generate
from mapf_jax.padding import pad_instance
from mapf_jax.solver.batch import solve
from mapf_jax.solver.joint_search import joint_costs
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

__version__ = "0.1.0"

__all__ = [
    "CHECKS",
    "INFINITE_COST",
    "BenchmarkSet",
    "EnvironmentConfig",
    "GenerationReport",
    "Instance",
    "NoInstanceError",
    "Plan",
    "Solution",
    "State",
    "Status",
    "TimeStep",
    "Verdict",
    "ViolationKind",
    "__version__",
    "ascii_frames",
    "ascii_instance",
    "benchmark_instances",
    "fingerprints",
    "generate",
    "instance_from_ascii",
    "joint_costs",
    "make_instance",
    "pad_instance",
    "plans_from_texts",
    "prompt",
    "render_answer",
    "solve",
    "stack",
    "verify",
]
