"""MAPF-FrozenLake in JAX: a batched simulator, an exact solver and an instance generator."""

from mapf_jax.environment_config import EnvironmentConfig

__all__ = ["EnvironmentConfig"]
