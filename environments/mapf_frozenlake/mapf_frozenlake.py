"""MAPF-FrozenLake under the name by which `verifiers` looks it up."""

from mapf_jax.integrations.verifiers_taskset import MapfTaskset

__all__ = ["MapfTaskset"]
