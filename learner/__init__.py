"""Reinforcement learning of language models on any text task, in JAX."""
